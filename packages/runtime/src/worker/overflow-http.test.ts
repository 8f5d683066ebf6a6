import { createModelRouter } from '@boxcar/llm';
import {
  anthropicWire,
  type Behaviour,
  chatWire,
  inOrder,
  openProviderServer,
  responsesWire,
  SERVER_KEY,
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

/** How a provider may say it. */
const SAYINGS: readonly (readonly [name: string, behaviour: Behaviour])[] = [
  ['a status of 400', { status: 400, error: WORDS }],
  ['a status of 413', { status: 413, error: { message: 'Request Entity Too Large' } }],
  ['an error in its stream', { answer: { text: 'I beg' }, frames: 1, after: { error: WORDS } }],
];

const CALL: Behaviour = { answer: { calls: [{ id: 'c1', name: 'read', arguments: '{}' }] } };

test.each([responsesWire, anthropicWire, chatWire])(
  '$provider says so by status and by stream, and is sent a shorter prompt with the call and a part of its result',
  async (wire) => {
    const turns = SAYINGS.flatMap(([, saying]) => [CALL, saying, { answer: { text: 'read' } }]);
    await using server = await openProviderServer(wire, inOrder(...turns));
    const settings = { apiKey: SERVER_KEY, baseUrl: server.baseUrl };
    const providers = { openai: settings, anthropic: settings, openaiCompatible: settings };
    await using h = await harness({ model: createModelRouter({ providers }) });
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
