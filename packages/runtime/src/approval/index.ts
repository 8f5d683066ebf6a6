export { ApprovalGate, type DecideOptions, toApprovalTicket } from './approval-gate.js';
export { type GatedCall, type GatePass, passGate } from './gate-call.js';
