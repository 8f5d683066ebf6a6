export { BullMqDoorbell, PRIMITIVES_QUEUE } from './doorbell-bullmq.js';
export { InProcessDoorbell } from './doorbell-in-process.js';
export {
  chunks,
  type JobFlow,
  type JobQueue,
  type JobWorker,
  type NewJobOptions,
  type QueueConnection,
  type Queues,
  type WorkerSettings,
  within,
} from './job-queue.js';
export { migrateQueues, openQueues } from './queues.js';
export { type TurnResult, toTurnResult } from './turn-result.js';
export {
  batchNotFound,
  isOfProject,
  notEnded,
  runtimeClosed,
  TurnWatcher,
  turnNotFound,
} from './turn-watcher.js';
export type { UnreadableJob } from './unreadable-jobs.js';
