/** Helpers that also work in a program outside of a test run. */
export { findProgram } from './engine.js';
export { closeAll } from './lifecycle.js';
export { startRedis, type TestRedis } from './redis-server.js';
export { type NodeChild, spawnNode } from './spawn-node.js';
export { type TcpProxy, tcpProxy } from './tcp-proxy.js';
export { waitFor } from './wait-for.js';
