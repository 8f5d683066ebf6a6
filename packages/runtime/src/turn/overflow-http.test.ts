import { createModelRouter } from '@boxcar/llm';
import {
  anthropicWire,
  type Behave,
  type Behaviour,
  chatWire,
  inOrder,
  openProviderServer,
  responsesWire,
  SERVER_KEY,
  type Wire,
} from '@boxcar/llm/testing';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { checkPrompts } from '../testing/check-prompts.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const WORDS = {
  message: 'prompt is too long: 210000 tokens > 200000 maximum',
  type: 'invalid_request_error',
};

/** The forms in which providers may report the error. */
const SAYINGS: readonly (readonly [name: string, behaviour: Behaviour])[] = [
  ['a status of 400', { status: 400, error: WORDS }],
  ['a status of 413', { status: 413, error: { message: 'Request Entity Too Large' } }],
  ['an error in its stream', { answer: { text: 'I beg' }, frames: 1, after: { error: WORDS } }],
];

async function open(wire: Wire, behave: Behave) {
  const server = await openProviderServer(wire, behave);
  const settings = { apiKey: SERVER_KEY, baseUrl: server.baseUrl };
  const providers = { openai: settings, anthropic: settings, openaiCompatible: settings };
  const h = await harness({ model: createModelRouter({ providers }) });
  const close = async (): Promise<void> => {
    await h[Symbol.asyncDispose]();
    await server[Symbol.asyncDispose]();
  };
  return { server, h, [Symbol.asyncDispose]: close };
}

const CALL: Behaviour = { answer: { calls: [{ id: 'c1', name: 'read', arguments: '{}' }] } };

test.each([responsesWire, anthropicWire, chatWire])(
  '$provider reports an overflow by status and by stream, and then gets a shorter prompt with the call and a part of its result',
  async (wire) => {
    const turns = SAYINGS.flatMap(([, saying]) => [CALL, saying, { answer: { text: 'read' } }]);
    await using opened = await open(wire, inOrder(...turns));
    const { server, h } = opened;
    h.runtime.registerTool({
      name: 'read',
      description: 'Reads.',
      input: z.strictObject({}),
      run: () => 'a line of the file\n'.repeat(4_000),
    });
    await h.runtime.applyProfile({
      name: 'reader',
      instructions: 'You read.',
      model: `${wire.provider}:model-1`,
      tools: ['read'],
    });
    await h.worker();
    for (const [index, [name]] of SAYINGS.entries()) {
      const ended = await h.runtime.submit('launch_principal', {
        profile_name: 'reader',
        instruction: 'Read it.',
        wait: true,
      });
      expect(ended, name).toMatchObject({ status: 'success', result: 'read' });
      const [, long, short] = server.requests
        .slice(index * 3, index * 3 + 3)
        .map(({ body }) => JSON.stringify(body));
      expect(short?.length, name).toBeLessThan((long?.length ?? 0) / 10);
      expect(short).toContain('auto_handoff/context_overflow');
      expect(short).toContain('a line of the file');
    }
    expect(server.refusals).toEqual([]);
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool);
  },
);

/** The context window of the server's model, which the kernel does not know. */
const WINDOW = 6_000;

/** A model that reads as many pages as it is told to, as long as its prompt fits its window. */
const pageReader: Behave = ({ prompt }) => {
  const text = JSON.stringify(prompt?.messages ?? []);
  const tokens = Math.ceil(text.length / 4);
  if (tokens > WINDOW) {
    const message = `This model's maximum context length is ${WINDOW} tokens. However, your messages resulted in ${tokens} tokens.`;
    return { status: 400, error: { message, type: 'invalid_request_error', code: 'invalid_request' } };
  }
  const numbersIn = (pattern: RegExp): number =>
    Math.max(0, ...[...text.matchAll(pattern)].map(([, number]) => Number(number)));
  const page = numbersIn(/page (\d+):/g);
  if (page >= numbersIn(/Read (\d+) pages/g)) return { answer: { text: `read ${page} pages` } };
  const call = { id: `c${page}`, name: 'read', arguments: JSON.stringify({ page: page + 1 }) };
  return { answer: { text: `I have read ${page}.`, calls: [call] } };
};

test.each([responsesWire, anthropicWire, chatWire])(
  'an agent that reads more than $provider accepts finishes after a handoff by the kernel during its turn; a second overflow ends it with its partial result',
  async (wire) => {
    await using opened = await open(wire, pageReader);
    const { server, h } = opened;
    h.runtime.registerTool({
      name: 'read',
      description: 'Reads a page.',
      input: z.strictObject({ page: z.number() }),
      isReadOnly: true,
      run: ({ page }) => `page ${page}: ${'a line of the page\n'.repeat(380)}`,
    });
    await h.runtime.applyProfile({
      name: 'reader',
      instructions: 'You read.',
      model: `${wire.provider}:model-1`,
      tools: ['read'],
    });
    await h.worker();
    const [some, tooMany] = await Promise.all(
      [5, 100].map(async (count) => {
        const args = { profile_name: 'reader', instruction: `Read ${count} pages.`, wait: true };
        const ended = await h.runtime.submit('launch_principal', args);
        const { turn_id } = ended as { turn_id: string };
        const failed = await h.rows<{ code: string }>(
          `select error->>'code' as code from boxcar.steps where turn_id = $1 and error is not null order by step, attempt`,
          [turn_id],
        );
        const [shrunk, ...more] = await h.rows<{ before: number; after: number }>(
          `select (c.content->'data'->>'tokens_before')::int as before, (c.content->'data'->>'tokens_after')::int as after
           from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.turn_id = $1 and e.kind = 'anchor'`,
          [turn_id],
        );
        const events = await h.rows(
          `select e.payload->'data'->>'status' as status from boxcar.tape_entries e where e.turn_id = $1 and e.payload->>'name' = 'loop.step'`,
          [turn_id],
        );
        expect(events).toEqual([{ status: 'auto_handoff' }]);
        expect(more).toEqual([]);
        expect(shrunk?.after).toBeLessThan(shrunk?.before ?? 0);
        return { ended, failed };
      }),
    );
    expect(some?.ended).toMatchObject({ status: 'success', result: 'read 5 pages' });
    expect(some?.failed).toEqual([{ code: 'context_overflow' }]);
    expect(tooMany?.ended).toMatchObject({
      status: 'failed',
      error: { code: 'context_overflow', details: { auto_handoffs: 1 } },
      result: {
        error: { code: 'context_overflow' },
        last_text: expect.stringMatching(/^I have read \d+\.$/),
      },
    });
    expect(tooMany?.failed).toEqual([{ code: 'context_overflow' }, { code: 'context_overflow' }]);
    expect(server.refusals).toEqual([]);
    await checkInvariants(h.database.pool);
    await checkPrompts(h.database.pool);
  },
);
