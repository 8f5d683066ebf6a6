export { type QueueBackend, queueBackends } from './context.js';
export { type TestDatabase, testDatabase } from './database.js';
export { type TestRedis, testRedis } from './redis.js';
export { type NodeChild, spawnNode } from './spawn-node.js';
export { type WaitOptions, waitFor } from './wait-for.js';
