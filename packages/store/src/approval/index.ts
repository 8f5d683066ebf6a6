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
  decideTicket,
  expireDueTickets,
  findTicket,
  keepPolicy,
  listTickets,
  type TicketRow,
  voidTicket,
} from './tickets.js';
