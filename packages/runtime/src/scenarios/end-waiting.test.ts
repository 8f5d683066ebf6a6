import type { JsonValue, TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

const ANYONE = { delegation_policy: { target_profiles: null } };
const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'go' });
const ask = (target: string, wait: boolean) => ({
  tool: 'delegate_async',
  arguments: { ...task(target), wait },
});

beforeAll(async () => {
  h = await harness();
  const profile = (name: string, calls: readonly JsonValue[]) =>
    h.profile(name, [{ calls }, { say: 'went on' }], { tools: ['delegate_async', 'fork_join'], ...ANYONE });
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  await profile('asker', [ask('absent', true)]);
  // Waits for a turn that also waits, and starts another turn without waiting.
  await profile('chief', [ask('asker', true), ask('absent', false)]);
  const tasks = [task('absent'), task('absent')];
  await profile('forker', [{ tool: 'fork_join', arguments: { tasks } }]);
  await profile('starter', [{ tool: 'fork_join', arguments: { tasks, wait: false } }, ask('absent', true)]);
  // Starts a turn that it does not wait for.
  await profile('leaver', [ask('absent', false), ask('absent', true)]);
  await profile('head', [ask('leaver', true)]);
  await profile('top', [ask('forker', true)]);
  await profile('lead', [{ tool: 'fork_join', arguments: { tasks: [task('leaver'), task('absent')] } }]);
  // Tries to end itself while other calls of its step wait.
  h.runtime.registerHandler('finish', {
    description: 'Ends the turn.',
    input: z.strictObject({}),
    handle: async (_input, { endTurn }) => {
      endTurn('finished');
      return { done: true };
    },
  });
  const calls = [
    ask('asker', true),
    { tool: 'fork_join', arguments: { tasks } },
    { tool: 'finish', arguments: {} },
  ];
  await h.profile('finisher', [{ calls }], { tools: ['delegate_async', 'fork_join', 'finish'], ...ANYONE });
  await h.worker({ sweepMs: 3_600_000 });
});
afterAll(() => h[Symbol.asyncDispose]());

const sweep = () =>
  new Sweeper(h.runtime, {
    lostRingMs: 3_600_000,
    claimFromRows: async () => undefined,
    wakeProvider: async () => undefined,
  }).sweep();

interface Row extends Record<string, unknown> {
  readonly id: TurnId;
  readonly status: string;
  readonly is_awaited: boolean;
  readonly parent_turn_id: TurnId | null;
  readonly deadline_at: Date | null;
  readonly error: { readonly code: string; readonly details: Record<string, unknown> } | null;
}

const below = (turnId: TurnId) =>
  h.rows<Row>(
    `with recursive t as (select * from boxcar.turns where parent_turn_id = $1
       union all select c.* from t join boxcar.turns c on c.parent_turn_id = t.id) select * from t order by id`,
    [turnId],
  );
const statusOf = async (turnId: TurnId) =>
  (await h.rows<Row>('select * from boxcar.turns where id = $1', [turnId]))[0]?.status;

/** Launches a turn of the profile and waits until it waits, with `count` turns below it. */
async function waiting(profile: string, count: number, rest: object = {}): Promise<[TurnId, Row[]]> {
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
    ...rest,
  })) as unknown as { turn_id: TurnId };
  const turns = await waitFor(
    async () => {
      const found = await below(receipt.turn_id);
      const isWaiting = (await statusOf(receipt.turn_id)) === 'suspended';
      return found.length === count && isWaiting && found.every(({ status }) => status !== 'running')
        ? found
        : undefined;
    },
    { message: `the ${profile} waits` },
  );
  return [receipt.turn_id, turns];
}
const pass = (turnId: TurnId) =>
  h.rows("update boxcar.turns set deadline_at = now() - interval '1 second' where id = $1", [turnId]);

