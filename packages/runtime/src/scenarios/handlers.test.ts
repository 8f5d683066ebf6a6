import {
  type AgentId,
  type BoxId,
  checkMessages,
  type ErrorBody,
  type JsonValue,
  KernelError,
  type Message,
  type TurnId,
} from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { expandContexts } from '@boxcar/store';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import type { TurnResult } from '../queue/turn-result.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import { rowCounts } from '../testing/row-counts.js';

interface Receipt {
  readonly status: string;
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}

/** A promise with the function that resolves it. */
function deferred(): { readonly promise: Promise<void>; resolve(): void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

let h: Harness;
let model: RecordingModel;
const functions: Record<string, ScriptedFunction> = {};

beforeEach(async () => {
  model = recordingModel(functions);
  h = await harness({ model });
  return async () => {
    // In every test: no prompt may be one that a provider refuses.
    expect(model.findings()).toEqual([]);
    // Each prompt can be rebuilt from its rows.
    await checkPrompts(h.database.pool, model.requests);
    await h[Symbol.asyncDispose]();
  };
});

const ANYONE = { delegation_policy: { target_profiles: null } };
const submit = (primitive: string, args: unknown, options = {}): Promise<JsonValue> =>
  h.runtime.submit(primitive, args, options);
const receipt = async (primitive: string, args: unknown, options = {}): Promise<Receipt> =>
  (await submit(primitive, args, options)) as unknown as Receipt;
const launch = (profile_name: string, instruction = 'go', rest = {}, options = {}): Promise<Receipt> =>
  receipt('launch_principal', { profile_name, instruction, ...rest }, options);
const delegate = (target_strategy: string, target_ref: string, instruction = 'go', rest = {}, options = {}) =>
  receipt('delegate_async', { target_strategy, target_ref, instruction, ...rest }, options);
const end = (turn: Pick<Receipt, 'turn_id'>): Promise<TurnResult> =>
  h.runtime.waitForTurn(turn.turn_id, { timeoutMs: 60_000 });
const run = async (
  profile: string,
  instruction = 'go',
  rest = {},
): Promise<Receipt & { end: TurnResult }> => {
  const started = await launch(profile, instruction, rest);
  return { ...started, end: await end(started) };
};
const counts = () => rowCounts(h.database.pool);

async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

/** The results of a turn's calls, in call order. */
const resultsOf = async (turn: Pick<Receipt, 'turn_id'>) =>
  (
    await h.rows<{ content: { name: string; status: string; result?: JsonValue; error?: ErrorBody } }>(
      `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
       where k.turn_id = $1 order by k.step, k.ordinal`,
      [turn.turn_id],
    )
  ).map(({ content }) => content);
const say = (messages: readonly Message[]): string[] =>
  messages.map((message) =>
    message.role === 'assistant' && message.toolCalls !== undefined
      ? `assistant calls ${message.toolCalls.map(({ name }) => name).join()}`
      : `${message.role}: ${message.content}`,
  );
/** The prompt of a turn's nth step. */
const promptOf = (turn: Pick<Receipt, 'turn_id'>, step = 1): string[] =>
  say(model.of(turn.turn_id).find((request) => request.turn.step === step)?.messages ?? []);
const cardTypesOf = async (boxId: BoxId): Promise<string[]> =>
  (
    await h.rows<{ type: string }>(
      `select c.type from boxcar.boxes b cross join unnest(b.card_ids) with ordinality as u(id, n)
       join boxcar.cards c on c.id = u.id where b.id = $1 order by u.n`,
      [boxId],
    )
  ).map(({ type }) => type);

describe('delegation to a new agent', () => {
  test('makes an agent, a context and a turn of the caller’s run, and returns their ids', async () => {
    await h.profile('expert', [{ say: 'answer to {{instruction}}' }]);
    await h.worker();
    const made = await launch('expert', 'question', { result_fields: undefined }, { channelId: 'ops' });
    expect(made.status).toBe('accepted');
    expect(await end(made)).toMatchObject({
      status: 'success',
      result: 'answer to question',
      agent_id: made.agent_id,
      context_box_id: made.context_box_id,
      output_box_id: made.output_box_id,
    });
    expect(await cardTypesOf(made.context_box_id)).toEqual(['task.instruction', 'meta.parent_pointer']);
    const [turn] = await h.rows('select * from boxcar.turns where id = $1', [made.turn_id]);
    expect(turn).toMatchObject({
      depth: 0,
      channel_id: 'ops',
      primitive: 'launch_principal',
      is_awaited: false,
    });
    // No worker serves its target, so the turn is still open when the child is filed under it.
    await h.profile('parked', [{ say: 'late' }], { worker_target: 'nobody' });
    const child = await launch('expert', 'sub', {}, { parentTurnId: (await launch('parked')).turn_id });
    const [row] = await h.rows('select depth, channel_id from boxcar.turns where id = $1', [child.turn_id]);
    expect(row).toEqual({ depth: 1, channel_id: 'public' });
    expect(promptOf(made)).toEqual([
      'system: You are expert.',
      expect.stringMatching(/^user: Parent agent: /),
      'user: question',
    ]);
  });

  test('answers with the result of the turn when the caller waits', async () => {
    await h.profile('expert', [{ say: 'done' }]);
    await h.worker();
    expect(
      await submit('launch_principal', { profile_name: 'expert', instruction: 'x', wait: true }),
    ).toMatchObject({
      status: 'success',
      result: 'done',
    });
    expect(await submit('ask_expert', { expert_profile: 'expert', question: 'x' })).toMatchObject({
      status: 'success',
      result: 'done',
    });
    expect(
      await submit('ask_expert', { expert_profile: 'expert', question: 'x', wait: false }),
    ).toMatchObject({
      status: 'accepted',
    });
  });

  test('from a turn returns a receipt without wait and the result with wait; the parent may read the child’s output', async () => {
    await h.profile('expert', [{ say: 'done {{instruction}}' }]);
    await h.profile(
      'boss',
      [
        {
          calls: [
            { tool: 'launch_principal', arguments: { profile_name: 'expert', instruction: 'a' } },
            { tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'b' } },
          ],
        },
        { say: '{{results/ask_expert/result}}' },
      ],
      { tools: ['launch_principal', 'ask_expert'], ...ANYONE },
    );
    await h.worker();
    const boss = await run('boss');
    expect(boss.end).toMatchObject({ status: 'success', result: 'done b' });
    const [first, second] = await resultsOf(boss);
    expect(first).toMatchObject({ status: 'success', result: { status: 'accepted' } });
    expect(second).toMatchObject({ status: 'success', result: { status: 'success', result: 'done b' } });
    const child = second?.result as unknown as { output_box_id: string; agent_id: string };
    // An id in an answer may be used: the output of the child becomes context of the next delegation (W20).
    const next = await submit(
      'launch_principal',
      { profile_name: 'expert', instruction: 'c', context_box_id: child.output_box_id },
      { sourceAgentId: boss.agent_id },
    );
    expect(next).toMatchObject({ status: 'accepted' });
    const foreign = await run('expert');
    expect(
      await refusal(
        submit(
          'launch_principal',
          { profile_name: 'expert', instruction: 'c', context_box_id: foreign.output_box_id },
          { sourceAgentId: boss.agent_id },
        ),
      ),
    ).toMatchObject({ code: 'box_not_authorized' });
    await end(next as unknown as Receipt);
    await end(first?.result as unknown as Receipt);
    await checkInvariants(h.database.pool);
  });
});

