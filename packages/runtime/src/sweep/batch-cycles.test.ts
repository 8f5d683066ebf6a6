import {
  type BatchId,
  findWaitCycles,
  type JsonValue,
  KernelError,
  type ProjectId,
  type ToolCallId,
  type TurnId,
} from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { createPool, loadLongWaits } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { describe, expect, test, vi } from 'vitest';
import { buildResult } from '../end/ending.js';
import { leaveBatch } from '../end/leave-batch.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { Sweeper } from './sweeper.js';

const BOTH = ['agent-a', 'agent-b'];

/** The calls that each instruction makes its turn ask for, all of them at the same time. */
type Plan = Readonly<Record<string, { readonly tool: string; readonly arguments: JsonValue }>>;

const task = (target_ref: string, target_strategy = 'reuse', instruction = 'hello') => ({
  target_strategy,
  target_ref,
  instruction,
});

/** Agents with these names, whose turns make the calls of the plan; each instruction is the name of its agent. */
async function together(
  names: readonly string[],
  makePlan: (h: Harness) => Plan | Promise<Plan>,
): Promise<{ h: Harness; roots: Readonly<Record<string, TurnId>> }> {
  let arrived = 0;
  let open = (): void => undefined;
  const all = new Promise<void>((resolve) => {
    open = resolve;
  });
  let plan: Plan = {};
  const ask: ScriptedFunction = async ({ turn }, { call, instruction }) => {
    const wanted = plan[String(instruction)];
    if (turn.step > 1 || wanted === undefined) return { text: `done ${String(instruction)}` };
    arrived += 1;
    if (arrived === names.length) open();
    await all;
    return { toolCalls: [call(wanted.tool, wanted.arguments)] };
  };
  const h = await harness({ model: createModelRouter({ scripted: { functions: { ask } } }) });
  const profile = {
    instructions: 'Ask.',
    model: 'scripted:ask',
    tools: ['fork_join', 'collect'],
    delegation_policy: { target_profiles: null },
  };
  await h.runtime.applyProfile({ name: 'asker', ...profile });
  await h.runtime.applyProfile({ name: 'parked', ...profile, worker_target: 'later' });
  const roots: Record<string, TurnId> = {};
  for (const name of names)
    await h.runtime.submit('provision_agent', {
      action: 'create',
      agent_id: name,
      profile_name: 'asker',
      shared: true,
    });
  plan = await makePlan(h);
  for (const name of names) {
    const answer = await h.runtime.submit('delegate_async', task(name, 'reuse', name));
    roots[name] = (answer as { turn_id: TurnId }).turn_id;
  }
  await h.worker({ leaseMs: 600_000_000, sweepMs: 600_000 });
  await waitFor(
    async () =>
      (
        await h.rows("select from boxcar.turns where id = any ($1) and status = 'suspended'", [
          Object.values(roots),
        ])
      ).length === names.length,
    { message: 'all of them wait' },
  );
  return { h, roots };
}

const look = (h: Harness): Promise<void> =>
  new Sweeper(h.runtime, {
    lostRingMs: 600_000_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  }).sweep({ now: new Date(Date.now() + 6_000) });

interface Call {
  readonly id: string;
  readonly turn_id: TurnId;
  readonly status: string;
  readonly error: { readonly code: string; readonly details: Readonly<Record<string, unknown>> } | null;
}
const callsOf = (h: Harness): Promise<Call[]> =>
  h.rows<Call & Record<string, unknown>>(
    `select k.id, k.turn_id, k.status, c.content::jsonb->'error' as error from boxcar.tool_calls k left join boxcar.cards c on c.id = k.result_card_id
     order by k.created_at, k.id`,
  );
/** A batch ends in a transaction of its own, after its last turn. */
const allEnd = (h: Harness): Promise<unknown> =>
  waitFor(
    async () => {
      const rows = await h.rows(
        "select id from boxcar.turns where ended_at is null union all select id from boxcar.batches where status = 'running'",
      );
      return rows.length === 0;
    },
    { message: 'all turns and batches end' },
  );

