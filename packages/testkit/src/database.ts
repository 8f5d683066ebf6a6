import { setTimeout as delay } from 'node:timers/promises';
import { createPool } from '@boxcar/store';
import pg from 'pg';
import { testContext } from './context.js';
import { closeAtEnd, hasFailed } from './lifecycle.js';

export interface TestDatabase extends AsyncDisposable {
  readonly name: string;
  readonly url: string;
  readonly pool: pg.Pool;
  /** Ends the pool and drops the database, unless a test of this file has failed. Also done at the end of the file. */
  close(): Promise<void>;
}

/** A pool ends at once when all its connections are back. */
const POOL_END_MS = 5_000;

let count = 0;

/**
 * A database of one's own: a clone of the template that was migrated once for the run.
 *
 * @param options.max - Connections of the pool at most. Few by default: what most of the time of a test goes into is that each new
 *   connection reads the catalog and plans its statements.
 * @param options.empty - An empty database instead of a migrated one.
 * @param options.from - The name of another one to clone instead; nobody may be connected to it.
 */
export async function testDatabase(
  options: { readonly max?: number; readonly empty?: boolean; readonly from?: string } = {},
): Promise<TestDatabase> {
  const { adminUrl, template, templateError, runId } = testContext().postgres;
  if (templateError !== undefined && options.empty !== true) {
    throw new Error(`there is no template database, because the migrations fail: ${templateError}`);
  }
  count += 1;
  const name = `boxcar_test_${runId}_${process.pid}_${count}`;
  // Copied as files: written to the log, each would be megabytes of it.
  await asAdmin(
    adminUrl,
    `create database ${name} template ${options.from ?? (options.empty === true ? 'template0' : template)} strategy file_copy`,
  );
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  const pool = createPool({ connectionString: url.href, max: options.max ?? 4 });
  const close = closeAtEnd(async () => {
    const isEnded = await Promise.race([
      (pool.ended ? Promise.resolve() : pool.end()).then(() => true),
      delay(POOL_END_MS, false, { ref: false }),
    ]);
    if (hasFailed()) console.error(`boxcar tests: kept database ${name}`);
    else await asAdmin(adminUrl, `drop database if exists ${name} with (force)`);
    if (!isEnded) throw new Error(`a connection of the pool of ${name} was never released`);
  });
  return { name, url: url.href, pool, close, [Symbol.asyncDispose]: close };
}

async function asAdmin(adminUrl: string, statement: string): Promise<void> {
  const admin = new pg.Client({ connectionString: adminUrl });
  await admin.connect();
  try {
    await admin.query(statement);
  } finally {
    await admin.end();
  }
}
