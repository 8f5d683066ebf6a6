import type { WorkerId } from '@boxcar/kernel';
import { createPool, endPool, renewLease } from '@boxcar/store';
import { type NodeChild, spawnNode, tcpProxy, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { openRuntime } from '../open.js';
import { statementsOf } from '../testing/count-statements.js';
import { createFaultyModel, EFFECTS_TABLE, FAULTY_MODELS, FAULTY_TOOLS } from '../testing/faulty.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';
import { PeerWatch } from './peer-watch.js';
import { createWorker, type WorkerOptions } from './worker.js';

/** No lease expires during a test: a takeover happens only because a peer noticed the holder's death. */
const LONG: WorkerOptions = { leaseMs: 600_000, heartbeatMs: 200, sweepMs: 100, lostRingMs: 300 };
const BY_ITSELF = { deadlineMs: 60_000 };
/**
 * A process first compiles its code, which takes a long time on a busy machine. There is no promise about that time.
 */
const STARTS = { deadlineMs: 90_000 };

interface Victim {
  readonly child: NodeChild;
  readonly id: string;
}

/** A database, its queues, and workers in processes of their own. */
async function openPool() {
  const backend = await testBackend('postgres');
  const { pool } = backend.database;
  await pool.query(EFFECTS_TABLE);
  const submitter = openRuntime({ ...backend.urls, model: createFaultyModel(() => undefined) });
  for (const name of FAULTY_MODELS) {
    await submitter.runtime.applyProfile({
      name,
      instructions: `You are ${name}.`,
      model: `scripted:${name}`,
      tools: FAULTY_TOOLS,
    });
  }
  const children: NodeChild[] = [];
  const spawn = async (worker: WorkerOptions = LONG): Promise<Victim> => {
    const options: WorkerProcessOptions = { ...backend.urls, effectsUrl: backend.database.url, worker };
    const child = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
      JSON.stringify(options),
    ]);
    children.push(child);
    return { child, id: (await child.line(/^ready /, STARTS)).slice('ready '.length) };
  };
  return {
    pool,
    spawn,
    /** Waits until another worker waits for the lock of this worker. */
    isWatched: (id: string) =>
      waitFor(
        async () =>
          (
            await pool.query(
              `select from pg_locks l join boxcar.workers w on (l.classid::bigint << 32) + l.objid::bigint = w.lock_key
               where l.locktype = 'advisory' and not l.granted and l.database = (select oid from pg_database where datname = current_database()) and w.id = $1`,
              [id],
            )
          ).rows.length > 0,
        { message: `${id} is watched`, ...BY_ITSELF },
      ),
    submit: async (profile: string): Promise<string> =>
      (
        (await submitter.runtime.submit('launch_principal', {
          profile_name: profile,
          instruction: 'go',
        })) as { turn_id: string }
      ).turn_id,
    result: (turnId: string) => submitter.runtime.waitForTurn(turnId, { timeoutMs: BY_ITSELF.deadlineMs }),
    [Symbol.asyncDispose]: async () => {
      for (const child of children) await child[Symbol.asyncDispose]();
      await submitter.close();
      await backend.close();
    },
  };
}

test('turns of killed workers continue elsewhere long before a lease ends, also when two die at once', async () => {
  await using pool = await openPool();
  const workers = await Promise.all([1, 2, 3].map(() => pool.spawn({ ...LONG, concurrency: 1 })));
  const turnIds = [await pool.submit('hangOnce'), await pool.submit('hangOnce')];
  const holders = await waitFor(
    () => {
      const busy = workers.filter(({ child }) => / 2 1$/m.test(child.stdout));
      return busy.length === 2 ? busy : undefined;
    },
    { message: 'both turns hang', ...BY_ITSELF },
  );
  for (const { id } of workers) await pool.isWatched(id);
  for (const { child } of holders) process.kill(child.pid, 'SIGKILL');
  for (const turnId of turnIds) expect(await pool.result(turnId)).toMatchObject({ status: 'success' });
  const { rows } = await pool.pool.query('select epoch > 1 as has_moved, losses from boxcar.turns');
  // The next worker committed the step whose worker was lost, and no later step has lost its worker.
  expect(rows).toEqual(turnIds.map(() => ({ has_moved: true, losses: 0 })));
  await checkInvariants(pool.pool);
});

