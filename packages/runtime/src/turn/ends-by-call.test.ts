/** Ends of turns by calls: calls that a turn must end with, submit_result, and custom handlers that call `endTurn`. */
import type { ErrorBody, JsonValue, TurnId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';

let h: Harness;
let model: RecordingModel;

beforeEach(async () => {
  model = recordingModel({});
  h = await harness({ model });
  h.runtime.registerTool({
    name: 'finish',
    description: 'Finishes.',
    input: z.looseObject({}),
    run: () => ({ title: 'of finish' }),
  });
  h.runtime.registerHandler('conclude', {
    description: 'Ends the turn.',
    input: z.looseObject({ with: z.json().optional() }),
    handle: (input, { endTurn }) => {
      endTurn(input.with ?? null);
      return Promise.resolve(null);
    },
  });
  return async () => {
    expect(model.findings()).toEqual([]);
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool, model.requests);
    await h[Symbol.asyncDispose]();
  };
});

type Ended = TurnResult & { readonly calls: readonly string[] };

/** Runs a turn. Its calls are listed as `name: status`, or as `name: code` if they failed. */
async function play(
  script: readonly JsonValue[],
  rest: Record<string, unknown> = {},
  args: Record<string, JsonValue> = {},
): Promise<Ended> {
  await h.profile('worker', script, rest);
  await h.worker();
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'worker',
    instruction: 'go',
    ...args,
  })) as { turn_id: TurnId };
  const ended = await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  const rows = await h.rows<{ name: string; content: { status: string; error?: ErrorBody } }>(
    `select k.name, c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
     where k.turn_id = $1 order by k.step, k.ordinal`,
    [turn_id],
  );
  return {
    ...ended,
    calls: rows.map(({ name, content }) => `${name}: ${content.error?.code ?? content.status}`),
  };
}

const call = (
  name: string,
  args: JsonValue = {},
): { readonly tool: string; readonly arguments: JsonValue } => ({
  tool: name,
  arguments: args,
});
const step = (...calls: readonly JsonValue[]): JsonValue => ({ calls });
const submit = (result: JsonValue): JsonValue => call('submit_result', { result });

const FIELDS = { result_fields: [{ name: 'title', type: 'string' }] };
const TITLE = { title: 'mine' };
const prompts = (): string[] => model.requests.map(({ messages }) => messages.at(-1)?.content ?? '');
const offered = (): string[][] => model.requests.map(({ tools }) => tools.map(({ name }) => name));

describe('a turn that must end with a call, and whose result has fields,', () => {
  const BOTH = { must_end_with: ['finish'], tools: ['conclude'] };

  test('does not end with the call alone', async () => {
    const turn = await play([step(call('finish')), { say: 'done' }, step(submit(TITLE))], BOTH, FIELDS);
    expect(turn).toMatchObject({
      status: 'success',
      result: TITLE,
      calls: ['finish: success', 'submit_result: success'],
    });
    expect(prompts()[2]).toContain('a call of finish, and then of submit_result');
  });

  test('does not end with the result alone, submitted or given by a custom handler', async () => {
    const turn = await play(
      [
        step(submit(TITLE)),
        step(call('conclude', { with: TITLE })),
        step(call('finish')),
        step(call('conclude', { with: { name: 'wrong' } })),
        step(call('conclude', { with: TITLE })),
      ],
      BOTH,
      FIELDS,
    );
    expect(turn).toMatchObject({
      status: 'success',
      result: TITLE,
      calls: [
        'submit_result: end_refused',
        'conclude: end_refused',
        'finish: success',
        'conclude: tool_arguments_invalid',
        'conclude: success',
      ],
    });
    expect(prompts()[1]).toContain('finish');
  });

  test('ends with either call when one call does both', async () => {
    const turn = await play([step(submit(TITLE))], { must_end_with: ['finish', 'submit_result'] }, FIELDS);
    expect(turn).toMatchObject({ status: 'success', result: TITLE });
  });
});

test('a custom handler ends a turn only with the fields that bind the turn', async () => {
  const turn = await play(
    [step(call('conclude', { with: 'words' })), step(call('conclude', { with: TITLE }))],
    { tools: ['conclude'] },
    FIELDS,
  );
  expect(turn).toMatchObject({
    status: 'success',
    result: TITLE,
    calls: ['conclude: tool_arguments_invalid', 'conclude: success'],
  });
});

