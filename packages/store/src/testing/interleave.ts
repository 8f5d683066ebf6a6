/** Controls two connections step by step: transactions that wait before their commit, and a look at the locks for which backends wait. */
import { testIsolation, waitFor } from '@boxcar/testkit';
import type pg from 'pg';

/** The kernel begins its transactions in this way, independent of the server's default. */
const BEGIN = 'begin isolation level read committed';
/** At stricter levels a single statement fails when it conflicts with another statement, and its callers repeat it. */
const isExpected = (state: string): boolean => state === '40001' && testIsolation() !== undefined;

export interface HeldPool {
  /** Like the original pool, but each transaction, including that of a single statement, waits before its commit until `release`. */
  readonly pool: pg.Pool;
  /** Resolves with the process id of the backend when a transaction has reached its commit. */
  readonly atCommit: Promise<number>;
  release(): void;
}

/** Holds every transaction of `pool` directly before its commit. */
export function holdCommits(pool: pg.Pool): HeldPool {
  let release = (): void => undefined;
  const gate = new Promise<void>((resolve) => {
    release = resolve;
  });
  let reach: (pid: number) => void = () => undefined;
  const atCommit = new Promise<number>((resolve) => {
    reach = resolve;
  });
  const connect = async (): Promise<pg.PoolClient> => {
    const client = await pool.connect();
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    const sent: Promise<unknown>[] = [];
    const send = (args: Parameters<pg.PoolClient['query']>): Promise<unknown> =>
      client.query(...args) as unknown as Promise<unknown>;
    const query = async (...args: Parameters<pg.PoolClient['query']>): Promise<unknown> => {
      if ((args[0] as unknown) === 'commit') {
        // The commit may be sent before earlier statements have been answered.
        await Promise.allSettled(sent);
        reach(rows[0]?.pid ?? 0);
        await gate;
        return send(args);
      }
      const answer = send(args);
      sent.push(answer);
      return answer;
    };
    return new Proxy(client, {
      get: (target, key) => {
        if (key === 'query') return query;
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  };
  const query = async (config: pg.QueryConfig): Promise<unknown> => {
    const client = await connect();
    await client.query(BEGIN);
    const answer = await client.query(config);
    await client.query('commit');
    client.release();
    return answer;
  };
  const held = new Proxy(pool, {
    get: (target, key) => {
      if (key === 'connect') return connect;
      if (key === 'query') return query;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  return { pool: held, atCommit, release };
}

/** Waits until `n` backends of this database wait for a lock of the backend `pid`, or of any backend when `pid` is not given. */
export async function waitUntilBlocked(
  pool: pg.Pool,
  options: { readonly by?: number; readonly n?: number } = {},
): Promise<void> {
  const { by, n = 1 } = options;
  await waitFor(
    async () => {
      const { rows } = await pool.query<{ n: number }>(
        `
          select count(*)::int as n
          from pg_stat_activity
          where datname = current_database()
            and cardinality(pg_blocking_pids(pid)) > 0
            and ($1::int is null or $1 = any (pg_blocking_pids(pid)))`,
        [by ?? null],
      );
      return (rows[0]?.n ?? 0) >= n;
    },
    { message: `${n} statement(s) wait for a lock${by === undefined ? '' : ` of backend ${by}`}` },
  );
}

/** A transaction that the test controls; rolled back when it goes out of scope unfinished. */
export async function begin(
  pool: pg.Pool,
): Promise<pg.PoolClient & AsyncDisposable & { readonly pid: number }> {
  const client = await pool.connect();
  await client.query(BEGIN);
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  return Object.assign(client, {
    pid: rows[0]?.pid ?? 0,
    [Symbol.asyncDispose]: async () => {
      await client.query('rollback');
      client.release();
    },
  });
}

/** The pool, and the SQLSTATE of every unexpected error of its statements, retried or not. */
export function watchErrors(pool: pg.Pool): { readonly pool: pg.Pool; readonly states: readonly string[] } {
  const states: string[] = [];
  const watch = <T extends object>(target: T): T =>
    new Proxy(target, {
      get: (of, key) => {
        const value: unknown = Reflect.get(of, key, of);
        if (typeof value !== 'function') return value;
        if (key === 'connect') return async () => watch(await (of as unknown as pg.Pool).connect());
        if (key !== 'query') return value.bind(of);
        return async (...args: unknown[]) => {
          try {
            return await value.apply(of, args);
          } catch (error) {
            const state = String((error as { code?: unknown }).code);
            if (!isExpected(state)) states.push(state);
            throw error;
          }
        };
      },
    });
  return { pool: watch(pool), states };
}
