export { argsHash } from './args-hash.js';
export {
  type ChainArguments,
  type ChainCall,
  type ChainHop,
  chainArgumentsSchema,
  nextMove,
} from './chain.js';
export {
  HANDOFF_RESULT_INSTRUCTION,
  handoffResultText,
  UNREAD_RESULTS_INSTRUCTION,
} from './handoff-result.js';
export { maskArguments } from './mask-arguments.js';
export {
  HANDOFF_STATUSES,
  type HandoffPhase,
  type HandoffStatus,
  handoffStatusOf,
  isFinalPhase,
  PHASE_MOVES,
  phasesOf,
} from './phases.js';
export {
  type ApprovalTicket,
  HANDOFF_PRIMITIVES,
  type Handoff,
  type HandoffEvent,
  type HandoffMessage,
  type HandoffMode,
  type HandoffOutline,
  type HandoffPart,
  type HandoffRequest,
  type HandoffResponse,
  type Principal,
  TICKET_STATUSES,
  type TicketStatus,
  toHandoffRequest,
  toHandoffResponse,
} from './records.js';
export {
  DEFAULT_HANDOFF_RETRY,
  DEFAULT_HANDOFF_SECONDS,
  type HandoffArguments,
  handoffArgumentsSchema,
  MAX_HANDOFF_KEY,
} from './request.js';
export {
  acceptHandoffSchema,
  type ContextEntryInput,
  closeSessionSchema,
  completeHandoffSchema,
  contextEntriesOf,
  DEFAULT_HANDOFF_INSTRUCTION,
  getContextSchema,
  getSummarySchema,
  type HandoffRequestType,
  listSessionsSchema,
  MAX_CONTEXT_BYTES,
  MAX_CONTEXT_METADATA_BYTES,
  MAX_SESSION_PAGE,
  REQUEST_PRIORITIES,
  registerSessionSchema,
  rejectHandoffSchema,
  requestHandoffSchema,
  retentionPolicyOf,
  type SessionHandoffRequest,
  targetsOf,
  updateContextSchema,
} from './session-request.js';
export {
  type ContextCounts,
  type ContextType,
  type HandoffSessionId,
  RETENTION,
  RETENTION_POLICIES,
  type RetentionPolicy,
  type SessionStatus,
  type StoredSessionStatus,
  sessionStateOf,
  summarizeSession,
  totalOf,
} from './sessions.js';
export {
  type HandoffToolSchema,
  handoffToolSchema,
  platformOf,
  readHandoffCall,
} from './tool-schemas.js';
export {
  DELIVERY_STATUSES,
  type DeliveryStatus,
  deliveryPauseMs,
  type WebhookDelivery,
  withoutQuery,
} from './webhooks.js';
