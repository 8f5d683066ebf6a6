import type { TurnId } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { promote } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';

interface Receipt {
  readonly batch_id: string;
  readonly turn_ids: TurnId[];
}

let h: Harness;
let model: RecordingModel;
/** Releases the model calls in progress: with an answer or with a failure. */
let open: ((how: 'answer' | 'fail') => void)[] = [];
const functions: Record<string, ScriptedFunction> = {
  held: async () => {
    const how = await new Promise<'answer' | 'fail'>((resolve) => open.push(resolve));
    if (how === 'fail') throw new Error('no');
    return { text: 'said' };
  },
};
const HELD = { model: 'scripted:held' };

beforeAll(async () => {
  model = recordingModel(functions);
  h = await harness({ model });
  await h.runtime.applyProfile({ name: 'held', instructions: 'Be held.', ...HELD });
  await h.runtime.applyProfile({ name: 'far', instructions: 'Be far.', ...HELD, worker_target: 'far' });
  await h.profile('quick', [{ say: 'quick' }]);
  await h.profile(
    'lead',
    [
      { calls: [{ tool: 'fork_join', arguments: { tasks: [held(), held()], warm_cache: true } }] },
      { say: 'joined' },
    ],
    { tools: ['fork_join'], delegation_policy: { target_profiles: null } },
  );
  // The sweep never runs: the worker itself releases the waiting turns.
  await h.worker({ sweepMs: 3_600_000, targets: ['', 'far'] });
});
afterAll(() => h[Symbol.asyncDispose]());
afterEach(() => {
  for (const go of open.splice(0)) go('answer');
});

const task = (target_ref: string, rest: object = {}) => ({
  target_strategy: 'new',
  target_ref,
  instruction: 'go',
  ...rest,
});
const held = (rest: object = {}) => task('held', rest);
const fork = async (tasks: readonly object[], rest: object = {}): Promise<Receipt> =>
  (await h.runtime.submit('fork_join', {
    tasks,
    wait: false,
    warm_cache: true,
    ...rest,
  })) as unknown as Receipt;
const statuses = async (ids: readonly TurnId[]) =>
  (
    await h.rows<{ status: string }>(
      'select status from boxcar.turns where id = any ($1::uuid[]) order by id',
      [ids],
    )
  ).map(({ status }) => status);
const end = (id: TurnId) => h.runtime.waitForTurn(id, { timeoutMs: 60_000 });
const endOf = (batchId: string) =>
  waitFor(
    async () =>
      (await h.rows<{ status: string }>('select status from boxcar.batches where id = $1', [batchId]))
        .map(({ status }) => status)
        .find((status) => status !== 'running'),
    { message: 'the batch has ended' },
  );
const called = (n: number) => waitFor(() => open.length >= n, { message: `${n} model calls are out` });
/** Waits until the first child is in its model call, and checks that its siblings stay queued. */
async function firstIsOut(receipt: Receipt): Promise<void> {
  await called(1);
  expect(await promote(h.database.pool, '')).toEqual([]);
  const [first, ...rest] = await statuses(receipt.turn_ids);
  expect(first).toBe('running');
  expect(new Set(rest)).toEqual(new Set(['queued']));
  expect(open).toHaveLength(1);
}
const answer = (how: 'answer' | 'fail' = 'answer'): void => {
  for (const go of open.splice(0)) go(how);
};