test('a stopped worker keeps its lock, so its lease decides', async () => {
  await using pool = await openPool();
  const workers = await Promise.all([1, 2].map(() => pool.spawn({ ...LONG, leaseMs: 3_000 })));
  const turnId = await pool.submit('stopOnce');
  const victim = await waitFor(
    () => workers.find(({ child }) => child.stdout.includes(`model ${turnId} 2 1`)),
    { message: 'a worker stops itself', ...BY_ITSELF },
  );
  const other = workers.find((worker) => worker !== victim) ?? victim;
  await waitFor(() => other.child.stderr.includes('sweep.taken_over'), {
    message: 'the turn is taken over',
    ...BY_ITSELF,
  });
  expect(other.child.stderr).not.toContain('peer.lost');
  expect(await pool.result(turnId)).toMatchObject({ status: 'success' });
});

test('a worker that has lost only its direct connection refutes the suspicion, keeps its turns and is watched again', async () => {
  const backend = await testBackend('postgres');
  await using proxy = await tcpProxy(backend.database.url);
  const log: string[] = [];
  let release = (): void => undefined;
  const gate = new Promise<void>((resolve) => {
    release = resolve;
  });
  const opened = openRuntime({
    ...backend.urls,
    directUrl: proxy.url,
    model: createFaultyModel(() => undefined, { held: () => gate.then(() => ({ text: 'kept' })) }),
  });
  const other = openRuntime({
    ...backend.urls,
    model: createFaultyModel(() => undefined),
    log: (_level, event) => void log.push(event),
  });
  await opened.runtime.applyProfile({ name: 'held', instructions: 'Wait.', model: 'scripted:held' });
  const worker = await createWorker(opened.runtime, LONG);
  const receipt = (await opened.runtime.submit('launch_principal', {
    profile_name: 'held',
    instruction: 'go',
  })) as { turn_id: string };
  const { pool } = backend.database;
  await waitFor(
    async () =>
      (await pool.query("select from boxcar.turns where status = 'running' and id = $1", [receipt.turn_id]))
        .rows.length === 1,
    { message: 'the worker runs the turn' },
  );
  const watcher = await createWorker(other.runtime, LONG);
  const signOf = async (): Promise<Date | null> =>
    (await pool.query('select locked_at from boxcar.workers where id = $1', [worker.id])).rows[0]?.locked_at;
  try {
    for (let round = 0; round < 2; round += 1) {
      await waitFor(
        async () =>
          (
            await pool.query(
              `select from pg_locks l join boxcar.workers w on (l.classid::bigint << 32) + l.objid::bigint = w.lock_key
               where l.locktype = 'advisory' and not l.granted and l.database = (select oid from pg_database where datname = current_database()) and w.id = $1`,
              [worker.id],
            )
          ).rows.length > 0,
        { message: 'the worker is watched', ...BY_ITSELF },
      );
      await proxy.cut();
      await waitFor(async () => (await signOf()) === null, { message: 'it says that it has no lock' });
      // During all this time it is not suspected. Its peer may watch another worker, but here there is no other.
      const renewed = async (): Promise<number> =>
        (await pool.query('select lease_until from boxcar.workers where id = $1', [worker.id])).rows[0]
          .lease_until;
      const before = await renewed();
      await waitFor(async () => (await renewed()) > before, { message: 'its lease lives on' });
      await proxy.restore();
      await waitFor(async () => (await signOf()) !== null, {
        message: 'it has its lock again',
        ...BY_ITSELF,
      });
    }
    expect(proxy.brokenCount).toBeGreaterThanOrEqual(2);
    release();
    expect(await opened.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
      result: 'kept',
    });
    expect(log).not.toContain('peer.lost');
    expect((await pool.query('select epoch, losses from boxcar.turns')).rows).toEqual([
      { epoch: 1, losses: 0 },
    ]);
  } finally {
    release();
    await watcher.close({ graceMs: 0 });
    await worker.close({ graceMs: 0 });
    await other.close();
    await opened.close();
    await backend.close();
  }
});

