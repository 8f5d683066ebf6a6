/**
 * Guarantees of the whole kernel, each tested in one run. All others are tested beside the code that implements them:
 * docs/explanation/guarantees.md.
 */
import type { JsonValue, Message } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';

let h: Harness;
let model: RecordingModel;

beforeEach(async () => {
  model = recordingModel();
  h = await harness({ model });
  return async () => {
    expect(model.findings()).toEqual([]);
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool, model.requests);
    await h[Symbol.asyncDispose]();
  };
});

interface Receipt {
  readonly turn_id: string;
  readonly agent_id: string;
  readonly output_box_id: string;
}

const submit = async (primitive: string, args: JsonValue, options = {}): Promise<Receipt> =>
  (await h.runtime.submit(primitive, args, options)) as unknown as Receipt;
const launch = (profile_name: string, instruction = 'go', rest: Record<string, JsonValue> = {}) =>
  submit('launch_principal', { profile_name, instruction, ...rest });
const reuse = (target_ref: string, instruction: string) =>
  submit('delegate_async', { target_strategy: 'reuse', target_ref, instruction });
const end = ({ turn_id }: Receipt) => h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
const promptOf = (turn: Receipt, step: number): readonly Message[] =>
  model.of(turn.turn_id).find((request) => request.turn.step === step)?.messages ?? [];
const textOf = (message: Message | undefined): string => JSON.stringify(message ?? null);

const note = (id?: string, text = 'x') => ({
  ...(id === undefined ? {} : { id }),
  tool: 'note',
  arguments: { text },
});
const registerNote = (runs: string[] = []): void =>
  h.runtime.registerTool({
    name: 'note',
    description: 'Takes a note.',
    input: z.strictObject({ text: z.string() }),
    run: (_input, { toolCallId }) => {
      runs.push(toolCallId);
      return { noted: runs.length };
    },
  });

test('the prompt of every step begins with the system prompt and the instruction, which an agent keeps for its later turns', async () => {
  registerNote();
  await h.profile('noter', [{ calls: [note()] }, { say: 'noted' }], { tools: ['note'] });
  await h.worker();
  const first = await launch('noter', 'Note the first thing.');
  await end(first);
  const second = await reuse(first.agent_id, 'Note the second thing.');
  await end(second);

  const roles = promptOf(first, 2).map((message) => message.role);
  // The second message is the line that names the parent agent.
  expect(roles).toEqual(['system', 'user', 'user', 'assistant', 'tool']);
  expect(textOf(promptOf(first, 2)[2])).toContain('Note the first thing.');
  const later = promptOf(second, 2).map(textOf);
  const at = (text: string): number => later.findIndex((message) => message.includes(text));
  expect(at('Note the first thing.')).toBe(2);
  expect(at('Note the second thing.')).toBeGreaterThan(at('noted'));
  // No message is the raw JSON of a pointer.
  expect(later.join('\n')).not.toContain('parent_agent_id');
});

test('an agent with an open call can be cloned and can ask with its history: the open call is part of neither', async () => {
  await h.profile('expert', [{ say: 'forty-two' }], { worker_target: 'later' });
  await h.profile(
    'asker',
    [
      {
        say: 'I ask.',
        calls: [
          {
            tool: 'ask_expert',
            arguments: { expert_profile: 'expert', question: 'What?', include_history: true },
          },
        ],
      },
      { say: 'thanks' },
    ],
    { tools: ['ask_expert'], delegation_policy: { target_profiles: ['expert'] } },
  );
  await h.worker();
  const asker = await launch('asker', 'Ask the expert.');
  await waitFor(
    async () => (await h.rows("select from boxcar.turns where status = 'suspended'")).length === 1,
    { message: 'the asker is in the midst of its call' },
  );
  const clone = await submit('delegate_async', {
    target_strategy: 'clone',
    target_ref: asker.agent_id,
    instruction: 'Ask in its place.',
  });
  await h.worker({ targets: ['later'] });
  for (const turn of [asker, clone]) expect((await end(turn)).result).toBe('thanks');

  const experts = model.requests.filter(({ turn }) => ![asker.turn_id, clone.turn_id].includes(turn.turnId));
  expect(experts).toHaveLength(2);
  for (const messages of [promptOf(clone, 1), ...experts.map((request) => request.messages)]) {
    const text = JSON.stringify(messages);
    expect(text).toContain('Ask the expert.');
    expect(text).not.toContain('ask_expert');
    expect(messages.some((message) => message.role === 'tool')).toBe(false);
  }
});

test('call ids that a provider repeats are not keys: each call runs, in this turn and in the next', async () => {
  const runs: string[] = [];
  registerNote(runs);
  const script = [
    { calls: [note('call_0', 'a')] },
    { calls: [note('call_0', 'b'), note('call_0', 'c')] },
    { say: 'done' },
  ];
  await h.profile('noter', script, { tools: ['note'] });
  await h.worker();
  const turns = await Promise.all([launch('noter'), launch('noter')]);
  for (const turn of turns) expect(await end(turn)).toMatchObject({ status: 'success', result: 'done' });
  expect(runs).toHaveLength(6);
  expect(new Set(runs).size).toBe(6);
});

