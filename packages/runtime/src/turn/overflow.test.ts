import { isJsonObject, type JsonValue, type ModelRequest, type TurnId } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import type { Tape } from '../tape/tape.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';

let h: Harness;
let model: RecordingModel;
const functions: Record<string, ScriptedFunction> = {};

beforeAll(async () => {
  model = recordingModel(functions);
  h = await harness({ model });
  h.runtime.registerTool({
    name: 'read',
    description: 'Reads a file.',
    input: z.strictObject({ file: z.string(), length: z.number() }),
    isReadOnly: true,
    run: ({ file, length }) => `${file} `.repeat(length / (file.length + 1)),
  });
  h.runtime.registerTool({
    name: 'mark',
    description: 'Writes an anchor.',
    input: z.strictObject({}),
    run: async (_input, { agentId, tape }) => {
      await (await tape({ agent: agentId })).handoff('marked');
    },
  });
  await h.worker();
});

afterEach(async () => {
  expect(model.findings()).toEqual([]);
  await checkInvariants(h.database.pool);
});

afterAll(async () => {
  // With or without a compaction, the prompt that is rebuilt from the rows is the prompt that was sent.
  await checkPrompts(h.database.pool, model.requests);
  await h[Symbol.asyncDispose]();
});

const read = (file: string, length: number) => ({ calls: [{ tool: 'read', arguments: { file, length } }] });

type Ended = TurnResult & { readonly turn_id: TurnId };
async function run(profile: string, args: Record<string, JsonValue> = {}): Promise<Ended> {
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'Read all files.',
    ...args,
  })) as { turn_id: TurnId };
  return { ...(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })), turn_id };
}

async function play(script: readonly JsonValue[], rest: Record<string, unknown> = {}): Promise<Ended> {
  await h.profile('reader', script, { tools: ['read'], ...rest });
  return run('reader');
}

interface Written {
  readonly kind: string;
  readonly name: string | null;
  readonly content: { readonly data?: Record<string, JsonValue>; readonly text?: string } | null;
  readonly payload: { readonly name: string; readonly data: Record<string, JsonValue> } | null;
  readonly metadata: Record<string, JsonValue> | null;
}

/** The entries that the kernel itself wrote to the tape of a turn. */
const handoffOf = ({ turn_id }: { readonly turn_id: TurnId }): Promise<Written[]> =>
  h.rows<Written & Record<string, unknown>>(
    `select e.kind, e.anchor_name as name, c.content, e.payload, c.metadata
     from boxcar.tape_entries e left join boxcar.cards c on c.id = e.card_id
     where e.turn_id = $1 and e.step is null and e.payload->>'name' is distinct from 'turn.started' order by e.position`,
    [turn_id],
  );

const attemptsOf = ({ turn_id }: { readonly turn_id: TurnId }) =>
  h.rows<{ step: number; attempt: number; code: string | null; is_committed: boolean }>(
    `select step, attempt, error->>'code' as code, committed_at is not null as is_committed from boxcar.steps where turn_id = $1 order by step, attempt`,
    [turn_id],
  );

/** Makes a box of these cards. */
async function cardsOf(
  cards: readonly JsonValue[],
): Promise<{ readonly card_id: string; readonly box_id: string }[]> {
  const { box_id } = (await h.runtime.submit('create_box', { cards: [...cards] })) as { box_id: string };
  return h.rows('select unnest(card_ids) as card_id, id as box_id from boxcar.boxes where id = $1', [box_id]);
}

const heads = ({ messages }: ModelRequest): readonly string[] =>
  messages.map(({ role, content }) => `${role}: ${content.slice(0, 36)}`);

const tokensOf = ({ messages }: ModelRequest): number =>
  messages.reduce((sum, { content }) => sum + content.length / 4, 0);

