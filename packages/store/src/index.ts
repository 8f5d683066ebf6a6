export { type Activity, ActivityFeed } from './activity.js';
export { changeAgent, loadAgentNames, mayBeAgent, takeAgentName, takeAgentNames } from './agents.js';
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
} from './batches.js';
export { BLOCKED_WORKER, type BlockedWorkerTexts } from './blocked-worker.js';
export {
  type BoxCard,
  type BoxEntry,
  type BoxGrantLine,
  type BoxReport,
  inspectBox,
} from './box-report.js';
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
} from './boxes.js';
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
} from './budgets.js';
export { type Build, THIS_BUILD } from './build.js';
export type { Advance, AdvanceOutcome, CallSettlement, SettledTurns } from './call-types.js';
export { afterTransaction, CallerTransaction, type CallerTx, toQueryable } from './caller-transaction.js';
export { loadCardFacts, loadCards } from './card-facts.js';
export { type ClaimedTurn, type ClaimOutcome, claim, type Purse } from './claims.js';
export { ENDED_CHANNEL } from './commit-sql.js';
export { type CommitOutcome, type CommitResult, commitAgain, commitSteps, commitWithin } from './commits.js';
export {
  type CompactionLink,
  countAnchorsOfTurn,
  findAnchorOfTurn,
  findCompactionLink,
  findLastWords,
} from './compactions.js';
export {
  type ConnectionLimits,
  createDirectClient,
  endClient,
  limitsOf,
  SILENCE_MARGIN_MS,
  startupOptions,
} from './connection-limits.js';
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
} from './db.js';
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
} from './dead-letters.js';
export {
  type Counted,
  type DirectFacts,
  probeDirectConnection,
  readServerFacts,
  readWorkFacts,
  type ServerFacts,
  type TargetFacts,
  type WorkFacts,
} from './doctor.js';
export {
  type ErasedCard,
  type ErasedEvidence,
  type ErasureOutcome,
  eraseCards,
  eraseEvidence,
  findOwnCards,
  holdErasures,
  repeatsCards,
} from './erasure.js';
export { type Evidence, keepEvidence, keepLateAnswer } from './evidence.js';
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
} from './explain.js';
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
} from './failed-turns.js';
export { type FinishedStep, findLockedSteps, finishSteps } from './finish-steps.js';
export { findRings, findSettled } from './first-tries.js';
export { inImportOrder } from './import-order.js';
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
} from './inspect.js';
export type { Invariant } from './invariant.js';
export {
  INVARIANTS,
  type InvariantOptions,
  type InvariantReport,
  inspectInvariants,
  invariantStatement,
} from './invariants.js';
export type { KnownTape, KnownTapes } from './known-tapes.js';
export { findLateTargets, type LateTarget } from './late-queue-calls.js';
export type { ListPage, ListPlace } from './list-page.js';
export { listRegistered, type RegisteredName } from './list-registered.js';
export { type ListedAgent, type ListedBox, listAgents, listBoxes } from './list-things.js';
export { type ListedRun, type ListedTurn, listRuns, listTurns, type TurnFilters } from './list-turns.js';
export { findLiveWorkers, type LiveWorker } from './live-workers.js';
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
} from './liveness.js';
export { type LimitedTry, type LockLimit, transactWithin } from './lock-limit.js';
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
} from './lookups.js';
export {
  type MidStep,
  type MidStepEntry,
  type MidStepOutcome,
  writeMidStep,
} from './mid-step.js';
export {
  checkSchemaVersion,
  loadMigrations,
  type MigrateOptions,
  type MigrateResult,
  type Migration,
  migrate,
  type SchemaRange,
  shippedSchema,
} from './migrate.js';
export {
  closeNotice,
  findDueNotices,
  loadNotice,
  type Notice,
  passUnseen,
  tellEnd,
} from './notices.js';
export { findNotifyRefusal, findSessionMaker } from './notify-rights.js';
export {
  type HandlerScope,
  handlerScope,
  insideHandler,
  outsideHandlers,
  refuseNested,
  runningCode,
} from './open-transactions.js';
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
} from './pool.js';
export { type PoolWait, poolWaits } from './pool-waits.js';
export {
  findVersionIds,
  listProfiles,
  loadStoredProfiles,
  type ProfileLine,
  type StoredProfile,
} from './profiles.js';
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
} from './projects.js';
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
} from './providers.js';
export {
  type KeptTape,
  type PurgeReport,
  purgeRuns,
  purgeTapes,
  readClock,
  type TapePurgeReport,
} from './purge.js';
export type { KeptByPurge } from './purge-plan.js';
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
} from './queue-calls.js';
export { findReachable, findTurnPolicy, type ReachableProfile } from './reach.js';
export { type EarlierCall, findRepeats } from './repeats.js';
export type { PartReader } from './rights.js';
export type { CallRouteKind, OfferedTool, SweepKind } from './row-kinds.js';
export {
  findUnselected,
  fixSelector,
  putOffSelectorWaits,
  SELECTOR_PATIENCE_MS,
  takeForSelectors,
  type UnselectedTurn,
  waitForSelector,
} from './selector-waits.js';
export { makeSessionAgents, type SessionAgent } from './session-agents.js';
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
} from './sessions.js';
export type { NewEntry, NewToolCall, StepCommit, TurnEnding } from './step-commit.js';
export { loadWaitFacts } from './stuck.js';
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
} from './submission.js';
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
} from './subtrees.js';
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
} from './sweep.js';
export type { EndableTurn } from './sweep-turns.js';
export { withAsked } from './tape-asked.js';
export {
  type EntryRange,
  findAnchor,
  loadEntries,
  readEntries,
  readEntriesAt,
  type TapeEntryRow,
} from './tape-entries.js';
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
} from './tape-files.js';
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
} from './tape-forks.js';
export { countAnchors, loadTapeFacts, type TapeFacts } from './tape-info.js';
export { findTapeLine, listTapes, listWorkspaceTapes, type TapeLine } from './tape-list.js';
export {
  findTapePlace,
  handOverTape,
  loadTapeSlice,
  lockGrants,
  lockTape,
  type PlaceRequest,
  type TapePlace,
} from './tape-refs.js';
export { findActiveTurn, type ResetRequest, type ResetResult, resetTape, resetWithin } from './tape-reset.js';
export { type EntryWords, findWords, insertWords, loadParts, type TapePart } from './tape-words.js';
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
} from './tapes.js';
export {
  advanceTurns,
  hasSucceeded,
  loadCallsOfStep,
  loadPendingCalls,
  type PendingCall,
  recordResults,
  settleCalls,
} from './tool-calls.js';
export { findToldProfiles, writeToolset } from './toolsets.js';
export { loadTree, type OpenCall, type TreeBatch, type TreeNode, type TurnTree } from './tree.js';
export { findIdsNextTo, findNamed, findTree, type TreeOf } from './tree-ref.js';
export { findBoxId, findNeighbors, findTurnId, findTurnOrRun } from './turn-ref.js';
export { findViewStarts, type HiddenView, type ViewStart, type ViewWish } from './turn-views.js';
export { writeTurnWords } from './turn-words.js';
export { type HeldAt, loadTurnStates, releaseNoted, releaseTurns, type TurnState } from './turns.js';
export {
  claimWithViews,
  type LoadedView,
  loadPricedProfiles,
  loadProfiles,
  loadViews,
  type ViewedClaim,
} from './views.js';
export { loadLongWaits } from './wait-cycles.js';
export {
  type FailedAttempt,
  findDueWaits,
  loadFailedAttempts,
  retryLater,
  type WaitLine,
  wakeDue,
  wakeRetries,
} from './waits.js';
export { findWarmedTargets } from './warm-cache.js';
export { grantWorkerRights } from './worker-rights.js';
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
} from './workers.js';
