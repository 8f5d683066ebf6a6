export {
  type ExpandedCard,
  expandContexts,
  findCards,
  findContextBoxes,
  findReadableCards,
  type LoadedBox,
  type LoadedRange,
  loadBoxes,
  loadSnapshots,
  type SnapshotEntry,
} from './box/boxes.js';
export { loadCardFacts, loadCards } from './box/card-facts.js';
export { findReachable, findTurnPolicy, type ReachableProfile } from './box/reach.js';
export {
  type AccountRow,
  type BudgetReport,
  chargeLost,
  countChildren,
  dropUnasked,
  findAccount,
  findLeftovers,
  loadAccounts,
  loadBudgets,
  loadSpawnProfiles,
  lockRun,
  type PausedAccount,
  raiseAccount,
  reserve,
  type SpawnProfile,
  settleEnded,
  type TopUp,
  topUp,
  wakeForLeftovers,
} from './budget/budgets.js';
export {
  type ConnectionLimits,
  createDirectClient,
  endClient,
  limitsOf,
  SILENCE_MARGIN_MS,
  startupOptions,
} from './db/connection-limits.js';
export {
  asOutside,
  type BatchTry,
  checkOut,
  commitWatched,
  isOutOfResources,
  isOutside,
  isOverRowLimit,
  isServerTrouble,
  isTransient,
  type Queryable,
  queryOutside,
  retryTransient,
  sqlStateOf,
  type Tx,
  toConnectionError,
  toDatabaseError,
  transaction,
  type Watched,
  watchFailures,
} from './db/db.js';
export { inImportOrder } from './db/import-order.js';
export { type LimitedTry, type LockLimit, transactWithin } from './db/lock-limit.js';
export {
  checkSchemaVersion,
  loadMigrations,
  type MigrateOptions,
  type MigrateResult,
  type Migration,
  migrate,
  type SchemaRange,
  shippedSchema,
} from './db/migrate.js';
export {
  type HandlerScope,
  handlerScope,
  insideHandler,
  outsideHandlers,
  refuseNested,
  runningCode,
} from './db/open-transactions.js';
export {
  beginOn,
  createPool,
  dropConnections,
  dropIdle,
  dropSilent,
  endPool,
  isExhausted,
  limitByLease,
  limitsOn,
  type PoolOptions,
  silentFor,
} from './db/pool.js';
export { type PoolWait, poolWaits } from './db/pool-waits.js';
export {
  type ErasedCard,
  type ErasedEvidence,
  type ErasureOutcome,
  eraseCards,
  eraseEvidence,
  findOwnCards,
  holdErasures,
  repeatsCards,
} from './erase/erasure.js';
export { findLiveWorkers, type LiveWorker } from './health/live-workers.js';
export { type Activity, ActivityFeed } from './list/activity.js';
export { listRegistered, type RegisteredName } from './list/registered.js';
export { type ListedAgent, type ListedBox, listAgents, listBoxes } from './list/things.js';
export { writeTurnWords } from './list/turn-words.js';
export { type ListedRun, type ListedTurn, listRuns, listTurns, type TurnFilters } from './list/turns.js';
export {
  type KeptTape,
  type PurgeReport,
  purgeRuns,
  purgeTapes,
  readClock,
  type TapePurgeReport,
} from './purge/purge.js';
export type { KeptByPurge } from './purge/purge-plan.js';
export {
  type BoxCard,
  type BoxEntry,
  type BoxGrantLine,
  type BoxReport,
  inspectBox,
} from './report/box-report.js';
export {
  type Counted,
  type DirectFacts,
  probeDirectConnection,
  readServerFacts,
  readWorkFacts,
  type ServerFacts,
  type TargetFacts,
  type WorkFacts,
} from './report/doctor.js';
export {
  type BoxRight,
  type BoxRow,
  type ExplainedTurn,
  loadTurnRows,
  rightKey,
  type SourcedCard,
  type StepRow,
  type StoredCard,
  type StoredEntry,
  type TurnRows,
} from './report/explain.js';
export {
  type CallLine,
  type CardLine,
  type EvidenceLine,
  hasQueueTables,
  inspectTurn,
  type StepLine,
  type TurnLine,
  type TurnReport,
  type Usage,
} from './report/inspect.js';
export type { Invariant } from './report/invariant.js';
export {
  INVARIANTS,
  type InvariantOptions,
  type InvariantReport,
  inspectInvariants,
  invariantStatement,
} from './report/invariants.js';
export { loadWaitFacts } from './report/stuck.js';
export { loadTree, type OpenCall, type TreeBatch, type TreeNode, type TurnTree } from './report/tree.js';
export { findIdsNextTo, findNamed, findTree, type TreeOf } from './report/tree-ref.js';
export { findBoxId, findNeighbors, findTurnId, findTurnOrRun } from './report/turn-ref.js';
export { type Build, THIS_BUILD } from './rows/build.js';
export {
  afterTransaction,
  CallerTransaction,
  type CallerTx,
  toQueryable,
} from './rows/caller-transaction.js';
export {
  type BlockedJob,
  causeIn,
  type DeadLetter,
  findBlockedJob,
  forgetSettledFailures,
  listDeadLetters,
  MAX_TRIES,
  type NotedFailure,
  noteSweepFailure,
  noteWithin,
  retryDeadLetters,
} from './rows/dead-letters.js';
export type { ListPage, ListPlace } from './rows/list-page.js';
export { findNotifyRefusal, findSessionMaker } from './rows/notify-rights.js';
export type { PartReader } from './rows/rights.js';
export { grantWorkerRights } from './rows/worker-rights.js';
export type { CallRouteKind, OfferedTool, SweepKind } from './schema/row-kinds.js';
export { changeAgent, loadAgentNames, mayBeAgent, takeAgentName, takeAgentNames } from './submit/agents.js';
export {
  type AgentRow,
  byGivenName,
  type ChainLink,
  findActor,
  findAgent,
  findAgents,
  findProfileHashes,
  findProfiles,
  findProfileVersion,
  hasProfile,
  insertProfiles,
  loadOpenings,
  lockAgents,
  lockProfileNames,
  type Opening,
  type OpeningRequest,
  type ProfileRow,
} from './submit/callers.js';
export {
  findVersionIds,
  listProfiles,
  loadStoredProfiles,
  type ProfileLine,
  type StoredProfile,
} from './submit/profiles.js';
export {
  archiveProject,
  createProject,
  findProjectByRef,
  listProjects,
  listUsedModels,
  loadProject,
  type ProjectLine,
  type ProjectReport,
  setPrice,
  setProjectLimits,
  type UsedModel,
} from './submit/projects.js';
export {
  type CallWait,
  emptySubmission,
  type Fence,
  findSubmitted,
  type NewBatch,
  type NewBudget,
  type NewContextBox,
  type NewGrant,
  type NewOperation,
  type NewTurn,
  ringsOf,
  type Submission,
  type SubmissionItem,
  type SubmissionResult,
  type SubmittedTurn,
  writeSubmission,
  writeSubmissions,
} from './submit/submission.js';
export { withAsked } from './tape/asked.js';
export {
  type EntryRange,
  findAnchor,
  loadEntries,
  readEntries,
  readEntriesAt,
  type TapeEntryRow,
} from './tape/entries.js';
export {
  appendStaged,
  archiveTape,
  beginImport,
  beginTape,
  type EmptyTape,
  endImport,
  findImport,
  type ImportKey,
  type KnownImport,
  loadFolderFacts,
  lockImport,
  openStage,
  stageEntries,
  type TapeFolderFacts,
} from './tape/files.js';
export {
  discardFork,
  type ForkReceipt,
  type ForkRow,
  type ForkStatus,
  findCurrentTape,
  findFork,
  findLeftForks,
  listForks,
  type MergeResult,
  makeFork,
  mergeFork,
} from './tape/forks.js';
export { countAnchors, loadTapeFacts, type TapeFacts } from './tape/info.js';
export { findTapeLine, listTapes, listWorkspaceTapes, type TapeLine } from './tape/list.js';
export {
  closeNotice,
  findDueNotices,
  loadNotice,
  type Notice,
  passUnseen,
  tellEnd,
} from './tape/notices.js';
export {
  findTapePlace,
  handOverTape,
  loadTapeSlice,
  lockGrants,
  lockTape,
  type PlaceRequest,
  type TapePlace,
} from './tape/refs.js';
export { findActiveTurn, type ResetRequest, type ResetResult, resetTape, resetWithin } from './tape/reset.js';
export { makeSessionAgents, type SessionAgent } from './tape/session-agents.js';
export {
  findSession,
  insertImportedSession,
  listChildSessions,
  listLineage,
  listSessions,
  makeSession,
  type Session,
  sessionIdOfTape,
  setSessionStatus,
} from './tape/sessions.js';
export {
  type AppendRequest,
  type AppendResult,
  appendEntries,
  appendWithin,
  createTape,
  entryRecords,
  findTape,
  type NewTapeEntry,
  type TapeActor,
  type TapeAddress,
  type TapeRow,
} from './tape/tapes.js';
export { type EntryWords, findWords, insertWords, loadParts, type TapePart } from './tape/words.js';
export {
  addBatch,
  type BatchRow,
  closeBatch,
  closeBatchesOf,
  detachBatch,
  endBatch,
  findJoinable,
  findUnfinished,
  findWaitCycle,
  findWantedMembers,
  loadBatches,
  loadMembers,
  lockBatch,
  lockMembers,
  type MemberRow,
} from './turn/batches.js';
export type { Advance, AdvanceOutcome, CallSettlement, SettledTurns } from './turn/call-types.js';
export { type ClaimedTurn, type ClaimOutcome, claim, type Purse } from './turn/claims.js';
export { ENDED_CHANNEL } from './turn/commit-sql.js';
export {
  type CommitOutcome,
  type CommitResult,
  commitAgain,
  commitSteps,
  commitWithin,
} from './turn/commits.js';
export {
  type CompactionLink,
  countAnchorsOfTurn,
  findAnchorOfTurn,
  findCompactionLink,
  findLastWords,
} from './turn/compactions.js';
export { type Evidence, keepEvidence, keepLateAnswer } from './turn/evidence.js';
export {
  type FailedTurn,
  findEndable,
  findFailedTurns,
  findLostBatches,
  findLostCalls,
  findRunFailures,
  findUnendedMembers,
  type LostCall,
  type UnendedMember,
} from './turn/failed-turns.js';
export { type FinishedStep, findLockedSteps, finishSteps } from './turn/finish-steps.js';
export { findRings, findSettled } from './turn/first-tries.js';
export { findLateTargets, type LateTarget } from './turn/late-queue-calls.js';
export {
  type MidStep,
  type MidStepEntry,
  type MidStepOutcome,
  writeMidStep,
} from './turn/mid-step.js';
export {
  findDueCalls,
  hastenLooks,
  hastenLooksWithin,
  loadArguments,
  loadQueueCalls,
  markSent,
  newMark,
  noteLooks,
  type QueueCall,
  type SendMark,
} from './turn/queue-calls.js';
export { type EarlierCall, findRepeats } from './turn/repeats.js';
export type { NewEntry, NewToolCall, StepCommit, TurnEnding } from './turn/step-commit.js';
export {
  CANCELED_CHANNEL,
  findSubtreeRoot,
  hasDueNotices,
  isCanceled,
  loadOpenCalls,
  lockAwaited,
  lockSubtrees,
  notifyCanceled,
  type OpenCallRow,
  type OpenTurn,
  type SeenTurn,
  type SubtreeRoot,
} from './turn/subtrees.js';
export type { EndableTurn } from './turn/sweep-turns.js';
export {
  advanceTurns,
  hasSucceeded,
  loadCallsOfStep,
  loadPendingCalls,
  type PendingCall,
  recordResults,
  settleCalls,
} from './turn/tool-calls.js';
export { findToldProfiles, writeToolset } from './turn/toolsets.js';
export { type HeldAt, loadTurnStates, releaseNoted, releaseTurns, type TurnState } from './turn/turns.js';
export {
  claimWithViews,
  type LoadedView,
  loadPricedProfiles,
  loadProfiles,
  loadViews,
  type ViewedClaim,
} from './turn/views.js';
export { findWarmedTargets } from './turn/warm-cache.js';
export type { KnownTape, KnownTapes } from './visible/known-tapes.js';
export { findViewStarts, type HiddenView, type ViewStart, type ViewWish } from './visible/turn-views.js';
export { BLOCKED_WORKER, type BlockedWorkerTexts } from './work/blocked-worker.js';
export {
  announceWorker,
  askServer,
  endLease,
  interruptWatch,
  type LockSign,
  parseWorkerNotice,
  readLockSign,
  WORKERS_CHANNEL,
  watchPeer,
} from './work/liveness.js';
export {
  type Caller,
  type Entry,
  enterProvider,
  findGatedProviders,
  findOverdueProviders,
  findProviderWaiters,
  leaveProvider,
  listProviders,
  noteProviderFailure,
  type ProviderLimits,
  type ProviderLine,
  setProviderLimits,
  type Woken,
  wakeProvider,
} from './work/providers.js';
export {
  findUnselected,
  fixSelector,
  putOffSelectorWaits,
  SELECTOR_PATIENCE_MS,
  takeForSelectors,
  type UnselectedTurn,
  waitForSelector,
} from './work/selector-waits.js';
export {
  closeDoor,
  closeDoors,
  type Door,
  elected,
  findDeadTurns,
  findDoorsOf,
  findDueBatches,
  findExhaustedTurns,
  findOverdueCalls,
  findOverdueTurns,
  findQueuedTargets,
  findStaleRings,
  findWaitingDoors,
  type OverdueCall,
  type OverdueTurn,
  openDoor,
  probe,
  type RingPlace,
  ringAgain,
  type SweepFindings,
  takeOver,
} from './work/sweep.js';
export { loadLongWaits } from './work/wait-cycles.js';
export {
  type FailedAttempt,
  findDueWaits,
  loadFailedAttempts,
  retryLater,
  type WaitLine,
  wakeDue,
  wakeRetries,
} from './work/waits.js';
export {
  announceDoor,
  findReady,
  giveUpLease,
  lookUpPrimitive,
  type NewWorker,
  promote,
  purgeDeadWorkers,
  type Renewal,
  registerWorker,
  removeWorker,
  renewLease,
} from './work/workers.js';
