export { checkDuration, checkWait, checkWholeNumber, MAX_DURATION_MS } from './base/check-number.js';
export {
  ERROR_CATALOGUE,
  type ErrorBody,
  type ErrorCode,
  type ErrorDetails,
  KernelError,
  toErrorBody,
} from './base/errors.js';
export { TEXT_MATCHES, type TextMatch, type TextRange, WantedText } from './base/find-text.js';
export { findingsOf, findingWords, meant, plainWords, safeParse, toBadRequest } from './base/findings.js';
export {
  type AgentId,
  type BatchId,
  type BoxId,
  type CardId,
  type Id,
  type NewId,
  type ProfileId,
  type ProjectId,
  parseId,
  type RunId,
  type ToolCallId,
  type TurnId,
  tryParseId,
  type WorkerId,
} from './base/ids.js';
export {
  canonicalJson,
  isCleanText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  jsonObjectSchema,
  parseJsonValue,
  type Sanitized,
  sanitizeJson,
  sanitizeText,
  sha256,
} from './base/json.js';
export { copyKeyOrder, jsonText, parseJson, setKeyOrder } from './base/key-order.js';
export {
  agentIdIn,
  agentLabel,
  agentNamesOf,
  freshAgentName,
  givenNames,
  isGivenName,
  isPlainName,
  MAX_ANCHOR_NAME,
  MAX_TAPE_NAME,
  nameSchema,
  PLAIN_NAME,
  readsAsReference,
  SELECTOR_NAME,
  spellingsOf,
  toName,
} from './base/names.js';
export { pythonJson } from './base/python-json.js';
export { parseRelaxedJson } from './base/relaxed-json.js';
export { decideRetry, type RetryDecision, type RetryLimits } from './base/retry.js';
export { declareSecrets, maskSecrets, type Secret, warnOfSecrets } from './base/secrets.js';
export { suggest } from './base/suggest.js';
export { LONGEST_TIMER_MS, startTimer, type Timer } from './base/timer.js';
export { shareSessionGraph } from './bub/share-session-graph.js';
export {
  FilePaths,
  fileStem,
  formatManifest,
  formatSessionGraph,
  hashedStem,
  isFilePath,
  joinSessionGraphs,
  MAX_STATUS_LENGTH,
  type ManifestTape,
  parseManifest,
  parseSessionGraph,
  type SessionLine,
  type TapeFolderManifest,
} from './bub/tape-folder.js';
export {
  lineTooLong,
  MAX_LINE_LENGTH,
  type TapeLine,
  type TapeLineReader,
  type TapeLineWriter,
  tapeLineReader,
  tapeLineWriter,
} from './bub/tape-jsonl.js';
export {
  type Account,
  type Allotment,
  type Amounts,
  type BudgetHit,
  type BudgetInput,
  type BudgetLimits,
  budgetExceeded,
  budgetSchema,
  DEFAULT_RUN_TURNS,
  decideGrant,
  estimatePrompt,
  findShortfall,
  findSpawnHit,
  type Grant,
  needOf,
  priceUnknown,
  type Spawn,
  type Spent,
  toBudgetLimits,
  wantOf,
} from './budget/budget.js';
export { type ProjectLimits, projectLimitsSchema } from './budget/project.js';
export type {
  Asked,
  ContextBoxDraft,
  ExpandedBox,
  LeafRange,
  Segment,
  SegmentCut,
  SegmentRule,
} from './card/box.js';
export {
  buildCard,
  CARD_TYPES,
  type Card,
  type CardContent,
  type CardDraft,
  type CardInput,
  type ContentOf,
  cardInputSchema,
  contentSchema,
  estimateTokens,
  type Field,
  fieldsSchema,
  MAX_CARD_BYTES,
  type NewCard,
  parseCardInput,
  ROLES,
  type Role,
} from './card/card.js';
export type { Message, MessageToolCall, ToolSchema } from './card/message.js';
export {
  describeProviderData,
  type ProviderData,
  type ProviderDataFacts,
  type ProviderPart,
  providerDataBytes,
  readProviderData,
  toProviderCallId,
} from './card/provider-data.js';
export { checkResult } from './card/result-fields.js';
export {
  beginCommand,
  type CommaCommand,
  isCommaCommand,
  parseCommaCommand,
} from './command/comma-command.js';
export { type CommandScan, scanCommands } from './command/scan.js';
export {
  COMMAND_HELP,
  type CommandCall,
  commandFault,
  readTapeCommand,
  type TapeCommand,
  takeCommands,
  withCommands,
} from './command/tape-command.js';
export {
  decidePurge,
  type KeptRun,
  type PurgeCause,
  type PurgeDecision,
  type PurgeReference,
} from './diagnose/purge.js';
export {
  explainWait,
  type WaitFacts,
  type WaitFactsCall,
  type WaitFactsTurn,
  type WaitReport,
} from './diagnose/wait-chain.js';
export { findWaitCycles, type WaitCycle, type WaitingTurn } from './diagnose/wait-cycles.js';
export type { WaitLink, WaitLinkKind } from './diagnose/wait-links.js';
export {
  contextContract,
  contextReminder,
  DEFAULT_CONTEXT_TOKENS,
  DEFAULT_REMINDER_SHARE,
} from './model/context-contract.js';
export {
  type Doorbell,
  type DoorbellSubscription,
  type Model,
  ModelError,
  type ModelErrorCode,
  type ModelReply,
  type ModelRequest,
  type ModelToolCall,
  type ModelUsage,
  type Ring,
  type SelectorFinding,
  type SettingFinding,
  type ToolFinding,
  type WireNote,
} from './model/ports.js';
export {
  BUILT_IN_PRICES,
  costOf,
  dearestOf,
  findPrice,
  isFree,
  LISTED_PRICES,
  type ModelPrice,
  needsPrice,
  type PriceTable,
  pricesSchema,
  priceTables,
} from './model/prices.js';
export {
  type Asking,
  beginCalls,
  chooseCallers,
  DEFAULT_BREAKER_AFTER,
  findRoom,
  isProviderAnswer,
  isProviderFailure,
  noteFailure,
  PROBE_MS,
  type ProviderState,
  providerOf,
  type Room,
} from './model/provider.js';
export { appendAutoHandoff, draftAutoHandoff } from './overflow/auto-handoff.js';
export { planCompaction } from './overflow/compaction-plan.js';
export {
  answerTokensOf,
  type ContextLimits,
  contextLimitsOf,
  findAnswerFinding,
  toldLimitOf,
} from './overflow/context-limit.js';
export { readCardPage, readSummaryPage } from './overflow/expand-page.js';
export {
  AUTO_HANDOFF_ANCHOR,
  AUTO_HANDOFF_REASON,
  isContextOverflow,
  MAX_AUTO_HANDOFFS,
  type OverflowEvidence,
} from './overflow/overflow.js';
export { PackingStrategies } from './packing/budget.js';
export { candidatesOf, cutDraft } from './packing/candidates.js';
export {
  decideListedBox,
  decidePacking,
  draftPacking,
  type InheritedBox,
  isOverBudget,
  MAX_CONTEXT_CARDS,
  MAX_INSTRUCTION_BYTES,
  type PackInput,
  type Packing,
  type PackingDraft,
  sealPacking,
} from './packing/draft.js';
export {
  assertHandover,
  decideNamedBoxes,
  decideTargetProfile,
  type Handover,
  type HandoverInput,
  type HandoverNotice,
  handoverNotices,
  handoverSchema,
  instructionHandover,
  type NamedBox,
  parseHandover,
} from './packing/handover.js';
export type {
  CardFacts,
  PackCandidate,
  PackingChoice,
  PackingCuts,
  PackingOffer,
  PackingStrategy,
} from './packing/strategy.js';
export { buildHandoff, handoffHandover, readHandoffTarget } from './primitive/handoff.js';
export {
  type AskExpert,
  askExpertSchema,
  type Cancel,
  type Collect,
  type ContextHandoff,
  type CreateBox,
  cancelSchema,
  collectSchema,
  contextHandoffSchema,
  createBoxSchema,
  type DelegateAsync,
  delegateAsyncSchema,
  type ForkJoin,
  forkJoinSchema,
  type GrantBox,
  grantBoxSchema,
  type LaunchPrincipal,
  launchPrincipalSchema,
  type ProvisionAgent,
  provisionAgentSchema,
  type RaiseBudget,
  raiseBudgetSchema,
  type SubmitResult,
  selectorOfView,
  startOfView,
  submitResultSchema,
  type TurnView,
  type TurnViewStart,
  turnViewSchema,
} from './primitive/primitive.js';
export {
  LIST_PROFILES,
  MAX_TOLD_PROFILES,
  referToProfiles,
  shortDescription,
  type ToldProfiles,
  tellProfiles,
} from './primitive/reach.js';
export {
  checkDelegation,
  checkReuse,
  type DelegationTarget,
  mayDelegate,
  type ReuseTarget,
} from './profile/policy.js';
export {
  type DelegationPolicy,
  type Profile,
  type ProfileInput,
  parseProfile,
  profileSchema,
  WORKER_TARGET,
} from './profile/profile.js';
export {
  type CallDecision,
  checkArguments,
  decideQueueCall,
  type JobLook,
  type QueueTool,
  TOOL_NAME,
  toolNameOf,
  toolNames,
} from './profile/queue-tool.js';
export { askedText, isBlank, parentOf, renderBody } from './render/render.js';
export { briefSchema } from './schema/brief-schema.js';
export { parseTapeDate, pythonDate } from './tape/date.js';
export { type ChatMessage, type TapeMessagesOptions, tapeMessages } from './tape/messages.js';
export {
  type AnchorSelector,
  anchorNotFound,
  buildTapeQuery,
  LAST_ANCHOR,
  matchesText,
  parseTapeQuery,
  selectRecords,
  type TapeQuery,
  type TapeQueryBuilder,
  type TapeQueryInput,
  type TapeSlice,
  tapeQuerySchema,
  toSlice,
} from './tape/query.js';
export {
  anchorNameOf,
  anchorState,
  askedAsMessage,
  type EntryDraft,
  type FileMark,
  readRecord,
  type StoredEntry,
  startedContext,
  type TapeRecord,
  toRecord,
  toRecords,
} from './tape/record.js';
export { formatTapeRef, parseTapeRef, type TapeRef } from './tape/ref.js';
export { foldedWords, matchSearch, parseSearch, type TapeSearch, wordsOf } from './tape/search.js';
export {
  normalizeWorkspace,
  type SessionAddress,
  type SessionRef,
  sessionAddressSchema,
  sessionTapeName,
  workspacePrefix,
} from './tape/session-address.js';
export {
  BOOTSTRAP_ANCHOR,
  BOOTSTRAP_LENGTH,
  BOOTSTRAP_STATE,
  ENTRY_KINDS,
  type EntryKind,
  type TapeEntry,
  TURN_STARTED,
  tapeName,
} from './tape/tape.js';
export {
  anchorsText,
  handoffOf,
  handoffText,
  infoText,
  matchLine,
  searchText,
  TAPE_HANDOFF,
  type TapeAnchors,
  type TapeHandoff,
  type TapeSearchInput,
  tapeAnchorsSchema,
  tapeHandoffSchema,
  tapeInfoSchema,
  tapeSearchSchema,
} from './tape/tools.js';
export {
  type BatchKind,
  type BatchStatus,
  buildResults,
  type Closing,
  decideJoin,
  type FinalBatchStatus,
  type JoinDecision,
  type JoinedTurn,
  type JoinState,
  type MemberResult,
  summaryLimit,
} from './turn/join.js';
export {
  FORK_RESULT_INSTRUCTION,
  forkResultText,
  INTENTION_ANCHOR,
  type Intention,
  NOTIFY_PARENT,
} from './turn/session.js';
export {
  type CallOutcome,
  type CallResult,
  canFollow,
  decideStep,
  type EndRule,
  enders,
  FINAL_STATUSES,
  type FinalStatus,
  isFinal,
  isStepNotice,
  MAX_EMPTY_REPLIES,
  type StepOutcome,
  stepNotice,
  TURN_STATUSES,
  type TurnEnd,
  type TurnStatus,
} from './turn/turn.js';
export { checkMessages } from './view/check-messages.js';
export { carryCompaction, EXPAND_TOOL, mayExpand, readCompaction, toReference } from './view/compaction.js';
export { bindProfile, type ContextCard, resultFieldsOf, type ViewRows } from './view/context.js';
export { hashCall, hashContext, TurnNews } from './view/loop-guard.js';
export {
  type ContextRule,
  foldManifest,
  type MessageOrigin,
  type OmissionReason,
  type SelectorRef,
  type StoredManifest,
  type ViewNotice,
  type ViewSource,
} from './view/manifest.js';
export { type MessagePart, messageParts, type PartField, type PartRule } from './view/parts.js';
export { PromptHasher, promptHash, toolsetHash } from './view/prompt-hash.js';
export {
  nameSelector,
  type Select,
  type SelectorCard,
  type SelectorEntry,
  selectorEntries,
  selectorFailed,
  selectView,
} from './view/selector.js';
export { agentsIn, buildView, type View } from './view/view.js';
