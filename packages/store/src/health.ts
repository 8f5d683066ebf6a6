/** `@boxcar/store/health`: what a health check asks the database, and no more: it is started every few seconds. */
export { toDatabaseError } from './db.js';
export { findLiveWorkers } from './live-workers.js';
export { checkSchemaVersion } from './migrate.js';
export { createPool, endPool, type PoolOptions } from './pool.js';
