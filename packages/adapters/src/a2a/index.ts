/** `@boxcar/adapters/a2a`: tasks of this installation in the form of A2A. */
export { type Notification, type Notified, notificationOf } from './notification.js';
export {
  DATA_TASK,
  JSON_TYPE,
  phasesOfState,
  resultArtifact,
  resultPart,
  stateOf,
  statusOf,
  type TaskRecord,
  type TaskView,
  TEXT_TYPE,
  textPart,
  toTask,
} from './task.js';
