export {
  type BoxId,
  type AgentId,
  type CardId,
  type Id,
  type NewId,
  parseId,
  type ProfileId,
  type ProjectId,
  type RunId,
  type ToolCallId,
  tryParseId,
  type TurnId,
  type WorkerId,
} from './ids.js';
export {
  ERROR_CATALOGUE,
  type ErrorBody,
  type ErrorCode,
  type ErrorDetails,
  KernelError,
  toErrorBody,
} from './errors.js';
export {
  canonicalJson,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  parseJsonValue,
  type Sanitized,
  sanitizeJson,
  sanitizeText,
  sha256,
} from './json.js';
export {
  buildCard,
  type Card,
  CARD_TYPES,
  type CardContent,
  type CardDraft,
  type CardInput,
  cardInputSchema,
  type ContentOf,
  contentSchema,
  estimateTokens,
  type Field,
  fieldsSchema,
  MAX_CARD_BYTES,
  type NewCard,
  parseCardInput,
  type Role,
  ROLES,
  toBadRequest,
} from './card.js';
export type { ContextBoxDraft, ExpandedBox, LeafRange, Segment, SegmentRule } from './box.js';
export {
  decideListedBox,
  decideNamedBoxes,
  decidePacking,
  decideTargetProfile,
  type Handover,
  type HandoverInput,
  handoverSchema,
  type InheritedBox,
  instructionHandover,
  MAX_CONTEXT_CARDS,
  MAX_INSTRUCTION_BYTES,
  type NamedBox,
  type Packing,
  type PackInput,
  parseHandover,
} from './packer.js';
export {
  type DelegationPolicy,
  parseProfile,
  type Profile,
  type ProfileInput,
  profileSchema,
} from './profile.js';
export { checkDelegation, type DelegationTarget, mayDelegate } from './policy.js';
export {
  type AskExpert,
  askExpertSchema,
  type CreateBox,
  createBoxSchema,
  type DelegateAsync,
  delegateAsyncSchema,
  type GrantBox,
  grantBoxSchema,
  type LaunchPrincipal,
  launchPrincipalSchema,
  type SubmitResult,
  submitResultSchema,
} from './primitive.js';
export { checkResult } from './result-fields.js';
export {
  BOOTSTRAP_ANCHOR,
  BOOTSTRAP_LENGTH,
  BOOTSTRAP_STATE,
  ENTRY_KINDS,
  type EntryKind,
  type TapeEntry,
  tapeName,
  TURN_STARTED,
} from './tape.js';
export {
  type CallOutcome,
  type CallResult,
  canFollow,
  decideStep,
  FINAL_STATUSES,
  type FinalStatus,
  isFinal,
  MAX_EMPTY_REPLIES,
  stepNotice,
  type StepOutcome,
  TURN_STATUSES,
  type TurnEnd,
  type TurnStatus,
} from './turn.js';
export type { Message, MessageToolCall, ToolSchema } from './message.js';
export {
  type Doorbell,
  type DoorbellSubscription,
  type Model,
  ModelError,
  type ModelReply,
  type ModelRequest,
  type ModelToolCall,
  type ModelUsage,
  type Ring,
} from './ports.js';
export { buildView, type View, type ViewRows } from './view.js';
export { type ContextCard, resultFieldsOf } from './view-context.js';
export { promptHash } from './prompt-hash.js';
export { checkMessages } from './check-messages.js';
