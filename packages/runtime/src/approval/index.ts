export {
  ApprovalGate,
  type DecideOptions,
  type ListTicketsOptions,
  type TicketPage,
  toApprovalTicket,
} from './approval-gate.js';
export { type GatedCall, type GatePass, passGate } from './gate-call.js';
