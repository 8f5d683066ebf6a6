export { type QueueBackend, queueBackends, testIsolation } from './context.js';
export { type TestDatabase, testDatabase } from './database.js';
export { type PrivatePostgres, privatePostgres } from './private-postgres.js';
export { testRedis } from './redis.js';
export type { TestRedis } from './redis-server.js';
export { type NodeChild, spawnNode } from './spawn-node.js';
export { type StatementFault, type StatementProxy, statementProxy } from './statement-proxy.js';
export { type TcpProxy, tcpProxy } from './tcp-proxy.js';
export { type WaitOptions, waitFor } from './wait-for.js';
