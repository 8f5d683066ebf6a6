/** What also works in a program that is no test. */
export { findProgram } from './engine.js';
export { closeAll } from './lifecycle.js';
export { startRedis, type TestRedis } from './redis-server.js';
export { type NodeChild, spawnNode } from './spawn-node.js';
export { type TcpProxy, tcpProxy } from './tcp-proxy.js';
export { waitFor } from './wait-for.js';
