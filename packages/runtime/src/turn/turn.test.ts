import {
  type ErrorBody,
  type JsonValue,
  type Model,
  ModelError,
  type ModelReply,
  type ModelRequest,
  type TurnId,
} from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import type { Tool } from '../tool/tool.js';

let h: Harness;
let model: RecordingModel;
const functions: Record<string, ScriptedFunction> = {};
/** Replaces the model when set: adapters are outside code. */
let adapter: Model['generate'] | undefined;

beforeEach(async () => {
  adapter = undefined;
  model = recordingModel(functions);
  const generate = model.generate.bind(model);
  h = await harness({
    model: {
      ...model,
      generate: (request, options) => (adapter ?? generate)(request, options),
    },
  });
  return async () => {
    expect(model.findings()).toEqual([]);
    // Every end, whatever its cause, leaves one deliverable and consistent rows.
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool, model.requests);
    await h[Symbol.asyncDispose]();
  };
});

const tool = (name: string, run: Tool['run'], rest: Partial<Tool> = {}): void =>
  h.runtime.registerTool({ name, description: name, input: z.looseObject({}), run, ...rest });

type Ended = TurnResult & { readonly turn_id: TurnId };
async function run(profile: string, rest: Record<string, JsonValue> = {}): Promise<Ended> {
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
    ...rest,
  })) as { turn_id: TurnId };
  return { ...(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })), turn_id };
}
/** Runs a turn of a profile that is created for it. */
async function play(script: readonly JsonValue[], rest: Record<string, unknown> = {}): Promise<Ended> {
  await h.profile('expert', script, rest);
  await h.worker();
  return run('expert');
}

interface CallResult {
  readonly status: string;
  readonly result?: JsonValue;
  readonly error?: ErrorBody;
}
const resultsOf = async (turn: { readonly turn_id: TurnId }): Promise<CallResult[]> =>
  (
    await h.rows<{ content: CallResult }>(
      `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
       where k.turn_id = $1 order by k.step, k.ordinal`,
      [turn.turn_id],
    )
  ).map(({ content }) => content);
const requestOf = (turn: { readonly turn_id: TurnId }, step: number): ModelRequest => {
  const request = model.of(turn.turn_id).find((sent) => sent.turn.step === step);
  if (request === undefined) throw new Error(`there was no step ${step}`);
  return request;
};
/** The last message of a step's prompt. */
const lastOf = (turn: { readonly turn_id: TurnId }, step: number): string =>
  requestOf(turn, step).messages.at(-1)?.content ?? '';
const call = (name: string, args: JsonValue = {}): JsonValue => ({
  calls: [{ tool: name, arguments: args }],
});