describe('a circle of waits through batches', () => {
  test('and through the queues of agents fails the youngest wait; its turns continue, and can still be collected', async () => {
    const { h, roots } = await together(BOTH, () => ({
      'agent-a': { tool: 'fork_join', arguments: { tasks: [task('agent-b'), task('parked', 'new')] } },
      'agent-b': { tool: 'fork_join', arguments: { tasks: [task('agent-a')] } },
    }));
    await using _harness = h;
    const youngest = (await callsOf(h)).at(-1);
    await look(h);
    await h.worker({ targets: ['later'], sweepMs: 600_000 });
    for (const root of Object.values(roots))
      expect(await h.runtime.waitForTurn(root, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    const failed = (await callsOf(h)).filter(({ status }) => status === 'failed');
    expect(failed).toMatchObject([
      { id: youngest?.id, error: { code: 'delegation_cycle', details: { batch_id: expect.any(String) } } },
    ]);
    for (const root of Object.values(roots))
      expect(JSON.stringify(failed[0]?.error?.details.chain)).toContain(root);
    await allEnd(h);
    const batch_id = String(failed[0]?.error?.details.batch_id);
    // Like a batch that was made with `wait: false`: it keeps its answer, and no end of the turn that gave it up ends
    // its turns.
    expect(
      await h.rows(
        'select tool_call_id, status, answer is not null as is_kept from boxcar.batches where id = $1',
        [batch_id],
      ),
    ).toEqual([{ tool_call_id: null, status: 'success', is_kept: true }]);
    const answer = await h.runtime.submit('collect', { batch_id });
    expect(answer).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('can form without any queue, between turns of two runs that collect each other', async () => {
    const parked: { turn_id: TurnId; output_box_id: string }[] = [];
    const { h, roots } = await together(BOTH, async (made) => {
      for (const grantee of BOTH) {
        const turn = await made.runtime.submit('delegate_async', task('parked', 'new'));
        parked.push(turn as (typeof parked)[number]);
        const box_id = parked.at(-1)?.output_box_id ?? '';
        await made.runtime.submit('grant_box', { box_id, grantee });
      }
      const [one, two] = parked.map(({ turn_id }) => ({
        tool: 'collect',
        arguments: { turn_ids: [turn_id] },
      }));
      return { ...(one && { 'agent-a': one }), ...(two && { 'agent-b': two }) };
    });
    await using _harness = h;
    // Four concurrent calls can pass the check that refuses two. Here the rows are set to the same state.
    const [a, b] = BOTH.map((name) => roots[name]);
    for (const [waiter, member] of [
      [a, b],
      [b, a],
    ])
      await h.rows(
        `with b as (update boxcar.batches set turn_ids = array[$2::uuid] where turn_id = $1 returning id)
         update boxcar.turns t set batch_ids = case when t.id = $2 then array[b.id] end from b where t.id = $2 or b.id = any (t.batch_ids)`,
        [waiter, member],
      );
    const youngest = (await callsOf(h)).at(-1);
    await look(h);
    for (const root of Object.values(roots))
      expect(await h.runtime.waitForTurn(root, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect((await callsOf(h)).filter(({ status }) => status === 'failed')).toMatchObject([
      { id: youngest?.id, error: { code: 'delegation_cycle' } },
    ]);
    await h.worker({ targets: ['later'] });
    await allEnd(h);
    await checkInvariants(h.database.pool);
  });

  test('is not found when the batch can succeed without the waiting member', async () => {
    const { h } = await together(BOTH, () => ({
      'agent-a': {
        tool: 'fork_join',
        arguments: { tasks: [task('agent-b'), task('parked', 'new')], min_success: 1 },
      },
      'agent-b': { tool: 'fork_join', arguments: { tasks: [task('agent-a')] } },
    }));
    await using _harness = h;
    await look(h);
    expect(await callsOf(h)).toMatchObject([{ status: 'pending' }, { status: 'pending' }]);
    // The other member succeeds, which ends the wait, and with it the rest.
    await h.worker({ targets: ['later'], sweepMs: 600_000 });
    await allEnd(h);
    expect(await callsOf(h)).toMatchObject([{ status: 'success' }, { status: 'success' }]);
    await checkInvariants(h.database.pool);
  });
});

test('a wait that is given up twice at once, or after its answer, is settled once', async () => {
  const { h, roots } = await together(BOTH, () => ({
    'agent-a': { tool: 'fork_join', arguments: { tasks: [task('agent-b')] } },
    'agent-b': { tool: 'fork_join', arguments: { tasks: [task('agent-a')] } },
  }));
  await using _harness = h;
  const [batch] = await h.rows<{ id: BatchId; tool_call_id: ToolCallId; project_id: ProjectId }>(
    'select id, tool_call_id, project_id from boxcar.batches where turn_id = $1',
    [roots['agent-a']],
  );
  const turnId = roots['agent-a'];
  if (batch === undefined || turnId === undefined) throw new Error('no batch');
  const giveUp = (): Promise<string> => {
    const call = {
      toolCallId: batch.tool_call_id,
      turnId,
      name: 'fork_join',
      projectId: batch.project_id,
    };
    const error = new KernelError('delegation_cycle', { message: 'a circle' }).toJSON();
    const settlement = buildResult(call, { status: 'failed', error }, { authorId: 'kernel' });
    return leaveBatch(h.runtime, batch.id, settlement);
  };
  expect((await Promise.all([giveUp(), giveUp()])).toSorted()).toEqual(['duplicate', 'recorded']);
  await allEnd(h);
  expect(await giveUp()).toBe('duplicate');
  expect((await callsOf(h)).map(({ status }) => status).toSorted()).toEqual(['failed', 'success']);
  await checkInvariants(h.database.pool);
});

test('a wide batch whose members do not wait is read in one statement and is part of no circle', async () => {
  const { h } = await together(['agent-a'], () => ({
    'agent-a': {
      tool: 'fork_join',
      arguments: { tasks: Array.from({ length: 200 }, () => task('parked', 'new')) },
    },
  }));
  await using _harness = h;
  // On a connection of its own, because the worker's heartbeat continues meanwhile.
  const pool = createPool({ connectionString: h.database.url, max: 1 });
  const client = await pool.connect();
  const sent = vi.spyOn(client, 'query');
  client.release();
  const found = await loadLongWaits(pool, { now: new Date(Date.now() + 6_000), limit: 500 });
  await pool.end();
  expect(sent).toHaveBeenCalledOnce();
  expect(found).toEqual({ turns: [], next: undefined });
  expect(findWaitCycles(found.turns)).toEqual([]);
});
