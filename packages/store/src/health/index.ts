/** `@boxcar/store/health`: what a health check asks the database, and no more: it is started every few seconds. */
export { checkSchemaVersion, createPool, endPool, type PoolOptions, toDatabaseError } from '../db/index.js';
export { findLiveWorkers, type LiveWorker } from './live-workers.js';
