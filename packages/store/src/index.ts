export { type Activity, ActivityFeed } from './activity.js';
export { moveAgent, takeAgentName } from './agents.js';
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
  findReadableCards,
  hasContextBox,
  type LoadedBox,
  type LoadedRange,
  loadBoxes,
  loadSnapshot,
} from './boxes.js';
export { loadCardFacts, loadCards } from './card-facts.js';
export {
  checkOut,
  createPool,
  isTransient,
  type Queryable,
  retryTransient,
  type Tx,
  toDatabaseError,
  transaction,
} from './db.js';
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
  type BoxRight,
  type BoxRow,
  type ExplainedTurn,
  loadTurnRows,
  rightKey,
  type SourcedCard,
  type StepRow,
  type StoredCard,
  type TurnRows,
} from './explain.js';
export { type FinishedStep, finishSteps } from './finish-steps.js';
export {
  type CallLine,
  type CardLine,
  findLiveWorkers,
  hasQueueTables,
  inspectTurn,
  type LiveWorker,
  type StepLine,
  type TurnLine,
  type TurnReport,
  type Usage,
} from './inspect.js';
export {
  INVARIANTS,
  type Invariant,
  type InvariantOptions,
  type InvariantReport,
  inspectInvariants,
} from './invariants.js';
export {
  type AgentRow,
  type ChainLink,
  findActor,
  findAgent,
  findProfileHash,
  findProfiles,
  findProfileVersion,
  insertProfile,
  loadOpenings,
  lockAgent,
  lockProfileName,
  type Opening,
  type OpeningRequest,
  type ProfileRow,
} from './lookups.js';
export {
  checkSchemaVersion,
  loadMigrations,
  type MigrateOptions,
  type MigrateResult,
  type Migration,
  migrate,
  type SchemaRange,
} from './migrate.js';
export { listProfiles, loadStoredProfiles, type ProfileLine, type StoredProfile } from './profiles.js';
export {
  findDueCalls,
  hastenLooks,
  loadArguments,
  loadQueueCalls,
  noteLooks,
  type QueueCall,
} from './queue-calls.js';
export { tables } from './schema.js';
export {
  emptySubmission,
  type Fence,
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
  closeDoor,
  type Door,
  type EndableTurn,
  elected,
  findDoorsOf,
  findExhaustedTurns,
  findOverdueCalls,
  findOverdueTurns,
  findQueuedTargets,
  findStaleRings,
  findWaitingDoors,
  type OverdueCall,
  openDoor,
  probe,
  ringAgain,
  type SweepFindings,
  takeOver,
} from './sweep.js';
export {
  type Advance,
  type AdvanceOutcome,
  advanceTurns,
  type CallRouteKind,
  type CallSettlement,
  extendDeadline,
  loadCallsOfStep,
  loadPendingCalls,
  type PendingCall,
  recordResults,
  type SettledTurns,
  settleCalls,
} from './tool-calls.js';
export { type OfferedTool, writeToolset } from './toolsets.js';
export { findTreeRoot, loadTree, type OpenCall, type TreeNode, type TurnTree } from './tree.js';
export {
  type ClaimedTurn,
  type ClaimOutcome,
  type CommitOutcome,
  type CommitResult,
  claim,
  commitSteps,
  ENDED_CHANNEL,
  loadTurnStates,
  type NewEntry,
  type NewToolCall,
  releaseTurns,
  type StepCommit,
  type TurnEnding,
  type TurnState,
} from './turns.js';
export { claimWithViews, type LoadedView, loadProfiles, loadViews, type ViewedClaim } from './views.js';
export {
  findReady,
  type NewWorker,
  promote,
  purgeDeadWorkers,
  registerWorker,
  removeWorker,
  renewLease,
} from './workers.js';
