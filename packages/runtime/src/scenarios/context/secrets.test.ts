/**
 * No error, log line, event or tool result shows a secret. Secrets in the input of a caller are stored, and the answer warns about them.
 */
import { declareSecrets, type JsonValue } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { withoutSecrets } from '../../lib/log.js';
import { harness } from '../../testing/harness.js';

const VALUE = 'sk-secrets-test-0123456789';
const URL_TEXT = 'postgres://me:hunter2@db/x';

const asking = (tool: string) =>
  createModelRouter({
    scripted: {
      functions: {
        asker: ({ turn, messages }, { call }) =>
          turn.step === 1
            ? { toolCalls: [call(tool, {})] }
            : { text: messages.flatMap((m) => (m.role === 'tool' ? [m.content] : [])).join() },
      },
    },
  });

test.each<[string, () => JsonValue | Promise<JsonValue>]>([
  ['returns', () => ({ deep: [`${VALUE} ${URL_TEXT}`] })],
  ['throws', () => Promise.reject(new Error(`no access: ${VALUE} ${URL_TEXT}`))],
])('no row contains a secret that a tool %s', async (way, run) => {
  using _secrets = declareSecrets({ A_TOOL_TOKEN: VALUE });
  await using place = await harness({ model: asking('leaky') });
  place.runtime.registerTool({ name: 'leaky', description: 'Leaks.', input: z.object({}), run });
  await place.profile('p', [], { model: 'scripted:asker', script: undefined, tools: ['leaky'] });
  await place.worker();
  const result = await place.runtime.submit('launch_principal', {
    profile_name: 'p',
    instruction: 'go',
    wait: true,
  });
  expect(result).toMatchObject({
    status: 'success',
    result: expect.stringContaining('[secret: A_TOOL_TOKEN] postgres://me:[secret: url]@db/x'),
  });
  const cards = await place.rows<{ content: string; metadata: JsonValue }>(
    "select content::text, metadata from boxcar.cards where content::text like '%db/x%' or content::text like '%sk-secrets%'",
  );
  expect(cards.length).toBeGreaterThan(1);
  for (const { content } of cards) expect(content).not.toMatch(/sk-secrets-test|hunter2/);
  if (way === 'returns')
    expect(cards.map(({ metadata }) => metadata)).toContainEqual(
      expect.objectContaining({ sanitized: true }),
    );
});

test('no row contains a secret from the answer of a custom handler, or from the end that it gives to a turn', async () => {
  using _secrets = declareSecrets({ A_TOOL_TOKEN: VALUE });
  await using place = await harness({ model: asking('leaky') });
  place.runtime.registerHandler('leaky', {
    description: 'Leaks.',
    input: z.strictObject({}),
    handle: (_input, tools) => {
      if (tools.ctx.parent !== undefined) tools.endTurn({ deep: [`${VALUE} ${URL_TEXT}`] });
      return { token: VALUE, [URL_TEXT]: URL_TEXT };
    },
  });
  await place.profile('p', [], { model: 'scripted:asker', script: undefined, tools: ['leaky'] });
  await place.worker();
  const masked = { token: '[secret: A_TOOL_TOKEN]' };
  expect(await place.runtime.submit('leaky', {}, { idempotencyKey: 'k' })).toMatchObject(masked);
  expect(await place.runtime.submit('leaky', {}, { idempotencyKey: 'k' })).toMatchObject(masked);
  const end = await place.runtime.submit('launch_principal', {
    profile_name: 'p',
    instruction: 'go',
    wait: true,
  });
  expect(end).toMatchObject({
    status: 'success',
    result: { deep: ['[secret: A_TOOL_TOKEN] postgres://me:[secret: url]@db/x'] },
  });
  const rows = await place.rows<{ text: string }>(
    `select content::text as text from boxcar.cards union all select coalesce(o.response::text, '') from boxcar.operations o
      union all select coalesce(payload::text, '') from boxcar.tape_entries union all select row_to_json(k)::text from boxcar.tool_calls k`,
  );
  expect(rows.map(({ text }) => text).join()).not.toMatch(/sk-secrets-test|hunter2/);
});

test('a card that a caller sends is stored unchanged, and the answer contains a warning', async () => {
  using _secrets = declareSecrets({ A_TOOL_TOKEN: VALUE });
  await using place = await harness();
  await place.profile('p', [{ say: 'done' }]);
  const launch = (instruction: string, key: string) =>
    place.runtime.submit('launch_principal', { profile_name: 'p', instruction }, { idempotencyKey: key });
  const warned = { warnings: [expect.stringContaining('stored as it is')] };
  for (const text of [`use ${VALUE}`, `use ${URL_TEXT}`]) {
    expect(await launch(text, text.slice(0, 6))).toMatchObject(warned);
    expect(await launch(text, text.slice(0, 6))).toMatchObject(warned);
    const tape = await place.runtime.tape('notes');
    expect(await tape.append([{ kind: 'message', role: 'user', content: text }])).toMatchObject(warned);
    expect(await tape.handoff('phase', { state: { text } })).toMatchObject(warned);
    const rows = await place.rows<{ n: number }>(
      'select count(*)::int as n from boxcar.cards where position($1 in content::text) > 0',
      [text],
    );
    expect(rows[0]?.n).toBe(3);
  }
  expect(await launch('clean', 'clean')).not.toHaveProperty('warnings');
  await place.worker();
  const task = { target_strategy: 'new', target_ref: 'p', instruction: `use ${VALUE}` };
  const both = { ...warned, status: 'success' };
  for (const _ of ['first', 'again']) {
    const asked = { ...task, wait: true };
    expect(await place.runtime.submit('delegate_async', asked, { idempotencyKey: 'turn' })).toMatchObject(
      both,
    );
    const batch = { tasks: [task], wait: true };
    expect(await place.runtime.submit('fork_join', batch, { idempotencyKey: 'batch' })).toMatchObject(both);
  }
  const clean = { ...task, instruction: 'clean', wait: true };
  expect(await place.runtime.submit('delegate_async', clean)).not.toHaveProperty('warnings');
});

test('a log shows no secret, in texts, in objects and in errors of foreign code', () => {
  using _secrets = declareSecrets({ A_TOOL_TOKEN: VALUE });
  const lines: unknown[] = [];
  const log = withoutSecrets((_level, _event, fields) => lines.push(fields));
  const clean = new Error('fine');
  log('warn', 'x', { text: VALUE, deep: { list: [URL_TEXT] }, error: new TypeError(VALUE), clean });
  expect(lines).toEqual([
    {
      text: '[secret: A_TOOL_TOKEN]',
      deep: { list: ['postgres://me:[secret: url]@db/x'] },
      error: expect.objectContaining({ name: 'TypeError', message: '[secret: A_TOOL_TOKEN]' }),
      clean,
    },
  ]);
  expect(JSON.stringify(lines, ['stack'])).not.toContain(VALUE);
});
