export { expandContexts, type ExpandedCard, findCards, findReadableCards, loadBoxes, type LoadedBox, loadSnapshot, type SnapshotEntry } from './boxes.js';
export { createPool, isTransient, type Queryable, toDatabaseError, transaction, type Tx } from './db.js';
export { type AgentRow, type ChainLink, findActor, findAgent, findProfileHash, findProfiles, insertProfile, loadOpening, lockAgent, lockProfileName, type Opening, type ProfileRow } from './lookups.js';
export {
  checkSchemaVersion,
  loadMigrations,
  type MigrateOptions,
  type MigrateResult,
  type Migration,
  migrate,
  type SchemaRange,
} from './migrate.js';
export { emptySubmission, type Fence, type NewContextBox, type NewGrant, type NewOperation, type NewTurn, ringsOf, type Submission, type SubmissionResult, type SubmittedTurn, WINDOW_FACTOR, writeSubmission } from './submission.js';
export { closeDoor, type Door, elected, type EndableTurn, findDoorsOf, findExhaustedTurns, findOverdueCalls, findOverdueTurns, findQueuedTargets, findStaleRings, findWaitingDoors, type OverdueCall, probe, ringAgain, type SweepFindings, takeOver } from './sweep.js';
export { type Advance, type AdvanceOutcome, advanceTurns, type CallSettlement, extendDeadline, loadCallsOfStep, loadPendingCalls, type PendingCall, recordResults, settleCalls, type SettledTurns } from './tool-calls.js';
export { claim, type ClaimedTurn, type ClaimOutcome, type CommitOutcome, type CommitResult, commitSteps, findHeldTurns, loadTurnStates, type NewEntry, type NewToolCall, releaseTurns, type StepCommit, type TurnEnding, type TurnState } from './turns.js';
export { type LoadedView, loadProfiles, loadViews } from './views.js';
export { findReady, type NewWorker, promote, registerWorker, removeWorker, renewLease } from './workers.js';
