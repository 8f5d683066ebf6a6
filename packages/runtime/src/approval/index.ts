export {
  ApprovalGate,
  type DecideOptions,
  type ListTicketsOptions,
  type TicketPage,
} from './approval-gate.js';
export { passGate } from './gate-call.js';