describe('reuse', () => {
  test('continues the agent’s tape: the agent sees its earlier turn, including instruction and calls', async () => {
    h.runtime.registerTool({ name: 'look', description: '', input: z.strictObject({}), run: () => 'seen' });
    await h.profile('expert', [{ calls: [{ tool: 'look' }] }, { say: 'answer to {{instruction}}' }], {
      tools: ['look'],
    });
    await h.worker();
    const first = await run('expert', 'one');
    const second = await delegate('reuse', first.agent_id, 'two', { wait: false });
    expect(await end(second)).toMatchObject({ status: 'success', result: 'answer to two' });
    expect(second).toMatchObject({ agent_id: first.agent_id, output_box_id: first.output_box_id });
    expect(promptOf(second)).toEqual([
      'system: You are expert.',
      expect.stringContaining('Parent agent'),
      'user: one',
      'assistant calls look',
      'tool: seen',
      'assistant: answer to one',
      expect.stringContaining('Parent agent'),
      'user: two',
    ]);
    await checkInvariants(h.database.pool);
  });

  test('works by name or id; the context belongs to the agent', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    await h.worker();
    const first = await run('expert');
    const [{ name } = { name: '' }] = await h.rows<{ name: string }>(
      'select name from boxcar.agents where id = $1',
      [first.agent_id],
    );
    for (const ref of [name, first.agent_id.replaceAll('-', '')]) {
      const again = await delegate('reuse', ref);
      expect(again.agent_id).toBe(first.agent_id);
      expect(
        await h.rows('select owner_agent_id from boxcar.boxes where id = $1', [again.context_box_id]),
      ).toEqual([{ owner_agent_id: first.agent_id }]);
      await end(again);
    }
  });

  test('of a busy agent queues the turns, and each turn runs in order', async () => {
    await h.profile('expert', [{ say: '{{instruction}}' }]);
    const first = await launch('expert', '0');
    const later: Receipt[] = [];
    for (let i = 1; i <= 10; i++) later.push(await delegate('reuse', first.agent_id, String(i)));
    await h.worker({ concurrency: 3 });
    const ends = await Promise.all([first, ...later].map(end));
    expect(ends.map(({ result }) => result)).toEqual(
      Array.from({ length: 11 }, (_none, index) => String(index)),
    );
    const started = await h.rows<{ turn_id: string }>(
      "select turn_id from boxcar.tape_entries where payload->>'name' = 'turn.started' order by position",
    );
    expect(started.map(({ turn_id }) => turn_id)).toEqual([first, ...later].map(({ turn_id }) => turn_id));
    await checkInvariants(h.database.pool);
  });

  test('of one agent by many at once leaves no turn unstarted', async () => {
    await h.profile('expert', [{ say: '{{instruction}}' }]);
    // No sweep runs, so ends of turns and submissions must start the queued turns.
    await h.worker({ concurrency: 4, sweepMs: 3_600_000 });
    const first = await run('expert', '0');
    const turns = await Promise.all(
      Array.from({ length: 25 }, (_none, index) => delegate('reuse', first.agent_id, String(index))),
    );
    await Promise.all(turns.map(end));
    await checkInvariants(h.database.pool);
  });
});