describe('a tool', () => {
  test.each<[string, () => unknown, string]>([
    [
      'throws',
      () => {
        throw new Error('boom');
      },
      'boom',
    ],
    ['rejects with a text', () => Promise.reject('boom'), 'boom'],
    ['rejects with nothing', () => Promise.reject(), 'undefined'],
    [
      'throws a value that cannot be printed',
      () => {
        throw Object.create(null);
      },
      '[unreadable]',
    ],
    ['throws NUL', () => Promise.reject(new Error('a\u0000b\ud800')), 'a\ufffdb\ufffd'],
    ['throws two megabytes', () => Promise.reject(new Error('x'.repeat(2 * 1024 * 1024))), ''],
  ])('that %s gives the model a readable error, and the turn continues', async (_how, fail, words) => {
    tool('broken', fail);
    const turn = await play([call('broken'), { say: 'noted' }], { tools: ['broken'] });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    const [result] = await resultsOf(turn);
    expect(result).toMatchObject({ status: 'failed', error: { message: expect.stringContaining(words) } });
    expect(lastOf(turn, 2)).toContain(result?.error?.code ?? 'no code');
  });

  const circle: Record<string, unknown> = { name: 'ring' };
  circle.self = circle;
  let deep: unknown = 'x';
  for (let level = 0; level < 20_000; level++) deep = [deep];

  test.each<[string, () => unknown, string]>([
    ['nothing', () => undefined, 'null'],
    ['a circle', () => circle, '{"name":"ring","self":"[circular]"}'],
    ['a BigInt', () => ({ n: 10n }), '{"n":"10"}'],
    ['NUL and a lone surrogate', () => 'a\u0000\udc00', 'a\ufffd\ufffd'],
    ['a function', () => () => 1, 'null'],
    ['a map', () => new Map([[1, 2]]), '{}'],
    ['twenty thousand levels', () => deep, '[nested too deeply]'],
    ['an empty text', () => '', '(empty)'],
  ])('that returns %s gives the model the part that JSON can express', async (_what, give, words) => {
    tool('odd', give);
    const turn = await play([call('odd'), { say: 'noted' }], { tools: ['odd'] });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'success' }]);
    expect(lastOf(turn, 2)).toContain(words);
  });

  test('that returns two megabytes gives the model an error that names the limit', async () => {
    tool('huge', () => 'x'.repeat(2 * 1024 * 1024));
    const turn = await play([call('huge'), { say: 'noted' }], { tools: ['huge'] });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'failed', error: { code: 'payload_too_large' } }]);
  });

  test('that hangs is given up at its deadline, and its signal fires', async () => {
    let signal: AbortSignal | undefined;
    tool(
      'hang',
      (_input, context) => {
        signal = context.signal;
        return new Promise(() => undefined);
      },
      { timeoutMs: 30 },
    );
    const turn = await play([call('hang'), { say: 'noted' }], { tools: ['hang'] });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'timeout', error: { code: 'tool_timeout' } }]);
    expect(signal?.aborted).toBe(true);
  });

  test('knows its caller, and runs in parallel with the others of its step', async () => {
    let waiting = 0;
    let wake: () => void = () => undefined;
    const both = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const seen: unknown[] = [];
    tool('meet', async (_input, { signal: _signal, tape: _tape, ...context }) => {
      seen.push(context);
      if (++waiting === 2) wake();
      await both;
      return 'met';
    });
    const turn = await play([{ calls: [{ tool: 'meet' }, { tool: 'meet' }] }, { say: 'noted' }], {
      tools: ['meet'],
    });
    expect(turn.status).toBe('success');
    const ids = await h.rows<{ id: string }>('select id from boxcar.tool_calls order by ordinal');
    expect(seen).toEqual(
      ids.map(({ id }) => ({
        toolCallId: id,
        turnId: turn.turn_id,
        agentId: turn.agent_id,
        projectId: expect.any(String),
      })),
    );
  });

  test('gets arguments that fit its schema, or is not run', async () => {
    const seen: unknown[] = [];
    tool('add', (input) => seen.push(input), { input: z.strictObject({ n: z.number() }) });
    const turn = await play(
      [
        {
          calls: [
            { tool: 'add', raw: '{not json' },
            { tool: 'add', raw: '[1]' },
            { tool: 'add', raw: '"text"' },
            { tool: 'add', arguments: { n: 'one' } },
            { tool: 'add', arguments: { n: 1, m: 2 } },
            { tool: 'add', raw: '' },
            { tool: 'add', raw: '{"n":1}' },
          ],
        },
        { say: 'noted' },
      ],
      { tools: ['add'] },
    );
    expect(turn.status).toBe('success');
    expect((await resultsOf(turn)).map(({ status, error }) => [status, error?.code])).toEqual([
      ...Array.from({ length: 6 }, () => ['failed', 'tool_arguments_invalid']),
      ['success', undefined],
    ]);
    expect(seen).toEqual([{ n: 1 }]);
  });

  test('that is not in the profile’s list is never run, whatever the model asks', async () => {
    let runs = 0;
    tool('secret', () => ++runs);
    tool('allowed', () => 'fine');
    const turn = await play(
      [
        {
          calls: [
            { tool: 'secret' },
            { tool: 'nothing' },
            { tool: 'launch_principal', arguments: { profile_name: 'expert', instruction: 'x' } },
            { tool: 'allowed' },
          ],
        },
        { say: 'noted' },
      ],
      { tools: ['allowed'], delegation_policy: { target_profiles: null } },
    );
    expect(turn.status).toBe('success');
    const results = await resultsOf(turn);
    expect(results.map(({ error }) => error?.code)).toEqual([
      'tool_not_allowed',
      'tool_unknown',
      'tool_not_allowed',
      undefined,
    ]);
    expect(results[1]?.error?.message).toContain('Tools you may call: allowed.');
    expect(runs).toBe(0);
    expect(await h.rows('select count(*)::int as n from boxcar.turns')).toEqual([{ n: 1 }]);
    expect(requestOf(turn, 1).tools.map(({ name }) => name)).toEqual(['allowed']);
  });

  test('is not allowed when the profile lists no tools', async () => {
    tool('secret', () => 1);
    const turn = await play([call('secret'), { say: 'noted' }]);
    expect((await resultsOf(turn))[0]?.error?.code).toBe('tool_not_allowed');
    expect(requestOf(turn, 1).tools).toEqual([]);
  });

  test('may throw errors of the kernel: the model reads them, and the worker does not act on them', async () => {
    tool('submits', () => h.runtime.submit('launch_principal', { profile_name: 'nobody', instruction: 'x' }));
    const { KernelError } = await import('@boxcar/kernel');
    tool('lies', () => {
      throw new KernelError('turn_ended', { details: { turn_id: 'x' } });
    });
    tool('cries', () => {
      throw new KernelError('database_unavailable');
    });
    const turn = await play(
      [{ calls: [{ tool: 'submits' }, { tool: 'lies' }, { tool: 'cries' }] }, { say: 'noted' }],
      { tools: ['submits', 'lies', 'cries'] },
    );
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect((await resultsOf(turn)).map(({ error }) => error?.code)).toEqual([
      'not_found',
      'turn_ended',
      'database_unavailable',
    ]);
    expect(await h.rows('select count(*)::int as n from boxcar.steps')).toEqual([{ n: 2 }]);
  });

  test('may be a handler that claims that its own turn has ended: only the rows decide that, and the model reads the error', async () => {
    const { KernelError } = await import('@boxcar/kernel');
    let runs = 0;
    h.runtime.registerHandler('lies', {
      description: 'Lies.',
      input: z.looseObject({}),
      handle: (_input, { ctx }) => {
        // Stops an endless loop of claims.
        if (++runs > 3) return 'enough';
        throw new KernelError('turn_ended', { details: { turn_id: ctx.parent?.turnId } });
      },
    });
    const turn = await play([call('lies'), { say: 'noted' }], { tools: ['lies'] });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'failed', error: { code: 'turn_ended' } }]);
    expect(runs).toBe(1);
    expect(await h.rows('select epoch, losses from boxcar.turns')).toEqual([{ epoch: 1, losses: 0 }]);
  });

  test('that a shutdown interrupts is answered `outcome_unknown`, or runs again where that is safe', async () => {
    const runs = { once: 0, again: 0 };
    let started = 0;
    let wake: () => void = () => undefined;
    const both = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const hangFirst = (name: keyof typeof runs) => () => {
      if (++runs[name] > 1) return 'second run';
      if (++started === 2) wake();
      return new Promise(() => undefined);
    };
    tool('once', hangFirst('once'));
    tool('again', hangFirst('again'), { isReadOnly: true });
    await h.profile('expert', [{ calls: [{ tool: 'once' }, { tool: 'again' }] }, { say: 'noted' }], {
      tools: ['once', 'again'],
    });
    const first = await h.worker();
    const ended = run('expert');
    await both;
    await first.close({ graceMs: 0 });
    await h.worker();
    const turn = await ended;
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([
      { status: 'failed', error: { code: 'outcome_unknown' } },
      { status: 'success', result: 'second run' },
    ]);
    expect(runs).toEqual({ once: 1, again: 2 });
  });
});

