export { answeredMeanwhile, createRecorder, type Recorder, toFailure, toSettlement } from './call-result.js';
export { fromCause, isShared, toCause } from './causes.js';
export type { EndedTurns } from './end-locked.js';
export {
  announceEnds,
  announceTries,
  type EndSubtrees,
  endAndAnnounce,
  endHeld,
  endSubtrees,
  endWaiting,
} from './end-subtrees.js';
export {
  buildEnd,
  buildResult,
  type CallOutcome,
  type Ending,
  entryOf,
  fallbackDeliverable,
  UNLIMITED,
} from './ending.js';
export { finishBatch } from './finish-batch.js';
export { leaveBatch } from './leave-batch.js';
export { answerForLost, type RowHandling } from './lost-turns.js';
export { closeHandoffs, tellParent } from './tell-parent.js';
export { announceEnds as announceHandoffEnds, announceHandoffs, tellSource } from './tell-source.js';