describe('a clone', () => {
  const look = () =>
    h.runtime.registerTool({
      name: 'look',
      description: '',
      input: z.strictObject({}),
      run: () => 'seen',
    });
  const SCRIPT: JsonValue[] = [{ calls: [{ tool: 'look' }] }, { say: 'answer to {{instruction}}' }];

  test('sees its source’s view as its own history, and then its own instruction', async () => {
    look();
    await h.profile('expert', SCRIPT, { tools: ['look'] });
    await h.worker();
    const source = await run('expert', 'one');
    const clone = await delegate('clone', source.agent_id, 'two');
    expect(await end(clone)).toMatchObject({ status: 'success', result: 'answer to two' });
    expect(clone.agent_id).not.toBe(source.agent_id);
    expect(promptOf(clone)).toEqual([
      'system: You are expert.',
      expect.stringContaining('[inherited] Parent agent'),
      'user: one',
      'assistant calls look',
      'tool: seen',
      'assistant: answer to one',
      expect.stringContaining('user: Parent agent'),
      'user: two',
    ]);
    const [row] = await h.rows('select derived_from, owner_agent_id from boxcar.agents where id = $1', [
      clone.agent_id,
    ]);
    expect(row).toMatchObject({ derived_from: source.agent_id });
    // The shared part is the same to the byte, except for the line that names the parent: caches of providers stay valid for the clone.
    expect(promptOf(clone).slice(2, 6)).toEqual([
      ...promptOf(source, 2).slice(2),
      'assistant: answer to one',
    ]);
    // A clone of a clone keeps the form.
    const third = await delegate('clone', clone.agent_id, 'three');
    await end(third);
    expect(promptOf(third).filter((line) => line.startsWith('assistant calls'))).toHaveLength(2);
    // When the same history is passed on as a box, it is quoted.
    const heir = await launch('expert', 'four', { context_box_id: clone.context_box_id });
    await end(heir);
    expect(promptOf(heir).filter((line) => line.startsWith('assistant calls'))).toHaveLength(0);
    expect(promptOf(heir).join('\n')).toContain('called look');
    // A snapshot is an ordinary box: packing it again gives the same cards in the same order.
    const { attachedCardIds } = await h.runtime.packer.packContextWithInstruction({
      projectId: 'default',
      toolSuffix: 'test',
      sourceAgentId: 'operator',
      profileName: 'expert',
      instruction: 'five',
      inputBoxIds: [third.context_box_id],
    });
    const inside = (await expandContexts(h.database.pool, [third.context_box_id])).get(third.context_box_id);
    expect(attachedCardIds.slice(1, -1)).toEqual(inside?.map(({ card }) => card.id));
  });

  test('puts its given boxes before the history', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    await h.worker();
    const source = await run('expert', 'one');
    const { box_id } = (await submit('create_box', {
      cards: [{ type: 't', content: { kind: 'text', text: 'boxed' } }],
    })) as { box_id: string };
    const clone = await delegate('clone', source.agent_id, 'two', { context_box_id: box_id });
    await end(clone);
    const prompt = promptOf(clone);
    expect(prompt.indexOf('user: boxed')).toBeLessThan(prompt.indexOf('user: one'));
  });

  /** Writes an anchor to a tape, as the module for tapes will. */
  async function anchor(tape: BoxId, state: JsonValue): Promise<void> {
    const id = newId<'card'>();
    await h.rows(
      `insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id)
       select $1, project_id, 'tape.anchor', 'assistant', $3::json, sha256('x'), 1, 1, 'test' from boxcar.boxes where id = $2`,
      [id, tape, JSON.stringify({ kind: 'json', data: state })],
    );
    await h.rows(
      `with head as (update boxcar.boxes set head_position = head_position + 1, last_anchor_position = head_position + 1, view_position = head_position + 1
         where id = $2 returning id, head_position)
       insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, anchor_name, author_id) select id, head_position, 'anchor', $1, 1, 'phase', 'test' from head`,
      [id, tape],
    );
  }

  test('takes the view since the last anchor, or everything on request', async () => {
    await h.profile('expert', [{ say: 'answer to {{instruction}}' }]);
    await h.worker();
    const source = await run('expert', 'early');
    await anchor(source.output_box_id, { summary: 'so far' });
    await end(await delegate('reuse', source.agent_id, 'late'));
    const view = await delegate('clone', source.agent_id, 'now', { history: 'view' });
    const full = await delegate('clone', source.agent_id, 'now', { history: 'full' });
    await Promise.all([end(view), end(full)]);
    const [seen, all] = [promptOf(view).join('\n'), promptOf(full).join('\n')];
    expect(seen).toContain('so far');
    expect(seen).toContain('late');
    expect(seen).not.toContain('early');
    for (const words of ['early', 'answer to early', 'so far', 'late', 'answer to late'])
      expect(all).toContain(words);
    expect(
      await h.rows('select count(*)::int as n from boxcar.tape_entries where box_id = $1', [
        full.output_box_id,
      ]),
    ).toEqual([{ n: 4 }]);
  });

  test('of an agent with open calls leaves the calls out, and its prompt is valid', async () => {
    const started = deferred();
    const gate = deferred();
    h.runtime.registerTool({
      name: 'look',
      description: '',
      input: z.strictObject({}),
      run: async () => {
        started.resolve();
        await gate.promise;
        return 'seen';
      },
    });
    functions.slow = (request, { call, instruction }) =>
      instruction === 'one' && request.turn.step === 1
        ? { text: 'I look', toolCalls: [call('look', {}), call('look', {})] }
        : { text: `answer to ${String(instruction)}` };
    await h.runtime.applyProfile({
      name: 'expert',
      instructions: 'I',
      model: 'scripted:slow',
      tools: ['look'],
    });
    await h.worker();
    const source = await launch('expert', 'one');
    await started.promise;
    const clone = await delegate('clone', source.agent_id, 'two');
    expect(await end(clone)).toMatchObject({ status: 'success', result: 'answer to two' });
    const prompt = promptOf(clone);
    expect(prompt).toContain('user: one');
    expect(prompt.join('\n')).not.toContain('look');
    gate.resolve();
    await end(source);
    const after = await delegate('clone', source.agent_id, 'three');
    await end(after);
    expect(promptOf(after)).toContain('assistant calls look,look');
  });

  test('of the calling agent, from within the turn, sees the turn so far', async () => {
    look();
    functions.self = (request, { call, instruction, results }) => {
      if (instruction === 'as clone') return { text: 'I am the clone' };
      if (request.turn.step === 1) return { toolCalls: [call('look', {})] };
      if (request.turn.step === 2) {
        return {
          toolCalls: [
            call('delegate_async', {
              target_strategy: 'clone',
              target_ref: String(instruction),
              instruction: 'as clone',
              wait: true,
            }),
            call('look', {}),
          ],
        };
      }
      return { text: JSON.stringify(results('delegate_async')) };
    };
    await h.runtime.applyProfile({
      name: 'expert',
      instructions: 'I',
      model: 'scripted:self',
      tools: ['look', 'delegate_async'],
      delegation_policy: { target_profiles: ['expert'] },
    });
    await h.worker();
    const idle = await launch('expert', 'as clone');
    await end(idle);
    const again = await delegate('reuse', idle.agent_id, idle.agent_id);
    const ended = await end(again);
    expect(String(ended.result)).toContain('I am the clone');
    const [result] = (await resultsOf(again)).filter(({ name }) => name === 'delegate_async');
    const clone = result?.result as unknown as Receipt;
    const prompt = promptOf(clone);
    expect(prompt.filter((line) => line === 'assistant calls look')).toHaveLength(1);
    expect(prompt.join('\n')).not.toContain('delegate_async');
    expect(prompt.at(-1)).toBe('user: as clone');
  });

  test('is possible only for agents that may see the source’s view: a stranger is refused', async () => {
    await h.profile('expert', [{ say: 'x' }], ANYONE);
    await h.worker();
    const [secret, stranger] = [await run('expert', 'secret'), await run('expert')];
    const before = await counts();
    expect(
      await refusal(delegate('clone', secret.agent_id, 'tell', {}, { sourceAgentId: stranger.agent_id })),
    ).toMatchObject({ code: 'box_not_authorized', details: { agent_id: secret.agent_id } });
    expect(await counts()).toEqual(before);
    await submit('grant_box', { box_id: secret.output_box_id, grantee: stranger.agent_id });
    expect(
      await delegate('clone', secret.agent_id, 'tell', {}, { sourceAgentId: stranger.agent_id }),
    ).toMatchObject({
      status: 'accepted',
    });
  });
});

