export { BullMqDoorbell, PRIMITIVES_QUEUE } from './doorbell-bullmq.js';
export { InProcessDoorbell } from './doorbell-in-process.js';
export {
  chunks,
  type JobFlow,
  type JobQueue,
  migrateQueues,
  openQueues,
  type QueueConnection,
  type Queues,
  within,
} from './queues.js';
export { type TurnResult, toTurnResult } from './turn-result.js';
export { batchNotFound, isOfProject, notEnded, TurnWatcher, turnNotFound } from './turn-watcher.js';
