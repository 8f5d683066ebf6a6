import { setTimeout as delay } from 'node:timers/promises';
import { createPool } from '@boxcar/store';
import pg from 'pg';
import { testContext } from './context.js';
import { closeAtEnd, hasFailed, KEPT } from './lifecycle.js';
import { type CleanState, readCleanState, resetDatabase } from './reset-database.js';

export interface TestDatabase extends AsyncDisposable {
  readonly name: string;
  readonly url: string;
  readonly pool: pg.Pool;
  /** Ends the pool and drops the database, unless a test of this file has failed. The end of the file does this too. */
  close(): Promise<void>;
}

/** A pool ends at once when all its connections have been returned. */
const POOL_END_MS = 5_000;

/** The maximum number of idle databases, with their connections, that a process keeps for later tests. */
const MAX_IDLE = 4;

interface Clone {
  readonly name: string;
  readonly url: string;
  readonly pool: pg.Pool;
  readonly max: number;
}

/** Unused databases of this process, reset to the state of the template. The teardown of the run drops them. */
const idle: Clone[] = [];
let clean: CleanState | undefined;
let count = 0;

async function clone(template: string, max: number): Promise<Clone> {
  const { adminUrl, runId, isolation } = testContext().postgres;
  count += 1;
  const name = `boxcar_test_${runId}_${process.pid}_${count}`;
  // Copied as files, because a copy through the write-ahead log would write megabytes for each database.
  await asAdmin(`create database ${name} template ${template} strategy file_copy`);
  if (isolation !== undefined)
    await asAdmin(`alter database ${name} set default_transaction_isolation = '${isolation}'`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return {
    name,
    url: url.href,
    pool: createPool({
      connectionString: url.href,
      max,
      // Like a pool that connects through a transaction pooler, this pool leaves the level to the server.
      isPooled: isolation !== undefined,
    }),
    max,
  };
}

/** Ends the pool and drops the database. Keeps the database when a test has failed. */
async function discard({ name, pool }: Clone): Promise<void> {
  const isEnded = await Promise.race([
    (pool.ended ? Promise.resolve() : pool.end()).then(() => true),
    delay(POOL_END_MS, false, { ref: false }),
  ]);
  if (hasFailed()) {
    await asAdmin(`comment on database ${name} is '${KEPT}'`);
    console.error(`boxcar tests: kept database ${name}`);
  } else await asAdmin(`drop database if exists ${name} with (force)`);
  if (!isEnded) throw new Error(`a connection of the pool of ${name} was never released`);
}

/**
 * A separate database for a test: a clone of the template that was migrated once for the run. A database of a finished test is reused
 * where that leaves no trace. A new connection must read the catalog and plan every statement again, which is most of the cost of a test.
 *
 * @param options.max - The maximum number of connections of the pool.
 * @param options.empty - An empty database instead of a migrated one.
 * @param options.from - The name of another database to clone instead. That database must have no connections.
 */
export async function testDatabase(
  options: { readonly max?: number; readonly empty?: boolean; readonly from?: string } = {},
): Promise<TestDatabase> {
  const { template, templateError } = testContext().postgres;
  const { max = 4, empty = false, from } = options;
  if (templateError !== undefined && !empty) {
    throw new Error(`there is no template database, because the migrations fail: ${templateError}`);
  }
  const isPlain = !empty && from === undefined;
  const found = isPlain ? idle.findIndex((one) => one.max === max) : -1;
  const own =
    idle.splice(found, found < 0 ? 0 : 1)[0] ?? (await clone(from ?? (empty ? 'template0' : template), max));
  if (isPlain) clean ??= await readCleanState(own.pool);
  const close = closeAtEnd(async () => {
    const isClean = isPlain && !hasFailed() && idle.length < MAX_IDLE && (await isResettable(own));
    if (isClean) idle.push(own);
    else await discard(own);
  });
  return { name: own.name, url: own.url, pool: own.pool, close, [Symbol.asyncDispose]: close };
}

async function isResettable({ pool }: Clone): Promise<boolean> {
  return clean !== undefined && (await resetDatabase(pool, clean).catch(() => false));
}

async function asAdmin(statement: string): Promise<void> {
  const admin = new pg.Client({ connectionString: testContext().postgres.adminUrl });
  await admin.connect();
  try {
    await admin.query(statement);
  } finally {
    await admin.end();
  }
}