describe('asking an expert with history', () => {
  test('shows the expert the caller’s view, quoted, without the open call', async () => {
    h.runtime.registerTool({ name: 'look', description: '', input: z.strictObject({}), run: () => 'seen' });
    await h.profile('expert', [{ say: 'I see' }]);
    await h.profile(
      'boss',
      [
        { calls: [{ tool: 'look' }] },
        {
          calls: [
            {
              tool: 'ask_expert',
              arguments: { expert_profile: 'expert', question: 'what?', include_history: true },
            },
          ],
        },
        { say: '{{results/ask_expert/result}}' },
      ],
      { tools: ['look', 'ask_expert'], ...ANYONE },
    );
    await h.worker();
    const boss = await run('boss', 'find out');
    expect(boss.end).toMatchObject({ status: 'success', result: 'I see' });
    const [, asked] = await resultsOf(boss);
    const prompt = promptOf(asked?.result as unknown as Receipt).join('\n');
    expect(prompt).toContain('find out');
    expect(prompt).toContain('called look');
    expect(prompt).toContain('seen');
    expect(prompt).not.toContain('ask_expert');
    expect(prompt.endsWith('user: what?')).toBe(true);
  });

  test('is refused when the caller has no history of its own', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    const turn = await launch('expert');
    const ask = (options = {}) =>
      refusal(
        submit('ask_expert', { expert_profile: 'expert', question: 'x', include_history: true }, options),
      );
    const before = await counts();
    expect(await ask()).toMatchObject({ code: 'bad_request' });
    // The request is filed under a turn, but made by the operator, which has no tape.
    expect(await ask({ parentTurnId: turn.turn_id })).toMatchObject({ code: 'bad_request' });
    expect(await counts()).toEqual(before);
  });
});

