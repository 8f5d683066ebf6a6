import { setTimeout as delay } from 'node:timers/promises';
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { forkBoxcarWorker, openCaller, PROFILE, readReceipt } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openBell } from '../floor/doorbell.js';
import { insertJoin, readPending } from '../floor/rows.js';
import { openJoins } from '../least/joins.js';
import { timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { median } from '../report.js';
import { openDatabase, query } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, type Target } from '../system.js';
import { forkWorker, type WorkerUsage } from '../worker-process.js';
import { settle, targetOf } from './pair.js';

const CONCURRENCY = 100;
const SMALL = 1_000;
const LARGE = 10_000;
const POLL_MS = 2;
const PATIENCE_MS = 120_000;
/** Short, since the script of a parent with 10,000 tasks must fit into a profile. */
const QUESTION = 'How many wagons?';

interface Joined {
  /** Runs outside the measured time. @throws when not every child has succeeded. */
  check(): Promise<void>;
}

interface Side extends AsyncDisposable {
  /** Starts the given number of children and returns when the parent has the last result. */
  join(children: number): Promise<Joined>;
  usage(): Promise<WorkerUsage>;
}

/** A turn that forks children and waits for all of them: the time from its submission to its answer. */
export async function benchFanout(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  await using database = await openDatabase(servers, `fanout_${queue}`);
  const target = {
    ...targetOf(servers, queue, options.concurrency ?? CONCURRENCY),
    databaseUrl: database.url,
  };
  // With a small total number of turns, the suite can be tried out quickly.
  const small = Math.min(SMALL, options.turns ?? SMALL);
  const large = Math.min(LARGE, options.turns ?? LARGE);
  const measure = async (open: () => Promise<Side>): Promise<Measured> => {
    await using side = await open();
    const time = async (children: number): Promise<number> => {
      let joined: Joined | undefined;
      const ms = await timed(async () => {
        joined = await side.join(children);
      });
      await joined?.check();
      return ms;
    };
    const cold = await time(small);
    await settle(target.databaseUrl);
    const times: number[] = [];
    for (let round = 0; round < options.rounds; round += 1) times.push(await time(small));
    const before = await side.usage();
    const slow = await time(large);
    const after = await side.usage();
    const beyond = (mib: number): number => Math.max(0, mib - before.rssMiB);
    return {
      cold,
      small: median(times),
      large: slow,
      growth: beyond(after.rssMiB),
      peak: beyond(after.peakRssMiB),
    };
  };
  const floor = await measure(() => openFloorSide(target));
  const least = await measure(() => openLeastSide(target));
  const boxcar = await measure(() => openBoxcarSide(target));
  say(`fanout ${queue}: ${options.rounds} times ${small} children, once ${large}`);
  return {
    '1000 children, cold': { value: boxcar.cold, floor: floor.cold, least: least.cold },
    '1000 children': { value: boxcar.small, floor: floor.small, least: least.small },
    '10000 children': { value: boxcar.large, floor: floor.large, least: least.large },
    'memory of 10000': { value: boxcar.growth, floor: floor.growth },
    'memory of 10000 at its peak': { value: boxcar.peak, floor: floor.peak },
  };
}

interface Measured {
  /** The duration of the first join of a worker. */
  readonly cold: number;
  readonly small: number;
  readonly large: number;
  /** Memory in MiB beyond the level before the large join: after it, and at its peak. */
  readonly growth: number;
  readonly peak: number;
}

const forkerOf = (children: number): string => `forks-${children}`;

async function openBoxcarSide(target: Target): Promise<Side> {
  const cleanup = new Cleanup();
  const caller = openCaller(target);
  cleanup.defer(() => caller.close());
  const { runtime } = caller;
  await runtime.applyProfile(PROFILE);
  await query(
    target.databaseUrl,
    `update boxcar.projects set limits = limits || '{"max_fan_out":${LARGE},"run_budget":{"turns":${2 * LARGE}}}' where name = 'default'`,
  );
  const worker = await forkBoxcarWorker(target);
  cleanup.defer(() => worker.close());
  const known = new Set<number>();
  const apply = async (children: number): Promise<void> => {
    if (known.has(children)) return;
    known.add(children);
    const task = { target_strategy: 'new', target_ref: PROFILE.name, instruction: QUESTION };
    await runtime.applyProfile({
      ...PROFILE,
      name: forkerOf(children),
      tools: ['fork_join'],
      delegation_policy: { target_profiles: [PROFILE.name] },
      script: [
        {
          calls: [{ tool: 'fork_join', arguments: { tasks: Array.from({ length: children }, () => task) } }],
        },
        { say: ANSWER },
      ],
    });
  };
  return {
    join: async (children) => {
      await apply(children);
      const receipt = await runtime.submit('launch_principal', {
        profile_name: forkerOf(children),
        instruction: 'Count them all.',
      });
      const turn = await runtime.waitForTurn(readReceipt(receipt).turn_id);
      if (turn.status !== 'success') throw new Error(`fanout: the parent ended as ${turn.status}`);
      return { check: () => checkChildren(target.databaseUrl, turn.turn_id, children) };
    },
    usage: () => worker.usage(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}

/** A parent succeeds whatever the outcome of its children, so the children are checked separately. */
async function checkChildren(databaseUrl: string, parentId: string, children: number): Promise<void> {
  const [row] = await query<{ children: number }>(
    databaseUrl,
    `select count(*)::int as children from boxcar.turns where parent_turn_id = '${parentId}' and status = 'success'`,
  );
  if (row?.children === children) return;
  const [call] = await query<{ status: string; result: unknown }>(
    databaseUrl,
    `select k.status, left(c.content::text, 400) as result from boxcar.tool_calls k left join boxcar.cards c on c.id = k.result_card_id where k.turn_id = '${parentId}'`,
  );
  throw new Error(
    `fanout: ${row?.children ?? 0} of ${children} children succeeded; the call: ${JSON.stringify(call)}`,
  );
}

async function openFloorSide(target: Target): Promise<Side> {
  const cleanup = new Cleanup();
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 6 });
  cleanup.defer(() => pool.end());
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  const worker = await forkWorker(new URL('../floor/worker', import.meta.url), target);
  cleanup.defer(() => worker.close());
  return {
    join: async (children) => {
      const id = newId();
      const turns = Array.from({ length: children }, () => ({
        id: newId(),
        promptCardId: newId(),
        prompt: QUESTION,
      }));
      await insertJoin(pool, { id, turns });
      await bell.ringAll(turns.map((turn) => ({ turn_id: turn.id, epoch: 1 })));
      const deadline = performance.now() + PATIENCE_MS;
      while ((await readPending(pool, id)) > 0) {
        if (performance.now() > deadline) throw new Error('fanout: the join of the floor never ended');
        await delay(POLL_MS);
      }
      // The counter can only be positive if all children were written, and each answer decreases it.
      return { check: async () => undefined };
    },
    usage: () => worker.usage(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}

async function openLeastSide(target: Target): Promise<Side> {
  const cleanup = new Cleanup();
  const joins = await openJoins(target);
  cleanup.defer(() => joins[Symbol.asyncDispose]());
  const worker = await forkWorker(new URL('../floor/worker', import.meta.url), target);
  cleanup.defer(() => worker.close());
  return {
    join: async (children) => {
      await joins.join(children, QUESTION);
      return { check: async () => undefined };
    },
    usage: () => worker.usage(),
    [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
  };
}
