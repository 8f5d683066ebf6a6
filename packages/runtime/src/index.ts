export type { Accepted, SubmitOptions } from './core/submit-options.js';
export type { QueueDoor } from './door/door-job.js';
export { createQueueDoor, type QueueDoorOptions } from './door/queue-door.js';
export { createToolResultsDoor } from './door/tool-results-door.js';
export type {
  BoxHop,
  BudgetCut,
  CardOrigin,
  CardPlace,
  FirstPlace,
  Named,
  ReadRight,
} from './explain/card-origin.js';
export type {
  ExplainedMessage,
  ExplainedOmission,
  ExplainedTool,
  StepExplanation,
} from './explain/explain-step.js';
export type { Finding } from './explain/rebuild.js';
export { explainStep, type StepChoice, TurnPrompts, why } from './explain/turn-prompts.js';
export type { WhyAnswer, WhyHint, WhyPart, WhyPlace } from './explain/why.js';
export type {
  BatchRef,
  CallerContext,
  Handler,
  HandlerTools,
  JoinRequest,
  NewAgentRequest,
  SubmitTurnRequest,
  TurnRef,
} from './handler/handler.js';
export { BUILT_IN as builtInHandlers } from './handlers/built-in.js';
export { failStrayCall } from './lib/call-scope.js';
export { createLog, type Log, type LogLevel, silentLog, writeLogLine } from './lib/log.js';
export { newId } from './lib/new-id.js';
export { withinTime } from './lib/within-time.js';
export {
  type ListAgentsOptions,
  type ListBoxesOptions,
  type ListEnd,
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
export { HandoverPacker, type PackedContext, type PackLimits, type PackRequest } from './pack/packer.js';
export type {
  CountTokens,
  PackPreview,
  PreviewCard,
  PreviewMessage,
  PreviewOptions,
  PreviewSum,
} from './pack/preview.js';
export { type Selector, Selectors } from './pack/selectors.js';
export { loadPlugins, type Plugin } from './plugin.js';
export type { ProfileRef, ProfileScope, ProfileVersion } from './profile/profiles.js';
export {
  archiveProject,
  type CreatedProject,
  type CreateProjectOptions,
  createProject,
  getProject,
} from './profile/projects.js';
export { BullMqDoorbell } from './queue/doorbell-bullmq.js';
export { InProcessDoorbell } from './queue/doorbell-in-process.js';
export { migrateQueues, openQueues, type QueueConnection, type Queues } from './queue/queues.js';
export type { TurnResult } from './queue/turn-result.js';
export {
  type AppliedProfile,
  type ProfileFinding,
  Runtime,
  type RuntimeOptions,
  type TurnScope,
} from './runtime.js';
export type { EntryInput } from './tape/entry-input.js';
export type { TapeFolder } from './tape/export-tape.js';
export { type ForkOptions, type ForkSummary, TapeFork } from './tape/fork.js';
export type { ForkedSession, ForkSessionOptions } from './tape/fork-session.js';
export type { TapeFile, TapeSource } from './tape/import-source.js';
export type { ImportedTape, ImportOptions } from './tape/import-tape.js';
export type { TapeOptions } from './tape/open-tape.js';
export type { TapeMatch } from './tape/search-tape.js';
export { SessionGraph, type SessionMetadata, type SessionScope } from './tape/session-graph.js';
export { Tape } from './tape/tape.js';
export type { ResolvedTapeRef } from './tape/tape-ref.js';
export type {
  AnchorSummary,
  AnchorsOptions,
  AnchorsPage,
  Appended,
  AppendOptions,
  EntryOptions,
  Handoff,
  HandoffOptions,
  MessagesOptions,
  SearchOptions,
  TapeInfo,
  TapeTarget,
} from './tape/tape-types.js';
export type { IsolatedTool } from './tool/isolated-tool.js';
export { type CommandAnswer, runTapeCommand } from './tool/run-command.js';
export type { Tool, ToolContext } from './tool/tool.js';
export { ToolQueue } from './tool-queue/tool-queue.js';
export { createWorker, Worker, type WorkerOptions } from './worker/worker.js';
