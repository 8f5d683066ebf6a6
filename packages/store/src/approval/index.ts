export {
  type CallTicket,
  closeAnswered,
  consumeForCall,
  findCallTicket,
  findUnwoken,
  lookAfter,
  parkCall,
  setAside,
  wakeDecided,
  withdrawTickets,
} from './gated-calls.js';
export {
  consumeTicket,
  decideTicket,
  expireDueTickets,
  findPending,
  findTicket,
  keepPolicy,
  listTickets,
  requestApproval,
  type TicketRow,
  voidTicket,
} from './tickets.js';