test('a child that ends before its parent has suspended costs no wait: the parent continues by its own commit', async () => {
  let release = (): void => undefined;
  const held = new Promise<void>((settle) => {
    release = settle;
  });
  // This call is in the same step as the delegation: the parent cannot suspend before the call answers, and the child ends long before.
  h.runtime.registerTool({
    name: 'linger',
    description: 'Lingers.',
    input: z.strictObject({}),
    run: async () => {
      await held;
      return 'lingered';
    },
  });
  await h.profile('quick', [{ say: 'quick' }]);
  await h.profile(
    'parent',
    [
      {
        calls: [
          { tool: 'launch_principal', arguments: { profile_name: 'quick', instruction: 'now', wait: true } },
          { tool: 'linger' },
        ],
      },
      { say: 'both' },
    ],
    { tools: ['launch_principal', 'linger'], delegation_policy: { target_profiles: null } },
  );
  await h.worker({ sweepMs: 3_600_000 });
  const parent = await launch('parent');
  await waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where depth = 1 and status = 'success'")).length === 1,
    { message: 'the child has ended' },
  );
  expect(await h.rows('select status from boxcar.turns where depth = 0')).toEqual([{ status: 'running' }]);
  release();
  // No sweep runs that could help.
  expect(await end(parent)).toMatchObject({ status: 'success', result: 'both' });
});

test('a submission that arrives twice, also at once, spawns once and gets the same answer', async () => {
  await h.profile('quick', [{ say: 'quick' }]);
  await h.worker();
  const args = { profile_name: 'quick', instruction: 'once' };
  const answers = await Promise.all(
    Array.from({ length: 20 }, () => h.runtime.submit('launch_principal', args, { idempotencyKey: 'k' })),
  );
  expect(new Set(answers.map((answer) => JSON.stringify(answer))).size).toBe(1);
  expect(await h.rows('select count(*)::int as n from boxcar.turns')).toEqual([{ n: 1 }]);
  await end(answers[0] as unknown as Receipt);
});

test('an agent without a box inherits no box, and an id that looks trusted gives access to nothing', async () => {
  await h.profile('quick', [{ say: 'secret' }]);
  await h.worker();
  const secret = await launch('quick');
  await end(secret);
  // Its policy allows every target, so only the box is refused.
  await h.profile('poor', [{ say: 'nothing' }], { delegation_policy: { target_profiles: null } });
  const poor = await launch('poor');
  await end(poor);
  const sources = {
    [poor.agent_id]: 'box_not_authorized',
    'sys.operator': 'not_found',
    'tool.note': 'not_found',
  };
  for (const [sourceAgentId, code] of Object.entries(sources)) {
    await expect(
      h.runtime.submit(
        'launch_principal',
        { profile_name: 'quick', instruction: 'tell', context_box_id: secret.output_box_id },
        { sourceAgentId },
      ),
    ).rejects.toMatchObject({ code });
  }
  expect(await h.rows('select count(*)::int as n from boxcar.turns')).toEqual([{ n: 2 }]);
});

test('a parent may pass on the output of a finished child', async () => {
  await h.profile('quick', [{ say: 'the finding' }]);
  await h.profile('reader', [{ expect: { contains: 'the finding' }, say: 'read' }]);
  const call = (profile_name: string, context?: string) => ({
    tool: 'launch_principal',
    arguments: {
      profile_name,
      instruction: 'go',
      wait: true,
      ...(context === undefined ? {} : { context_box_id: context }),
    },
  });
  await h.profile(
    'parent',
    [
      { calls: [call('quick')] },
      { calls: [call('reader', '{{results/launch_principal/output_box_id}}')] },
      { say: '{{results/launch_principal/result}}' },
    ],
    { tools: ['launch_principal'], delegation_policy: { target_profiles: null } },
  );
  await h.worker();
  expect(await end(await launch('parent'))).toMatchObject({ status: 'success', result: 'read' });
});

test('agents outlive a new version of their profile: they are reused with the old version, and cloned', async () => {
  await h.profile('quick', [{ say: 'first version' }]);
  await h.worker();
  const first = await launch('quick');
  await end(first);
  await h.profile('quick', [{ say: 'second version' }]);
  expect((await end(await reuse(first.agent_id, 'again'))).result).toBe('first version');
  const clone = await submit('delegate_async', {
    target_strategy: 'clone',
    target_ref: first.agent_id,
    instruction: 'again',
  });
  expect((await end(clone)).result).toBe('first version');
  expect((await end(await launch('quick'))).result).toBe('second version');
});

test('braces in instructions and in a profile are plain text', async () => {
  const braces = 'Answer as {"x": {}} or {name}, with %s and {{curly}} and {0}.';
  await h.profile('braces', [{ say: 'done' }], { instructions: braces });
  await h.worker();
  const turn = await launch('braces', braces);
  expect((await end(turn)).status).toBe('success');
  const [system, , user] = promptOf(turn, 1);
  expect(textOf(system)).toContain(JSON.stringify(braces).slice(1, -1));
  expect(textOf(user)).toContain(JSON.stringify(braces).slice(1, -1));
});
