/** The tools of real servers, without a runtime; packages/mcp-client/src/agents.test.ts tests them with one. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel';
import type { Tool, ToolContext } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterEach, describe, expect, test } from 'vitest';
import { everything, filesystem, isAlive, newFolder, rawServer } from '../testing/servers.js';
import { McpServers, type McpServersOptions } from './mcp-servers.js';
import { checkServers } from './parse-servers.js';

const opened: McpServers[] = [];
const logged: { readonly event: string; readonly fields: unknown }[] = [];
const never = new AbortController().signal;

function open(entries: unknown, options: Partial<McpServersOptions> = {}): McpServers {
  const servers = new McpServers(checkServers(entries), {
    env: {},
    log: (_level, event, fields) => void logged.push({ event, fields }),
    ...options,
  });
  opened.push(servers);
  return servers;
}
afterEach(async () => {
  for (const servers of opened.splice(0)) await servers.close();
  logged.length = 0;
});

const namesOf = (tools: readonly Tool[]): readonly string[] => tools.map(({ name }) => name);
const find = (tools: readonly Tool[], name: string): Tool => {
  const tool = tools.find((each) => each.name === name);
  if (tool === undefined) throw new Error(`no ${name} among ${namesOf(tools).join(', ')}`);
  return tool;
};
/** Runs a tool as the runtime does, after checking its arguments. */
async function run(tool: Tool, args: unknown = {}, signal: AbortSignal = never): Promise<unknown> {
  return tool.run(tool.input.parse(args), { signal } as ToolContext);
}
async function failureOf(work: Promise<unknown>): Promise<KernelError> {
  const error = await work.then(
    () => new Error('it did not fail'),
    (failure: unknown) => failure,
  );
  if (error instanceof KernelError) return error;
  throw error;
}

describe('the official servers', () => {
  test('provide their tools, and their results become JSON', async () => {
    const servers = open({ all: everything() });
    const tools = await servers.toolsOf(['all'], never);
    expect(namesOf(tools)).toContain('all.echo');
    expect(await run(find(tools, 'all.echo'), { message: 'hello' })).toBe('Echo: hello');
    const image = await run(find(tools, 'all.get-tiny-image'));
    expect(image).toMatch(/\[image: image\/png, \d+ bytes, not shown\]/);
    expect(find(tools, 'all.echo').input.safeParse({ message: 7 }).success).toBe(false);
    expect(tools.every(({ retry }) => retry === 'never')).toBe(true);
    expect(find(await servers.toolsOf(['all'], never), 'all.echo')).toBe(find(tools, 'all.echo'));
  });

  test('read and write files in the folder of their entry', async () => {
    const folder = newFolder();
    writeFileSync(join(folder, 'a.txt'), 'in a file');
    const servers = open({
      files: {
        ...filesystem(folder),
        tools: ['read_text_file', 'write_file'],
        retry_safe: ['read_text_file'],
        timeout_ms: 5_000,
      },
    });
    const tools = await servers.toolsOf(['files'], never);
    expect(namesOf(tools).toSorted()).toEqual(['files.read_text_file', 'files.write_file']);
    const read = find(tools, 'files.read_text_file');
    expect([read.retry, find(tools, 'files.write_file').retry, read.timeoutMs]).toEqual([
      'safe',
      'never',
      5_000,
    ]);
    expect(JSON.stringify(await run(read, { path: join(folder, 'a.txt') }))).toContain('in a file');
    await run(find(tools, 'files.write_file'), { path: join(folder, 'b.txt'), content: 'written' });
    expect(readFileSync(join(folder, 'b.txt'), 'utf8')).toBe('written');
    expect(await failureOf(run(read, { path: '/etc/passwd' }))).toMatchObject({ code: 'tool_failed' });
  });
});

