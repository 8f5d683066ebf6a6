/** Simultaneous purges, and the marks that a killed purge leaves. */
import type { BoxId, TurnId } from '@boxcar/kernel';
import { createPool, type PurgeReport, purgeRuns } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { beforeEach, expect, test } from 'vitest';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

interface Receipt {
  readonly turn_id: TurnId;
  readonly output_box_id: BoxId;
}

let h: Harness;
/** For the purges, and for the transactions that hold them up. */
let pool: pg.Pool;

beforeEach(async () => {
  h = await harness();
  pool = createPool({ connectionString: h.database.url, max: 8 });
  await h.profile('child', [{ say: 'done' }]);
  await h.worker();
  return async () => {
    await checkInvariants(h.database.pool);
    expect(await h.rows('select * from boxcar.purging')).toEqual([]);
    await pool.end();
    await h[Symbol.asyncDispose]();
  };
});

const launch = async (rest: Record<string, unknown> = {}): Promise<Receipt> =>
  (await h.runtime.submit('launch_principal', {
    profile_name: 'child',
    instruction: 'go',
    ...rest,
  })) as unknown as Receipt;
async function play(rest?: Record<string, unknown>): Promise<Receipt> {
  const receipt = await launch(rest);
  expect(await h.runtime.waitForTurn(receipt.turn_id)).toMatchObject({ status: 'success' });
  return receipt;
}
async function now(): Promise<Date> {
  const [row] = await h.rows<{ at: Date }>("select clock_timestamp() + interval '1 millisecond' as at");
  const at = row?.at ?? new Date(0);
  await h.rows('select pg_sleep(greatest(0, extract(epoch from $1::timestamptz - clock_timestamp())))', [at]);
  return at;
}
const purge = (before: Date, options: Partial<Parameters<typeof purgeRuns>[1]> = {}): Promise<PurgeReport> =>
  purgeRuns(pool, { before, ...options });
const runsLeft = (): Promise<readonly { id: string }[]> =>
  h.rows<{ id: string }>('select id from boxcar.runs order by id');

/** A transaction of another process that has run a statement, with its backend. */
async function hold(text: string, values: unknown[] = []) {
  const client = await pool.connect();
  await client.query('begin');
  await client.query(text, values);
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  const pid = rows[0]?.pid ?? 0;
  return {
    /** Waits until this many backends wait for it, directly or through other waiting backends. */
    isAwaitedBy: (count: number): Promise<unknown> =>
      waitFor(
        async () => {
          const waiting = await h.rows(
            `with recursive w as (
               select $1::int as pid
               union select a.pid from w join pg_stat_activity a on a.datname = current_database() and w.pid = any (pg_blocking_pids(a.pid)))
             select from w where pid <> $1`,
            [pid],
          );
          return waiting.length >= count;
        },
        { message: `${count} wait` },
      ),
    end: async (): Promise<void> => {
      await client.query('commit');
      client.release();
    },
  };
}
const holdRun = (id: string) => hold('select from boxcar.runs where id = $1 for update', [id]);
/** While the lock is held, a purge sets its marks but cannot pass the barrier. */
const holdBarrier = () => hold('select pg_advisory_xact_lock_shared(7205129002)');
/** While the lock is held, a purge that removes this tape is within its last statements. */
const holdEntries = (box: BoxId) =>
  hold('select from boxcar.tape_entries where box_id = $1 for key share', [box]);

/** A purge that sets its marks, and is stopped before it checks again. */
async function stoppedPurge(before: Date): Promise<{ readonly report: Promise<PurgeReport> }> {
  const barrier = await holdBarrier();
  const stop = new AbortController();
  const report = purge(before, { signal: stop.signal });
  await barrier.isAwaitedBy(1);
  stop.abort();
  await barrier.end();
  return { report };
}

