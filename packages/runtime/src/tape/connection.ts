/** Where a tape reads and writes: on the pool, each append its own transaction, or within that of a primitive. */
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
  /** For what has transactions of its own; none within a primitive. */
  readonly pool?: pg.Pool;
  /** Of the content of a card; default 1 MiB. */
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

/** For a tool, whose turn may be lost, or its call's time be over, before it is done: from then on nothing is written. */
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
