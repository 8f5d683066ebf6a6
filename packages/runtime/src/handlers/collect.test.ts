import { type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

interface BatchAnswer {
  readonly batch_id: string;
  readonly status: string;
  readonly turn_ids: TurnId[];
  readonly results: { status: string; summary?: JsonValue; error?: { code: string } }[];
}

let h: Harness;
const functions: Record<string, ScriptedFunction> = {};

beforeEach(async () => {
  h = await harness({ model: createModelRouter({ scripted: { functions } }) });
  await h.profile('child', [{ say: 'did {{instruction}}' }]);
  await h.profile('parked', [{ say: 'did {{instruction}} late' }], { worker_target: 'later' });
  return () => h[Symbol.asyncDispose]();
});

const ANYONE = { delegation_policy: { target_profiles: null } };
const task = (target_ref: string, instruction = 'go') => ({
  target_strategy: 'new',
  target_ref,
  instruction,
});
const start = async (target_ref: string, instruction = 'go'): Promise<TurnId> =>
  ((await h.runtime.submit('delegate_async', task(target_ref, instruction))) as { turn_id: TurnId }).turn_id;
const collect = async (args: unknown): Promise<BatchAnswer> =>
  (await h.runtime.submit('collect', args)) as unknown as BatchAnswer;
const end = (turnId: string) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const summaries = ({ results }: BatchAnswer) => results.map(({ status, summary }) => [status, summary]);
/** The result of a turn's nth call, as its model saw it. */
const shown = async (turnId: string, n = 0) => {
  const rows = await h.rows<{ content: { status: string; result: JsonValue; error?: JsonValue } }>(
    `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.step, k.ordinal`,
    [turnId],
  );
  return rows[n]?.content as unknown as { status: string; result: BatchAnswer; error?: { code: string } };
};
async function refused(args: unknown, code: string, field: string, options = {}): Promise<void> {
  const before = await rowCounts(h.database.pool);
  const error: unknown = await h.runtime.submit('collect', args, options).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(KernelError);
  expect(error).toMatchObject({ code, message: expect.stringContaining(field) });
  expect(await rowCounts(h.database.pool)).toEqual(before);
}

describe('collect', () => {
  test('returns results of ended turns and waits for the others, in the requested order', async () => {
    await h.worker();
    const early = await start('child', 'early');
    await end(early);
    const late = await start('parked', 'it');
    const answer = collect({ turn_ids: [late, early] });
    await waitFor(async () => (await h.rows('select id from boxcar.batches')).length === 1, {
      message: 'the batch is there',
    });
    await h.worker({ targets: ['later'] });
    expect(summaries(await answer)).toEqual([
      ['success', 'did it late'],
      ['success', 'did early'],
    ]);
    expect((await answer).status).toBe('success');
    await checkInvariants(h.database.pool);
  });

  test('of turns that have all ended needs no other process', async () => {
    const worker = await h.worker();
    const turnIds = [await start('child', 'a'), await start('child', 'b')];
    for (const turnId of turnIds) await end(turnId);
    await worker.close();
    expect(summaries(await collect({ turn_ids: turnIds }))).toEqual([
      ['success', 'did a'],
      ['success', 'did b'],
    ]);
    await checkInvariants(h.database.pool);
  });

  test('by two callers of the same turns answers both, and so does a collect of their batch', async () => {
    const forked = (await h.runtime.submit('fork_join', {
      tasks: [task('child', 'a'), task('child', 'b')],
      wait: false,
    })) as unknown as BatchAnswer;
    const answers = [
      collect({ batch_id: forked.batch_id }),
      collect({ turn_ids: forked.turn_ids.toReversed() }),
    ];
    await waitFor(async () => (await h.rows('select id from boxcar.batches')).length === 3, {
      message: 'both wait',
    });
    await h.worker();
    const [first, second] = await Promise.all(answers);
    expect(first && summaries(first)).toEqual([
      ['success', 'did a'],
      ['success', 'did b'],
    ]);
    expect(second && summaries(second)).toEqual([
      ['success', 'did b'],
      ['success', 'did a'],
    ]);
    expect(await h.runtime.waitForBatch(forked.batch_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
    });
    await checkInvariants(h.database.pool);
  });

  test('misses no end that happens at the same moment, even without a sweep', async () => {
    // With a slot for each turn, a claim waits for the locks of the calls. Otherwise the sweep rings its turn again.
    await h.worker({ sweepMs: 3_600_000, concurrency: 30 });
    const turnIds = await Promise.all(
      Array.from({ length: 24 }, (_item, index) => start('child', `${index}`)),
    );
    const answers = await Promise.all(
      Array.from({ length: 12 }, (_item, index) => collect({ turn_ids: turnIds.slice(index, index + 12) })),
    );
    for (const [index, answer] of answers.entries())
      expect(summaries(answer)).toEqual(
        Array.from({ length: 12 }, (_item, n) => ['success', `did ${index + n}`]),
      );
    await checkInvariants(h.database.pool);
  });

  test('ends only the wait when its deadline passes: turns that have not ended are listed as timeout and continue', async () => {
    await h.worker({ sweepMs: 3_600_000, leaseMs: 3_600_000 });
    const turnIds = [await start('child', 'a'), await start('parked', 'b')];
    for (const turnId of turnIds.slice(0, 1)) await end(turnId);
    const answer = collect({ turn_ids: turnIds, deadline_seconds: 60 });
    await waitFor(async () => (await h.rows('select id from boxcar.batches')).length === 1, {
      message: 'the batch is there',
    });
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 1e9,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    });
    await sweeper.sweep({ now: new Date(Date.now() + 100_000) });
    expect(await answer).toMatchObject({
      status: 'timeout',
      results: [{ status: 'success' }, { status: 'timeout', error: { code: 'wait_timeout' } }],
    });
    await h.worker({ targets: ['later'] });
    expect(await end(turnIds[1] ?? '')).toMatchObject({ status: 'success', result: 'did b late' });
    await checkInvariants(h.database.pool);
  });

  test('by an agent of another agent’s turn is refused, unless the turn is its child or it may read the turn’s output', async () => {
    await h.worker();
    await h.profile(
      'lead',
      [{ calls: [{ tool: 'collect', arguments: { turn_ids: ['{{instruction}}'] } }] }, { say: 'done' }],
      { tools: ['collect'], ...ANYONE },
    );
    const foreign = await start('child', 'foreign');
    const { output_box_id } = await end(foreign);
    const stranger = await start('lead', foreign);
    await end(stranger);
    expect((await shown(stranger)).error).toMatchObject({
      code: 'box_not_authorized',
      details: { field: 'arguments.turn_ids.0' },
    });
    await h.runtime.submit('provision_agent', {
      action: 'ensure',
      agent_id: 'lead-1',
      profile_name: 'lead',
    });
    await h.runtime.submit('grant_box', { box_id: output_box_id, grantee: 'lead-1' });
    const granted = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: 'lead-1',
      instruction: foreign,
    })) as { turn_id: TurnId };
    await end(granted.turn_id);
    expect(summaries((await shown(granted.turn_id)).result)).toEqual([['success', 'did foreign']]);
    await checkInvariants(h.database.pool);
  });

  test('with a right to read a tape up to a position returns no turn that ended after that position', async () => {
    await h.worker();
    const collector = [
      { calls: [{ tool: 'collect', arguments: { turn_ids: ['{{instruction}}'] } }] },
      { say: 'done' },
    ];
    await h.profile('lead', collector, { tools: ['collect'], ...ANYONE });
    const ensure = (agent_id: string, profile_name: string) =>
      h.runtime.submit('provision_agent', { action: 'ensure', agent_id, profile_name });
    await ensure('reader', 'lead');
    await ensure('writer', 'child');
    const reuse = async (target_ref: string, instruction: string): Promise<TurnId> => {
      const args = { target_strategy: 'reuse', target_ref, instruction };
      const { turn_id } = (await h.runtime.submit('delegate_async', args)) as { turn_id: TurnId };
      await end(turn_id);
      return turn_id;
    };
    const open = await reuse('writer', 'open');
    await h.rows(
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
      select a.project_id, a.id, b.id, 'read', b.head_position, b.maker_agent_id from boxcar.agents a, boxcar.turns t join boxcar.boxes b on b.id = t.output_box_id
      where a.name = 'reader' and t.id = $1`,
      [open],
    );
    const later = await reuse('writer', 'later');
    expect(summaries((await shown(await reuse('reader', open))).result)).toEqual([['success', 'did open']]);
    expect((await shown(await reuse('reader', later))).error).toMatchObject({ code: 'box_not_authorized' });
    await checkInvariants(h.database.pool);
  });

  test('of a turn that waits for the caller is refused as a cycle, also without a family relation, and so is a collect of the caller itself', async () => {
    const others = new Map<string, string>();
    functions.partner = (request, { call, instruction }) =>
      request.turn.step === 1
        ? { toolCalls: [call('collect', { turn_ids: [others.get(String(instruction)) ?? ''] })] }
        : { text: 'done' };
    for (const name of ['first', 'second', 'self'])
      await h.runtime.applyProfile({
        name,
        instructions: 'I',
        model: 'scripted:partner',
        tools: ['collect'],
        worker_target: name,
      });
    const begin = async (name: string) =>
      (await h.runtime.submit('delegate_async', task(name, name))) as {
        turn_id: TurnId;
        agent_id: string;
        output_box_id: string;
      };
    const [first, second, self] = [await begin('first'), await begin('second'), await begin('self')];
    others.set('first', second.turn_id).set('second', first.turn_id).set('self', self.turn_id);
    await h.runtime.submit('grant_box', { box_id: second.output_box_id, grantee: first.agent_id });
    await h.runtime.submit('grant_box', { box_id: first.output_box_id, grantee: second.agent_id });
    await h.worker({ targets: ['first', 'self'] });
    await waitFor(
      async () =>
        (await h.rows("select id from boxcar.turns where id = $1 and status = 'suspended'", [first.turn_id]))
          .length === 1,
      { message: 'the first waits for the second' },
    );
    await h.worker({ targets: ['second'] });
    for (const turn of [first, second, self])
      expect(await end(turn.turn_id)).toMatchObject({ result: 'done' });
    for (const turn of [second, self])
      expect((await shown(turn.turn_id)).error).toMatchObject({ code: 'delegation_cycle' });
    expect((await shown(first.turn_id)).result).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('of a turn of another project is refused as if the turn did not exist', async () => {
    const [turnId, operator, project] = [await start('parked'), newId(), newId()];
    const { batch_id } = (await h.runtime.submit('fork_join', {
      tasks: [task('parked')],
      wait: false,
    })) as unknown as BatchAnswer;
    await h.rows(
      `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values ($1, 'other', $2, '00000000-0000-7000-8000-000000000003')`,
      [project, operator],
    );
    await h.rows("insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')", [
      operator,
      project,
    ]);
    const other = { projectId: 'other' };
    await refused({ turn_ids: [turnId] }, 'not_found', 'arguments.turn_ids.0', other);
    await refused({ batch_id }, 'not_found', 'arguments.batch_id', other);
  });

  test('that is refused writes nothing', async () => {
    const turnId = await start('parked');
    await refused({}, 'bad_request', 'turn_ids');
    await refused({ turn_ids: [] }, 'bad_request', 'turn_ids');
    await refused({ turn_ids: [turnId], batch_id: newId() }, 'bad_request', 'turn_ids');
    await refused({ turn_ids: [turnId, 'x'] }, 'bad_request', 'arguments.turn_ids.1');
    await refused({ turn_ids: [turnId, turnId] }, 'bad_request', 'arguments.turn_ids.1');
    await refused({ turn_ids: [turnId, newId()] }, 'not_found', 'arguments.turn_ids.1');
    await refused({ batch_id: newId() }, 'not_found', 'arguments.batch_id');
    await refused({ turn_ids: [turnId], deadline_seconds: 0 }, 'bad_request', 'deadline_seconds');
    await refused({ turn_ids: [turnId], colour: 'red' }, 'bad_request', 'arguments');
  });
});