test('submit_result does not replace the call that a turn must end with', async () => {
  const turn = await play([step(submit('early')), step(call('finish'))], {
    must_end_with: ['finish'],
    tools: ['submit_result'],
  });
  expect(turn).toMatchObject({
    status: 'success',
    result: { title: 'of finish' },
    calls: ['submit_result: end_refused', 'finish: success'],
  });
});

test('a failed delegation is not the successful call that a turn must end with', async () => {
  await h.profile('broken', [{ fail: { status: 400, message: 'no' } }]);
  await h.profile('expert', [{ say: 'fine' }]);
  const ask = (expert_profile: string): JsonValue => call('ask_expert', { expert_profile, question: 'q' });
  const fork = (...targets: readonly string[]): JsonValue =>
    call('fork_join', {
      tasks: targets.map((target_ref) => ({ target_strategy: 'new', target_ref, instruction: 'q' })),
    });
  const rest = { delegation_policy: { target_profiles: null } };
  const alone = await play([step(ask('broken')), step(ask('expert'))], {
    ...rest,
    must_end_with: ['ask_expert'],
  });
  expect(alone).toMatchObject({
    status: 'success',
    result: { status: 'success', result: 'fine' },
    calls: ['ask_expert: success', 'ask_expert: success'],
  });
  const many = await play(
    [
      step(fork('broken', 'broken')),
      step(call('conclude', { with: 'early' })),
      step(fork('broken', 'expert'), call('conclude', { with: 'all' })),
    ],
    { ...rest, tools: ['conclude'], must_end_with: ['fork_join'] },
  );
  expect(many).toMatchObject({
    status: 'success',
    calls: [
      'fork_join: success',
      'conclude: end_refused',
      'fork_join: success',
      expect.stringMatching(/^conclude: /),
    ],
  });
});

describe('the last step', () => {
  test('offers the calls that the turn must end with, and names them', async () => {
    const turn = await play([step(call('finish'))], {
      must_end_with: ['finish'],
      tools: ['conclude', 'submit_result'],
      limits: { max_steps: 1 },
    });
    expect(turn).toMatchObject({ status: 'success', result: { title: 'of finish' } });
    expect(offered()).toEqual([['finish']]);
    expect(prompts()[0]).toContain('last step. Call finish now');
  });

  test('names these calls in its notice on the tape', async () => {
    const turn = await play([{ say: 'thinking' }, step(call('conclude', { with: 'all' }))], {
      must_end_with: ['finish', 'conclude'],
      limits: { max_steps: 2 },
    });
    expect(turn).toMatchObject({ status: 'success', result: 'all' });
    expect(offered()[1]?.sort()).toEqual(['conclude', 'finish']);
    expect(prompts()[1]).toContain('last step. Call finish or conclude now');
  });

  test('offers the missing one of both', async () => {
    const turn = await play(
      [step(call('finish')), step(submit(TITLE))],
      { must_end_with: ['finish'], limits: { max_steps: 2 } },
      FIELDS,
    );
    expect(turn).toMatchObject({ status: 'success', result: TITLE });
    expect(offered()[1]?.sort()).toEqual(['finish', 'submit_result']);
  });
});