test('a stopped purge does not expose rows that another purge is removing: no new reference to them is possible', async () => {
  const old = await play();
  const before = await now();
  const entries = await holdEntries(old.output_box_id);
  const first = purge(before);
  await entries.isAwaitedBy(1);
  const { report: second } = await stoppedPurge(before);
  // The second purge does not wait for the first.
  expect(await second).toMatchObject({ removed: { runs: 0 }, kept: [], isStopped: true });
  await expect(launch({ context_box_id: old.output_box_id })).rejects.toMatchObject({ code: 'not_found' });
  await entries.end();
  expect(await first).toMatchObject({ removed: { runs: 1 }, kept: [] });
});

test('a purge whose marks another purge has taken over keeps the rest, and says so', async () => {
  const old = await play();
  const before = await now();
  const [run] = await runsLeft();
  const rows = await holdRun(run?.id ?? '');
  const first = purge(before);
  await rows.isAwaitedBy(1);
  const { report: second } = await stoppedPurge(before);
  expect(await second).toMatchObject({ isStopped: true });
  // At this point, nothing is marked.
  const user = await launch({ context_box_id: old.output_box_id });
  await rows.end();
  expect(await first).toMatchObject({
    removed: { runs: 0 },
    kept: [{ run_id: run?.id, cause: 'purging', holder: null }],
  });
  expect(await h.runtime.waitForTurn(user.turn_id)).toMatchObject({ status: 'success' });
});

test('each of two purges reports what it has removed, and what it left to the other', async () => {
  for (let n = 0; n < 3; n++) await play();
  const before = await now();
  const [, second, third] = (await runsLeft()).map(({ id }) => id);
  const rows = await holdRun(second ?? '');
  const one = purge(before, { batchSize: 1 });
  await rows.isAwaitedBy(1);
  const other = purge(before, { batchSize: 1 });
  await rows.isAwaitedBy(2);
  await rows.end();
  const left = { cause: 'purging', holder: null };
  expect(await one).toMatchObject({
    removed: { runs: 1 },
    kept: [
      { run_id: second, ...left },
      { run_id: third, ...left },
    ],
  });
  expect(await other).toMatchObject({ removed: { runs: 2 }, kept: [] });
});

test('a run that another purge has just removed is not reported as kept', async () => {
  const old = await play();
  await play();
  const before = await now();
  const entries = await holdEntries(old.output_box_id);
  const one = purge(before);
  await entries.isAwaitedBy(1);
  const other = purge(before);
  await entries.isAwaitedBy(2);
  await entries.end();
  expect(await one).toMatchObject({ removed: { runs: 2 }, kept: [] });
  expect(await other).toMatchObject({ removed: { runs: 0 }, kept: [] });
});

test('a mark lasts two minutes, so that a killed purge soon has no effect', async () => {
  await play();
  const barrier = await holdBarrier();
  const report = purge(await now());
  await barrier.isAwaitedBy(1);
  const [row] = await h.rows<{ marks: number; longest: number }>(
    'select count(*)::int as marks, extract(epoch from max(until) - clock_timestamp())::float8 as longest from boxcar.purging',
  );
  expect(row?.marks).toBe(2);
  expect(row?.longest).toBeLessThanOrEqual(120);
  await barrier.end();
  expect((await report).removed.runs).toBe(1);
});

test('marks are renewed while their purge lives, also during a batch', async () => {
  const old = await play();
  const before = await now();
  const until = async (): Promise<number> => {
    const [row] = await h.rows<{ at: Date | null }>('select min(until) as at from boxcar.purging');
    return row?.at?.getTime() ?? 0;
  };
  const entries = await holdEntries(old.output_box_id);
  const report = purge(before, { markMs: 2_000 });
  await entries.isAwaitedBy(1);
  const first = await until();
  await waitFor(async () => (await until()) > first + 2_000, { message: 'renewed beyond their time' });
  await entries.end();
  expect((await report).removed.runs).toBe(1);
});
