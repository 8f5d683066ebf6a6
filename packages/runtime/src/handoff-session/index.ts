export { HandoffSessions, openHandoffSessions, type SessionClient } from './handoff-sessions.js';
export type {
  CloseAnswer,
  ContextAnswer,
  ContextPageAnswer,
  RegisterAnswer,
  SessionAnswer,
  SessionListAnswer,
  SessionRefusal,
  SummaryAnswer,
  UpdateAnswer,
  WrittenAnswer,
} from './session-answers.js';
