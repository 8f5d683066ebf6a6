export { argumentHashes } from './announced-door.js';
export { noteCrashedJob } from './blocked-jobs.js';
export type { QueueDoor } from './door-job.js';
export { createQueueDoor, type QueueDoorOptions } from './queue-door.js';
export { createToolResultsDoor } from './tool-results-door.js';
