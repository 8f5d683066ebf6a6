export { AwakeClock } from './awake-clock.js';
export { Batcher, isLockTimeout, LOCK_PATIENCE_MS, LOCKED } from './batcher.js';
export { BuildWatch } from './build-watch.js';
export {
  codeAtExit,
  failStrayCall,
  type RunningCall,
  type RunningCode,
  type RunningJob,
  runInScope,
  takeCrashedJob,
  watchEntries,
} from './call-scope.js';
export { deliverableContent, deliverableOf } from './deliverable.js';
export { toBody } from './evidence-body.js';
export { type Actor, findActor } from './find-actor.js';
export { handlerSlots, logPoolWaits, type Slot, withHandlerSlot } from './handler-slots.js';
export { inSlices, SLICE_CHARACTERS } from './in-slices.js';
export { KeptCallers } from './kept-callers.js';
export { createLog, type Log, type LogLevel, silentLog, withoutSecrets, writeLogLine } from './log.js';
export { newId } from './new-id.js';
export { OnceAtATime } from './once-at-a-time.js';
export { type PagePlace, readCursor } from './page-cursor.js';
export { pauses } from './pause.js';
export { RecentMap } from './recent-map.js';
export { RowPatience } from './row-patience.js';
export { cutOffSilent } from './silent-connections.js';
export { Timers } from './timers.js';
export { unlessAborted } from './unless-aborted.js';
export { withinTime } from './within-time.js';