describe('a provider that refuses a prompt as too long', () => {
  test('gets a shorter prompt once, and the turn continues', async () => {
    const turn = await play([
      read('alpha', 2_000),
      read('beta', 60_000),
      { overflow: true, calls: [{ tool: 'read', arguments: { file: 'c', length: 40 } }] },
      { say: 'all read' },
    ]);
    expect(turn).toMatchObject({ status: 'success', result: 'all read' });
    expect(await attemptsOf(turn)).toEqual([
      { step: 1, attempt: 1, code: null, is_committed: true },
      { step: 2, attempt: 1, code: null, is_committed: true },
      { step: 3, attempt: 1, code: 'context_overflow', is_committed: false },
      { step: 3, attempt: 2, code: null, is_committed: true },
      { step: 4, attempt: 1, code: null, is_committed: true },
    ]);
    const [anchor, handoff, summary, step, ...more] = await handoffOf(turn);
    const state = anchor?.content?.data;
    expect(anchor).toMatchObject({ kind: 'anchor', name: 'auto_handoff/context_overflow' });
    // No card is left out as a whole: the summary states only the task, for the turns after this one.
    expect(summary?.content?.text).toMatch(
      /reads what was asked in full\]\n- the task was: "Read all files\."$/,
    );
    expect(state).toMatchObject({
      reason: 'context_length_exceeded',
      error: expect.stringContaining('exceeds the context window'),
      kept_steps: 2,
      referenced_cards: 1,
      summary_card_id: expect.any(String),
    });
    expect(Number(state?.tokens_after)).toBeLessThan(Number(state?.tokens_before));
    expect(handoff?.payload).toEqual({ name: 'handoff', data: { name: anchor?.name } });
    expect(step?.payload).toMatchObject({ name: 'loop.step', data: { step: 3, status: 'auto_handoff' } });
    expect(more).toEqual([]);
    const [, , long, short, next] = model.of(turn.turn_id);
    expect(heads(short as ModelRequest)).toEqual([
      'system: You are reader.',
      'user: [context]',
      expect.stringMatching(/^assistant: \[Anchor created: auto_handoff/),
      expect.stringMatching(/^user: Parent agent: /),
      'user: Read all files.',
      expect.stringMatching(/^user: \[The conversation before this/),
      'assistant: ',
      `tool: ${'alpha '.repeat(6)}`,
      'assistant: ',
      expect.stringMatching(/^tool: \[tool\.result, about 15000 tokens/),
    ]);
    expect(tokensOf(short as ModelRequest)).toBeLessThan(tokensOf(long as ModelRequest) / 2);
    expect(short?.tools.map(({ name }) => name)).toEqual(['read', 'expand']);
    expect(next?.messages.slice(0, short?.messages.length)).toEqual(short?.messages);
  });

  test('may then repeat an earlier call, since its result may be gone', async () => {
    const again = read('alpha', 60_000);
    const turn = await play([again, { overflow: true, ...again }, { say: 'read twice' }]);
    expect(turn).toMatchObject({ status: 'success', result: 'read twice' });
    const calls = await h.rows('select status from boxcar.tool_calls where turn_id = $1', [turn.turn_id]);
    expect(calls).toEqual([{ status: 'success' }, { status: 'success' }]);
  });

  test('ends the turn as failed the second time, with its partial result', async () => {
    const turn = await play([
      { say: 'I begin.', ...read('a', 60_000) },
      { say: 'And on.', ...read('b', 100) },
      { overflow: true },
    ]);
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'context_overflow', details: { auto_handoffs: 1 } },
      result: { error: { code: 'context_overflow' }, steps: 2, last_text: 'And on.' },
    });
    expect((await handoffOf(turn)).filter(({ kind }) => kind === 'anchor')).toHaveLength(1);
  });

  test('ends the turn at once when the prompt cannot be shorter, and nothing is written', async () => {
    const turn = await play([{ overflow: true }]);
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'context_overflow', details: { auto_handoffs: 0 } },
    });
    expect(await handoffOf(turn)).toEqual([]);
    expect(model.of(turn.turn_id)).toHaveLength(1);
  });

  test('is recognized by the words of an adapter without codes', async () => {
    const turn = await play([
      read('a', 60_000),
      {
        fail: { status: 400, message: 'This model’s maximum context length is 8192 tokens' },
        say: 'shorter',
      },
    ]);
    expect(turn).toMatchObject({ status: 'success', result: 'shorter' });
    expect((await handoffOf(turn))[0]?.content?.data?.error).toContain('maximum context length');
  });
});

