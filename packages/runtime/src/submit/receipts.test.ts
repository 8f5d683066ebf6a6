/** Receipts name their run: the answers that an outside caller gets for accepted turns. */
import { isJsonObject, type JsonObject, type JsonValue } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;

const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'x' });

async function submit(
  primitive: string,
  args: JsonObject,
  options?: Parameters<Harness['runtime']['submit']>[2],
): Promise<JsonObject> {
  const answer = await h.runtime.submit(primitive, args, options);
  if (!isJsonObject(answer)) throw new Error(`no object: ${JSON.stringify(answer)}`);
  return answer;
}

async function runOf(turnId: JsonValue | undefined): Promise<string | undefined> {
  const [row] = await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turnId]);
  return row?.run_id;
}

beforeAll(async () => {
  h = await harness();
  await h.profile('quick', [{ say: 'x' }]);
  // No worker serves this profile, so its turns stay open.
  await h.profile('parked', [{ say: 'x' }], { worker_target: 'nowhere' });
  h.runtime.registerHandler('start_two', {
    description: 'Starts two turns.',
    input: z.strictObject({}),
    handle: async (_input, { packer, ctx, findProfile, submitTurns }) => {
      const profile = await findProfile('parked');
      const { contextBoxId } = await packer.packContextWithInstruction({
        projectId: ctx.projectId,
        toolSuffix: ctx.primitive,
        sourceAgentId: ctx.source.agentId,
        profileName: 'parked',
        instruction: 'x',
      });
      const request = { target: { kind: 'new', profile }, contextBoxId } as const;
      const [first] = await submitTurns([request, request]);
      return { turn_id: first?.turnId ?? null };
    },
  });
  h.runtime.registerHandler('quote', {
    description: 'Makes no turn, and answers with words of its own.',
    input: z.strictObject({}),
    handle: () => ({ turn_id: 'none' }),
  });
});
afterAll(() => h[Symbol.asyncDispose]());

test('each primitive that makes turns names their run: new, reused, handed over, several, and from a plugin', async () => {
  const launched = await submit('launch_principal', { profile_name: 'parked', instruction: 'x' });
  const answers = [
    launched,
    await submit('delegate_async', task('parked')),
    await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: launched.agent_id ?? null,
      instruction: 'y',
    }),
    await submit('delegate_async', {
      target_strategy: 'clone',
      target_ref: launched.agent_id ?? null,
      instruction: 'y',
    }),
    await submit('ask_expert', { expert_profile: 'parked', question: 'x', wait: false }),
    await submit('context_handoff', {
      target_ref: 'profile:parked',
      reason: 'x',
      summary: 'x',
      tape_ref: `tape://default/${String(launched.output_box_id)}/entry/1`,
    }),
    await submit('start_two', {}),
  ];
  const runs = await Promise.all(answers.map(({ turn_id }) => runOf(turn_id)));
  expect(new Set(runs).size).toBe(answers.length);
  expect(answers.map(({ run_id }) => run_id)).toEqual(runs);
});

test('a fork_join names the run of its tasks, and a collect the run of the joined turns when they have one run', async () => {
  const joined = await submit('fork_join', { tasks: [task('parked'), task('parked')], wait: false });
  const runId = await runOf((joined.turn_ids as string[])[0]);
  expect(joined).toEqual({
    status: 'accepted',
    batch_id: expect.any(String),
    turn_ids: [expect.any(String), expect.any(String)],
    run_id: runId,
  });
  const receiptOf = async (args: JsonObject): Promise<JsonValue> =>
    (await h.runtime.accept('collect', args)).answer;
  expect(await receiptOf({ batch_id: joined.batch_id ?? null })).toMatchObject({ run_id: runId });
  const other = await submit('launch_principal', { profile_name: 'parked', instruction: 'x' });
  const mixed = await receiptOf({
    turn_ids: [...(joined.turn_ids as string[]), String(other.turn_id)],
  });
  expect(mixed).not.toHaveProperty('run_id');
  // The receipt of a turn that is still awaited also names its run.
  const waited = await h.runtime.accept('launch_principal', {
    profile_name: 'parked',
    instruction: 'x',
    wait: true,
  });
  expect(waited.answer).toMatchObject({ run_id: await runOf(waited.awaitedTurnId ?? undefined) });
});

test('within an open turn the run is the run of that turn', async () => {
  const parent = await submit('launch_principal', { profile_name: 'parked', instruction: 'x' });
  const child = await submit(
    'launch_principal',
    { profile_name: 'parked', instruction: 'x' },
    { parentTurnId: String(parent.turn_id) },
  );
  expect(child.run_id).toBe(await runOf(parent.turn_id));
});

test('an answer that is not a receipt stays as the handler returned it', async () => {
  expect(await submit('quote', {})).toEqual({ turn_id: 'none' });
});

test('a receipt that an older build has stored is returned as it is stored', async () => {
  const [args, options] = [{ profile_name: 'parked', instruction: 'x' }, { idempotencyKey: 'old' }] as const;
  const first = await submit('launch_principal', args, options);
  await h.rows(
    "update boxcar.operations set response = (response::jsonb - 'run_id')::json where idempotency_key = 'old'",
  );
  const { run_id: runId, ...stored } = first;
  expect(runId).toEqual(expect.any(String));
  expect(await submit('launch_principal', args, options)).toEqual(stored);
});

test('a model’s call is answered as before: its run is the run of the calling turn', async () => {
  await h.profile(
    'lead',
    [
      { calls: [{ tool: 'launch_principal', arguments: { profile_name: 'parked', instruction: 'x' } }] },
      { say: '{{results/launch_principal}}' },
    ],
    { tools: ['launch_principal'], delegation_policy: { target_profiles: null } },
  );
  await h.worker();
  const lead = await submit('launch_principal', { profile_name: 'lead', instruction: 'x' });
  await h.runtime.waitForTurn(String(lead.turn_id));
  const [call] = await h.rows<{ result: JsonObject }>(
    `select c.content->'result' as result from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
     join boxcar.turns t on t.id = k.turn_id where t.id = $1`,
    [lead.turn_id],
  );
  expect(Object.keys(call?.result ?? {})).toEqual([
    'status',
    'agent_id',
    'turn_id',
    'context_box_id',
    'output_box_id',
  ]);
});