describe('a turn that ends while it waits', () => {
  const ends: [string, (turnId: TurnId) => Promise<unknown>, string][] = [
    ['by its deadline', pass, 'timeout'],
    [
      'after the loss of ten workers',
      (turnId) =>
        h.rows("update boxcar.turns set status = 'running', holder_id = $2, losses = 9 where id = $1", [
          turnId,
          newId(),
        ]),
      'failed',
    ],
  ];
  test.each(ends)(
    '%s ends the turns that only it waits for, with all turns below them, and no others',
    async (_how, strike, status) => {
      const [chief, turns] = await waiting('chief', 3);
      const free = turns.find((turn) => !turn.is_awaited);
      await strike(chief);
      await sweep();
      expect(await statusOf(chief)).toBe(status);
      for (const turn of await below(chief))
        expect(turn).toMatchObject(
          turn.id === free?.id
            ? { ended_at: null }
            : { status: 'canceled', error: { code: 'canceled', details: { waiting_turn_id: chief } } },
        );
      const open = await h.rows(
        "select k.id from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id where k.status = 'pending' and t.ended_at is not null",
      );
      expect(open).toEqual([]);
      await checkInvariants(h.database.pool, { isSettled: false });
    },
  );

  test('does not end a turn that another caller collects', async () => {
    const [asker, [child]] = await waiting('asker', 1);
    await h.runtime.accept('collect', { turn_ids: [child?.id ?? ''] });
    await pass(asker);
    await sweep();
    expect(await statusOf(asker)).toBe('timeout');
    expect(await below(asker)).toMatchObject([{ ended_at: null }]);
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  const collected = async (turnId: TurnId) => {
    await h.runtime.accept('collect', { turn_ids: [turnId] });
    return turnId;
  };

  test('does not end a turn two levels below that another caller collects, nor the turns below it', async () => {
    const [head, turns] = await waiting('head', 3);
    const [leaver, ...others] = turns as [Row, ...Row[]];
    const wanted = await collected(others.find((turn) => !turn.is_awaited)?.id as TurnId);
    const left = await h.runtime.submit(
      'launch_principal',
      { profile_name: 'absent', instruction: 'go' },
      { parentTurnId: wanted },
    );
    await pass(head);
    await sweep();
    expect(await statusOf(leaver.id)).toBe('canceled');
    for (const turn of await below(leaver.id))
      if (turn.id === wanted || turn.id === (left as { turn_id: string }).turn_id)
        expect(turn).toMatchObject({ ended_at: null });
      else expect(turn).toMatchObject({ status: 'canceled' });
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('does not end a turn below a member of its batch that another caller collects', async () => {
    const [lead, turns] = await waiting('lead', 4);
    const leaver = turns.find((turn) => turns.some((child) => child.parent_turn_id === turn.id)) as Row;
    const wanted = await collected(
      turns.find((turn) => turn.parent_turn_id === leaver.id && !turn.is_awaited)?.id as TurnId,
    );
    await pass(lead);
    await sweep();
    await waitFor(async () => (await statusOf(leaver.id)) === 'canceled', {
      message: 'the member has ended',
    });
    expect(await below(leaver.id)).toMatchObject(
      (await below(leaver.id)).map((turn) =>
        turn.id === wanted ? { ended_at: null } : { status: 'canceled' },
      ),
    );
    expect(await statusOf(wanted)).not.toBe('canceled');
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('ends a turn that only turns that end with it wait for', async () => {
    const [top, turns] = await waiting('top', 3);
    await pass(top);
    await sweep();
    for (const turn of turns) expect(await statusOf(turn.id)).toBe('canceled');
  });

  test('ends the members of its batches, but not a member that another caller collects', async () => {
    const [forker, [first, second]] = await waiting('forker', 2);
    await h.runtime.accept('collect', { turn_ids: [first?.id ?? ''] });
    await pass(forker);
    await sweep();
    await waitFor(async () => (await statusOf(second?.id as TurnId)) === 'canceled', {
      message: 'the member that nobody waits for has ended',
    });
    await waitFor(
      async () =>
        (await h.rows("select from boxcar.batches where turn_id = $1 and status = 'canceled'", [forker]))
          .length === 1,
      { message: 'the batch has ended' },
    );
    expect(await below(forker)).toMatchObject([{ id: first?.id, ended_at: null }, { status: 'canceled' }]);
    await checkInvariants(h.database.pool, { isSettled: false });
  });
});

describe('a turn that would end while calls of its step are open', () => {
  const openCalls = () =>
    h.rows(
      "select k.id from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id where k.status = 'pending' and t.ended_at is not null",
    );
  const allEnded = (turnId: TurnId) =>
    waitFor(
      async () => {
        const turns = await below(turnId);
        return turns.every(({ status }) => status === 'canceled') ? turns : undefined;
      },
      { message: 'what it waited for has ended' },
    );

  test('is refused, and the calls continue; its end from outside ends the turns that only it waits for', async () => {
    const [turnId, turns] = await waiting('finisher', 4);
    expect(turns.filter((turn) => turn.parent_turn_id === turnId)).toHaveLength(3);
    expect(turns).toMatchObject(turns.map(() => ({ ended_at: null })));
    expect(
      await h.rows("select status from boxcar.tool_calls where turn_id = $1 and name = 'finish'", [turnId]),
    ).toEqual([{ status: 'failed' }]);
    await pass(turnId);
    await sweep();
    expect(await statusOf(turnId)).toBe('timeout');
    await allEnded(turnId);
    expect(await openCalls()).toEqual([]);
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('leaves none of these turns open when it ends because it has lost too many workers', async () => {
    const [asker] = await waiting('asker', 1);
    const [row] = await h.rows<{ epoch: number }>(
      `update boxcar.turns set status = 'dispatched', epoch = epoch + 1, dispatched_at = now(), losses = 10 where id = $1 returning epoch`,
      [asker],
    );
    h.runtime.ring([{ turnId: asker, epoch: row?.epoch ?? 0, workerTarget: '' }]);
    expect(await h.runtime.waitForTurn(asker, { timeoutMs: 60_000 })).toMatchObject({ status: 'failed' });
    await allEnded(asker);
    expect(await openCalls()).toEqual([]);
    await checkInvariants(h.database.pool, { isSettled: false });
  });
});

describe('the deadline of a turn that waits', () => {
  const deadlinesOf = async (turnId: TurnId) =>
    (await h.rows<Row>('select * from boxcar.turns where id = $1', [turnId]))[0]?.deadline_at?.getTime() ?? 0;

  test('is the latest deadline of the turns that it waits for, over any number of levels', async () => {
    const [chief, turns] = await waiting('chief', 3, { deadline_seconds: 600 });
    const latest = await deadlinesOf(chief);
    const awaited = turns.filter((turn) => turn.is_awaited);
    expect(awaited).toHaveLength(2);
    for (const turn of awaited) expect(turn.deadline_at?.getTime()).toBe(latest);
    expect(turns.find((turn) => !turn.is_awaited)?.deadline_at).toBeNull();
  });

  test('is the latest deadline of the members of its batch, but not of a batch that it does not wait for', async () => {
    const [forker, members] = await waiting('forker', 2, { deadline_seconds: 600 });
    const latest = await deadlinesOf(forker);
    for (const turn of members) expect(turn.deadline_at?.getTime()).toBe(latest);
    const [, turns] = await waiting('starter', 3, { deadline_seconds: 600 });
    expect(turns.filter((turn) => turn.deadline_at === null)).toHaveLength(2);
  });
});
