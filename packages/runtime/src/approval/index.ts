export {
  ApprovalGate,
  type ApprovalGateOptions,
  DEFAULT_PROJECT,
  type DecideOptions,
  type ListTicketsOptions,
  type TicketPage,
} from './approval-gate.js';
export { expireDue } from './expire-due.js';
export { type AskedNames, mayWait, passGate } from './gate-call.js';
