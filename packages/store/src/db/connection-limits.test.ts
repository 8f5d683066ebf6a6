/** A process that is stopped or cut off at any point delays the others for a bounded time. */
import { KernelError } from '@boxcar/kernel';
import { statementProxy, type TestDatabase, tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { beforeEach, expect, test } from 'vitest';
import { createDirectClient, endClient } from './connection-limits.js';
import { checkOut, transaction } from './db.js';
import { isTransient, sqlStateOf, toDatabaseError } from './errors.js';
import {
  beginOn,
  createPool,
  dropConnections,
  dropSilent,
  endPool,
  limitByLease,
  silentFor,
} from './pool.js';

let database: TestDatabase;
const pools: pg.Pool[] = [];
beforeEach(async () => {
  database = await testDatabase({ empty: true });
  await database.pool.query('create table public.things (id int primary key, n int)');
  await database.pool.query('insert into public.things values (1, 0), (2, 0)');
  return async () => {
    for (const pool of pools.splice(0)) await endPool(pool);
    await database.close();
  };
});

function open(options: Partial<Parameters<typeof createPool>[0]> = {}): pg.Pool {
  const pool = createPool({ connectionString: database.url, max: 1, ...options });
  pools.push(pool);
  return pool;
}

const SHORT_LEASE_MS = 1_000;
/** The longest time for which a process with that lease may delay others. */
const ALLOWED_MS = SHORT_LEASE_MS + 2_000;

const settingsOf = async (db: Pick<pg.Pool, 'query'>): Promise<Record<string, string>> => {
  const { rows } = await db.query<{ name: string; setting: string }>(
    `select name, setting from pg_settings where name in ('idle_in_transaction_session_timeout', 'lock_timeout',
       'statement_timeout', 'tcp_keepalives_idle', 'tcp_keepalives_interval', 'tcp_keepalives_count', 'tcp_user_timeout')`,
  );
  return Object.fromEntries(rows.map(({ name, setting }) => [name, setting]));
};

/** The time for which another process waits for row 1, which the stopped process has locked. */
async function waitForRow(): Promise<number> {
  const startedAt = performance.now();
  await transaction(open(), (tx) => tx.query({ text: 'update public.things set n = n + 1 where id = 1' }));
  return performance.now() - startedAt;
}

test('every connection sends its limits to the server', async () => {
  const keepalives = { tcp_keepalives_idle: '4', tcp_keepalives_interval: '2', tcp_keepalives_count: '2' };
  const limits = { idle_in_transaction_session_timeout: '8000', lock_timeout: '4000' };
  expect(await settingsOf(open())).toEqual({
    ...limits,
    ...keepalives,
    statement_timeout: '30000',
    tcp_user_timeout: '8000',
  });
  const direct = createDirectClient({
    connectionString: database.url,
    applicationName: 'direct',
    queryMs: 5_000,
  });
  await direct.connect();
  expect(await settingsOf(direct)).toEqual({
    ...limits,
    ...keepalives,
    statement_timeout: '5000',
    tcp_user_timeout: '8000',
  });
  await endClient(direct);
});

test('open connections also get the limits of a shorter lease', async () => {
  const pool = open({ max: 2 });
  const old = await checkOut(pool);
  old.release();
  limitByLease(pool, SHORT_LEASE_MS);
  const limits = { idle_in_transaction_session_timeout: '800', lock_timeout: '400', tcp_user_timeout: '800' };
  expect(await settingsOf(pool)).toMatchObject(limits);
  const both = await Promise.all([checkOut(pool), checkOut(pool)]);
  for (const client of both) expect(await settingsOf(client)).toMatchObject(limits);
  for (const client of both) client.release();
  // A longer lease changes nothing.
  limitByLease(pool, 600_000);
  expect(await settingsOf(pool)).toMatchObject(limits);
});

test('a connection that is opening when a worker begins also gets the limits of its lease', async () => {
  const pool = open();
  const opening = settingsOf(pool);
  using _lease = limitByLease(pool, SHORT_LEASE_MS);
  await opening;
  expect(await settingsOf(pool)).toMatchObject({ idle_in_transaction_session_timeout: '800' });
});

test('with a transaction pooler, transactions and single statements set their limits in one round trip', async () => {
  await using proxy = await statementProxy(database.url);
  const pool = open({ connectionString: proxy.url, isPooled: true });
  /** Settings that stay in the session, which another client uses afterwards. */
  const ofSession = async (): Promise<Record<string, string>> => {
    const client = await checkOut(pool);
    try {
      return await settingsOf(client);
    } finally {
      client.release();
    }
  };
  const none = { idle_in_transaction_session_timeout: '0', lock_timeout: '0' };
  const limits = {
    idle_in_transaction_session_timeout: '800',
    lock_timeout: '400',
    statement_timeout: '30000',
  };
  expect(await ofSession()).toMatchObject(none);
  limitByLease(pool, SHORT_LEASE_MS);
  expect(await transaction(pool, (tx) => settingsOf(tx as pg.Pool))).toMatchObject(limits);
  expect(await settingsOf(pool)).toMatchObject(limits);
  expect(await ofSession()).toMatchObject(none);
  // The statement and the commit do not wait for the answer to the begin.
  proxy.arm({ at: { text: beginOn(pool), nth: 1 }, when: 'before', scope: 'connection', effect: 'silence' });
  const asked = pool.query('select 1').catch(() => undefined);
  await waitFor(() => proxy.strike.aborted, { message: 'the begin is held' });
  proxy.wake();
  await asked;
  expect(proxy.statements).toEqual([beginOn(pool), 'select 1', 'commit']);
});

test('with a transaction pooler, a single statement has the same lock limit as without a pooler', async () => {
  const pool = open({ isPooled: true });
  limitByLease(pool, SHORT_LEASE_MS);
  const stranger = await database.pool.connect();
  await stranger.query('begin; select from public.things where id = 1 for update');
  const update = 'update public.things set n = n + 1 where id = 1';
  await expect(pool.query(update)).rejects.toMatchObject({ code: '55P03' });
  // A failed statement has no effect, and its connection can be used again.
  await expect(pool.query('select 1 / 0')).rejects.toMatchObject({ code: '22012' });
  await stranger.query('rollback');
  stranger.release();
  expect((await pool.query(update)).rowCount).toBe(1);
  expect((await database.pool.query('select n from public.things where id = 1')).rows).toEqual([{ n: 1 }]);
});

test('a statement that a user has canceled is not tried again', async () => {
  let runs = 0;
  const canceled = transaction(open(), async (tx) => {
    runs += 1;
    await tx.query({ text: 'select pg_sleep(20) as canceled_by_somebody' });
  }).catch((error: unknown) => error);
  await waitFor(
    async () =>
      (
        await database.pool.query(
          "select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() and query like '%canceled_by_somebody%' and pid <> pg_backend_pid() and state = 'active'",
        )
      ).rowCount === 1,
    { message: 'it is canceled' },
  );
  expect(await canceled).toMatchObject({ code: '57014' });
  expect(runs).toBe(1);
});

test.each([{ isPooled: false }, { isPooled: true }])(
  'a process that stops inside a transaction loses its locks without help: %o',
  async ({ isPooled }) => {
    const pool = open({ isPooled });
    limitByLease(pool, SHORT_LEASE_MS);
    const stopped = await checkOut(pool);
    await stopped.query(beginOn(pool));
    await stopped.query('select from public.things where id = 1 for update');
    expect(await waitForRow()).toBeLessThan(ALLOWED_MS);
    // After it wakes up, its next statement fails with an error that allows a repetition.
    const woken = await stopped.query('commit').then(
      () => undefined,
      (error: unknown) => toDatabaseError(error),
    );
    expect(woken).toMatchObject({ code: 'database_unavailable' });
    expect(isTransient(woken)).toBe(true);
    stopped.release(true);
  },
);

test('a process that stops while the server writes to it loses its locks without help', async () => {
  const pool = open();
  limitByLease(pool, SHORT_LEASE_MS);
  const stopped = await checkOut(pool);
  await stopped.query('begin');
  await stopped.query('select from public.things where id = 1 for update');
  stopped.connection.stream.pause();
  const reading = stopped.query("select repeat('x', 50000000) from generate_series(1, 20)");
  reading.catch(() => undefined);
  await waitFor(
    async () =>
      (
        await database.pool.query(
          "select from pg_stat_activity where datname = current_database() and wait_event = 'ClientWrite'",
        )
      ).rows.length === 1,
    { message: 'the server waits for the process to read' },
  );
  expect(await waitForRow()).toBeLessThan(ALLOWED_MS + 2_000);
  stopped.connection.stream.resume();
  await expect(reading).rejects.toThrow();
  stopped.release(true);
});

test('every statement waits for a lock for a limited time, and its error says that the wait was too long', async () => {
  const pool = open();
  limitByLease(pool, SHORT_LEASE_MS);
  // A session of a program other than the kernel has no limit.
  const stranger = await database.pool.connect();
  await stranger.query(
    'begin; set local idle_in_transaction_session_timeout = 0; select from public.things where id = 1 for update',
  );
  const waiting = transaction(pool, (tx) =>
    tx.query({ text: 'update public.things set n = 1 where id = 1' }),
  );
  const failure = await waiting.catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(KernelError);
  expect(failure).toMatchObject({ code: 'database_unavailable', details: { code: '55P03' } });
  expect(sqlStateOf(failure)).toBe('55P03');
  await stranger.query('rollback');
  stranger.release();
}, 40_000);

test('a transaction that was ended by its limits runs again', async () => {
  const pool = open();
  for (const [state, message] of [
    ['25P03', 'terminating connection due to idle-in-transaction timeout'],
    ['55P03', 'canceling statement due to lock timeout'],
    ['57014', 'canceling statement due to statement timeout'],
  ]) {
    let runs = 0;
    await transaction(pool, async (tx) => {
      runs += 1;
      if (runs === 1)
        await tx.query({
          text: `do $$ begin raise exception '${message}' using errcode = '${state}'; end $$`,
        });
    });
    expect(runs).toBe(2);
  }
});

test('a transaction that exceeds a limit of its own body is not tried again', async () => {
  let runs = 0;
  const cutOff = transaction(
    open(),
    async (tx) => {
      runs += 1;
      await tx.query({ text: 'set local statement_timeout = 20' });
      await tx.query({ text: 'select pg_sleep(10)' });
    },
    { ownLimit: '57014' },
  );
  expect(sqlStateOf(await cutOff.catch((error: unknown) => error))).toBe('57014');
  expect(runs).toBe(1);
});

test('a pool knows how long its server has been silent, and replaces dropped connections', async () => {
  await using proxy = await tcpProxy(database.url);
  const pool = open({ connectionString: proxy.url });
  await pool.query('select 1');
  const heardAt = silentFor(pool);
  proxy.stall();
  const asked = pool.query('select 1');
  const failed = asked.catch((error: unknown) => toDatabaseError(error));
  await waitFor(() => silentFor(pool) > heardAt + 300, { message: 'it is silent' });
  await proxy.restore();
  proxy.stallAnswers();
  expect(dropConnections(pool)).toBe(1);
  expect(await failed).toMatchObject({ code: 'database_unavailable' });
  await proxy.restore();
  await pool.query('select 1');
  expect(silentFor(pool)).toBeLessThan(300);
});

test.each(['before', 'after'] as const)(
  'a connection that falls silent %s a statement is cut off, but a connection with a long statement is not',
  async (when) => {
    const text = 'select n from public.things where id = 2';
    await using proxy = await statementProxy(database.url, {
      at: { text, nth: 1 },
      when,
      scope: 'connection',
      effect: 'silence',
    });
    const pool = open({ connectionString: proxy.url, max: 3 });
    let isSlowOver = false;
    const slow = pool.query('select pg_sleep(2)').finally(() => {
      isSlowOver = true;
    });
    const failed = pool.query(text).catch((error: unknown) => toDatabaseError(error));
    await waitFor(() => proxy.strike.aborted, { message: 'it is silent' });
    let dropped = 0;
    await waitFor(
      async () => {
        dropped += await dropSilent(pool, 200);
        return isSlowOver;
      },
      { message: 'the long statement has ended' },
    );
    expect(dropped).toBe(1);
    expect(await failed).toMatchObject({ code: 'database_unavailable' });
    expect((await slow).rowCount).toBe(1);
    expect((await pool.query(text)).rows).toEqual([{ n: 0 }]);
  },
);

test('a pool and a connection whose server is silent close in bounded time', async () => {
  await using proxy = await tcpProxy(database.url);
  const pool = createPool({ connectionString: proxy.url, max: 2 });
  const direct = createDirectClient({ connectionString: proxy.url, applicationName: 'x', queryMs: 60_000 });
  await direct.connect();
  await pool.query('select 1');
  const inUse = await checkOut(pool);
  proxy.stall();
  const asked = inUse.query('select 1').catch(() => inUse.release(true));
  const startedAt = performance.now();
  await Promise.all([endPool(pool), endClient(direct), asked]);
  expect(performance.now() - startedAt).toBeLessThan(5_000);
});

test.each([Number.NaN, -5, 0, Number.POSITIVE_INFINITY, 2 ** 32])(
  'a pool refuses %s as statementMs and as max',
  (value) => {
    const { url: connectionString } = database;
    expect(() => createPool({ connectionString, statementMs: value })).toThrow(/statementMs: must be/);
    expect(() => createPool({ connectionString, max: value })).toThrow(/max: must be/);
  },
);
