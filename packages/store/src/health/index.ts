/** `@boxcar/store/health`: what a health check asks the database, and no more: it is started every few seconds. */
export { toDatabaseError } from '../db/errors.js';
export { createPool, endPool, type PoolOptions } from '../db/pool.js';
export { checkSchemaVersion } from '../db/schema-version.js';
export { findLiveWorkers, type LiveWorker } from './live-workers.js';
