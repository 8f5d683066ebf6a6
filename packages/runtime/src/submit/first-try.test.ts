/** Submissions whose first try commits, but loses its answer together with its connection. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool, dropConnections } from '@boxcar/store';
import { statementProxy, tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import type { Tape } from '../tape/tape.js';
import { createWorker } from '../worker/worker.js';

test('a submission whose first try commits after its second try began is rung, and is not a replay', async () => {
  await using database = await testDatabase();
  await using proxy = await tcpProxy(database.url);
  const pool = createPool({ connectionString: proxy.url });
  const common = { directUrl: database.url, doorbell: new InProcessDoorbell(), model: createModelRouter({}) };
  const caller = new Runtime({ ...common, pool });
  const own = new Runtime({ ...common, pool: database.pool });
  await own.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] });
  const worker = await createWorker(own, { sweepMs: 3_600_000 });
  const launch = { profile_name: 'p', instruction: 'go' };
  await caller.submit('launch_principal', launch);

  const lock = await database.pool.connect();
  const untilWaiting = (count: number): Promise<unknown> =>
    waitFor(
      async () => {
        const { rows } = await database.pool.query(
          "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%boxcar.operations%'",
        );
        return rows.length === count;
      },
      { message: `${count} writes wait` },
    );
  await lock.query('begin');
  await lock.query('lock table boxcar.operations in share row exclusive mode');
  const accepting = caller.accept('launch_principal', launch);
  await untilWaiting(1);
  proxy.breakOnce();
  await untilWaiting(2);
  await lock.query('rollback');
  lock.release();

  const { answer, isReplay } = await accepting;
  expect(isReplay).toBe(false);
  const { turn_id } = answer as unknown as { turn_id: TurnId };
  // The worker does not sweep, so only a ring can have started the turn.
  expect(await own.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  const { rows } = await database.pool.query('select from boxcar.turns');
  expect(rows).toHaveLength(2);
  await worker.close();
  await caller.close();
  await own.close();
  await pool.end();
});

describe('whichever answer is lost, work with a key of the caller is not reported as a replay:', () => {
  async function stage() {
    const database = await testDatabase();
    const proxy = await statementProxy(database.url);
    const pool = createPool({ connectionString: proxy.url, max: 2 });
    const common = {
      directUrl: database.url,
      doorbell: new InProcessDoorbell(),
      model: createModelRouter({}),
    };
    const caller = new Runtime({ ...common, pool });
    const own = new Runtime({ ...common, pool: database.pool });
    await own.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] });
    const close = async (): Promise<void> => {
      await caller.close();
      await own.close();
      await pool.end();
      await proxy[Symbol.asyncDispose]();
      await database.close();
    };
    return { database, proxy, pool, caller, own, [Symbol.asyncDispose]: close };
  }
  type Stage = Awaited<ReturnType<typeof stage>>;
  interface Doing {
    act(key: string): Promise<boolean>;
    prepare?(key: string): Promise<void>;
    /** The fault affects only this statement: reads before it are not repeated. Absent: the fault affects every statement. */
    readonly only?: string;
  }
  const launch = { profile_name: 'p', instruction: 'go' };
  const lines = () => [
    JSON.stringify({ id: 1, kind: 'message', payload: { role: 'user', content: 'x' }, meta: {} }),
  ];

  const acts: [string, (of: Stage) => Promise<Doing>][] = [
    [
      'a cancel',
      async ({ caller, own }) => {
        const turns = new Map<string, TurnId>();
        const turnOf = async (key: string): Promise<TurnId> => {
          const made = (await own.submit('launch_principal', launch)) as unknown as { turn_id: TurnId };
          turns.set(key, made.turn_id);
          return made.turn_id;
        };
        return {
          prepare: async (key) => void (await turnOf(key)),
          act: async (idempotencyKey) => {
            const turn_id = turns.get(idempotencyKey);
            const { answer, isReplay } = await caller.accept('cancel', { turn_id }, { idempotencyKey });
            expect(answer).toMatchObject({ status: 'canceled', turn_count: 1 });
            return isReplay;
          },
        };
      },
    ],
    [
      'a new box',
      async ({ caller }) => {
        const box = { cards: [{ type: 't', content: { kind: 'text', text: 'boxed' } }] };
        return {
          act: async (idempotencyKey) =>
            (await caller.accept('create_box', box, { idempotencyKey })).isReplay,
        };
      },
    ],
    [
      'a new turn',
      async ({ caller }) => ({
        act: async (idempotencyKey) =>
          (await caller.accept('launch_principal', launch, { idempotencyKey })).isReplay,
      }),
    ],
    [
      'an import',
      async ({ caller }) => ({
        only: 'commit',
        act: async (dedupKey) =>
          (await caller.importTape(`tape ${dedupKey}`, { main: { lines } }, { dedupKey })).isRepeated,
      }),
    ],
    [
      'an import after the entries of a tape',
      async ({ caller, own }) => {
        await own.tape('imported', { create: true });
        return {
          only: 'commit',
          act: async (dedupKey) =>
            (await caller.importTape('imported', { main: { lines } }, { dedupKey, append: true })).isRepeated,
        };
      },
    ],
    [
      'an append of messages',
      async ({ caller }) => {
        const tape: Tape = await caller.tape('appended', { create: true });
        return {
          act: async (dedupKey) =>
            (await tape.append([{ kind: 'message', content: 'one' }], { dedupKey })).isRepeated,
        };
      },
    ],
    [
      'an append without a key',
      async ({ caller }) => {
        const tape: Tape = await caller.tape('unkeyed', { create: true });
        return { act: async () => (await tape.append([{ kind: 'event', name: 'e' }])).isRepeated };
      },
    ],
  ];

  test.each(acts)('%s', async (_name, begin) => {
    await using of = await stage();
    const { proxy } = of;
    const { act, prepare, only } = await begin(of);
    const once = async (key: string, at?: number): Promise<boolean> => {
      await prepare?.(key);
      await waitFor(() => proxy.quietMs > 20, { message: 'nothing is under way', intervalMs: 2 });
      proxy.arm(at === undefined ? undefined : { at, when: 'after', scope: 'connection' });
      return act(key);
    };
    await once('first');
    expect(await once('second')).toBe(false);
    const { statements } = proxy;
    const texts = [...statements];
    expect(texts).toContain(only ?? texts[0]);
    for (const [index, text] of texts.entries()) {
      if (only !== undefined && text !== only) continue;
      expect(await once(`at ${index}`, index + 1), `after ${text}`).toBe(false);
    }
  });

  test('a turn that has begun meanwhile', async () => {
    await using of = await stage();
    const { proxy, pool, caller, own, database } = of;
    const worker = await createWorker(own, { sweepMs: 100 });
    await caller.submit('launch_principal', launch);
    await waitFor(() => proxy.quietMs > 100, { message: 'nothing is under way' });
    proxy.arm();
    await caller.submit('launch_principal', launch, { idempotencyKey: 'calm' });
    const write = proxy.statements.find((text) => text.includes('insert into boxcar.operations')) ?? '';
    await waitFor(() => proxy.quietMs > 100, { message: 'nothing is under way' });
    proxy.arm({ at: { text: write, nth: 1 }, when: 'after', scope: 'connection', effect: 'silence' });
    const accepting = caller.accept('launch_principal', launch, { idempotencyKey: 'begun' });
    await waitFor(() => proxy.strike.aborted, { message: 'it is committed, and the answer lost' });
    await database.pool.query(
      "update boxcar.turns set dispatched_at = now() - interval '1 minute' where ended_at is null",
    );
    await waitFor(
      async () =>
        (await database.pool.query('select from boxcar.turns where ended_at is null')).rowCount === 0,
      { message: 'the turn has ended' },
    );
    dropConnections(pool);
    expect((await accepting).isReplay).toBe(false);
    await worker.close();
  });
});

test('of two submissions with one key at the same moment, one is a replay', async () => {
  await using database = await testDatabase();
  const runtime = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
  });
  // The answer has no ids, so both answers are the same.
  runtime.registerHandler('greet', {
    description: 'Greets.',
    input: z.strictObject({}),
    handle: async () => {
      await new Promise((resolve) => setTimeout(resolve, 50));
      return { said: 'hello' };
    },
  });
  const greet = () => runtime.accept('greet', {}, { idempotencyKey: 'mine' });
  const answers = await Promise.all([greet(), greet()]);
  expect(answers.map(({ isReplay }) => isReplay).toSorted()).toEqual([false, true]);
  await runtime.close();
});
