export { HandoffSessions, openHandoffSessions, type SessionClient } from './handoff-sessions.js';
export { requestHandoff } from './request-handoff.js';
export type {
  CloseAnswer,
  ContextAnswer,
  ContextPageAnswer,
  HandoffRequestAnswer,
  RegisterAnswer,
  SessionAnswer,
  SessionListAnswer,
  SessionRefusal,
  SummaryAnswer,
  UpdateAnswer,
  WrittenAnswer,
} from './session-answers.js';
