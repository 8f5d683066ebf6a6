import type { WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { beforeEach, expect, test } from 'vitest';
import { loadBoxes } from '../box/boxes.js';
import { loadSnapshots } from '../box/snapshots.js';
import { DEFAULT_PROJECT, OPERATOR, type TestProfile, World } from '../testing/world.js';
import { claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import { advanceTurns, recordResults } from '../turn/tool-calls.js';
import { loadViews } from '../turn/views.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker({ concurrency: 1_000 });
  return () => world[Symbol.asyncDispose]();
});

/** How many statements `work` sends through the pool it is given, transaction control included. */
async function cost(work: (pool: pg.Pool) => Promise<unknown>): Promise<number> {
  let n = 0;
  const count = <T extends object>(target: T): T =>
    new Proxy(target, {
      get: (of, key) => {
        const value: unknown = Reflect.get(of, key, of);
        if (typeof value !== 'function') return value;
        if (key === 'connect') return async () => count(await (of as unknown as pg.Pool).connect());
        if (key !== 'query') return value.bind(of);
        return (...args: unknown[]) => {
          n++;
          return value.apply(of, args);
        };
      },
    });
  await work(count(world.pool));
  return n;
}

const turns = (n: number) => Promise.all(Array.from({ length: n }, () => world.submit({ profile })));
const running = (n: number) =>
  Promise.all(Array.from({ length: n }, () => world.running({ profile, holder })));
const SIZES = [1, 40];

/** Expects that an operation costs the given number of statements, for one item and for many. */
async function expectCost(
  expected: number,
  operation: (n: number) => Promise<(pool: pg.Pool) => Promise<unknown>>,
) {
  const costs: number[] = [];
  for (const size of SIZES) costs.push(await cost(await operation(size)));
  expect(costs).toEqual([expected, expected]);
}

test('a claim is one statement for any number of turns', () =>
  expectCost(1, async (n) => {
    const rings = (await turns(n)).map(({ turnId }) => ({ turnId, epoch: 1 }));
    return (pool) => claim(pool, rings, holder);
  }));

test('a commit of steps, and of ends without a waiting parent, is one statement', () =>
  expectCost(1, async (n) => {
    const held = await running(n);
    const commits = await Promise.all(
      held.map((turn, index) => world.commit(turn, index % 2 === 0 ? { end: 'success' } : {})),
    );
    return (pool) => commitSteps(pool, commits);
  }));

test('a commit of ends with waiting parents is a transaction of four statements, sent together', () =>
  expectCost(6, async (n) => {
    const commits: Awaited<ReturnType<World['commit']>>[] = [];
    for (const parent of await running(n)) {
      for (const answers of await world.call(parent, 2)) {
        const child = await world.running({ profile, holder, parent, answers });
        commits.push(await world.commit(child, { end: 'success', settles: world.result(parent, answers) }));
      }
    }
    return (pool) => commitSteps(pool, commits);
  }));

test('a commit of ends of batch members is a transaction of two statements, sent together', () =>
  expectCost(4, async (n) => {
    const commits: Awaited<ReturnType<World['commit']>>[] = [];
    for (const parent of await running(n)) {
      const child = await world.running({ profile, holder, parent });
      commits.push({ ...(await world.commit(child, { end: 'success' })), isMember: true });
    }
    return (pool) => commitSteps(pool, commits);
  }));

test('a suspension is one statement', () =>
  expectCost(1, async (n) => {
    const advances: Parameters<typeof advanceTurns>[1][number][] = [];
    for (const turn of await running(n)) {
      await world.call(turn, 3);
      advances.push({ turnId: turn.turnId, epoch: 1, holderId: holder, results: [] });
    }
    return (pool) => advanceTurns(pool, advances);
  }));

test('an advance is a transaction of two statements', () =>
  expectCost(4, async (n) => {
    const advances = await Promise.all(
      (await running(n)).map(async (turn) => ({
        turnId: turn.turnId,
        epoch: 1,
        holderId: holder,
        results: (await world.call(turn, 3)).map((id) => world.result(turn, id)),
      })),
    );
    return (pool) => advanceTurns(pool, advances);
  }));

test('results are a transaction of two statements', () =>
  expectCost(4, async (n) => {
    const results = await Promise.all(
      (await running(n)).map(async (turn) => (await world.call(turn, 3)).map((id) => world.result(turn, id))),
    );
    return (pool) => recordResults(pool, results.flat());
  }));

test('views are two statements for any number of turns, entries and boxes', () =>
  expectCost(2, async (n) => {
    const held = await running(n);
    for (const turn of held) await commitSteps(world.pool, [await world.commit(turn)]);
    return (pool) => loadViews(pool, held);
  }));

test('boxes and a snapshot are one statement each', async () => {
  const held = await running(40);
  const actor = { projectId: DEFAULT_PROJECT, actorId: OPERATOR };
  const boxIds = held.flatMap(({ tapeId, contextBoxId }) => [tapeId, contextBoxId]);
  expect(await cost((pool) => loadBoxes(pool, boxIds, actor))).toBe(1);
  const [turn] = held;
  if (turn === undefined) throw new Error('no turn');
  expect(await cost((pool) => loadSnapshots(pool, [{ agentId: turn.agentId, isFull: true }], actor))).toBe(1);
});
