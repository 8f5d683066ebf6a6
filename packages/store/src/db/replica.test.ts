import { KernelError } from '@boxcar/kernel';
import {
  hasPostgresPair,
  type PostgresPair,
  postgresPair,
  type TcpProxy,
  tcpProxy,
  testDatabase,
} from '@boxcar/testkit';
import type pg from 'pg';
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { createPool, endPool } from './pool.js';
import { ReadReplica, type ReplicaFacts } from './replica.js';

describe.runIf(hasPostgresPair())('reads on a standby', () => {
  let pair: PostgresPair;
  let proxy: TcpProxy;
  let primary: pg.Pool;
  beforeAll(async () => {
    pair = await postgresPair();
    proxy = await tcpProxy(pair.standbyUrl);
    primary = createPool({ connectionString: pair.url });
    await primary.query(
      'create table public.notes (id bigint generated always as identity primary key, text text)',
    );
    return async () => {
      await endPool(primary);
    };
  });
  let replica: ReadReplica;
  let told: ReplicaFacts[];
  beforeEach(() => {
    told = [];
    replica = new ReadReplica({ primary, url: proxy.url, onPrimary: (facts) => told.push(facts) });
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await replica.close();
    await proxy.restore();
  });

  const write = (text: string) => primary.query('insert into public.notes (text) values ($1)', [text]);
  const last = async (pool: pg.Pool): Promise<string | undefined> =>
    (await pool.query<{ text: string }>('select text from public.notes order by id desc limit 1')).rows[0]
      ?.text;
  const READY = { state: 'ready', lagMs: 0, behindBytes: 0 };

  test('include everything that was committed before the question', async () => {
    for (let at = 0; at < 100; at += 1) {
      await write(`before ${at}`);
      expect(await replica.read(last)).toEqual({ value: `before ${at}`, from: 'replica', replica: READY });
    }
    expect(told).toEqual([]);
  });

  test('are made on the primary while the standby lags, and the answer reports the lag', async () => {
    await write('seen by both');
    expect((await replica.read(last)).from).toBe('replica');
    await pair.pause();
    try {
      await write('on the primary alone');
      const read = await replica.read(last);
      expect(read).toMatchObject({
        value: 'on the primary alone',
        from: 'primary',
        replica: { state: 'behind' },
      });
      expect(read.replica.lagMs).toBeGreaterThan(0);
      expect(read.replica.behindBytes).toBeGreaterThan(0);
      expect(told).toEqual([read.replica]);
      expect(await replica.inspect()).toMatchObject({ state: 'behind' });
    } finally {
      await pair.resume();
    }
    // The standby is used again from the next read on.
    await vi.waitFor(async () => expect(await replica.inspect()).toEqual(READY));
    expect(await replica.read(last)).toMatchObject({ value: 'on the primary alone', from: 'replica' });
  });

  test('wait briefly for the standby to catch up', async () => {
    await pair.pause();
    await write('late');
    const reading = replica.read(last);
    await pair.resume();
    expect(await reading).toEqual({ value: 'late', from: 'replica', replica: READY });
  });

  test.each([
    ['refuses connections', () => proxy.cut()],
    ['does not answer', () => proxy.stall()],
    ['falls silent on its open connections', () => proxy.stallOpen()],
  ] as const)(
    'are made on the primary when the standby %s; the standby is then not asked for a while',
    async (what, fail) => {
      await write(what);
      await replica.read(last);
      await fail();
      expect(await replica.read(last)).toMatchObject({
        value: what,
        from: 'primary',
        replica: {
          state: 'unavailable',
          lagMs: null,
          behindBytes: null,
          problem: expect.stringMatching(/./),
        },
      });
      await proxy.restore();
      expect(await replica.read(last)).toMatchObject({ from: 'primary', replica: { state: 'unavailable' } });
      expect(told).toHaveLength(1);
      const now = performance.now();
      vi.spyOn(performance, 'now').mockImplementation(() => now + 11_000);
      expect(await replica.read(last)).toMatchObject({ value: what, from: 'replica' });
    },
  );

  test('that fail on the standby are repeated on the primary', async () => {
    const asked: pg.Pool[] = [];
    const read = await replica.read(async (pool) => {
      asked.push(pool);
      if (pool !== primary) await proxy.cut();
      return last(pool).catch((cause: unknown) => {
        throw new KernelError('database_unavailable', { cause });
      });
    });
    expect(read).toMatchObject({ from: 'primary', replica: { state: 'unavailable' } });
    expect(asked).toHaveLength(2);
  });

  test('that the standby cannot answer are repeated on the primary, whose failure is reported; the standby stays in use', async () => {
    const notFound = (pool: pg.Pool) =>
      Promise.reject(new KernelError('not_found', { message: pool === primary ? 'primary' : 'standby' }));
    await expect(replica.read(notFound)).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringMatching(/^primary/),
    });
    // A write is not a read: the standby refuses it.
    const writes = (pool: pg.Pool) => pool.query("insert into public.notes (text) values ('written')");
    expect((await replica.read(writes)).from).toBe('primary');
    expect(await replica.read(last)).toMatchObject({ value: 'written', from: 'replica' });
    expect(told).toEqual([]);
  });

  test('are made on the primary while all connections to the standby are in use, and those connections continue', async () => {
    await using narrow = new ReadReplica({ primary, url: proxy.url, maxConnections: 1 });
    let begin = (): void => undefined;
    const begun = new Promise<void>((settle) => {
      begin = settle;
    });
    let end = (): void => undefined;
    const ended = new Promise<void>((settle) => {
      end = settle;
    });
    const long = narrow.read(async (pool) => {
      const client = await pool.connect();
      begin();
      await ended;
      const { rows } = await client.query<{ n: number }>('select 1 as n');
      client.release();
      return rows[0]?.n;
    });
    await begun;
    expect(await narrow.read(last)).toMatchObject({ from: 'primary', replica: { state: 'busy' } });
    end();
    expect(await long).toMatchObject({ value: 1, from: 'replica' });
    expect(await narrow.read(last)).toMatchObject({ from: 'replica' });
  });

  test('are made on the primary when the role may not read the position of the standby', async () => {
    await primary.query("create role reader login password 'reader'");
    await primary.query('grant select on public.notes to reader');
    await primary.query('revoke execute on function pg_control_system() from public');
    const as = (url: string): string =>
      Object.assign(new URL(url), { username: 'reader', password: 'reader' }).href;
    const own = createPool({ connectionString: as(pair.url) });
    await using refused = new ReadReplica({ primary: own, url: as(pair.standbyUrl) });
    expect(await refused.read(last)).toMatchObject({
      from: 'primary',
      replica: { state: 'unavailable', problem: expect.stringMatching(/pg_control_system/) },
    });
    await endPool(own);
    await primary.query('grant execute on function pg_control_system() to public');
  });

  test('fail with the error of the primary when the primary does not answer', async () => {
    await using away = await tcpProxy(pair.url);
    const pool = createPool({ connectionString: away.url });
    await using lone = new ReadReplica({ primary: pool, url: proxy.url });
    await away.cut();
    await expect(lone.read(last)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    await endPool(pool);
  });

  test('are made on the primary when the URL leads to another server, or to a server that accepts writes', async () => {
    await using other = await testDatabase();
    await using foreign = new ReadReplica({ primary: other.pool, url: proxy.url });
    const one = (pool: pg.Pool) => pool.query('select 1');
    expect(await foreign.read(one)).toMatchObject({ from: 'primary', replica: { state: 'other_server' } });
    await using itself = new ReadReplica({ primary, url: pair.url });
    expect(await itself.read(one)).toMatchObject({ from: 'primary', replica: { state: 'not_a_standby' } });
    // This must be the last test of the file: a promoted standby cannot become a standby again.
    expect((await replica.read(last)).from).toBe('replica');
    await pair.promote();
    await write('after the failover');
    expect(await replica.read(last)).toMatchObject({
      value: 'after the failover',
      from: 'primary',
      replica: { state: 'not_a_standby' },
    });
  });
});
