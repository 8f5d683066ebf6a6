/**
 * Imports that append to one tape run one after the other. The order is kept by a lock on a separate session, so it needs no
 * transaction and ends with the process.
 */
import type { BoxId } from '@boxcar/kernel';
import type pg from 'pg';
import { createDirectClient, endClient } from './connection-limits.js';
import { toDatabaseError } from './errors.js';
import { retryTransient } from './retry.js';

/** After this time the server ends the session of a stopped process and frees its place. */
const IDLE_MS = 60_000;
const ASK_EVERY_MS = 100;
const QUERY_MS = 10_000;

/** Polls for the lock. A wait inside `pg_advisory_lock` would hold a snapshot, which blocks vacuum. */
async function takeTurn(client: pg.Client, boxId: BoxId): Promise<void> {
  for (;;) {
    const { rows } = await client.query<{ is_ours: boolean }>(
      'select pg_try_advisory_lock(hashtextextended($1, 9)) as is_ours',
      [boxId],
    );
    if (rows[0]?.is_ours === true) return;
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  }
}

/** A session that holds the lock of the tape. @throws KernelError `database_unavailable`. */
async function openTurn(connectionString: string, boxId: BoxId): Promise<pg.Client> {
  const client = createDirectClient({
    connectionString,
    applicationName: 'boxcar import',
    queryMs: QUERY_MS,
    idleSessionMs: IDLE_MS,
  });
  try {
    await client.connect();
    await takeTurn(client, boxId);
    return client;
  } catch (error) {
    await endClient(client);
    throw toDatabaseError(error);
  }
}

/**
 * Waits until no other import appends to the tape, and then does `work`. If the session is lost, another import may begin at the same
 * time. The entries of both imports are then written, but they may be interleaved.
 *
 * @param work - Must call `stay` at least once a minute.
 */
export async function inImportOrder<T>(
  directUrl: string,
  boxId: BoxId,
  work: (stay: () => Promise<void>) => Promise<T>,
): Promise<T> {
  const client = await retryTransient(() => openTurn(directUrl, boxId));
  try {
    return await work(async () => {
      await client.query('select 1').catch(() => undefined);
    });
  } finally {
    await endClient(client);
  }
}