describe.each(['plain', 'stays'])('a server of the kind %s', (mode) => {
  test('ends with all its child processes when the servers are closed', async () => {
    const raw = rawServer(mode);
    const servers = open({ raw: raw.entry });
    await servers.toolsOf(['raw'], never);
    await waitFor(() => raw.pids().filter(isAlive).length === (mode === 'stays' ? 2 : 1), {
      message: 'it runs',
    });
    await servers.close();
    await waitFor(() => !raw.pids().some(isAlive), { message: 'nothing of it is left' });
  });
});

describe('a server that ends', () => {
  test('is started again by the next call, and an interrupted call has an unknown outcome', async () => {
    const raw = rawServer('dies');
    const servers = open({ raw: raw.entry });
    const tools = await servers.toolsOf(['raw'], never);
    const before = raw.pids().length;
    expect(await failureOf(run(find(tools, 'raw.work')))).toMatchObject({ code: 'outcome_unknown' });
    expect(namesOf(await servers.toolsOf(['raw'], never))).toEqual(['raw.work', 'raw.safe']);
    expect(raw.pids().length).toBe(before + 1);
  });

  test('keeps its tools while it is away, and is tried again after growing pauses', async () => {
    let now = 0;
    const folder = newFolder();
    const script = join(folder, 'server.mjs');
    const raw = rawServer('plain');
    const good = readFileSync(raw.entry.args[0] ?? '', 'utf8');
    writeFileSync(script, good);
    const entry = { command: process.execPath, args: [script, 'plain', ...raw.entry.args.slice(2)] };
    const servers = open({ raw: entry }, { now: () => now });
    const tools = await servers.toolsOf(['raw'], never);
    writeFileSync(script, 'process.exit(1)');
    for (const pid of raw.pids().filter(isAlive)) process.kill(pid, 'SIGKILL');
    await waitFor(() => logged.some(({ event }) => event === 'mcp.disconnected'), {
      message: 'its end is noticed',
    });
    expect(await servers.toolsOf(['raw'], never)).toEqual(tools);
    expect(await failureOf(run(find(tools, 'raw.work')))).toMatchObject({ code: 'tool_server_unavailable' });
    writeFileSync(script, good);
    // During the pause no attempt is made.
    expect(await failureOf(run(find(tools, 'raw.work')))).toMatchObject({ code: 'tool_server_unavailable' });
    now += 500;
    expect(await run(find(tools, 'raw.work'))).toBe('did work');
  });

  test('and cannot be reached at all is represented by one tool, which says so and tries again', async () => {
    let now = 0;
    const servers = open(
      { raw: rawServer('exits').entry, gone: { command: '/no/such/command' } },
      { now: () => now },
    );
    const tools = await servers.toolsOf(['raw', 'gone'], never);
    expect(namesOf(tools)).toEqual(['raw.unavailable', 'gone.unavailable']);
    expect(tools[0]?.description).toContain("The MCP server 'raw' cannot be reached.");
    expect(await servers.toolsOf(['raw', 'gone'], never)).toEqual(tools);
    now += 10_000;
    expect(await failureOf(run(find(tools, 'raw.unavailable')))).toMatchObject({
      code: 'tool_server_unavailable',
    });
    const words = JSON.stringify(logged);
    expect(words).toContain('there is no such folder');
    expect(JSON.stringify(tools)).not.toContain('folder');
  });

  test('that needs an unset variable is reported with the name of the variable', async () => {
    const servers = open({ raw: { ...rawServer('plain').entry, env: { GIVEN: `$\{NOT_SET}` } } });
    const [tool] = await servers.toolsOf(['raw'], never);
    expect(tool?.description).toContain('needs the variable NOT_SET');
  });
});