describe('submit_result', () => {
  const FIELDS = [
    { name: 'title', type: 'string' },
    { name: 'score', type: 'number', required: false },
  ];
  const script = (...results: JsonValue[]): JsonValue[] =>
    results.map((result) => ({ calls: [{ tool: 'submit_result', arguments: { result } }] }));

  test('ends the turn with the requested fields, after telling the model about wrong fields', async () => {
    await h.profile(
      'expert',
      script({ score: 1 }, { title: 1 }, { title: 'a', more: 1 }, 'text', { title: 'a', score: 2 }),
    );
    await h.worker();
    const turn = await run('expert', 'x', { result_fields: FIELDS });
    expect(turn.end).toMatchObject({ status: 'success', result: { title: 'a', score: 2 } });
    const results = await resultsOf(turn);
    expect(results.map(({ status, error }) => [status, error?.code])).toEqual([
      ...Array.from({ length: 4 }, () => ['failed', 'tool_arguments_invalid']),
      ['success', undefined],
    ]);
    expect(results[0]?.error?.message).toContain('result.title is missing');
    expect(results[1]?.error?.message).toContain('must be of type string');
    expect(results[2]?.error?.message).toContain('result.more');
    expect(results[3]?.error?.message).toContain('must be an object');
    await checkInvariants(h.database.pool);
  });

  test('is required when fields bind the turn, and text alone leads to a reminder', async () => {
    await h.profile('expert', [{ say: 'just text' }, ...script({ title: 'a' })]);
    await h.worker();
    const turn = await run('expert', 'x', { result_fields: FIELDS });
    expect(turn.end).toMatchObject({ status: 'success', result: { title: 'a' } });
    expect(promptOf(turn, 2).at(-1)).toContain('submit_result');
    const [first] = model.of(turn.turn_id);
    expect(first?.tools.map(({ name }) => name)).toEqual(['submit_result']);
  });

  test('is not required by inherited fields of another turn', async () => {
    await h.profile('expert', [{ say: 'free' }]);
    const bound = await launch('expert', 'x', { result_fields: FIELDS });
    const heir = await launch('expert', 'y', { context_box_id: bound.context_box_id });
    await h.worker();
    expect(await end(heir)).toMatchObject({ status: 'success', result: 'free' });
  });

  test('must be the only call: with other calls it is refused and they run', async () => {
    h.runtime.registerTool({ name: 'look', description: '', input: z.strictObject({}), run: () => 'seen' });
    await h.profile(
      'expert',
      [
        { calls: [{ tool: 'submit_result', arguments: { result: 1 } }, { tool: 'look' }] },
        { calls: [{ tool: 'submit_result', arguments: { result: 2 } }] },
      ],
      { tools: ['submit_result', 'look'] },
    );
    await h.worker();
    const turn = await run('expert');
    expect(turn.end).toMatchObject({ status: 'success', result: 2 });
    expect((await resultsOf(turn)).map(({ status }) => status)).toEqual(['failed', 'success', 'success']);
  });

  test('accepts any JSON when no fields were requested', async () => {
    for (const [index, result] of [null, 'text', 7, [1], { a: { b: null } }].entries()) {
      await h.profile(`expert-${index}`, script(result), { tools: ['submit_result'] });
    }
    await h.worker();
    expect((await run('expert-0')).end).toMatchObject({ status: 'success', result: null });
    expect((await run('expert-1')).end).toMatchObject({ result: 'text' });
    expect((await run('expert-2')).end).toMatchObject({ result: 7 });
    expect((await run('expert-3')).end).toMatchObject({ result: [1] });
    expect((await run('expert-4')).end).toMatchObject({ result: { a: { b: null } } });
  });

  test('is refused from outside, with or without a named turn', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    const turn = await launch('expert');
    const before = await counts();
    expect(await refusal(submit('submit_result', { result: 1 }))).toMatchObject({ code: 'bad_request' });
    expect(
      await refusal(
        submit('submit_result', { result: 1 }, { parentTurnId: turn.turn_id, sourceAgentId: turn.agent_id }),
      ),
    ).toMatchObject({ code: 'bad_request' });
    expect(await counts()).toEqual(before);
  });
});