describe('a model', () => {
  test('that makes too many calls at once is reminded of the limit, and the second time its turn ends as partial', async () => {
    const runs: string[] = [];
    tool('look', () => runs.push('look'));
    const many = { calls: Array.from({ length: 257 }, () => ({ tool: 'look' })) };
    const tools = { tools: ['look'] };
    const once = await play([many, { calls: many.calls.slice(1) }, { say: 'done' }], tools);
    expect(once).toMatchObject({ status: 'success', result: 'done' });
    expect(runs).toHaveLength(256);
    expect(lastOf(once, 2)).toMatch(/257 tool calls, and none was run.* 256 at most/);
    await h.profile('stubborn', [many, call('look'), { ...many, say: 'so far' }], tools);
    const twice = await run('stubborn');
    expect(twice).toMatchObject({
      status: 'partial',
      error: { code: 'invalid_reply', details: { calls: 257, max_calls: 256, step: 3 } },
    });
    expect(runs).toHaveLength(257);
  });

  test('that answers nothing three times in a row fails the turn, unless an answer comes between', async () => {
    const twice = await play([{ empty: true }, { empty: true }, { say: 'there' }]);
    expect(twice).toMatchObject({ status: 'success', result: 'there' });
    await h.profile('silent', [{ empty: true }, { empty: true }, { empty: true }]);
    const turn = await run('silent');
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'invalid_reply' },
      result: { error: { code: 'invalid_reply' }, steps: 3 },
    });
    expect(lastOf(turn, 2)).toContain('empty');
    tool('look', () => 1);
    await h.profile(
      'hesitant',
      [{ empty: true }, { empty: true }, call('look'), { empty: true }, { empty: true }, { say: 'there' }],
      {
        tools: ['look'],
      },
    );
    expect(await run('hesitant')).toMatchObject({ status: 'success', result: 'there' });
  });

  test('that writes NUL and lone surrogates stays readable, and the cards say so', async () => {
    functions.garbage = ({ turn }) =>
      turn.step === 1
        ? {
            text: 'a\u0000b\ud800',
            toolCalls: [
              {
                id: `${'x'.repeat(199)}\ud83d\ude00`,
                name: 'no such\u0000tool \ud800',
                arguments: '{"a":"\\u0000 \\ud800"}',
              },
              { id: '', name: '', arguments: 'nul \u0000' },
            ],
          }
        : { text: 'fine\u0000' };
    await h.runtime.applyProfile({ name: 'expert', instructions: 'I', model: 'scripted:garbage' });
    await h.worker();
    const turn = await run('expert');
    expect(turn).toMatchObject({ status: 'success', result: 'fine\ufffd' });
    expect((await resultsOf(turn)).map(({ error }) => error?.code)).toEqual(['tool_unknown', 'tool_unknown']);
    const flagged = await h.rows<{ type: string }>(
      "select type from boxcar.cards where metadata->>'sanitized' = 'true' order by type",
    );
    expect(flagged.map(({ type }) => type)).toEqual([
      'agent.thought',
      'task.deliverable',
      'tool.call',
      'tool.call',
    ]);
  });

  test('that writes two megabytes, including quotes and line ends, still ends its turn', async () => {
    functions.long = () => ({ text: '"\n'.repeat(1024 * 1024) });
    await h.runtime.applyProfile({ name: 'expert', instructions: 'I', model: 'scripted:long' });
    await h.worker();
    const turn = await run('expert');
    expect(turn.status).toBe('success');
    expect(String(turn.result)).toContain('(cut)');
  });

  test('that fails makes the turn fail with its code and a deliverable', async () => {
    const turn = await play([{ fail: { status: 400, message: 'overloaded' } }]);
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'model_failed', message: expect.stringContaining('overloaded') },
      result: { error: { code: 'model_failed' }, steps: 0 },
    });
    await h.profile('short', [call('nothing')]);
    expect(await run('short')).toMatchObject({
      status: 'failed',
      error: { code: 'script_mismatch' },
      result: { steps: 1 },
    });
    await h.profile('wide', [{ overflow: true }]);
    expect(await run('wide')).toMatchObject({ status: 'failed', error: { code: 'context_overflow' } });
  });

  test('that does not answer in time ends the turn as timeout, also when it ignores its signal', async () => {
    adapter = () => new Promise(() => undefined);
    const turn = await play([{ say: 'never' }], {
      limits: { model_timeout_seconds: 0.05, model_retries: 0 },
    });
    expect(turn).toMatchObject({
      status: 'timeout',
      error: { code: 'model_timeout' },
      result: { error: { code: 'model_timeout' } },
    });
  });

  test.each<[string, () => unknown]>([
    ['nothing', () => undefined],
    ['a text', () => 'hello'],
    ['no calls', () => ({ text: 'x' })],
    ['a text that is not a string', () => ({ text: 7, toolCalls: [] })],
    [
      'an exception that cannot be stored',
      () => {
        const details: Record<string, unknown> = { n: 1n, nul: '\u0000' };
        details.self = details;
        throw new ModelError('model_failed', 'NUL \u0000 and \ud800', { details });
      },
    ],
    [
      'an exception with a lone surrogate',
      () => {
        throw new Error(`${'x'.repeat(9_999)}\ud83d\ude00`);
      },
    ],
    [
      'a thrown value that is not an error',
      () => {
        throw undefined;
      },
    ],
  ])('whose adapter returns %s makes the turn fail at once', async (_what, give) => {
    let asked = 0;
    adapter = async () => {
      asked++;
      return give() as ModelReply;
    };
    const turn = await play([{ say: 'never' }]);
    expect(turn).toMatchObject({ status: 'failed', error: { code: 'model_failed' } });
    expect(asked).toBe(1);
  });
});