describe('the environment of a child process', () => {
  test('consists of its entry, PATH and similar variables', async () => {
    process.env.BOXCAR_TEST_ONLY_SECRET = 'secret-of-this-process';
    try {
      const servers = open(
        { raw: { ...rawServer('env').entry, env: { GIVEN: `x-$\{OTHER}` } } },
        { env: { OTHER: 'other', DATABASE_URL: 'postgres://u:p@h/d' } },
      );
      const result = String(await run(find(await servers.toolsOf(['raw'], never), 'raw.work')));
      const seen = JSON.parse(result) as Record<string, string>;
      expect(
        Object.keys(seen).filter(
          (name) => name !== 'GIVEN' && !/^(HOME|LOGNAME|PATH|SHELL|TERM|USER)$/.test(name),
        ),
      ).toEqual([]);
      expect(result).not.toContain('secret-of-this-process');
      expect(result).not.toContain('postgres:');
    } finally {
      delete process.env.BOXCAR_TEST_ONLY_SECRET;
    }
  });

  test('is masked in a result', async () => {
    const env = { OTHER: 'a-key-of-the-operator' };
    const servers = open({ raw: { ...rawServer('secret').entry, env: { GIVEN: `$\{OTHER}` } } }, { env });
    const result = await run(find(await servers.toolsOf(['raw'], never), 'raw.work'));
    expect(result).toBe('the key is [secret: OTHER]');
  });

  test.each([
    ['secret-failure', 'the key is [secret: OTHER]'],
    ['secret-error', 'the key is [secret: OTHER]'],
    ['secret-late', '[secret: O'],
  ])('is masked in a call of the kind %s', async (mode, shown) => {
    const env = { OTHER: 'a-key-of-the-operator' };
    const servers = open({ raw: { ...rawServer(mode).entry, env: { GIVEN: `$\{OTHER}` } } }, { env });
    const work = find(await servers.toolsOf(['raw'], never), 'raw.work');
    const said = String(await run(work).catch((error: unknown) => error));
    expect(said).toContain(shown);
    expect(said).not.toContain('a-key');
  });

  test.each(['secret-list', 'secret-words'])('is masked in the log of the kind %s', async (mode) => {
    const env = { OTHER: 'a-key-of-the-operator' };
    const servers = open({ raw: { ...rawServer(mode).entry, env: { GIVEN: `$\{OTHER}` } } }, { env });
    await servers.toolsOf(['raw'], never);
    const reason = servers.get('raw')?.reason;
    expect(reason).toMatch(/secret: OTHER\]|x{1990}/);
    expect(reason).not.toContain('operator');
    expect(JSON.stringify(logged)).not.toContain('operator');
  });
});