describe('a prompt that is estimated as too long', () => {
  const limits = { context_tokens: 8_000 };

  test('is never sent: the kernel hands off between two steps', async () => {
    const turn = await play(
      [read('alpha', 8_000), read('beta', 8_000), read('gamma', 36_000), { say: 'done' }],
      { limits },
    );
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    const sent = model.of(turn.turn_id);
    expect(sent).toHaveLength(4);
    for (const request of sent) expect(tokensOf(request)).toBeLessThan(8_000);
    const [anchor] = await handoffOf(turn);
    expect(anchor?.content?.data).toMatchObject({
      limit_tokens: 8_000,
      error: expect.stringContaining('8000'),
    });
  });

  test('ends the turn when it happens a second time in one turn', async () => {
    const turn = await play([read('a', 60_000), read('b', 60_000), { say: 'never' }], { limits });
    expect(turn).toMatchObject({ status: 'failed', error: { code: 'context_overflow' } });
    expect(model.of(turn.turn_id)).toHaveLength(2);
  });

  test('because of its inherited cards shows references, and expand reads the cards', async () => {
    functions.expander = ({ messages, turn }, { call, results }) => {
      const [found] = results('expand');
      if (found !== undefined) return { text: String(isJsonObject(found) ? JSON.stringify(found) : found) };
      const reference = messages.find(({ content }) => content.startsWith('[task.context, about'));
      const id = /expand\((\{.*?\})\)/.exec(reference?.content ?? '')?.[1] ?? '{}';
      return { toolCalls: [call('expand', JSON.parse(id) as JsonValue, `c${turn.step}`)] };
    };
    const words = 'word '.repeat(12_000);
    const { box_id } = (await h.runtime.submit('create_box', {
      cards: [words, 'short'].map((text) => ({ type: 'task.context', content: { kind: 'text', text } })),
    })) as { box_id: string };
    await h.profile('asked', [], { model: 'scripted:expander', limits });
    const turn = await run('asked', { context_box_id: box_id });
    const answer: unknown = JSON.parse(String(turn.result));
    expect(answer).toMatchObject({ type: 'task.context', text: words.slice(0, 3_000), next_from: 3_000 });
    const [, last] = model.of(turn.turn_id);
    expect(last === undefined ? [] : heads(last)).toContain('user: short');
  });

  test('ends the turn when a handoff makes it shorter but not short enough, and no handoff is written', async () => {
    const [inherited] = await cardsOf([
      { type: 'task.context', content: { kind: 'text', text: 'word '.repeat(12_000) } },
    ]);
    await h.profile('reader', [{ say: 'never' }], { limits });
    const turn = await run('reader', {
      instruction: 'word '.repeat(9_000),
      context_box_id: inherited?.box_id ?? null,
    });
    expect(turn).toMatchObject({
      status: 'failed',
      error: { code: 'context_overflow', details: { auto_handoffs: 0 } },
    });
    expect((await handoffOf(turn)).filter(({ kind }) => kind !== 'message')).toEqual([]);
    expect(model.of(turn.turn_id)).toEqual([]);
  });

  test('allows expand only for cards that it linked, whatever a card claims to summarize', async () => {
    const [secret] = await cardsOf([{ type: 'note', content: { kind: 'text', text: 'private' } }]);
    // Linked as a reference once it is left out; the list that it contains is only its author's claim.
    const forged = {
      type: 'task.summary',
      content: { kind: 'text', text: 'all there was '.repeat(6_000) },
      metadata: { summarizes: [secret?.card_id ?? ''] },
    };
    const [linked] = await cardsOf([forged]);
    const asks = [secret, linked].map((card) => ({
      calls: [{ tool: 'expand', arguments: { card_id: card?.card_id ?? '' } }],
    }));
    await h.profile('curious', [...asks, { say: 'asked' }], { limits });
    const turn = await run('curious', { context_box_id: linked?.box_id ?? '' });
    expect(turn).toMatchObject({ status: 'success' });
    const results = await h.rows<{ content: JsonValue }>(
      `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 and k.name = 'expand' order by k.step`,
      [turn.turn_id],
    );
    expect(results.map(({ content }) => content)).toMatchObject([
      { status: 'failed', error: { code: 'not_found' } },
      { status: 'success', result: { text: expect.stringContaining('all there was') } },
    ]);
    expect(JSON.stringify(results)).not.toContain('private');
  });
});

