export {
  type ConnectionLimits,
  createDirectClient,
  endClient,
  limitsOf,
  SILENCE_MARGIN_MS,
  startupOptions,
  statementTimeoutOf,
  unlimited,
} from './connection-limits.js';
export {
  checkOut,
  commitWatched,
  onConnection,
  queryOutside,
  readSnapshot,
  runRetrying,
  sendOnce,
  transactAtOnce,
  transaction,
  transactOnce,
  type Watched,
  watchFailures,
} from './db.js';
export {
  asOutside,
  isOutOfResources,
  isOutside,
  isOverRowLimit,
  isServerTrouble,
  isTransient,
  sqlStateOf,
  toConnectionError,
  toDatabaseError,
} from './errors.js';
export { inImportOrder } from './import-order.js';
export {
  firstLimit,
  type LimitedTry,
  type LockLimit,
  limited,
  limitLocks,
  retriesOf,
  skipping,
  transactWithin,
} from './lock-limit.js';
export { type MigrateResult, migrate, OLDEST_SERVER } from './migrate.js';
export { loadMigrations, shippedSchema } from './migrations.js';
export {
  type HandlerScope,
  handlerScope,
  insideHandler,
  outsideHandlers,
  refuseNested,
  runningCode,
} from './open-transactions.js';
export {
  beginOn,
  createPool,
  dropConnections,
  dropIdle,
  dropSilent,
  endPool,
  isExhausted,
  limitByLease,
  limitsOn,
  queryLimited,
  silentFor,
} from './pool.js';
export { type PoolWait, poolWaits } from './pool-waits.js';
export {
  ReadReplica,
  type ReplicaFacts,
  readOn,
} from './replica.js';
export { type BatchTry, patientOn, retryBatch, retryTransient } from './retry.js';
export { checkSchemaVersion } from './schema-version.js';
export { type Queryable, run, runLists, type Statement, statement, type Tx } from './statement.js';