describe('the primitives for boxes and grants', () => {
  test('let an agent make a box, pass it on, and grant it', async () => {
    await h.profile('expert', [{ say: 'read' }]);
    await h.profile(
      'boss',
      [
        {
          calls: [
            {
              tool: 'create_box',
              arguments: {
                cards: [{ type: 'note', role: 'user', content: { kind: 'text', text: 'for the expert' } }],
              },
            },
          ],
        },
        {
          calls: [
            {
              tool: 'grant_box',
              arguments: { box_id: '{{results/create_box/box_id}}', grantee: 'operator' },
            },
            {
              tool: 'ask_expert',
              arguments: {
                expert_profile: 'expert',
                question: 'read it',
                context_box_id: '{{results/create_box/box_id}}',
              },
            },
          ],
        },
        { say: '{{results/create_box/box_id}}' },
      ],
      { tools: ['create_box', 'grant_box', 'ask_expert'], ...ANYONE },
    );
    await h.worker();
    const boss = await run('boss');
    expect(boss.end.status).toBe('success');
    const results = await resultsOf(boss);
    expect(results.map(({ status }) => status)).toEqual(['success', 'success', 'success']);
    expect(results[1]?.result).toEqual({ granted: true });
    expect(promptOf(results[2]?.result as unknown as Receipt)).toContain('user: for the expert');
    expect(await h.rows('select maker_agent_id from boxcar.boxes where id = $1', [boss.end.result])).toEqual([
      { maker_agent_id: boss.agent_id },
    ]);
  });
});

/** Lets every agent give turns to this one. */
const share = (agentId: string) =>
  submit('provision_agent', { action: 'ensure', agent_id: agentId, shared: true });

