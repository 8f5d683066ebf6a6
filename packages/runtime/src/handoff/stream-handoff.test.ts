/** Readers of a handoff get its text while it is written, and lose nothing between two reads. */
import {
  a2aDialect,
  anthropicDialect,
  type Dialect,
  openaiDialect,
  openPlatform,
  PLATFORM_KEY,
} from '@boxcar/adapters/testing';
import type { CardId, HandoffPart, JsonValue, ProjectId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { eraseCards } from '@boxcar/store';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';
import type { HandoffInput } from './handoff-types.js';

/** A gate that a test opens. */
function gate(): { readonly opened: Promise<void>; open(): void } {
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

let h: Harness;
let tool: HandoffTool;
let functions: Record<string, ScriptedFunction>;

beforeEach(async () => {
  vi.stubEnv('WRITER_KEY', PLATFORM_KEY);
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '127.0.0.1');
  functions = {};
  h = await harness({ connections: 8, model: createModelRouter({ scripted: { functions } }) });
  tool = new HandoffTool({ runtime: h.runtime });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
  vi.unstubAllEnvs();
});

const ask = async (target_agent: string, rest: Partial<HandoffInput> = {}): Promise<string> =>
  (await tool.handoff({ source_agent: 'desk', target_agent, task: 'Write.', wait: false, ...rest }))
    .handoff_id;

async function all(handoffId: string, afterSeq = 0): Promise<readonly HandoffPart[]> {
  const parts: HandoffPart[] = [];
  for await (const part of tool.stream(handoffId, { afterSeq })) parts.push(part);
  return parts;
}

/** The text that a reader has at the end. */
const textOf = (parts: readonly HandoffPart[]): string =>
  parts.reduce(
    (text, part) => (part.type === 'reset' ? '' : part.type === 'text' ? text + part.text : text),
    '',
  );

const numbersOf = (parts: readonly HandoffPart[]): readonly number[] => parts.map(({ seq }) => seq);
const count = (n: number): readonly number[] => Array.from({ length: n }, (_, at) => at + 1);

/** A reader that stops anywhere can read the rest afterwards. */
async function checkResumes(handoffId: string, parts: readonly HandoffPart[]): Promise<void> {
  expect(numbersOf(parts)).toEqual(count(parts.length));
  for (const { seq } of parts) expect(await all(handoffId, seq)).toEqual(parts.slice(seq));
}

describe('the stream of an agent of this installation', () => {
  test('shows its first words before it has written the last words', async () => {
    const said = gate();
    functions.poet = async (_request, { write }) => {
      write('Roses ');
      await said.opened;
      write('are red.');
      return { text: 'Roses are red.' };
    };
    await h.profile('poet', [], { model: 'scripted:poet', script: undefined });
    await h.worker();
    const id = await ask('poet');
    const stream = tool.stream(id);
    expect(await stream.next()).toEqual({ done: false, value: { seq: 1, type: 'text', text: 'Roses ' } });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'in_progress', result: null });
    said.open();
    const rest: HandoffPart[] = [];
    for await (const part of stream) rest.push(part);
    expect(textOf(rest)).toBe('are red.');
    expect(rest.at(-1)).toMatchObject({ type: 'result', status: 'completed', result: 'Roses are red.' });
    await checkResumes(id, [{ seq: 1, type: 'text', text: 'Roses ' }, ...rest]);
  });

  test('marks the words that accompany tool calls as void when the answer arrives', async () => {
    const said = gate();
    let step = 0;
    functions.clerk = async ({ tools }, { write, call }) => {
      step += 1;
      write(step === 1 ? 'I will look it up.' : 'It is 42.');
      if (step === 1) await said.opened;
      return step === 1
        ? { text: 'I will look it up.', toolCalls: [call(tools[0]?.name ?? '', { name: 'x', summary: 'y' })] }
        : { text: 'It is 42.' };
    };
    await h.profile('clerk', [], { model: 'scripted:clerk', script: undefined, tools: ['tape.handoff'] });
    await h.worker();
    const id = await ask('clerk');
    const stream = tool.stream(id);
    expect((await stream.next()).value).toMatchObject({ type: 'text', text: 'I will look it up.' });
    said.open();
    const parts: HandoffPart[] = [];
    for await (const part of stream) parts.push(part);
    expect(parts.map(({ type }) => type)).toEqual(['reset', 'text', 'result']);
    expect(textOf(parts)).toBe('It is 42.');
    await checkResumes(id, await all(id));
  });

  test('gives an answer in one piece without any stored row', async () => {
    await h.profile('echo', [{ say: 'Echo.' }]);
    await h.worker();
    const id = await ask('echo');
    expect(await all(id)).toEqual([
      { seq: 1, type: 'text', text: 'Echo.' },
      { seq: 2, type: 'result', status: 'completed', result: 'Echo.' },
    ]);
    expect(await h.rows('select from boxcar.turn_parts')).toEqual([]);
  });

  test('has no parts for a turn without a handoff', async () => {
    await h.profile('slow', [{ say: 'one two three', chunks: 3, delayMs: 3 }]);
    await h.worker();
    await h.runtime.submit('launch_principal', { profile_name: 'slow', instruction: 'Go.', wait: true });
    expect(await h.rows('select from boxcar.turn_parts')).toEqual([]);
  });

  test('stores many texts in few rows, and holds half of a surrogate pair until the other half arrives', async () => {
    const text = 'a😀'.repeat(300);
    functions.many = async (_request, { write, pause }) => {
      for (const unit of text.split('')) write(unit);
      await pause(1);
      return { text };
    };
    await h.profile('many', [], { model: 'scripted:many', script: undefined });
    await h.worker();
    const parts = await all(await ask('many'));
    expect(textOf(parts)).toBe(text);
    for (const part of parts) if (part.type === 'text') expect(part.text.isWellFormed()).toBe(true);
    expect(parts.length).toBeLessThan(50);
  });
});

