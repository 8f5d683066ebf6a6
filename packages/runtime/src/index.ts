export {
  ApprovalGate,
  type ApprovalGateOptions,
  type DecideOptions,
  type ListTicketsOptions,
  type TicketPage,
} from './approval/index.js';
export type { Accepted, SubmitOptions } from './core/index.js';
export type { QueueDoor } from './door/index.js';
export { createQueueDoor, createToolResultsDoor, type QueueDoorOptions } from './door/index.js';
export type {
  BoxHop,
  BudgetCut,
  CardOrigin,
  CardPlace,
  ExplainedMessage,
  ExplainedOmission,
  ExplainedTool,
  Finding,
  FirstPlace,
  Named,
  ReadRight,
  StepExplanation,
  WhyAnswer,
  WhyHint,
  WhyPart,
  WhyPlace,
} from './explain/index.js';
export { explainStep, type StepChoice, TurnPrompts, why } from './explain/index.js';
export type {
  BatchRef,
  CallerContext,
  Handler,
  HandlerTools,
  JoinRequest,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from './handler/index.js';
export { BUILT_IN as builtInHandlers } from './handlers/built-in.js';
export {
  AGDDHandoffAdapter,
  type AgentContext,
  type AgentFunction,
  type AgentRunner,
  type ChainHopInput,
  type ChainInput,
  type ChainOptions,
  chainForm,
  checkHandoffOptions,
  checkWebhookOptions,
  type HandoffAnswer,
  type HandoffInput,
  type HandoffPage,
  type HandoffRuntime,
  type HandoffSettings,
  HandoffTool,
  type HandoffToolOptions,
  handoffForm,
  handoffsOfRoot,
  type ListHandoffsOptions,
  type ListWebhooksOptions,
  listHandoffPage,
  listWebhookPage,
  messagesOf,
  type NativeAdapterOptions,
  NativeHandoffAdapter,
  type ReplyOptions,
  replyTo,
  retryWebhook,
  type WebhookPage,
  waitForHandoff,
} from './handoff/index.js';
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
} from './handoff-session/index.js';
export {
  acceptHandoff,
  completeHandoff,
  findPackage,
  HandoffSessions,
  openHandoffSessions,
  rejectHandoff,
  requestHandoff,
  type SessionClient,
} from './handoff-session/index.js';
export {
  authenticateKey,
  type CreatedKey,
  type CreateKeyOptions,
  createKey,
  digestKey,
  type Key,
  type KeyList,
  type KeyPrincipal,
  type ListKeysOptions,
  listKeys,
  makeKeyText,
  type RotateKeyOptions,
  revokeKey,
  rotateKey,
} from './key/index.js';
export {
  type Actor,
  createLog,
  failStrayCall,
  findActor,
  type Log,
  type LogLevel,
  newId,
  silentLog,
  withinTime,
  writeLogLine,
} from './lib/index.js';
export {
  checkListOptions,
  type ListAgentsOptions,
  type ListBoxesOptions,
  type ListEnd,
  type ListNoun,
  type ListOptions,
  type ListProjectsOptions,
  type ListSearch,
  type ListTurnsOptions,
  listAgents,
  listBoxes,
  listPrimitives,
  listProjects,
  listRuns,
  listTools,
  listTurns,
  type RegisteredList,
  type RowList,
  type RowListOptions,
} from './lists.js';
export { type OpenRuntime, type OpenRuntimeOptions, openRuntime } from './open.js';
export type {
  CountTokens,
  PackPreview,
  PreviewCard,
  PreviewMessage,
  PreviewOptions,
  PreviewSum,
} from './pack/index.js';
export {
  HandoverPacker,
  type PackedContext,
  type PackLimits,
  type PackRequest,
  type Selector,
  Selectors,
} from './pack/index.js';
export { loadPlugins, type Plugin } from './plugin.js';
export type { ProfileRef, ProfileScope, ProfileVersion } from './profile/index.js';
export {
  archiveProject,
  type CreatedProject,
  type CreateProjectOptions,
  createProject,
  getProject,
} from './profile/index.js';
export {
  AgentDoor,
  type ListTasksOptions,
  openAgentDoor,
  type PublicMessage,
  type PublicReply,
  PushReceivers,
  type PushRequest,
  type TaskPage,
} from './public-agent/index.js';
export type { TurnResult } from './queue/index.js';
export {
  BullMqDoorbell,
  InProcessDoorbell,
  migrateQueues,
  openQueues,
  type QueueConnection,
  type Queues,
} from './queue/index.js';
export {
  type AppliedProfile,
  type ProfileFinding,
  Runtime,
  type RuntimeOptions,
  type TurnScope,
} from './runtime.js';
export type {
  AnchorSummary,
  AnchorsOptions,
  AnchorsPage,
  Appended,
  AppendOptions,
  EntryInput,
  EntryOptions,
  ForkedSession,
  ForkSessionOptions,
  Handoff,
  HandoffOptions,
  ImportedTape,
  ImportOptions,
  MessagesOptions,
  ResolvedTapeRef,
  SearchOptions,
  TapeFile,
  TapeFolder,
  TapeInfo,
  TapeMatch,
  TapeOptions,
  TapeSource,
  TapeTarget,
} from './tape/index.js';
export {
  type ForkOptions,
  type ForkSummary,
  SessionGraph,
  type SessionMetadata,
  type SessionScope,
  Tape,
  TapeFork,
} from './tape/index.js';
export type { IsolatedTool, Tool, ToolContext, ToolServers } from './tool/index.js';
export { type CommandAnswer, runTapeCommand } from './tool/index.js';
export { ToolQueue } from './tool-queue/index.js';
export type { WebhookSettings } from './webhook/index.js';
export { createWorker, Worker, type WorkerOptions } from './worker/index.js';
