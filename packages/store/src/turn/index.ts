export {
  addBatch,
  type BatchRow,
  closeBatch,
  closeBatchesOf,
  detachBatch,
  endBatch,
  findJoinable,
  findWaitCycle,
  findWantedMembers,
  loadBatches,
  loadMembers,
  lockBatch,
  lockMembers,
  type MemberRow,
} from './batches.js';
export {
  type Advance,
  type AdvanceOutcome,
  type CallSettlement,
  FIRST_LOOK,
  type SettledTurns,
} from './call-types.js';
export { type ClaimedTurn, claim, type Purse } from './claims.js';
export { ENDED_CHANNEL } from './commit-sql.js';
export { type CommitOutcome, type CommitResult, commitAgain, commitSteps, commitWithin } from './commits.js';
export {
  countAnchorsOfTurn,
  findAnchorOfTurn,
  findCompactionLink,
  findLastWords,
} from './compactions.js';
export { type Evidence, keepEvidence, keepLateAnswer } from './evidence.js';
export {
  findEndable,
  findFailedTurns,
  findLostBatches,
  findLostCalls,
  findRunFailures,
  findUnendedMembers,
  hasFailedTurns,
  hasLostTurns,
} from './failed-turns.js';
export { findLockedSteps, finishSteps } from './finish-steps.js';
export { findRings, findSettled, findSuspended, lockTurns } from './first-tries.js';
export { findLateTargets, type LateTarget } from './late-queue-calls.js';
export { type MidStep, writeMidStep } from './mid-step.js';
export { hasSucceeded, loadCallsOfStep, loadPendingCalls, type PendingCall } from './pending-calls.js';
export {
  findDueCalls,
  hastenLooksWithin,
  loadArguments,
  loadQueueCalls,
  markSent,
  newMark,
  noteLooks,
  type QueueCall,
  type SendMark,
} from './queue-calls.js';
export { type EarlierCall, findRepeats } from './repeats.js';
export type { NewEntry, NewToolCall, StepCommit, TurnEnding } from './step-commit.js';
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
  type SubtreeRoot,
} from './subtrees.js';
export { ENDABLE, type EndableTurn, type SweepClock } from './sweep-turns.js';
export { advanceTurns, recordResults, settleCalls } from './tool-calls.js';
export { findToldProfiles, loadToolsets, writeToolset } from './toolsets.js';
export {
  type HeldAt,
  hasStatus,
  loadTurnStates,
  type RingRow,
  releaseNoted,
  releaseTurns,
  type TurnState,
  toRing,
} from './turns.js';
export {
  AlongClaim,
  type ClaimAlong,
  claimWithViews,
  type LoadedView,
  loadPricedProfiles,
  loadProfiles,
  loadViews,
  type ViewedClaim,
} from './views.js';
export { findWarmedTargets, heldBackUntil, isHeldBack } from './warm-cache.js';
