/** Agents with a name are shown to models and people by that name, and can be called by the name that was shown. */
import type { TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { TurnPrompts } from '../../explain/turn-prompts.js';
import { checkPrompts } from '../../testing/check-prompts.js';
import { type Harness, harness } from '../../testing/harness.js';
import { type RecordingModel, recordingModel } from '../../testing/recording-model.js';

const OPERATOR = 'agent:operator';
let h: Harness;
let model: RecordingModel;

beforeAll(async () => {
  model = recordingModel();
  h = await harness({ model });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: () => 'a wall',
  });
  await h.profile('reader', [{ say: 'read' }], { tools: [] });
  await h.profile(
    'lead',
    [
      { calls: [{ tool: 'look', arguments: {} }] },
      { calls: [{ tool: 'tape.handoff', arguments: { name: 'seen', state: { n: 1 } } }] },
      { say: 'done' },
    ],
    { tools: ['look', 'tape.handoff'], delegation_policy: { target_profiles: null } },
  );
  await h.worker();
});

afterAll(async () => {
  expect(model.findings()).toEqual([]);
  await checkPrompts(h.database.pool, model.requests);
  await h[Symbol.asyncDispose]();
});

interface Receipt {
  readonly turn_id: TurnId;
  readonly agent_id: string;
  readonly output_box_id: string;
  readonly context_box_id: string;
}
const submit = async (primitive: string, args: object, as?: string): Promise<Receipt> =>
  (await h.runtime.submit(
    primitive,
    args,
    as === undefined ? {} : { sourceAgentId: as },
  )) as unknown as Receipt;
const ended = async (receipt: Receipt): Promise<Receipt> => {
  await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
  return receipt;
};
const promptOf = ({ turn_id }: Receipt, at = -1): readonly string[] =>
  (model.of(turn_id).at(at)?.messages ?? []).map(({ role, content }) => `${role}: ${content}`);
const reuse = (target_ref: string, rest: object = {}, as?: string) =>
  submit('delegate_async', { target_strategy: 'reuse', target_ref, instruction: 'go', ...rest }, as);
const named = async (name: string): Promise<string> =>
  (await submit('provision_agent', { action: 'create', agent_id: name, profile_name: 'lead', shared: true }))
    .agent_id;

describe('an agent that was given a name', () => {
  test('is shown with that name in the prompts of others: as parent and as author of calls, results and anchors', async () => {
    await named('ada');
    const own = await ended(await reuse('ada'));
    expect(promptOf(own, 0)).toContain(`user: Parent agent: ${OPERATOR}`);
    const child = await ended(
      await submit(
        'launch_principal',
        { profile_name: 'reader', instruction: 'read', context_box_id: own.output_box_id },
        'ada',
      ),
    );
    expect(promptOf(child)).toEqual([
      'system: You are reader.',
      'user: go',
      'user: [agent:ada called look] {}',
      'user: [result of look for agent:ada: success] a wall',
      'user: [agent:ada called tape.handoff] {"name":"seen","state":{"n":1}}',
      'user: [anchor of agent:ada] [Anchor created: seen]: {"n": 1}',
      'user: [result of tape.handoff for agent:ada: success] anchor added: seen',
      'assistant: done',
      'user: Parent agent: agent:ada',
      'user: read',
    ]);
    // The name is in the manifest: the prompt can be rebuilt from it even after the agent is renamed.
    await h.rows("update boxcar.agents set name = 'gone' where name = 'ada'");
    try {
      const explained = (
        await TurnPrompts.load(h.database.pool, child.turn_id, { project: 'default', allSteps: true })
      ).explain({ step: 1 });
      expect(explained).toMatchObject({ verified: true, findings: [] });
    } finally {
      await h.rows("update boxcar.agents set name = 'ada' where name = 'gone'");
    }
  });

  test('has the same name in a preview as in the first step', async () => {
    await named('eve');
    const args = { profile_name: 'reader', instruction: 'read' };
    const child = await ended(await submit('launch_principal', args, 'eve'));
    const preview = await h.runtime.packer.preview({
      projectId: 'default',
      toolSuffix: 'launch_principal',
      sourceAgentId: 'eve',
      arguments: args,
      handover: {
        context_packing_config: {
          pack_arguments: [{ arg_key: 'instruction', as_card_type: 'task.instruction', card_metadata: {} }],
          inherit_context: { include_parent: true },
        },
      },
    });
    expect(preview.prompt.messages.map(({ message: { role, content } }) => `${role}: ${content}`)).toEqual(
      promptOf(child),
    );
    expect(promptOf(child)).toContain('user: Parent agent: agent:eve');
  });

  test('is named so in the message of a handoff', async () => {
    await named('kay');
    await named('lou');
    const { boxId } = await h.runtime.tape({ agent: 'agent:kay' });
    const tapeRef = `tape://default/${boxId}/entry/1`;
    const args = { target_ref: 'agent:lou', reason: 'r', summary: 's', tape_ref: tapeRef };
    const turn = await ended(await submit('context_handoff', args, 'kay'));
    expect(promptOf(turn).join('\n')).toMatch(/"from":"agent:kay","to":"agent:lou"/);
  });

  test('can be addressed by that name in every call that takes an agent', async () => {
    const id = await named('bob');
    const turn = await ended(await reuse('agent:bob'));
    expect(turn.agent_id).toBe(id);
    expect((await ended(await reuse(`agent:${id}`))).agent_id).toBe(id);
    const child = await submit('launch_principal', { profile_name: 'reader', instruction: 'x' }, 'agent:bob');
    expect(promptOf(await ended(child))).toContain('user: Parent agent: agent:bob');
    const { box_id } = (await h.runtime.submit('create_box', {
      cards: [{ type: 'note', content: { kind: 'text', text: 'n' } }],
    })) as { box_id: string };
    await h.runtime.submit('grant_box', { box_id, grantee: 'agent:bob' });
    expect(await h.rows('select agent_id from boxcar.grants where box_id = $1', [box_id])).toEqual([
      { agent_id: id },
    ]);
    expect(
      await submit('provision_agent', { action: 'ensure', agent_id: 'agent:bob', profile_name: 'lead' }),
    ).toMatchObject({ agent_id: id, outcome: 'unchanged' });
    await expect(
      submit('provision_agent', { action: 'create', agent_id: 'agent:new', profile_name: 'lead' }),
    ).rejects.toMatchObject({ code: 'bad_request', details: { field: 'name' } });
  });
});

test('an agent without a name is shown by its id', async () => {
  const own = await ended(await submit('launch_principal', { profile_name: 'lead', instruction: 'go' }));
  const child = await ended(
    await submit(
      'launch_principal',
      { profile_name: 'reader', instruction: 'read', context_box_id: own.output_box_id },
      own.agent_id,
    ),
  );
  expect(promptOf(child)).toContain(`user: [agent ${own.agent_id} called look] {}`);
  expect(promptOf(child)).toContain(`user: Parent agent: ${own.agent_id}`);
});