describe('the stream of a function of a program', () => {
  test('shows its output, and marks the output of a failed attempt as void', async () => {
    const first = gate();
    let attempts = 0;
    tool.registerAgent('scribe', async (_input, { write }) => {
      attempts += 1;
      write(`try ${attempts}`);
      await first.opened;
      if (attempts === 1) throw Object.assign(new Error('not yet'), { retryable: true });
      return `try ${attempts}, done`;
    });
    const id = await ask('scribe', { retry: { max_attempts: 2, base_seconds: 0.01, max_seconds: 0.01 } });
    const stream = tool.stream(id);
    expect((await stream.next()).value).toEqual({ seq: 1, type: 'text', text: 'try 1' });
    first.open();
    const parts: HandoffPart[] = [{ seq: 1, type: 'text', text: 'try 1' }];
    for await (const part of stream) parts.push(part);
    expect(textOf(parts)).toBe('try 2, done');
    expect(parts.some(({ type }) => type === 'reset')).toBe(true);
    await checkResumes(id, parts);
  });

  test('ends with the result that is not a text, or with the failure', async () => {
    tool.registerAgent('adder', () => ({ sum: 3 }));
    tool.registerAgent('failing', () => {
      throw new Error('no');
    });
    expect(await all(await ask('adder'))).toEqual([
      { seq: 1, type: 'result', status: 'completed', result: { sum: 3 } },
    ]);
    expect(await all(await ask('failing'))).toMatchObject([
      { seq: 1, type: 'error', status: 'failed', error: { code: 'platform_failed' } },
    ]);
  });

  test('masks secrets of the process, also when they arrive in pieces', async () => {
    const secret = 'tok_0123456789abcdef';
    const { declareSecrets } = await import('@boxcar/kernel');
    using _secrets = declareSecrets({ ACME_TOKEN: secret });
    const read = gate();
    tool.registerAgent('leaky', async (_input, { write }) => {
      write(`The token is ${secret.slice(0, 8)}`);
      await read.opened;
      write(`${secret.slice(8)}, and more`);
      return `The token is ${secret}, and more`;
    });
    const id = await ask('leaky');
    const stream = tool.stream(id);
    const begun = (await stream.next()).value as HandoffPart;
    read.open();
    const parts = [begun];
    for await (const part of stream) parts.push(part);
    expect(textOf(parts)).toBe('The token is [secret: ACME_TOKEN], and more');
    const rows = await h.rows<{ text: string }>('select text from boxcar.turn_parts order by seq');
    expect(rows.map(({ text }) => text).join('')).not.toContain(secret.slice(0, 8));
  });
});

describe.each<[string, Dialect, object]>([
  ['openai', openaiDialect, { model: 'writer' }],
  ['anthropic', anthropicDialect, { model: 'writer' }],
  ['adk', a2aDialect({ version: '1.0' }), {}],
  ['adk', a2aDialect({ version: '0.3' }), {}],
])('the stream of a platform: %s', (platform, dialect, entry) => {
  test('shows the first part while the platform still writes, and resumes after a cancel', async () => {
    await using server = await openPlatform(
      dialect,
      { kind: 'endless', text: 'Once upon a time' },
      { kind: 'answer', text: 'The end.' },
    );
    const at =
      platform === 'adk' ? { card_url: `${server.origin}/card.json` } : { base_url: `${server.origin}/v1` };
    tool = new HandoffTool({
      runtime: h.runtime,
      targets: { writer: { platform, api_key_env: 'WRITER_KEY', ...at, ...entry } },
    });
    const id = await ask('writer', { platform });
    const stream = tool.stream(id);
    expect((await stream.next()).value).toMatchObject({ seq: 1, type: 'text' });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'in_progress' });
    await stream.return();
    await h.runtime.submit('cancel', {
      turn_id: (await tool.getHandoff(id))?.turn_id ?? '',
      reason: 'enough',
    });
    const parts = await all(id);
    expect(parts.at(-1)).toMatchObject({ type: 'error', status: 'failed' });
    await checkResumes(id, parts);
  });
});

