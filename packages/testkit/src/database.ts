import { setTimeout as delay } from 'node:timers/promises';
import { createPool } from '@boxcar/store';
import pg from 'pg';
import { testContext } from './context.js';
import { closeAtEnd, hasFailed } from './lifecycle.js';
import { type CleanState, readCleanState, resetDatabase } from './reset-database.js';

export interface TestDatabase extends AsyncDisposable {
  readonly name: string;
  readonly url: string;
  readonly pool: pg.Pool;
  /** Ends the pool and drops the database, unless a test of this file has failed. Also done at the end of the file. */
  close(): Promise<void>;
}

/** A pool ends at once when all its connections are back. */
const POOL_END_MS = 5_000;

/** Databases of this process that nobody uses, as clean as new, by the size of their pools. */
const idle = new Map<number, Clone[]>();
let clean: CleanState | undefined;
let count = 0;

interface Clone {
  readonly name: string;
  readonly url: string;
  readonly pool: pg.Pool;
  readonly drop: () => Promise<void>;
}

async function clone(adminUrl: string, template: string, max: number): Promise<Clone> {
  count += 1;
  const name = `boxcar_test_${testContext().postgres.runId}_${process.pid}_${count}`;
  // Copied as files: written to the log, each would be megabytes of it.
  await asAdmin(adminUrl, `create database ${name} template ${template} strategy file_copy`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  const pool = createPool({ connectionString: url.href, max });
  const drop = closeAtEnd(async () => {
    const isEnded = await Promise.race([
      (pool.ended ? Promise.resolve() : pool.end()).then(() => true),
      delay(POOL_END_MS, false, { ref: false }),
    ]);
    if (hasFailed()) console.error(`boxcar tests: kept database ${name}`);
    else await asAdmin(adminUrl, `drop database if exists ${name} with (force)`);
    if (!isEnded) throw new Error(`a connection of the pool of ${name} was never released`);
  });
  return { name, url: url.href, pool, drop };
}

/**
 * A database of one's own: a clone of the template that was migrated once for the run. One that a test of this file is done
 * with is used again where that leaves no trace, since a new connection reads the catalog and plans every statement anew,
 * which is most of what a test costs.
 *
 * @param options.max - Connections of the pool at most.
 * @param options.empty - An empty database instead of a migrated one.
 * @param options.from - The name of another one to clone instead; nobody may be connected to it.
 */
export async function testDatabase(
  options: { readonly max?: number; readonly empty?: boolean; readonly from?: string } = {},
): Promise<TestDatabase> {
  const { adminUrl, template, templateError } = testContext().postgres;
  const { max = 4, empty = false, from } = options;
  if (templateError !== undefined && !empty) {
    throw new Error(`there is no template database, because the migrations fail: ${templateError}`);
  }
  if (empty || from !== undefined) {
    const own = await clone(adminUrl, from ?? 'template0', max);
    return { ...own, close: own.drop, [Symbol.asyncDispose]: own.drop };
  }
  const ready = idle.get(max)?.pop();
  const own = ready ?? (await clone(adminUrl, template, max));
  clean ??= await readCleanState(own.pool);
  const state = clean;
  const close = async (): Promise<void> => {
    if (hasFailed() || !(await resetDatabase(own.pool, state).catch(() => false))) return own.drop();
    idle.set(max, [...(idle.get(max) ?? []), own]);
  };
  let closing: Promise<void> | undefined;
  const once = (): Promise<void> => {
    closing ??= close();
    return closing;
  };
  return { name: own.name, url: own.url, pool: own.pool, close: once, [Symbol.asyncDispose]: once };
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
