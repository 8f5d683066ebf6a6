export {
  ApprovalGate,
  type ApprovalGateOptions,
  DEFAULT_PROJECT,
  type DecideOptions,
  type ListTicketsOptions,
  type TicketPage,
} from './approval-gate.js';
export { mayWait, passGate } from './gate-call.js';
