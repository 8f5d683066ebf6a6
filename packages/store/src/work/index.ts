export { BLOCKED_WORKER } from './blocked-worker.js';
export {
  announceWorker,
  askServer,
  endLease,
  interruptWatch,
  parseWorkerNotice,
  readLockSign,
  WORKERS_CHANNEL,
  watchPeer,
} from './liveness.js';
export { promote } from './promote.js';
export type { Caller } from './provider-books.js';
export { noteProviderFailure } from './provider-failures.js';
export {
  findGatedProviders,
  listProviders,
  type ProviderLimits,
  type ProviderLine,
  setProviderLimits,
} from './provider-limits.js';
export {
  enterProvider,
  findOverdueProviders,
  findProviderWaiters,
  type GateAnswer,
  leaveProvider,
  type Woken,
  wakeProvider,
} from './providers.js';
export {
  findUnselected,
  fixSelector,
  putOffSelectorWaits,
  SELECTOR_PATIENCE_MS,
  takeForSelectors,
  type UnselectedTurn,
  waitForSelector,
} from './selector-waits.js';
export { findStaleRings, type RingPlace, ringAgain } from './stale-rings.js';
export { submitAndClaim } from './submit-and-claim.js';
export {
  elected,
  findDeadTurns,
  findDueBatches,
  findExhaustedTurns,
  findOverdueCalls,
  findOverdueTurns,
  findQueuedTargets,
  IS_LEFT,
  IS_LEFT_HANDOFF,
  IS_ORPHAN,
  type OverdueCall,
  type OverdueTurn,
  probe,
  type SweepFindings,
  takeOver,
} from './sweep.js';
export { loadLongWaits } from './wait-cycles.js';
export {
  findAnswerableJobs,
  findJobsWaitingFor,
  recordWaitingJob,
  removeWaitingJob,
  removeWaitingJobs,
  type WaitingJob,
} from './waiting-jobs.js';
export {
  findDueWaits,
  loadFailedAttempts,
  retryLater,
  type WaitLine,
  wakeDue,
  wakeRetries,
} from './waits.js';
export {
  announceDoor,
  findReady,
  giveUpLease,
  isWorker,
  lookUpPrimitive,
  purgeDeadWorkers,
  type Renewal,
  registerWorker,
  removeWorker,
  renewLease,
} from './workers.js';