describe('a turn that must end with a call', () => {
  test('is reminded after a text, and ends by the call’s success, not by its failure', async () => {
    let runs = 0;
    tool('finish', () => {
      if (++runs === 1) throw new Error('not yet');
      return { done: true };
    });
    const turn = await play([{ say: 'I am done' }, call('finish'), call('finish'), { say: 'never asked' }], {
      must_end_with: ['finish'],
    });
    expect(turn).toMatchObject({ status: 'success', result: { done: true } });
    expect(lastOf(turn, 2)).toContain('finish');
    expect(model.of(turn.turn_id)).toHaveLength(3);
  });

  test('by submit_result ends with its deliverable', async () => {
    const turn = await play([{ say: 'text' }, call('submit_result', { result: { a: 1 } })], {
      must_end_with: ['submit_result'],
    });
    expect(turn).toMatchObject({ status: 'success', result: { a: 1 } });
  });

  test('of a custom primitive ends with the deliverable of that primitive', async () => {
    h.runtime.registerHandler('conclude', {
      description: 'Ends the turn.',
      input: z.strictObject({ words: z.string() }),
      handle: async ({ words }, { endTurn }) => {
        endTurn({ words });
        return null;
      },
    });
    const turn = await play([call('conclude', { words: 'so be it' })], { tools: ['conclude'] });
    expect(turn).toMatchObject({ status: 'success', result: { words: 'so be it' } });
  });

  test('of a custom primitive that hangs is given up at its deadline, and nothing of the primitive is kept', async () => {
    let wake: () => void = () => undefined;
    const late = new Promise<void>((resolve) => {
      wake = resolve;
    });
    let isOver: Promise<unknown> | undefined;
    h.runtime.registerHandler('hang', {
      description: 'Hangs.',
      input: z.strictObject({}),
      handle: (_input, { tx }) => {
        const work = tx
          .query({
            text: "insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values (gen_random_uuid(), 'left behind', gen_random_uuid(), gen_random_uuid())",
          })
          .then(() => late)
          .then(() => tx.query({ text: 'select 1' }))
          .then(() => 'done');
        isOver = work.catch((error: unknown) => error);
        return work;
      },
    });
    const turn = await play([call('hang'), { say: 'noted' }], {
      tools: ['hang'],
      limits: { tool_timeout_seconds: 0.05 },
    });
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'timeout', error: { code: 'tool_timeout' } }]);
    wake();
    expect(await isOver).toMatchObject({ code: 'internal_error' });
    expect(await h.rows("select 1 from boxcar.projects where name = 'left behind'")).toEqual([]);
  });

  test('does not prevent a worker from closing when its primitive hangs', async () => {
    let started = 0;
    h.runtime.registerHandler('hang', {
      description: 'Hangs the first time.',
      input: z.strictObject({}),
      handle: () => (++started > 1 ? Promise.resolve('second run') : new Promise(() => undefined)),
    });
    await h.profile('expert', [call('hang'), { say: 'noted' }], { tools: ['hang'] });
    const first = await h.worker();
    const ended = run('expert');
    await waitFor(() => started === 1, { message: 'the primitive is under way' });
    await first.close({ graceMs: 0 });
    await h.worker();
    const turn = await ended;
    expect(turn).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(turn)).toMatchObject([{ status: 'success', result: 'second run' }]);
  });

  test('is told when a primitive would both end it and do more, and nothing is done', async () => {
    h.runtime.registerHandler('both', {
      description: 'Ends the turn and more.',
      input: z.strictObject({}),
      handle: async (_input, { endTurn, packer, ctx }) => {
        await packer.createCards({
          projectId: ctx.projectId,
          authorId: ctx.source.agentId,
          cards: [{ type: 'left.behind', content: { kind: 'text', text: 'x' } }],
        });
        endTurn('x');
        return null;
      },
    });
    const turn = await play([call('both'), { say: 'went on' }], { tools: ['both'] });
    expect(turn).toMatchObject({ status: 'success', result: 'went on' });
    expect((await resultsOf(turn))[0]).toMatchObject({ status: 'failed', error: { code: 'internal_error' } });
    expect(await h.rows("select 1 from boxcar.cards where type = 'left.behind'")).toEqual([]);
  });
});

