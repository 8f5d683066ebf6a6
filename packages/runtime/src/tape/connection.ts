/** Where a tape reads and writes: on the pool, each append its own transaction, or within that of a primitive. */
import {
  type AppendRequest,
  type AppendResult,
  appendEntries,
  appendWithin,
  lockMembers,
  type Queryable,
  type ResetRequest,
  type ResetResult,
  resetTape,
  resetWithin,
} from '@boxcar/store';
import type pg from 'pg';
import type { HandlerTools } from '../handler.js';

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

/** What is written then commits with the primitive. The order of locks is turn, tape: the calling turn's comes first. */
export const withinPrimitive = (
  { db, tx, ctx }: Pick<HandlerTools, 'db' | 'tx' | 'ctx'>,
  maxCardBytes: number | undefined,
): TapeConnection => ({
  db,
  maxCardBytes,
  append: async (request) => {
    if (ctx.parent !== undefined) await lockMembers(tx, [ctx.parent.turnId]);
    return appendWithin(tx, request);
  },
  reset: (request) => resetWithin(tx, request),
});