test('a worker that loses its direct connection between two heartbeats reports it at once, and takes its lock again', async () => {
  await using h = await harness();
  const watcher = await h.worker(LONG);
  await waitFor(
    async () =>
      (
        await h.rows(
          "select from pg_stat_activity where datname = current_database() and application_name = 'boxcar-watch'",
        )
      ).length === 1,
    { message: 'the other one is ready to watch' },
  );
  // No heartbeat during the test.
  const worker = await h.worker({ ...LONG, heartbeatMs: 300_000 });
  const signOf = async (): Promise<Date | null> =>
    (
      await h.rows<{ locked_at: Date | null }>('select locked_at from boxcar.workers where id = $1', [
        worker.id,
      ])
    )[0]?.locked_at ?? null;
  const before = await signOf();
  const watchedPid = async (): Promise<number | undefined> =>
    (
      await h.rows<{ pid: number }>(
        `select l.pid from pg_locks l join boxcar.workers w on (l.classid::bigint << 32) + l.objid::bigint = w.lock_key
         where l.locktype = 'advisory' and l.granted and l.database = (select oid from pg_database where datname = current_database()) and w.id = $1
           and exists (select from pg_locks x where not x.granted and x.locktype = 'advisory' and x.database = l.database and x.classid = l.classid and x.objid = l.objid)`,
        [worker.id],
      )
    )[0]?.pid;
  const pid = await waitFor(watchedPid, { message: 'the worker is watched', ...BY_ITSELF });
  await h.rows('select pg_terminate_backend($1)', [pid]);
  await waitFor(async () => ((await watchedPid()) ?? pid) !== pid, {
    message: 'it has its lock again, and is watched again',
    ...BY_ITSELF,
  });
  expect((await signOf())?.getTime()).toBeGreaterThan(before?.getTime() ?? 0);
  expect(h.log.map(({ event }) => event)).not.toContain('peer.lost');
  expect(watcher.id).not.toBe(worker.id);
});

test('after all sessions of the server have ended at once no worker is suspected', async () => {
  await using h = await harness();
  const workers = [await h.worker(LONG), await h.worker(LONG), await h.worker(LONG)];
  const heard = (): number => h.log.filter(({ event }) => event === 'worker.started').length;
  expect(heard()).toBe(3);
  const signsSince = async (moment: Date): Promise<number> =>
    (await h.rows('select from boxcar.workers where locked_at > $1', [moment])).length;
  const watching = (): Promise<unknown> =>
    waitFor(
      async () =>
        (
          await h.rows(
            "select from pg_locks where locktype = 'advisory' and not granted and pid in (select pid from pg_stat_activity where datname = current_database())",
          )
        ).length === 3,
      { message: 'each is watched', ...BY_ITSELF },
    );
  await watching();
  const [cut] = await h.rows<{ at: Date }>(
    "select max(clock_timestamp()) as at, count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name in ('boxcar-worker', 'boxcar-watch')",
  );
  await watching();
  await waitFor(async () => (await signsSince(cut?.at ?? new Date())) === 3, { message: 'all go on' });
  expect(h.log.map(({ event }) => event)).not.toContain('peer.lost');
  for (const worker of workers)
    expect(await renewLease(h.database.pool, worker.id, { leaseMs: 1_000, hasLock: true })).toMatchObject({
      held: [],
    });
});

test('watching costs one statement per wait', async () => {
  await using h = await harness();
  await h.rows(
    `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, locked_at)
     values (gen_random_uuid(), 7, now() + interval '1 hour', '{""}', 1, now() + interval '1 hour')`,
  );
  const owner = await h.database.pool.connect();
  await owner.query('select pg_advisory_lock(7)');
  let waits = 0;
  const statements = await statementsOf(h.database, async () => {
    const watch = new PeerWatch({
      directUrl: h.database.url,
      pool: h.database.pool,
      log: () => undefined,
      everyMs: 20,
      workerId: () => {
        waits += 1;
        return newId<'worker'>();
      },
      takeOver: () => Promise.reject(new Error('nobody is gone')),
    });
    watch.start();
    await waitFor(() => waits >= 4, { message: 'it has looked some times' });
    await watch.stop();
  });
  owner.release(true);
  expect(statements.filter((text) => text.includes('is_lock_free'))).toHaveLength(waits);
  expect(statements).toHaveLength(waits);
});

test('a single worker watches no other, and watches another worker as soon as its heartbeat has seen it', async () => {
  await using h = await harness();
  let looks = 0;
  const watch = new PeerWatch({
    directUrl: h.database.url,
    pool: h.database.pool,
    log: () => undefined,
    // The interval is too long: only its own notices can wake it.
    everyMs: 300_000,
    workerId: () => {
      looks += 1;
      return newId<'worker'>();
    },
    takeOver: () => Promise.reject(new Error('nobody is gone')),
  });
  watch.setHasPeers(false);
  watch.start();
  const isReady = async () =>
    (
      await h.rows(
        "select from pg_stat_activity where datname = current_database() and application_name = 'boxcar-watch' and state = 'idle'",
      )
    ).length > 0;
  await waitFor(isReady, { message: 'it could look' });
  watch.setHasPeers(false);
  expect(looks).toBe(0);
  watch.setHasPeers(true);
  await waitFor(() => looks === 1, { message: 'it looks' });
  await watch.stop();
});

