import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ErrorBody, JsonValue, TurnId } from '@boxcar/kernel';
import { spawnNode, waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test, vi } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import { MAX_ISOLATED } from './isolated-tool.js';
import type { Tool } from './tool.js';

const MODULE = new URL('../testing/isolated-tool.mjs', import.meta.url);
const base = { name: 'apart', description: 'Runs apart.', input: z.looseObject({}) };

let h: Harness;
let folder: string;
/** The output of tool processes. */
let printed: string;

beforeEach(async () => {
  h = await harness();
  folder = await mkdtemp(join(tmpdir(), 'boxcar-isolated-'));
  printed = '';
  const stderr = vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    printed += String(text);
    return true;
  });
  return async () => {
    stderr.mockRestore();
    await h[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  };
});

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

test('isolated tools run in a limited number of processes at once, and further calls wait', async () => {
  const file = join(folder, 'log');
  const count = MAX_ISOLATED * 2 + 1;
  h.runtime.registerTool({ ...base, isolate: true, module: MODULE, memoryMb: 32 });
  const calls = Array.from({ length: count }, () => ({
    tool: 'apart',
    // Each call ends as soon as this number of calls has begun.
    arguments: { what: 'meet', file, count: MAX_ISOLATED },
  }));
  await h.profile('caller', [{ calls }, { say: 'went on' }], { tools: ['apart'] });
  await h.worker();
  const args = { profile_name: 'caller', instruction: 'go' };
  const { turn_id } = (await h.runtime.submit('launch_principal', args)) as { turn_id: TurnId };
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 100_000 })).toMatchObject({ status: 'success' });
  const marks = [...(await readFile(file, 'utf8'))];
  let open = 0;
  const most = Math.max(...marks.map((mark) => (open += mark === '+' ? 1 : -1)));
  expect({ most, open, count: marks.length }).toEqual({ most: MAX_ISOLATED, open: 0, count: 2 * count });
});

test('the process of an isolated tool ends when its worker is killed', async () => {
  const pidFile = join(folder, 'pid');
  await using worker = spawnNode(new URL('../testing/isolated-caller.ts', import.meta.url), [
    MODULE.href,
    pidFile,
  ]);
  const pid = await waitFor(
    async () => Number(await readFile(pidFile, 'utf8').catch(() => '')) || undefined,
    {
      message: 'the tool runs',
      deadlineMs: 60_000,
    },
  );
  await worker.kill();
  await waitFor(() => !isAlive(pid), { message: 'the process of the tool has ended', deadlineMs: 60_000 });
});

describe('an isolated tool', () => {
  interface CallResult {
    readonly status: string;
    readonly result?: JsonValue;
    readonly error?: ErrorBody;
  }

  /** The result of one call; the turn continues after it. */
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

  test('receives and returns JSON', async () => {
    expect(await call({ what: 'echo', list: [1, { a: null }] })).toMatchObject({
      status: 'success',
      result: {
        rest: { list: [1, { a: null }] },
        call: ['agentId', 'projectId', 'toolCallId', 'turnId'],
        when: '1970-01-01T00:00:00.000Z',
      },
    });
  });

  test('that occupies its process is ended at its deadline, and the worker continues', async () => {
    expect(await call({ what: 'spin' }, 1_000)).toMatchObject({
      status: 'timeout',
      error: { code: 'tool_timeout' },
    });
  });

  test('that native code occupies is ended at its deadline, together with its process', async () => {
    const pidFile = join(folder, 'pid');
    expect(await call({ what: 'native', pidFile }, 5_000)).toMatchObject({
      status: 'timeout',
      error: { code: 'tool_timeout' },
    });
    const pid = Number(await readFile(pidFile, 'utf8'));
    await waitFor(() => !isAlive(pid), { message: 'its process has ended' });
  });

  test('may print more than is shown', async () => {
    expect(await call({ what: 'chatty' })).toMatchObject({ status: 'success', result: 'said' });
    expect(printed).toMatch(/^(\.{1000}\n){50,65}$/);
  });

  test.each([
    ['throw', 'tool_failed', 'apart failed: no luck.'],
    ['stray', 'tool_crashed', 'apart left an error that nothing caught: nobody awaits this.'],
    ['memory', 'tool_crashed', 'apart needed more than its 32 MB of memory.'],
    ['exit', 'tool_crashed', 'apart ended its process without a result (exit code 3).'],
    ['array', 'tool_crashed', 'apart needed more than its 32 MB of memory.'],
    ['flood', 'tool_crashed', 'apart has printed more than 131072 bytes.'],
    ['large', 'tool_failed', 'apart has a result of more than 1048576 bytes.'],
  ])('that fails affects only its own call: %s', async (what, code, message) => {
    const { error } = await call({ what });
    expect(error).toMatchObject({ code, message: expect.stringContaining(message) });
  });
});

test.each<[string, object, string]>([
  ['a closure', { isolate: true, run: () => 1 }, 'run: a closure cannot be isolated'],
  ['a closure next to a module', { isolate: true, module: MODULE, run: () => 1 }, 'run: a closure cannot'],
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
  // Declared as in JavaScript: TypeScript refuses most of these tools.
  const tool = Object.assign({ run: undefined }, base, rest) as unknown as Tool;
  expect(() => h.runtime.registerTool(tool)).toThrow(why);
});