test.each(['length', 'content_filter'])(
  'an answer that was cut off (%s) is partial and says so',
  async (finishReason) => {
    const turn = await play([{ say: 'To begin with', finishReason }]);
    expect(turn).toMatchObject({
      status: 'partial',
      result: 'To begin with',
      error: { code: 'answer_cut', details: { turn_id: turn.turn_id, step: 1, finish_reason: finishReason } },
    });
  },
);

describe('the step limit', () => {
  const notes = (turn: Ended): string[] =>
    model.of(turn.turn_id).map(({ messages }) => messages.at(-1)?.content ?? '');

  test('is announced two steps before and at the last, when submit_result alone is offered', async () => {
    tool('look', () => 'seen');
    const turn = await play([call('look'), call('look'), call('submit_result', { result: 'in time' })], {
      tools: ['look', 'submit_result'],
      limits: { max_steps: 3 },
    });
    expect(turn).toMatchObject({ status: 'success', result: 'in time' });
    expect(notes(turn)).toEqual([
      'go',
      expect.stringContaining('Two steps are left'),
      expect.stringContaining('last step. Call submit_result'),
    ]);
    expect(model.of(turn.turn_id).map(({ tools }) => tools.map(({ name }) => name))).toEqual([
      ['look', 'submit_result'],
      ['look', 'submit_result'],
      ['submit_result'],
    ]);
  });

  test('ends the turn as partial when the last answer is a call that may not be made', async () => {
    let runs = 0;
    tool('look', () => ++runs);
    const turn = await play(
      [call('look'), { say: 'still looking', calls: [{ tool: 'look' }] }, { say: 'never asked' }],
      { tools: ['look'], limits: { max_steps: 2 } },
    );
    expect(turn).toMatchObject({
      status: 'partial',
      error: { code: 'step_limit' },
      result: { error: { code: 'step_limit' }, steps: 2, last_text: 'still looking' },
    });
    expect(runs).toBe(1);
    expect(requestOf(turn, 2).tools).toEqual([]);
    expect(lastOf(turn, 2)).toContain('without calling tools');
  });

  test('ends the turn as partial when the last answer is text instead of a call', async () => {
    const turn = await play([{ say: 'one' }, { say: 'two' }], {
      must_end_with: ['submit_result'],
      limits: { max_steps: 2 },
    });
    expect(turn).toMatchObject({ status: 'partial', result: 'two', error: { code: 'step_limit' } });
  });

  test('cannot be passed by a refused submit_result: the last step is the last', async () => {
    await h.profile(
      'expert',
      Array.from({ length: 10 }, () => call('submit_result', { result: { wrong: 1 } })),
      { limits: { max_steps: 2 } },
    );
    await h.worker();
    const turn = await run('expert', { result_fields: [{ name: 'title' }] });
    expect(turn).toMatchObject({ status: 'partial', error: { code: 'step_limit' }, result: { steps: 2 } });
    expect(model.of(turn.turn_id)).toHaveLength(2);
  });

  test('of one step is announced in the first prompt', async () => {
    const turn = await play([{ say: 'short' }], { limits: { max_steps: 1 } });
    expect(turn).toMatchObject({ status: 'success', result: 'short' });
    expect(lastOf(turn, 1)).toContain('last step');
  });

  test('ends the turn as partial after an empty last answer', async () => {
    const turn = await play([{ empty: true }], { limits: { max_steps: 1 } });
    expect(turn).toMatchObject({
      status: 'partial',
      result: { last_text: '' },
      error: { code: 'step_limit' },
    });
  });
});