test('a worker that joins during a check is seen by the next check', async () => {
  await using h = await harness();
  let looks = 0;
  // Interruptions fail, as if they arrived too late.
  const closed = createPool({ connectionString: h.database.url, max: 1 });
  await endPool(closed);
  const watch: PeerWatch = new PeerWatch({
    directUrl: h.database.url,
    pool: closed,
    log: () => undefined,
    everyMs: 300_000,
    workerId: () => {
      looks += 1;
      // The result of this check was decided before the other worker joined.
      if (looks === 1) setImmediate(() => watch.joined(newId<'worker'>()));
      return newId<'worker'>();
    },
    takeOver: () => Promise.reject(new Error('nobody is gone')),
  });
  watch.start();
  // The code that handles the news also reads the id.
  await waitFor(() => looks >= 3, { message: 'it looks again' });
  await watch.stop();
});

test('a heartbeat reports whether other workers live', async () => {
  await using h = await harness();
  const hasPeers = async (id: WorkerId) =>
    (await renewLease(h.database.pool, id, { leaseMs: 60_000, hasLock: true }))?.hasPeers;
  const first = await h.worker(LONG);
  expect(await hasPeers(first.id)).toBe(false);
  const second = await h.worker({ ...LONG, targets: ['other'] });
  expect(await hasPeers(first.id)).toBe(true);
  await second.close();
  expect(await hasPeers(first.id)).toBe(false);
});

/** No heartbeat during a test: a worker confirms that it holds its lock only when it is asked. */
const SILENT: WorkerOptions = { leaseMs: 600_000, heartbeatMs: 300_000, sweepMs: 100, lostRingMs: 300 };

const WATCHED = `select w.id from boxcar.workers w where exists (
  select from pg_locks l where (l.classid::bigint << 32) + l.objid::bigint = w.lock_key and l.locktype = 'advisory'
    and not l.granted and l.database = (select oid from pg_database where datname = current_database()))`;

test('every worker of a young pool is watched, after each join and after each leave', async () => {
  await using h = await harness();
  const workers = [await h.worker(SILENT)];
  const areWatched = (count: number): Promise<unknown> =>
    waitFor(async () => (await h.rows(WATCHED)).length === count, {
      message: `${count} workers are watched`,
      ...BY_ITSELF,
    });
  for (let count = 2; count <= 5; count += 1) {
    workers.push(await h.worker(SILENT));
    await areWatched(count);
  }
  for (let count = 4; count >= 2; count -= 1) {
    await workers.pop()?.close({ graceMs: 0 });
    await areWatched(count);
  }
  expect(h.log.map(({ event }) => event)).not.toContain('peer.lost');
});

test('a worker that is killed in the first moments of its life is noticed at once', async () => {
  await using pool = await openPool();
  const one = { ...SILENT, concurrency: 1 };
  const victim = await pool.spawn(one);
  const turnId = await pool.submit('hangOnce');
  await waitFor(() => / 2 1$/m.test(victim.child.stdout), { message: 'the turn hangs', ...BY_ITSELF });
  // The other worker starts later, and receives no heartbeat of the victim.
  await pool.spawn(one);
  await pool.isWatched(victim.id);
  process.kill(victim.child.pid, 'SIGKILL');
  expect(await pool.result(turnId)).toMatchObject({ status: 'success' });
});

test('a watching connection that falls silent is replaced, and the watch ends in bounded time', async () => {
  await using h = await harness();
  await using proxy = await tcpProxy(h.database.url);
  const log: string[] = [];
  let looks = 0;
  const watch = new PeerWatch({
    directUrl: proxy.url,
    pool: h.database.pool,
    log: (_level, event) => void log.push(event),
    everyMs: 20,
    answerMs: 300,
    workerId: () => {
      looks += 1;
      return newId<'worker'>();
    },
    takeOver: () => Promise.reject(new Error('nobody is gone')),
  });
  watch.start();
  await waitFor(() => looks > 2, { message: 'it looks' });
  proxy.stall();
  await waitFor(() => log.includes('peer.not_watched'), { message: 'it gives the connection up' });
  await proxy.restore();
  const before = looks;
  await waitFor(() => looks > before + 2, { message: 'it looks again', ...BY_ITSELF });
  proxy.stall();
  await watch.stop();
});
