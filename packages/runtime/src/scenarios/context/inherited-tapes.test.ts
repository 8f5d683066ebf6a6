/** An inherited tape shows the instructions of its turns before their answers, to agents whose packer may read them. */
import type { TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkPrompts } from '../../testing/check-prompts.js';
import { statementsOf } from '../../testing/count-statements.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../../testing/recording-model.js';
import type { Worker } from '../../worker/worker.js';

let h: Harness;
let model: RecordingModel;
let worker: Worker;

beforeAll(async () => {
  model = recordingModel({ echo: ({ turn }) => ({ text: `answer to ${String(turn.instruction)}` }) });
  h = await harness({ model });
  for (const name of ['asked', 'heir'])
    await h.runtime.applyProfile({
      name,
      instructions: `You are ${name}.`,
      model: 'scripted:echo',
      delegation_policy: { target_profiles: null },
    });
  worker = await h.worker();
});

afterAll(async () => {
  expect(model.findings()).toEqual([]);
  await checkInvariants(h.database.pool);
  await checkPrompts(h.database.pool, model.requests);
  await h[Symbol.asyncDispose]();
});

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: string;
  readonly output_box_id: string;
  readonly context_box_id: string;
}
const submit = async (primitive: string, args: object, as?: string): Promise<Receipt> => {
  const receipt = await h.runtime.submit(primitive, args, as === undefined ? {} : { sourceAgentId: as });
  return receipt as unknown as Receipt;
};
const ended = async (receipt: Receipt): Promise<Receipt> => {
  await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
  return receipt;
};
const ask = (target_ref: string, instruction: string, as?: string) =>
  submit('delegate_async', { target_strategy: 'reuse', target_ref, instruction }, as).then(ended);
const heir = (rest: object, as?: string) =>
  submit('launch_principal', { profile_name: 'heir', instruction: 'sum up', ...rest }, as).then(ended);
const promptOf = ({ turn_id }: Receipt): readonly string[] =>
  (model.of(turn_id).at(-1)?.messages ?? []).map(({ role, content }) => `${role}: ${content}`);
/** An agent that has answered two questions. */
async function answered(): Promise<Receipt> {
  const first = await ended(await submit('launch_principal', { profile_name: 'asked', instruction: 'one?' }));
  await ask(first.agent_id, 'two?');
  return first;
}
const BOTH = ['user: one?', 'assistant: answer to one?', 'user: two?', 'assistant: answer to two?'];
const ANSWERS = ['user: [context]', ...BOTH.filter((line) => line.startsWith('assistant'))];
const named = async (name: string): Promise<string> =>
  (await submit('provision_agent', { action: 'create', agent_id: name, profile_name: 'asked' })).agent_id;

describe('an inherited tape', () => {
  test('shows each question before its answer, in a number of statements that does not grow', async () => {
    const { output_box_id: box, agent_id: agent } = await answered();
    const made = await heir({ context_box_id: box });
    expect(promptOf(made)).toEqual([
      'system: You are heir.',
      ...BOTH,
      'user: Parent agent: agent:operator',
      'user: sum up',
    ]);
    // A turn that inherits this context gets the same messages, and a preview shows them.
    const second = await heir({ context_box_id: made.context_box_id });
    expect(promptOf(second).slice(1, 6)).toEqual(['user: sum up', ...BOTH]);
    const request = (boxes: string | readonly string[], budget: object = {}) => ({
      projectId: 'default',
      toolSuffix: 'launch_principal',
      sourceAgentId: 'operator',
      arguments: { profile_name: 'heir', instruction: 'sum up', boxes: [boxes].flat() },
      handover: {
        context_packing_config: {
          pack_arguments: [{ arg_key: 'instruction' }],
          inherit_context: { include_parent: true, include_boxes_from_args: ['boxes'] },
          ...budget,
        },
      },
    });
    const { prompt } = await h.runtime.preview(request(box));
    expect(prompt.messages.map(({ message: { role, content } }) => `${role}: ${content}`)).toEqual(
      promptOf(made),
    );
    // Without a worker, whose statements would also be counted.
    const cost = async () => {
      await worker.close();
      const { length } = await statementsOf(h.database, () => h.runtime.packer.packContext(request(box)));
      worker = await h.worker();
      return length;
    };
    const before = await cost();
    await Promise.all(['three?', 'four?', 'five?'].map((question) => ask(agent, question)));
    expect(await cost()).toBe(before);
    // With a budget, the box contains only what the budget counts. The questions are not counted, so they are left out.
    const tight = await h.runtime.preview(request(box, { budget_tokens: 10_000 }));
    expect(tight.prompt.messages.map(({ message }) => message.content)).not.toContain('one?');
  });

  test('attaches only the cards of its entries', async () => {
    const { output_box_id: box } = await answered();
    const { attachedCardIds } = await h.runtime.packer.packContext({
      projectId: 'default',
      toolSuffix: 'my_tool',
      sourceAgentId: 'operator',
      arguments: { profile_name: 'heir', boxes: box },
      handover: { context_packing_config: { inherit_context: { include_boxes_from_args: ['boxes'] } } },
    });
    const entries = await h.rows<{ card_id: string }>(
      'select card_id from boxcar.tape_entries where box_id = $1 and card_id is not null order by position',
      [box],
    );
    expect(attachedCardIds).toEqual(entries.map(({ card_id: id }) => id));
  });

  test('shows questions only where the packer may read them: its own questions of ended turns, not those of others', async () => {
    const { output_box_id: box, agent_id: agent } = await answered();
    await named('by-grant');
    await h.runtime.submit('grant_box', { box_id: box, grantee: 'by-grant' });
    const granted = await heir({ context_box_id: box }, 'by-grant');
    expect(promptOf(granted).slice(1, -2)).toEqual(ANSWERS);

    await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: agent, shared: true });
    await named('asker');
    const child = await ask(agent, 'mine?', 'asker');
    expect(child.output_box_id).toBe(box);
    await h.runtime.submit('grant_box', { box_id: box, grantee: 'asker' });
    const reader = await heir({ context_box_id: box }, 'asker');
    expect(promptOf(reader).slice(1, -2)).toEqual([...ANSWERS, 'user: mine?', 'assistant: answer to mine?']);
  });
});
