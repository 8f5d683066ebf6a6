import { type AddressInfo, connect, createServer } from 'node:net';
import { testDatabase } from '@boxcar/testkit';
import type pg from 'pg';
import { describe, expect, test } from 'vitest';
import { transactAtOnce, transaction } from './db.js';
import { transactWithin } from './lock-limit.js';
import { createPool } from './pool.js';
import type { Tx } from './statement.js';

/** `ReadyForQuery` of an idle session, which ends the server's messages at the start of a session. */
const READY = Buffer.from('5a0000000549', 'hex');

/** A proxy that closes the first session as soon as it is ready, and forwards both messages in one piece. */
async function cutOnceReady(targetUrl: string) {
  const target = new URL(targetUrl);
  let isFirst = true;
  const server = createServer((inner) => {
    const outer = connect({ host: target.hostname, port: Number(target.port) });
    const held: Buffer[] = [];
    let isHeld = isFirst;
    isFirst = false;
    outer.on('data', (chunk) => {
      if (!isHeld) return void inner.write(chunk);
      held.push(chunk);
      const said = Buffer.concat(held);
      const readyAt = said.indexOf(READY);
      if (readyAt === -1) {
        held.length = 0;
        inner.write(said);
      } else {
        isHeld = false;
        inner.end(
          Buffer.concat([said, fatal('57P01', 'terminating connection due to administrator command')]),
        );
        outer.destroy();
      }
    });
    inner.on('data', (chunk) => outer.write(chunk));
    for (const [one, other] of [
      [inner, outer],
      [outer, inner],
    ] as const)
      one.on('error', () => other.destroy()).on('close', () => other.end());
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  const url = new URL(targetUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  return { url: url.href, [Symbol.asyncDispose]: async () => void server.close() };
}

/** An `ErrorResponse` as the server sends it before it closes the connection. */
function fatal(code: string, message: string): Buffer {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C${code}\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write('E');
  head.writeInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}

test('a connection that is lost while it opens fails a statement, and not the process', async () => {
  await using database = await testDatabase({ empty: true });
  await using proxy = await cutOnceReady(database.url);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  try {
    const rows = await transaction(pool, (tx) => tx.query({ text: 'select 1 as one' }));
    expect(rows.rows).toEqual([{ one: 1 }]);
  } finally {
    await pool.end();
  }
});

test('statements that are sent together and break before all were sent leave no change', async () => {
  await using database = await testDatabase();
  const { pool } = database;
  await pool.query('create table public.sent (n int)');
  const insert = (n: number) => ({ text: 'insert into public.sent values ($1)', values: [n] });
  const build = async (isWhole: boolean): Promise<void> => {
    if (!isWhole) throw new RangeError('too large to be written');
  };
  const send = (isWhole: boolean) =>
    transactAtOnce(pool, async (tx) => {
      await Promise.all([tx.query(insert(1)), build(isWhole).then(() => tx.query(insert(2)))]);
    });
  await expect(send(false)).rejects.toThrow('too large to be written');
  expect((await pool.query('select n from public.sent')).rows).toEqual([]);
  // A statement that the server refuses has the same effect, whatever statements follow it.
  const refused = transactAtOnce(pool, (tx) =>
    Promise.all([tx.query(insert(1)), tx.query({ text: 'select 1 / 0' }), tx.query(insert(2))]),
  );
  await expect(refused).rejects.toThrow('division by zero');
  expect((await pool.query('select n from public.sent')).rows).toEqual([]);
  await send(true);
  expect((await pool.query('select n from public.sent order by n')).rows).toEqual([{ n: 1 }, { n: 2 }]);
});

describe('with statements sent together', () => {
  /** Fails with `state` the first time it is called. */
  const failingOnce = (state: string): string => `
    drop schema if exists trial cascade;
    create schema trial;
    create table trial.written (n int);
    create sequence trial.calls;
    create function trial.fail_once() returns int language plpgsql as $$
      begin
        if nextval('trial.calls') = 1 then raise exception 'the first of them' using errcode = '${state}'; end if;
        return 1;
      end $$`;
  const FAIL = { text: 'insert into trial.written select trial.fail_once()' };
  const NEXT = { text: 'insert into trial.written values (2)' };
  /** Answers later than an unwrapped statement, like a function around a statement. */
  const wrapped = async <T>(answer: Promise<T>): Promise<T> => {
    const inner = async (): Promise<T> => await answer;
    return await (async () => await inner())();
  };

  const WAYS = {
    transactAtOnce: (pool: pg.Pool) =>
      transactAtOnce(pool, (tx) => Promise.all([wrapped(tx.query(FAIL)), tx.query(NEXT)])),
    transaction: (pool: pg.Pool) =>
      transaction(pool, (tx) => Promise.all([wrapped(tx.query(FAIL)), tx.query(NEXT)])),
  };

  describe.each(Object.entries(WAYS))('in %s', (_name, send) => {
    test.each(['40P01', '40001'])('a first failure with %s repeats all statements', async (state) => {
      await using database = await testDatabase();
      await database.pool.query(failingOnce(state));
      await send(database.pool);
      const { rows } = await database.pool.query('select n from trial.written order by n');
      expect(rows).toEqual([{ n: 1 }, { n: 2 }]);
      expect((await database.pool.query('select last_value::int as n from trial.calls')).rows).toEqual([
        { n: 2 },
      ]);
      await database.pool.query('drop schema trial cascade');
    });

    test('a failure that must not be repeated is reported', async () => {
      await using database = await testDatabase();
      await database.pool.query(failingOnce('22012'));
      await expect(send(database.pool)).rejects.toMatchObject({ code: '22012' });
      expect((await database.pool.query('select n from trial.written')).rows).toEqual([]);
      await database.pool.query('drop schema trial cascade');
    });
  });

  test('a transaction whose failure was not noticed does not count as committed', async () => {
    await using database = await testDatabase();
    await database.pool.query(failingOnce('22012'));
    const unheard = (tx: Tx): Promise<unknown> => tx.query(FAIL).catch(() => 'not heard');
    await expect(transaction(database.pool, unheard)).rejects.toMatchObject({ code: '22012' });
    await database.pool.query(failingOnce('22012'));
    await expect(transactAtOnce(database.pool, unheard)).rejects.toMatchObject({ code: '22012' });
    await database.pool.query('drop schema trial cascade');
  });
});

describe('after a failure that a savepoint has undone', () => {
  /** Fails, undoes the failure, and then sends a statement that fails without a listener. */
  const undoneThen = async (tx: Tx, next: string): Promise<void> => {
    await tx.query({ text: 'savepoint mine' });
    await expect(tx.query({ text: 'select 1 / 0' })).rejects.toMatchObject({ code: '22012' });
    await tx.query({ text: 'rollback to savepoint mine' });
    tx.query({ text: next }).catch(() => undefined);
  };

  test('a later failure is reported', async () => {
    await using database = await testDatabase();
    const failed = transaction(database.pool, (tx) => undoneThen(tx, "select 'x'::int"));
    await expect(failed).rejects.toMatchObject({ code: '22P02' });
  });

  test('a later serialization failure repeats the transaction', async () => {
    await using database = await testDatabase();
    const race = "do $$ begin raise exception 'race' using errcode = '40001'; end $$";
    let tries = 0;
    await transaction(database.pool, (tx) => undoneThen(tx, ++tries === 1 ? race : 'select 1'));
    expect(tries).toBe(2);
  });

  test('the same is true for several statements in one text', async () => {
    await using database = await testDatabase();
    const failed = transaction(database.pool, async (tx) => {
      await tx.query({ text: 'savepoint mine' });
      await tx.query({ text: 'select 1 / 0' }).catch(() => undefined);
      await tx.query({ text: 'rollback to savepoint mine; release savepoint mine' });
      tx.query({ text: "select 'x'::int" }).catch(() => undefined);
    });
    await expect(failed).rejects.toMatchObject({ code: '22P02' });
  });
});

test('work of a sweep that exceeds its time is not tried again', async () => {
  await using database = await testDatabase();
  let tries = 0;
  const work = transactWithin(database.pool, { lockMs: 1_000 }, async (tx) => {
    tries += 1;
    await tx.query({ text: 'set local statement_timeout = 50' });
    await tx.query({ text: 'select pg_sleep(10)' });
  });
  await expect(work).rejects.toMatchObject({ code: 'database_unavailable' });
  expect(tries).toBe(1);
});

test('a transaction reads rows that were committed while it waited, at every default isolation level of the server', async () => {
  await using database = await testDatabase();
  const url = new URL(database.url);
  url.searchParams.set('options', '-c default_transaction_isolation=serializable');
  const pool = createPool({ connectionString: url.href, isPooled: true, max: 1 });
  const level = { text: "select current_setting('transaction_isolation') as level" };
  try {
    const client = await pool.connect();
    expect((await client.query(level)).rows).toEqual([{ level: 'serializable' }]);
    client.release();
    expect((await pool.query(level)).rows).toEqual([{ level: 'read committed' }]);
    expect((await transaction(pool, (tx) => tx.query(level))).rows).toEqual([{ level: 'read committed' }]);
    expect((await transactAtOnce(pool, (tx) => tx.query(level))).rows).toEqual([{ level: 'read committed' }]);
  } finally {
    await pool.end();
  }
  // A pool that is not pooled sets the level at the start of each connection.
  await database.pool.query(
    `alter database ${database.name} set default_transaction_isolation = 'serializable'`,
  );
  const direct = createPool({ connectionString: database.url, max: 1 });
  try {
    expect((await direct.query(level)).rows).toEqual([{ level: 'read committed' }]);
  } finally {
    await direct.end();
    await database.pool.query(`alter database ${database.name} reset default_transaction_isolation`);
  }
});