describe('a turn whose prompt was too long', () => {
  const limits = { context_tokens: 8_000 };

  test('may hand off itself later: context that was left out does not return', async () => {
    const [boxed] = await cardsOf([
      { type: 'note', content: { kind: 'text', text: 'word '.repeat(12_000) } },
    ]);
    const handoff = { calls: [{ tool: 'tape.handoff', arguments: { name: 'phase', summary: 'half way' } }] };
    await h.profile('handing', [handoff, read('alpha', 400), { say: 'done' }], {
      tools: ['read', 'tape.handoff'],
      limits,
    });
    const turn = await run('handing', { context_box_id: boxed?.box_id ?? '' });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    const [, second, third] = model.of(turn.turn_id);
    expect(heads(second as ModelRequest)).toContainEqual(
      expect.stringMatching(/^assistant: \[Anchor created: phase\]/),
    );
    expect(heads(second as ModelRequest)).toContainEqual(expect.stringMatching(/^user: \[note, about 15000/));
    expect(second?.tools.map(({ name }) => name)).toContain('expand');
    expect(third?.messages.slice(0, second?.messages.length)).toEqual(second?.messages);
  });

  test('may name its own tape in that handoff', async () => {
    const [boxed] = await cardsOf([
      { type: 'note', content: { kind: 'text', text: 'word '.repeat(12_000) } },
    ]);
    const handoff = { calls: [{ tool: 'tape.handoff', arguments: { name: 'phase', tape: 'by-name' } }] };
    await h.profile('named', [handoff, { say: 'done' }], { tools: ['tape.handoff'], limits });
    await (await h.runtime.tape('for-named')).forkSession('by-name', { profile: 'named' });
    const { turn_id } = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: 'by-name',
      instruction: 'Read it.',
      context_box_id: boxed?.box_id ?? '',
    })) as { turn_id: TurnId };
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ result: 'done' });
  });

  test('is not confused with a turn whose agent wrote an anchor of that name itself', async () => {
    const name = 'auto_handoff/context_overflow';
    const handoff = { calls: [{ tool: 'tape.handoff', arguments: { name } }] };
    const turn = await play([handoff, read('beta', 20_000), { overflow: true, say: 'done' }], {
      tools: ['read', 'tape.handoff'],
      limits,
    });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
  });

  test('continues when another agent writes an anchor meanwhile: context that the anchor brings back is left out again', async () => {
    const [boxed] = await cardsOf([
      { type: 'note', content: { kind: 'text', text: 'word '.repeat(12_000) } },
    ]);
    const mark = { calls: [{ tool: 'mark', arguments: {} }] };
    await h.profile('marked', [mark, { say: 'done' }], { tools: ['mark'], limits });
    const turn = await run('marked', { context_box_id: boxed?.box_id ?? '' });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    const names = (await handoffOf(turn)).flatMap(({ name }) => name ?? []);
    expect(names).toEqual(['auto_handoff/context_overflow', 'auto_handoff/context_overflow']);
  });

  test('and that still ends delivers its last text, though no prompt shows that text any more', async () => {
    const written = { calls: [{ tool: 'read', arguments: { file: 'x'.repeat(24_000), length: 10 } }] };
    const turn = await play(
      [{ say: 'Half of it is done.', ...written }, { overflow: true }, { say: 'never' }],
      {
        limits,
      },
    );
    expect(turn).toMatchObject({ status: 'failed', result: { last_text: 'Half of it is done.' } });
  });
});

describe('a summary', () => {
  test('is read by one call, card by card, and calls stay with their results', async () => {
    functions.recaller = ({ messages, turn }, { call, results }) => {
      const [found] = results('expand');
      if (found !== undefined) return { text: String(isJsonObject(found) ? JSON.stringify(found) : found) };
      const summary = messages.find(({ content }) => content.startsWith('[Summary of'));
      const id = /expand\((\{.*?\})\)/.exec(summary?.content ?? '')?.[1];
      if (id !== undefined) return { toolCalls: [call('expand', JSON.parse(id) as JsonValue)] };
      return { toolCalls: [call('read', { file: `name${turn.step}`, length: 700 }, `c${turn.step}`)] };
    };
    await h.profile('recaller', [], {
      model: 'scripted:recaller',
      tools: ['read'],
      limits: { context_tokens: 4_000 },
    });
    const turn = await run('recaller');
    expect(turn.status).toBe('success');
    const answer: unknown = JSON.parse(String(turn.result));
    if (!isJsonObject(answer) || !Array.isArray(answer.cards)) throw new Error('no cards');
    expect(answer).toMatchObject({ type: 'task.summary', card_count: expect.any(Number) });
    const types = answer.cards.map((card) => (isJsonObject(card) ? card.type : null));
    expect(types.slice(0, 4)).toEqual(['task.instruction', 'tool.call', 'tool.result', 'tool.call']);
  });
});