describe('a hostile server', () => {
  test.each(['garbage', 'endless', 'silent'])('that sends %s costs only its time', async (mode) => {
    const raw = rawServer(mode);
    const servers = open(
      { raw: raw.entry, good: rawServer('plain').entry },
      { connectMs: 4_000, waitMs: 15_000 },
    );
    await servers.toolsOf(['good'], never);
    const tools = await servers.toolsOf(['raw', 'good'], never);
    expect(namesOf(tools)).toEqual(['raw.unavailable', 'good.work', 'good.safe']);
    expect(await run(find(tools, 'good.work'))).toBe('did work');
    await waitFor(() => raw.pids().every((pid) => !isAlive(pid)), { message: 'its children have ended' });
  });

  test('that starts slowly does not delay a step', async () => {
    const servers = open({ raw: rawServer('silent').entry }, { waitMs: 10 });
    expect((await servers.toolsOf(['raw'], never))[0]?.description).toContain('still starting');
  });

  test('that sends 10 MB loses the connection, and a long result is cut', async () => {
    const servers = open({ large: rawServer('large').entry, long: rawServer('long').entry });
    const tools = await servers.toolsOf(['large', 'long'], never);
    expect(await failureOf(run(find(tools, 'large.work')))).toMatchObject({ code: 'outcome_unknown' });
    const long = String(await run(find(tools, 'long.work')));
    expect(long.length).toBeLessThan(201_000);
    expect(long).toMatch(/\[cut: \d+ more characters\]$/);
    expect(namesOf(await servers.toolsOf(['large'], never))).toEqual(['large.work', 'large.safe']);
  });

  test('with a thousand tools provides 256, and reports the others as left out', async () => {
    const servers = open({ raw: rawServer('many').entry });
    expect(await servers.toolsOf(['raw'], never)).toHaveLength(256);
    expect(servers.get('raw')?.known?.leftOut).toHaveLength(744);
  });

  test('with strange names provides distinct names that models accept', async () => {
    const servers = open({ raw: rawServer('names').entry });
    const names = namesOf(await servers.toolsOf(['raw'], never));
    expect(names).toHaveLength(4);
    for (const name of names) expect(name).toMatch(/^raw\.[a-zA-Z0-9_.-]{1,60}$/);
    expect(servers.get('raw')?.known?.leftOut.map(({ tool }) => tool)).toEqual(['twice', 'twice']);
  });

  test('with unreadable schemas still has its tools, and linear patterns', async () => {
    const servers = open({ raw: rawServer('schemas').entry });
    const tools = await servers.toolsOf(['raw'], never);
    expect(namesOf(tools)).toEqual(['raw.draft4', 'raw.broken', 'raw.slow', 'raw.draft7']);
    const leftOut = servers.get('raw')?.known?.leftOut;
    expect(leftOut?.map(({ tool }) => tool)).toEqual(['deep', 'huge']);
    expect(await run(find(tools, 'raw.draft4'), { any: 1 })).toBe('did draft4');
    expect(await run(find(tools, 'raw.broken'), { n: 1 })).toBe('did broken');
    expect(find(tools, 'raw.slow').input.safeParse({ n: `${'a'.repeat(5_000)}b` }).success).toBe(false);
    const draft7 = find(tools, 'raw.draft7').input;
    expect([draft7.safeParse({}).success, draft7.safeParse({ n: 1 }).success]).toEqual([false, true]);
  });

  test('that never answers is told when no caller waits any more', async () => {
    const raw = rawServer('never');
    const servers = open({ raw: raw.entry });
    const work = find(await servers.toolsOf(['raw'], never), 'raw.work');
    const call = new AbortController();
    const running = run(work, { n: 1 }, call.signal);
    await waitFor(() => raw.notes().includes('call work {"n":1}'), { message: 'it has the call' });
    call.abort(new Error('over'));
    await expect(running).rejects.toThrow();
    await waitFor(() => raw.notes().includes('cancelled'), { message: 'it knows' });
  });

  test('that returns an invalid result gives a readable error', async () => {
    const servers = open({ raw: rawServer('wrong').entry });
    const work = find(await servers.toolsOf(['raw'], never), 'raw.work');
    expect(await failureOf(run(work))).toMatchObject({ code: 'tool_failed' });
  });
});

test('a server that does one thing at a time keeps its connection, and its list is read later', async () => {
  let now = 0;
  const raw = rawServer('busy');
  const servers = open({ raw: raw.entry }, { now: () => now });
  const [work] = await servers.toolsOf(['raw'], never);
  if (work === undefined) throw new Error('no tool');
  const pids = raw.pids().length;
  const running = run(work);
  await waitFor(() => raw.notes().includes('call work {}'), { message: 'it has the call' });
  now += 61_000;
  await servers.toolsOf(['raw'], never);
  expect(await running).toBe('did work');
  expect([raw.pids().length, servers.get('raw')?.failure]).toEqual([pids, undefined]);
});

test('a list that has changed is read again before the next step', async () => {
  const servers = open({ raw: rawServer('changes').entry });
  const tools = await servers.toolsOf(['raw'], never);
  expect(namesOf(tools)).toEqual(['raw.work', 'raw.safe']);
  expect(await run(find(tools, 'raw.work'))).toBe('did work');
  await waitFor(async () => namesOf(await servers.toolsOf(['raw'], never)).includes('raw.more'), {
    message: 'the new tool is there',
  });
});