describe('the delegation policy of the caller’s profile', () => {
  test.each<[string, JsonValue | undefined, boolean]>([
    ['allows no profile when it is missing', undefined, false],
    ['allows every profile when it is null', { target_profiles: null }, true],
    ['allows no profile when its list is empty', { target_profiles: [] }, false],
    ['allows a profile that it names', { target_profiles: ['expert'] }, true],
    ['does not allow another name', { target_profiles: ['Expert', 'exper'] }, false],
    [
      'allows a named profile with a common tag',
      { target_profiles: ['expert'], target_tags: ['a', 'b'] },
      true,
    ],
    [
      'does not allow a named profile without a common tag',
      { target_profiles: ['expert'], target_tags: ['c'] },
      false,
    ],
    ['does not allow a profile by a common tag alone', { target_profiles: [], target_tags: ['a'] }, false],
  ])('%s', async (_rule, policy, isAllowed) => {
    await h.profile('expert', [{ say: 'x' }], { tags: ['a'] });
    await h.profile('caller', [{ say: 'x' }], policy === undefined ? {} : { delegation_policy: policy });
    const [caller, target] = [await launch('caller'), await launch('expert')];
    await submit('grant_box', { box_id: target.output_box_id, grantee: caller.agent_id });
    await share(target.agent_id);
    const as = { sourceAgentId: caller.agent_id };
    const before = await counts();
    for (const ask of [
      () => launch('expert', 'x', {}, as),
      () => receipt('ask_expert', { expert_profile: 'expert', question: 'x', wait: false }, as),
      () => delegate('new', 'expert', 'x', {}, as),
      () => delegate('reuse', target.agent_id, 'x', {}, as),
      () => delegate('clone', target.agent_id, 'x', {}, as),
    ]) {
      if (isAllowed) expect(await ask()).toMatchObject({ status: 'accepted' });
      else
        expect(await refusal(ask())).toMatchObject({
          code: 'delegation_denied',
          details: { source_agent_id: caller.agent_id, target_profile: 'expert' },
        });
    }
    if (!isAllowed) expect(await counts()).toEqual(before);
  });

  test('gives the model a readable refusal, and leaves nothing', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    await h.profile(
      'boss',
      [
        { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'x' } }] },
        { say: 'understood' },
      ],
      { tools: ['ask_expert'] },
    );
    await h.worker();
    const boss = await run('boss');
    expect(boss.end).toMatchObject({ status: 'success', result: 'understood' });
    expect(await resultsOf(boss)).toMatchObject([{ status: 'failed', error: { code: 'delegation_denied' } }]);
    expect(promptOf(boss, 2).at(-1)).toContain('delegation_denied');
    expect(await counts()).toMatchObject({ turns: 1, agents: 2, operations: 1 });
  });

  test('is the policy of the version with which the agent was made', async () => {
    await h.profile('expert', [{ say: 'x' }]);
    await h.profile('caller', [{ say: 'x' }]);
    const old = await launch('caller');
    await h.profile('caller', [{ say: 'x' }], ANYONE);
    const fresh = await launch('caller');
    expect(await refusal(launch('expert', 'x', {}, { sourceAgentId: old.agent_id }))).toMatchObject({
      code: 'delegation_denied',
    });
    expect(await launch('expert', 'x', {}, { sourceAgentId: fresh.agent_id })).toMatchObject({
      status: 'accepted',
    });
  });
});

