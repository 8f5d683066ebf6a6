/** `@boxcar/store/health`: only the database code that a health check needs, because a health check starts every few seconds. */
export { toDatabaseError } from '../db/errors.js';
export { createPool, endPool, type PoolOptions } from '../db/pool.js';
export { checkSchemaVersion } from '../db/schema-version.js';
export { findLiveWorkers, type LiveWorker } from './live-workers.js';
