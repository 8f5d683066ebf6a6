/** `@boxcar/store/health`: what a health check asks the database, and no more: it is started every few seconds. */
export { toDatabaseError } from '../db/db.js';
export { checkSchemaVersion } from '../db/migrate.js';
export { createPool, endPool, type PoolOptions } from '../db/pool.js';
export { findLiveWorkers } from './live-workers.js';