describe('a wait for an agent that waits for the caller', () => {
  beforeEach(() => {
    // With the id of an agent as instruction, it delegates to that agent and waits; with any other instruction, it answers.
    functions.loop = (request, { call, instruction, results }) => {
      const [how, ref] = String(instruction).split(' ');
      if (ref === undefined || ref === '') return { text: 'leaf' };
      if (request.turn.step > 1) {
        const error = (request.messages.at(-1) as { content: string }).content;
        return {
          text: error.includes('delegation_cycle') ? 'refused' : JSON.stringify(results('delegate_async')),
        };
      }
      const isDeep = how === 'deep';
      return {
        toolCalls: [
          call('delegate_async', {
            target_strategy: isDeep ? 'new' : 'reuse',
            target_ref: isDeep ? 'looper' : ref,
            instruction: isDeep ? `wait ${ref}` : 'leaf',
            wait: how !== 'async',
          }),
        ],
      };
    };
  });
  const looper = async (): Promise<Receipt> => {
    await h.runtime.applyProfile({
      name: 'looper',
      instructions: 'I',
      model: 'scripted:loop',
      tools: ['delegate_async'],
      delegation_policy: { target_profiles: null },
    });
    await h.worker();
    const made = await run('looper', 'leaf');
    await share(made.agent_id);
    return made;
  };

  test('is refused for the caller itself, with the chain', async () => {
    const { agent_id } = await looper();
    const turn = await delegate('reuse', agent_id, `wait ${agent_id}`);
    expect(await end(turn)).toMatchObject({ status: 'success', result: 'refused' });
    expect((await resultsOf(turn))[0]).toMatchObject({
      status: 'failed',
      error: {
        code: 'delegation_cycle',
        details: { agent_id, chain: [{ turn_id: turn.turn_id, agent_id }] },
      },
    });
    expect(await counts()).toMatchObject({ turns: 2 });
  });

  test('is refused over two levels, with the chain from caller to target', async () => {
    const { agent_id } = await looper();
    const turn = await delegate('reuse', agent_id, `deep ${agent_id}`);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    const child = (await resultsOf(turn))[0]?.result as unknown as Receipt & { result: string };
    expect(child.result).toBe('refused');
    expect((await resultsOf(child))[0]?.error).toMatchObject({
      code: 'delegation_cycle',
      details: {
        chain: [
          { turn_id: child.turn_id, agent_id: child.agent_id },
          { turn_id: turn.turn_id, agent_id },
        ],
      },
    });
    await checkInvariants(h.database.pool);
  });

  test('is not a cycle without a wait: the turn follows after the current turn', async () => {
    const { agent_id } = await looper();
    const turn = await delegate('reuse', agent_id, `async ${agent_id}`);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    const next = (await resultsOf(turn))[0]?.result as unknown as Receipt;
    expect(next.status).toBe('accepted');
    expect(await end(next)).toMatchObject({ status: 'success', result: 'leaf' });
  });

  test('is not a cycle for a caller above that did not wait', async () => {
    const { agent_id } = await looper();
    const parent = await delegate('reuse', agent_id, 'leaf');
    await end(parent);
    // A child that is not filed under an awaited turn may wait for its parent's agent.
    const child = await launch('looper', `wait ${agent_id}`);
    expect(await end(child)).toMatchObject({ status: 'success' });
    expect((await resultsOf(child))[0]).toMatchObject({ status: 'success' });
  });
});

test('the tree of turns has a maximum depth', async () => {
  await h.profile('expert', [{ say: 'x' }]);
  await h.rows(`update boxcar.projects set limits = '{"max_depth": 2}'`);
  let parent = await launch('expert');
  for (let depth = 1; depth <= 2; depth++)
    parent = await launch('expert', 'x', {}, { parentTurnId: parent.turn_id });
  const before = await counts();
  expect(await refusal(launch('expert', 'x', {}, { parentTurnId: parent.turn_id }))).toMatchObject({
    code: 'depth_exceeded',
    details: { depth: 3, max_depth: 2, turn_id: parent.turn_id },
  });
  expect(await counts()).toEqual(before);
  await h.rows(`update boxcar.projects set limits = '{}'`);
  for (let depth = 3; depth <= 20; depth++)
    parent = await launch('expert', 'x', {}, { parentTurnId: parent.turn_id });
  expect(await refusal(launch('expert', 'x', {}, { parentTurnId: parent.turn_id }))).toMatchObject({
    code: 'depth_exceeded',
  });
});

describe('call ids of providers', () => {
  test('that repeat in two turns, and in two steps of one turn, cause no error', async () => {
    h.runtime.registerTool({
      name: 'add',
      description: '',
      input: z.strictObject({ n: z.number() }),
      run: ({ n }) => n + 1,
    });
    const step = (n: number): JsonValue => ({ calls: [{ id: 'call_0', tool: 'add', arguments: { n } }] });
    await h.profile(
      'expert',
      [
        step(1),
        {
          calls: [
            { id: 'call_0', tool: 'add', arguments: { n: 5 } },
            { id: 'call_0', tool: 'add', arguments: { n: 6 } },
          ],
        },
        { say: '{{sum:results/add/*}}' },
      ],
      { tools: ['add'] },
    );
    await h.worker();
    const turns = await Promise.all([launch('expert'), launch('expert')]);
    for (const turn of turns) expect(await end(turn)).toMatchObject({ status: 'success', result: '15' });
    expect(await h.rows('select distinct provider_call_id from boxcar.tool_calls')).toEqual([
      { provider_call_id: 'call_0' },
    ]);
    await checkInvariants(h.database.pool);
  });
});

test('every prompt of these tests was checked by the strictest rules', () => {
  // The check itself can fail: an unanswered call is a finding.
  expect(
    checkMessages(
      [
        { role: 'user', content: 'x' },
        { role: 'assistant', content: '', toolCalls: [{ id: 'a', name: 'b', arguments: {} }] },
      ],
      [],
    ),
  ).not.toEqual([]);
});
