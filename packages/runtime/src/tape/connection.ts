/** How a tape reads and writes: on the pool with a transaction for each append, or within the transaction of a primitive. */
import {
  type AppendRequest,
  type AppendResult,
  appendEntries,
  type Queryable,
  type ResetRequest,
  type ResetResult,
  resetTape,
} from '@boxcar/store';
import type pg from 'pg';

export interface TapeConnection {
  readonly db: Queryable;
  /** For operations with transactions of their own. Undefined within a primitive. */
  readonly pool?: pg.Pool;
  /** The limit for the content of a card; default 1 MiB. */
  readonly maxCardBytes?: number | undefined;
  append(request: AppendRequest): Promise<AppendResult>;
  reset(request: ResetRequest): Promise<ResetResult>;
}

export const onPool = (pool: pg.Pool, maxCardBytes?: number): TapeConnection => ({
  db: pool,
  pool,
  maxCardBytes,
  append: (request) => appendEntries(pool, request),
  reset: (request) => resetTape(pool, request),
});

/** The connection for a tool. When the turn is lost or the time of the call is over before the tool ends, all later writes are refused. */
export const untilAborted = (connection: TapeConnection, signal: AbortSignal): TapeConnection => ({
  ...connection,
  append: async (request) => {
    signal.throwIfAborted();
    return connection.append(request);
  },
  reset: async (request) => {
    signal.throwIfAborted();
    return connection.reset(request);
  },
});
