import type { ErrorBody, JsonValue, TurnId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from './testing/harness.js';
import type { Tool } from './tool.js';

const MODULE = new URL('./testing/isolated-tool.mjs', import.meta.url);
const base = { name: 'apart', description: 'Runs apart.', input: z.looseObject({}) };

let h: Harness;

beforeEach(async () => {
  h = await harness();
  return () => h[Symbol.asyncDispose]();
});

describe('an isolated tool', () => {
  interface CallResult {
    readonly status: string;
    readonly result?: JsonValue;
    readonly error?: ErrorBody;
  }

  /** The result of one call; the turn goes on after it. */
  async function call(args: Readonly<Record<string, JsonValue>>, timeoutMs?: number): Promise<CallResult> {
    h.runtime.registerTool({
      ...base,
      isolate: true,
      module: MODULE,
      memoryMb: 32,
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
    });
    await h.profile('caller', [{ calls: [{ tool: 'apart', arguments: args }] }, { say: 'went on' }], {
      tools: ['apart'],
    });
    await h.worker();
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'caller',
      instruction: 'go',
    })) as { turn_id: TurnId };
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    const [row] = await h.rows<{ content: CallResult }>(
      'select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1',
      [turn_id],
    );
    if (row === undefined) throw new Error('no result');
    return row.content;
  }

  test('is given JSON and gives JSON', async () => {
    expect(await call({ what: 'echo', list: [1, { a: null }] })).toMatchObject({
      status: 'success',
      result: {
        rest: { list: [1, { a: null }] },
        call: ['agentId', 'projectId', 'toolCallId', 'turnId'],
        when: '1970-01-01T00:00:00.000Z',
      },
    });
  });

  test('that holds its thread is ended at its deadline, and the worker goes on', async () => {
    expect(await call({ what: 'spin' }, 1_000)).toMatchObject({
      status: 'timeout',
      error: { code: 'tool_timeout' },
    });
  });

  test.each([
    ['throw', 'tool_failed', 'apart failed: no luck.'],
    ['stray', 'tool_crashed', 'apart left an error that nothing caught: nobody awaits this.'],
    ['memory', 'tool_crashed', 'apart needed more than its 32 MB of memory.'],
    ['exit', 'tool_crashed', 'apart ended its thread without a result.'],
  ])('fails its call alone: %s', async (what, code, message) => {
    const { error } = await call({ what });
    expect(error).toMatchObject({ code, message: expect.stringContaining(message) });
  });
});

test.each<[string, object, string]>([
  ['a closure', { isolate: true, run: () => 1 }, 'run: a closure cannot be isolated'],
  ['a closure beside a module', { isolate: true, module: MODULE, run: () => 1 }, 'run: a closure cannot'],
  ['no module', { isolate: true }, 'module: must be a file URL'],
  ['a path', { isolate: true, module: './x.js' }, 'module: must be a file URL'],
  [
    'an address',
    { isolate: true, module: new URL('https://example.org/x.js') },
    'module: must be a file URL',
  ],
  ['a module that is not isolated', { module: MODULE }, 'module: is for tools with isolate: true'],
  ['no memory', { isolate: true, module: MODULE, memoryMb: 1 }, 'memoryMb'],
])('an isolated tool with %s is refused', (_what, rest, why) => {
  // As from JavaScript: TypeScript refuses most of them.
  const tool = Object.assign({ run: undefined }, base, rest) as unknown as Tool;
  expect(() => h.runtime.registerTool(tool)).toThrow(why);
});