describe('a parent', () => {
  const BOSS = {
    tools: ['ask_expert'],
    delegation_policy: { target_profiles: null },
  };
  const ask = (rest: Record<string, JsonValue> = {}): JsonValue[] => [
    call('ask_expert', { expert_profile: 'expert', question: 'q', ...rest }),
    { say: 'noted' },
  ];

  test('sees the error of a failed child and its deliverable', async () => {
    await h.profile('expert', [{ fail: { status: 400, message: 'overloaded' } }]);
    await h.profile('boss', ask(), BOSS);
    await h.worker();
    const boss = await run('boss');
    expect(boss).toMatchObject({ status: 'success', result: 'noted' });
    const results = await resultsOf(boss);
    expect(results).toMatchObject([
      {
        status: 'success',
        result: {
          status: 'failed',
          result: { error: { code: 'model_failed' } },
          output_box_id: expect.any(String),
          error: { code: 'model_failed', message: expect.stringContaining('overloaded') },
        },
      },
    ]);
    expect(results[0]).not.toHaveProperty('error');
    const seen = lastOf(boss, 2);
    expect(seen).toMatch(/^\{"status":"failed",/);
    expect(seen).toContain('overloaded');
    expect(seen).toContain('output_box_id');
  });

  test('gets a child’s partial end as an answer that says so', async () => {
    await h.profile('expert', [{ say: 'half' }], {
      must_end_with: ['submit_result'],
      limits: { max_steps: 1 },
    });
    await h.profile('boss', ask(), BOSS);
    await h.worker();
    const boss = await run('boss');
    expect(await resultsOf(boss)).toMatchObject([
      { status: 'success', result: { status: 'partial', result: 'half', error: { code: 'step_limit' } } },
    ]);
  });

  test('continues when the child does not end in time; the child ends as timeout', async () => {
    adapter = (request, options) =>
      request.messages.some(({ content }) => content === 'q')
        ? new Promise(() => undefined)
        : model.generate(request, options);
    await h.profile('expert', [{ say: 'never' }]);
    await h.profile('boss', ask({ deadline_seconds: 0.05 }), BOSS);
    await h.worker();
    const boss = await run('boss');
    expect(boss).toMatchObject({ status: 'success', result: 'noted' });
    expect(await resultsOf(boss)).toMatchObject([
      { status: 'success', result: { status: 'timeout', error: { code: 'deadline_exceeded' } } },
    ]);
    const child = await h.rows<{ id: TurnId }>('select id from boxcar.turns where parent_turn_id = $1', [
      boss.turn_id,
    ]);
    expect(await h.runtime.waitForTurn(child[0]?.id ?? '', { timeoutMs: 60_000 })).toMatchObject({
      status: 'timeout',
      result: { error: { code: 'deadline_exceeded' } },
    });
  });

  test('that waits makes room: all of many more turns than the window holds can wait, without a sweep', async () => {
    await h.profile('expert', [{ say: 'answer' }], { worker_target: 'elsewhere' });
    await h.profile('boss', ask(), BOSS);
    await h.worker({ concurrency: 1, sweepMs: 3_600_000 });
    const ends = Promise.all(Array.from({ length: 12 }, () => run('boss')));
    await waitFor(
      async () => {
        const waiting = await h.rows("select 1 from boxcar.turns where status = 'suspended'");
        return waiting.length === 12;
      },
      { message: 'all twelve wait for their experts' },
    );
    await h.worker({ targets: ['elsewhere'] });
    for (const { status } of await ends) expect(status).toBe('success');
  });
});

describe('a turn with a deadline', () => {
  test('ends as timeout while its worker runs it, and the late answer of the worker changes nothing', async () => {
    let answer: () => void = () => undefined;
    const late = new Promise<void>((resolve) => {
      answer = resolve;
    });
    adapter = async (request, options) => {
      await late;
      return model.generate(request, options);
    };
    await h.profile('expert', [{ say: 'late' }]);
    const worker = await h.worker();
    const turn = await run('expert', { deadline_seconds: 0.05 });
    expect(turn).toMatchObject({ status: 'timeout', error: { code: 'deadline_exceeded' } });
    answer();
    await worker.close();
    const now = await h.runtime.getTurn(turn.turn_id);
    expect(now.status).toBe('timeout');
    expect(JSON.stringify(now.result)).toBe(JSON.stringify(turn.result));
  });

  test('ends as timeout in the queue', async () => {
    await h.profile('expert', [{ say: 'x' }], { worker_target: 'nobody' });
    await h.worker();
    expect(await run('expert', { deadline_seconds: 0.05 })).toMatchObject({ status: 'timeout' });
  });
});