describe('warm_cache', () => {
  test('lets one child call its model first, and the others when that call has returned, in all pools', async () => {
    const receipt = await fork([held(), held(), task('far')]);
    await firstIsOut(receipt);
    // Turns of other callers are not delayed.
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'quick',
      instruction: 'go',
    })) as { turn_id: TurnId };
    expect(await end(turn_id)).toMatchObject({ status: 'success' });
    expect(open).toHaveLength(1);
    answer();
    await called(2);
    answer();
    expect(await endOf(receipt.batch_id)).toBe('success');
    await checkInvariants(h.database.pool);
  });

  test('continues when the first call has failed', async () => {
    const receipt = await fork([held(), held()]);
    await firstIsOut(receipt);
    answer('fail');
    await called(1);
    answer();
    expect(await endOf(receipt.batch_id)).toBe('partial');
  });

  test('continues when the first child is canceled by another caller', async () => {
    const receipt = await fork([held(), held()]);
    await firstIsOut(receipt);
    open = [];
    await h.runtime.submit('cancel', { turn_id: receipt.turn_ids[0] ?? '' });
    await called(1);
    answer();
    expect(await endOf(receipt.batch_id)).toBe('partial');
  });

  test('gives a waiting parent one answer', async () => {
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'lead',
      instruction: 'go',
    })) as { turn_id: TurnId };
    await called(1);
    answer();
    await called(1);
    answer();
    expect(await end(turn_id)).toMatchObject({ status: 'success', result: 'joined' });
  });

  test('holds nothing back in a batch of one task, or without the flag', async () => {
    const one = await fork([held()]);
    const all = await fork([held(), held()], { warm_cache: false });
    await called(3);
    answer();
    expect([await endOf(one.batch_id), await endOf(all.batch_id)]).toEqual(['success', 'success']);
    expect(
      await h.rows('select id from boxcar.turns where warm_turn_id is not null and id = any ($1::uuid[])', [
        [...one.turn_ids, ...all.turn_ids],
      ]),
    ).toEqual([]);
  });

  test('chooses a new agent as the first, since an existing agent may be busy', async () => {
    await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'old', profile_name: 'held' });
    const reuse = { target_strategy: 'reuse', target_ref: 'old', instruction: 'go' };
    const busy = (await h.runtime.submit('delegate_async', reuse)) as { turn_id: TurnId };
    await called(1);
    const [goBusy] = open.splice(0);
    const session = { workspace: '/srv/demo', session: 'main', profile_name: 'held' };
    const receipt = await fork([reuse, { ...reuse, target_ref: session }, held()]);
    await called(1);
    expect(await statuses(receipt.turn_ids)).toEqual(['queued', 'queued', 'running']);
    expect(await promote(h.database.pool, '')).toEqual([]);
    answer();
    // The session's agent is free; the agent of the other task has an earlier turn.
    await called(1);
    expect(await statuses(receipt.turn_ids)).toEqual(['queued', 'running', 'success']);
    goBusy?.('answer');
    await end(busy.turn_id);
    await called(2);
    answer();
    expect(await endOf(receipt.batch_id)).toBe('success');
  });

  test('does not prevent fail_fast, min_success, a cancel or a deadline from ending the turns that are held back', async () => {
    const ends = async (rest: object, go: (receipt: Receipt) => unknown) => {
      const receipt = await fork([held(), held(), held()], rest);
      await firstIsOut(receipt);
      await go(receipt);
      const status = await endOf(receipt.batch_id);
      await Promise.all(receipt.turn_ids.map(end));
      answer();
      return [status, ...(await statuses(receipt.turn_ids))];
    };
    expect(await ends({ fail_fast: true }, () => answer('fail'))).toEqual([
      'failed',
      'failed',
      'canceled',
      'canceled',
    ]);
    expect(await ends({ min_success: 1 }, () => answer())).toEqual([
      'success',
      'success',
      'canceled',
      'canceled',
    ]);
    const runOf = async ({ turn_ids }: Receipt) =>
      (await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turn_ids[0]]))[0]
        ?.run_id;
    expect(
      await ends({}, async (receipt) => h.runtime.submit('cancel', { run_id: (await runOf(receipt)) ?? '' })),
    ).toEqual(['failed', 'canceled', 'canceled', 'canceled']);
    expect(
      await ends({ deadline_seconds: 3_600 }, async ({ batch_id }) => {
        await h.rows('update boxcar.batches set deadline_at = now() where id = $1', [batch_id]);
        await new Sweeper(h.runtime, {
          lostRingMs: 3_600_000,
          claimFromRows: async () => undefined,
          wakeProvider: async () => undefined,
        }).sweep();
      }),
    ).toEqual(['timeout', 'timeout', 'timeout', 'timeout']);
    await checkInvariants(h.database.pool);
  });

  test('reserves the budget of the turns that are held back, too', async () => {
    await expect(fork([held(), held(), held()], { budget: { turns: 2 } })).rejects.toMatchObject({
      code: 'budget_exceeded',
    });
    const receipt = await fork([held(), held()], { budget: { turns: 2 } });
    await firstIsOut(receipt);
    answer();
    await called(1);
    answer();
    expect(await endOf(receipt.batch_id)).toBe('success');
  });
});
