export {
  HandoffSessions,
  openHandoffSessions,
  type SessionClient,
  type SessionRuntime,
} from './handoff-sessions.js';
export { acceptHandoff, completeHandoff, findPackage, rejectHandoff } from './packages.js';
export { requestHandoff } from './request-handoff.js';
export type {
  CloseAnswer,
  ContextAnswer,
  ContextPageAnswer,
  HandoffRequestAnswer,
  PackageAnswer,
  PackageMoveAnswer,
  RegisterAnswer,
  RequestedTarget,
  SessionAnswer,
  SessionListAnswer,
  SessionRefusal,
  SummaryAnswer,
  UpdateAnswer,
  WrittenAnswer,
} from './session-answers.js';