describe('an agent that can hand off', () => {
  test('is told the limit of its context, and is reminded once when the context is nearly full', async () => {
    const turn = await play([read('a', 14_000), read('b', 15_000), { say: 'done' }], {
      tools: ['read', 'tape.handoff'],
      limits: { context_tokens: 10_000, context_reminder: 0.3 },
    });
    expect(turn.status).toBe('success');
    const sent = model.of(turn.turn_id);
    expect(sent[0]?.messages[0]?.content).toMatch(
      /^You are reader\.\n\n<context_contract>\n.*The current limit is 10k tokens\.\n<\/context_contract>$/s,
    );
    const reminders = sent.map(
      ({ messages }) => messages.filter(({ content }) => content.includes('Call tape.handoff now')).length,
    );
    expect(reminders).toEqual([0, 1, 1]);
    expect(sent[1]?.messages.at(-1)?.content).toContain('of 10000 tokens');
    const answer = await h.runtime.why(turn.turn_id, 'The current limit is 10k tokens');
    expect(answer).toMatchObject({ outcome: 'found', places: [{ parts: [{ rule: 'context_contract' }] }] });
  });

  test('is reminded again after an anchor of its own, and only when its context is nearly full again', async () => {
    const handoff = { tool: 'tape.handoff', arguments: { name: 'half', summary: 'a is read' } };
    const turn = await play([read('a', 14_000), { calls: [handoff] }, read('b', 15_000), { say: 'done' }], {
      tools: ['read', 'tape.handoff'],
      limits: { context_tokens: 10_000, context_reminder: 0.3 },
    });
    expect(turn.status).toBe('success');
    const isReminded = ({ messages }: ModelRequest): boolean =>
      messages.some(({ content }) => content.includes('Call tape.handoff now'));
    expect(model.of(turn.turn_id).map(isReminded)).toEqual([false, true, false, true]);
  });

  test('is not reminded on the last step, which may only submit its result', async () => {
    const turn = await play([read('a', 14_000), { say: 'done' }], {
      tools: ['read', 'tape.handoff'],
      limits: { context_tokens: 10_000, context_reminder: 0.1, max_steps: 2 },
    });
    expect(turn.status).toBe('success');
    expect(JSON.stringify(model.of(turn.turn_id)[1])).not.toContain('Call tape.handoff now');
  });

  test('is the only agent that is told of the limit: without the tool nothing is told', async () => {
    const turn = await play([read('a', 14_000), { say: 'done' }], {
      limits: { context_tokens: 10_000, context_reminder: 0.1 },
    });
    expect(JSON.stringify(model.of(turn.turn_id))).not.toContain('context_contract');
    expect(JSON.stringify(model.of(turn.turn_id))).not.toContain('tape.handoff');
  });
});

test('the agent’s next turn continues from there, and may expand the parts that the previous turn has left out', async () => {
  functions.reader = ({ messages, turn }, { call, instruction, results }) => {
    if (instruction === 'next') {
      const [found] = results('expand');
      if (isJsonObject(found ?? null)) return { text: JSON.stringify(found) };
      const text = messages.map(({ content }) => content).join('\n');
      const id = /expand\((\{.*?\})\) reads it\]/.exec(text)?.[1] ?? '{}';
      return { toolCalls: [call('expand', JSON.parse(id) as JsonValue)] };
    }
    if (instruction === 'last') return { text: 'all done' };
    if (turn.step > 5) return { text: 'first done' };
    return { toolCalls: [call('read', { file: 'omega', length: turn.step * 4_000 }, `c${turn.step}`)] };
  };
  await h.profile('rolling', [], {
    model: 'scripted:reader',
    tools: ['read'],
    limits: { context_tokens: 8_000 },
  });
  const first = await run('rolling');
  expect(first).toMatchObject({ status: 'success', result: 'first done' });
  const { turn_id } = (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: first.agent_id,
    instruction: 'next',
  })) as { turn_id: TurnId };
  const next = await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  expect(next.status).toBe('success');
  expect(JSON.parse(String(next.result))).toMatchObject({
    type: 'tool.result',
    text: expect.stringMatching(/^omega/),
  });
  const [sent] = model.of(turn_id);
  expect(heads(sent as ModelRequest).slice(1, 6)).toEqual([
    'user: [context]',
    expect.stringMatching(/^assistant: \[Anchor created: auto/),
    expect.stringMatching(/^user: \[/),
    'assistant: ',
    expect.stringMatching(/^tool: /),
  ]);
  // The task of the turn before is still stated.
  expect(sent?.messages[3]?.content).toContain('\n- the task was: "Read all files."');
  expect(sent?.messages.at(-1)?.content).toBe('next');
  // Further turns are offered this tool, so they see its calls as calls.
  const last = (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: first.agent_id,
    instruction: 'last',
  })) as { turn_id: TurnId };
  await h.runtime.waitForTurn(last.turn_id, { timeoutMs: 60_000 });
  const [shown] = model.of(last.turn_id);
  expect(shown?.tools.map(({ name }) => name)).toContain('expand');
  expect(
    shown?.messages.find((message) => message.role === 'tool' && message.name === 'expand'),
  ).toMatchObject({
    content: expect.stringContaining('"type":"tool.result"'),
  });
});