describe('a reader of a stream', () => {
  test('must name a handoff of its project, and a valid number to begin with', async () => {
    await h.profile('echo', [{ say: 'Echo.' }]);
    await h.worker();
    expect(await failureOf(all('01a22123-a052-72f6-bb82-5153fb034429'))).toMatchObject({ code: 'not_found' });
    expect(await failureOf(all('nonsense'))).toMatchObject({ code: 'bad_request' });
    expect(await failureOf(all(await ask('echo'), -1))).toMatchObject({ code: 'bad_request' });
  });

  test('gets the refusal of a handoff as the only part', async () => {
    const error = await failureOf(tool.handoff({ source_agent: 'desk', target_agent: 'nobody', task: 'x' }));
    const id = String(error.details.handoff_id);
    expect(await all(id)).toMatchObject([
      { seq: 1, type: 'error', status: 'failed', error: { code: 'not_found' } },
    ]);
  });

  test('stops at its signal, when it stops reading, and when the runtime closes', async () => {
    const never = gate();
    tool.registerAgent('quiet', async (_input, { signal, write }) => {
      write('so far');
      await Promise.race([
        never.opened,
        new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      ]);
      return 'done';
    });
    const id = await ask('quiet');
    const stop = new AbortController();
    const reading = (async () => {
      for await (const part of tool.stream(id, { signal: stop.signal }))
        if (part.type === 'text') stop.abort(new Error('enough'));
    })();
    await expect(reading).rejects.toThrow('enough');
    const own = tool.stream(id);
    await own.next();
    expect(await own.return()).toEqual({ done: true, value: undefined });
    never.open();
    const elsewhere = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
    elsewhere.registerAgent('unserved', () => 'never');
    const { handoff_id } = await elsewhere.handoff({
      source_agent: 'desk',
      target_agent: 'unserved',
      task: 'x',
      wait: false,
    });
    const left = failureOf(elsewhere.stream(handoff_id).next());
    await h.runtime.close();
    expect(await left).toMatchObject({ code: 'internal_error' });
  });

  test('finds no words of a card after the card’s erasure', async () => {
    const said = gate();
    functions.poet = async (_request, { write }) => {
      write('Roses ');
      await said.opened;
      write('are red.');
      return { text: 'Roses are red.' };
    };
    await h.profile('poet', [], { model: 'scripted:poet', script: undefined });
    await h.worker();
    const id = await ask('poet');
    const stream = tool.stream(id);
    await stream.next();
    said.open();
    for await (const _part of stream);
    const [turn] = await h.rows<{ card: CardId; project: ProjectId }>(
      'select deliverable_card_id as card, project_id as project from boxcar.turns',
    );
    if (turn === undefined) throw new Error('no turn');
    await eraseCards(h.database.pool, [turn.card], { projectId: turn.project, reason: 'asked for' });
    expect(JSON.stringify(await all(id))).not.toContain('Roses');
    expect(JSON.stringify(await h.rows('select * from boxcar.turn_parts'))).not.toContain('Roses');
  });

  test.each<[string, string, JsonValue]>([
    ['a text without stored pieces', '', 'Roses are red.'],
    ['a text with a stored piece', 'Roses ', 'Roses are red.'],
    ['a text that differs from its pieces', 'Violets', 'Roses are red.'],
    ['an object', 'Roses', { text: 'Roses are red.' }],
  ])('that resumes after the erasure of %s gets the last part', async (_name, piece, result) => {
    const written = gate();
    tool.registerAgent('poet', async (_input, { write }) => {
      if (piece !== '') {
        write(piece);
        await written.opened;
      }
      return result;
    });
    const id = await ask('poet');
    if (piece !== '') await tool.stream(id).next();
    written.open();
    const before = await all(id);
    expect(before.at(-1)).toMatchObject({ type: 'result', result });
    const [turn] = await h.rows<{ card: CardId; project: ProjectId }>(
      'select deliverable_card_id as card, project_id as project from boxcar.turns',
    );
    if (turn === undefined) throw new Error('no turn');
    await eraseCards(h.database.pool, [turn.card], { projectId: turn.project, reason: 'asked for' });
    // For every place where the reader can be cut off.
    for (let seen = 0; seen < before.length; seen += 1) {
      const parts = await all(id, seen);
      expect(parts.map(({ seq }) => seq)).toEqual(parts.map((_part, index) => seen + index + 1));
      expect(parts.at(-1)).toMatchObject({ type: 'result', status: 'completed', result: null });
      expect(JSON.stringify(parts)).not.toMatch(/Roses|Violets|red/);
    }
    expect(await all(id, before.length + 3)).toEqual([]);
  });
});