describe('a custom handler that ends the turn', () => {
  const TOOLS = { tools: ['odd', 'conclude', 'finish', 'delegate_async', 'crm'] };
  const circle: Record<string, unknown> = { name: 'ring' };
  circle.self = circle;

  test.each<[string, unknown, JsonValue]>([
    ['a BigInt', { n: 10n }, { n: '10' }],
    ['NUL and a lone surrogate', 'a\u0000\udc00', 'a\ufffd\ufffd'],
    ['NUL in a key', { 'a\u0000': 1 }, { 'a\ufffd': 1 }],
    ['a circle', circle, { name: 'ring', self: '[circular]' }],
    ['nothing', undefined, null],
  ])(
    'with %s delivers the part that JSON can express, and its tape can be searched',
    async (_what, value, result) => {
      let runs = 0;
      h.runtime.registerHandler('odd', {
        description: 'Ends the turn.',
        input: z.strictObject({}),
        handle: (_input, { endTurn }) => {
          runs += 1;
          endTurn(value as JsonValue);
          return Promise.resolve(null);
        },
      });
      const turn = await play([step(call('odd'))], TOOLS);
      expect(turn).toMatchObject({ status: 'success', result, calls: ['odd: success'] });
      expect(runs).toBe(1);
      const [card] = await h.rows<{ sanitized: boolean | null }>(
        "select (metadata->>'sanitized')::boolean as sanitized from boxcar.cards where type = 'task.deliverable'",
      );
      expect(card?.sanitized).toBe(value === undefined ? null : true);
      const tape = await h.runtime.tape({ box: turn.output_box_id });
      expect(await tape.search('nowhere')).toEqual([]);
    },
  );

  test('with more than a card may hold is refused, and the turn continues', async () => {
    h.runtime.registerHandler('odd', {
      description: 'Ends the turn.',
      input: z.strictObject({}),
      handle: (_input, { endTurn }) => {
        endTurn('x'.repeat(3 * 1024 * 1024));
        return Promise.resolve(null);
      },
    });
    const turn = await play([step(call('odd')), step(call('conclude', { with: 'short' }))], TOOLS);
    expect(turn).toMatchObject({
      status: 'success',
      result: 'short',
      calls: ['odd: payload_too_large', 'conclude: success'],
    });
  });

  test.each(['conclude', 'submit_result'])(
    'must be the only call in its message: %s with other calls is refused',
    async (name) => {
      await h.profile('other', [{ say: 'of the other' }]);
      const end = name === 'conclude' ? call('conclude', { with: 'all' }) : submit('all');
      const wait = call('delegate_async', {
        target_strategy: 'new',
        target_ref: 'other',
        instruction: 'go',
        wait: true,
      });
      const turn = await play([step(wait, end, call('finish')), step(end)], {
        tools: [name, 'finish', 'delegate_async'],
        delegation_policy: { target_profiles: null },
      });
      expect(turn).toMatchObject({
        status: 'success',
        result: 'all',
        calls: [
          'delegate_async: success',
          `${name}: tool_arguments_invalid`,
          'finish: success',
          `${name}: success`,
        ],
      });
      const said = model.requests.flatMap(({ messages }) => messages.map(({ content }) => content));
      expect(said.join()).toContain(`${name} must be the only call of its message`);
    },
  );
});

/** The statements by which a turn writes, by their labels. */
const writesOf = (statements: readonly string[]): string[] =>
  statements.flatMap((text) => /\/\* ((?:commit-sql|tool-calls)\.\w+) \*\//.exec(text)?.[1] ?? []);

describe('submit_result as the only call of an answer', () => {
  const TOOLS = { tools: ['submit_result', 'finish'] };

  test('is committed with its result and the end, in one statement', async () => {
    let turn: Ended | undefined;
    const statements = await statementsOf(h.database, async () => {
      turn = await play([{ say: 'Done.', ...(step(submit(TITLE)) as object) }], TOOLS, FIELDS);
    });
    expect(turn).toMatchObject({ status: 'success', result: TITLE, calls: ['submit_result: success'] });
    expect(writesOf(statements)).toEqual(['commit-sql.commit_one']);
    const entries = await h.rows<{ kind: string; position: number }>(
      'select kind, position from boxcar.tape_entries where turn_id = $1 order by position',
      [turn?.turn_id],
    );
    expect(entries.map(({ kind }) => kind)).toEqual([
      'event',
      'message',
      'tool_call',
      'tool_result',
      'message',
    ]);
    expect(new Set(entries.map(({ position }, index) => position - index)).size).toBe(1);
    const [thought] = await h.rows<{ type: string }>(
      'select c.type from boxcar.steps s join boxcar.cards c on c.id = s.thought_card_id where s.turn_id = $1',
      [turn?.turn_id],
    );
    expect(thought).toEqual({ type: 'agent.thought' });
  });

  test.each([
    ['a result that does not fit', [step(submit({ name: 1 })), step(submit(TITLE))], TOOLS, FIELDS],
    [
      'arguments that it does not know',
      [step(call('submit_result', { answer: 1 })), step(submit('x'))],
      TOOLS,
      {},
    ],
    [
      'a call that must succeed before it',
      [step(submit('x')), step(call('finish'))],
      { ...TOOLS, must_end_with: ['finish'] },
      {},
    ],
  ])('is refused for %s, with the same words as any call', async (_name, script, rest, args) => {
    const turn = await play(script, rest, args);
    expect(turn.status).toBe('success');
    expect(turn.calls).toHaveLength(2);
    expect(turn.calls[0]).toMatch(/^submit_result: (?!success)\w+$/);
    expect(turn.calls[1]).toMatch(/: success$/);
  });
});