test('why names the rule of a reference, and says that its words were left out', async () => {
  const turn = await play([read('alpha', 60_000), { overflow: true, say: 'done' }]);
  expect(await h.runtime.why(turn.turn_id, 'left out to make room')).toMatchObject({
    outcome: 'found',
    verified: true,
    places: [{ parts: [{ rule: 'reference', is_own: false, card: { type: 'tool.result' } }] }],
  });
  const explained = await h.runtime.explainStep(turn.turn_id);
  expect(explained).toMatchObject({ verified: true, findings: [] });
  expect(explained.omissions.map(({ reason }) => reason)).toEqual(['referenced']);
});

test('a reminder is given once, also when another worker continues; a call refused as too long costs nothing', async () => {
  const own = recordingModel({
    slow: ({ turn }) => (turn.epoch === 1 ? new Promise(() => undefined) : { text: 'done' }),
  });
  await using other = await harness({ model: own });
  const limits = { context_tokens: 2_000, context_reminder: 0.2, tokens: 1_000_000 };
  const tools = ['tape.handoff'];
  await other.profile('slow', [], { model: 'scripted:slow', tools, limits });
  const first = await other.worker();
  const submitted = await other.runtime.submit('launch_principal', {
    profile_name: 'slow',
    instruction: 'word '.repeat(800),
  });
  const { turn_id } = submitted as { turn_id: TurnId };
  await waitFor(() => own.requests.length > 0, { message: 'the model is asked' });
  await first.close({ graceMs: 0 });
  await other.worker();
  expect(await other.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
  const reminders = own
    .of(turn_id)
    .map(
      ({ messages }) => messages.filter(({ content }) => content.includes('Call tape.handoff now')).length,
    );
  expect(reminders).toEqual([1, 1]);

  await other.profile('refused', [{ overflow: true }], { limits: { tokens: 1_000_000 } });
  const refused = (await other.runtime.submit('launch_principal', {
    profile_name: 'refused',
    instruction: 'x',
    wait: true,
  })) as { turn_id: TurnId };
  const [row] = await other.rows('select spent_tokens::int as spent from boxcar.turns where id = $1', [
    refused.turn_id,
  ]);
  expect(row).toEqual({ spent: 0 });
});

describe('a turn whose tape grows during each measurement of its prompt', () => {
  type Written = { readonly position: number; readonly kind: string; readonly name: string | null };
  /** Another writer appends to the tape whenever tokens are counted. */
  async function playBeside(
    write: (tape: Tape, n: number) => Promise<unknown>,
    profile: { readonly script: readonly JsonValue[] } & Record<string, unknown>,
  ) {
    const base = recordingModel();
    let n = 0;
    let agentId: string | undefined;
    const countTokens = async (texts: readonly string[]): Promise<readonly number[]> => {
      if (agentId !== undefined) await write(await own.runtime.tape({ agent: agentId }), n++);
      return texts.map((words) => Math.ceil(words.length / 4));
    };
    await using own = await harness({ model: { ...base, countTokens } });
    const { script, ...rest } = profile;
    await own.profile('beside', script, rest);
    const inherited = { type: 'note', content: { kind: 'text', text: 'word '.repeat(12_000) } };
    const { box_id } = (await own.runtime.submit('create_box', { cards: [inherited] })) as { box_id: string };
    const submitted = await own.runtime.submit('launch_principal', {
      profile_name: 'beside',
      instruction: 'Read it.',
      context_box_id: box_id,
    });
    const { turn_id, agent_id } = submitted as { turn_id: TurnId; agent_id: string };
    agentId = agent_id;
    await own.worker();
    const turn = await own.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const entries = await own.rows<Written & { content: JsonValue }>(
      `select e.position, e.kind, e.anchor_name as name, c.content from boxcar.turns t join boxcar.tape_entries e on e.box_id = t.output_box_id
         left join boxcar.cards c on c.id = e.card_id where t.id = $1 order by e.position`,
      [turn_id],
    );
    await checkPrompts(own.database.pool, base.requests);
    await checkInvariants(own.database.pool);
    return { turn, entries, prompts: base.of(turn_id).map(({ messages }) => messages) };
  }
  const note = (n: number) => `note ${n}.`;
  const append = (tape: Tape, n: number) => tape.append([{ kind: 'message', content: note(n) }]);
  const limits = { context_tokens: 8_000 };

  test('is compacted after three tries, and sees the added entries after the cut ones', async () => {
    const { turn, entries, prompts } = await playBeside(append, {
      script: [{ say: 'done' }],
      limits,
    });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    const anchor = entries.find(({ name }) => name === 'auto_handoff/context_overflow');
    const before = entries.find(({ position }) => position === (anchor?.position ?? 0) - 1);
    const [added = ''] = /note \d+\./.exec(JSON.stringify(before?.content)) ?? [];
    expect(added).not.toBe('');
    expect(JSON.stringify(prompts.at(-1))).toContain(added);
  });

  test('is compacted although others write anchors, and its prompt continues from the last anchor', async () => {
    const { turn, entries, prompts } = await playBeside(
      (tape, n) => tape.handoff('phase', { state: { summary: note(n) } }),
      {
        script: [{ say: 'done' }],
        limits,
      },
    );
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    const at = entries.findIndex(({ name }) => name === 'auto_handoff/context_overflow');
    const foreign = entries.slice(0, at).findLast(({ kind }) => kind === 'anchor');
    const [state = ''] = /note \d+\./.exec(JSON.stringify(foreign?.content)) ?? [];
    expect(state).not.toBe('');
    expect(JSON.stringify(prompts.at(-1))).toContain(state);
  });

  test('asks a model that refused its prompt as too long only once more', async () => {
    const { turn, prompts } = await playBeside(append, { script: [{ overflow: true, say: 'done' }] });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    expect(prompts).toHaveLength(2);
  });

  test('is reminded that its context is nearly full', async () => {
    const { turn, prompts } = await playBeside(append, {
      script: [{ say: 'done' }],
      tools: ['tape.handoff'],
      limits: { context_tokens: 40_000, context_reminder: 0.1 },
    });
    expect(turn).toMatchObject({ status: 'success', result: 'done' });
    expect(JSON.stringify(prompts.at(-1))).toContain('Call tape.handoff now');
  });
});

test('a token count that never returns delays a turn no longer than the worker holds the turn', async () => {
  const base = recordingModel();
  const counting: string[] = [];
  const countTokens = (_texts: readonly string[], name: string): Promise<readonly number[]> => {
    counting.push(name);
    return new Promise(() => undefined);
  };
  await using own = await harness({ model: { ...base, countTokens } });
  await own.profile('counted', [{ say: 'never' }], { limits: { context_tokens: 100 } });
  await own.profile('short', [{ say: 'done' }]);
  await own.worker({ concurrency: 1 });
  const { turn_id } = (await own.runtime.submit('launch_principal', {
    profile_name: 'counted',
    instruction: 'word '.repeat(200),
  })) as { turn_id: TurnId };
  await waitFor(() => counting.length > 0, { message: 'the tokens are counted' });
  await own.runtime.submit('cancel', { turn_id });
  const next = await own.runtime.submit('launch_principal', {
    profile_name: 'short',
    instruction: 'x',
    wait: true,
  });
  expect(next).toMatchObject({ status: 'success', result: 'done' });
});
