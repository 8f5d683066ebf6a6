/** Agents that use MCP servers: the whole path from a profile to the rows, with real servers. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { JsonObject } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { spawnNode, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import {
  everything,
  filesystem,
  isAlive,
  type NotedServer,
  newFolder,
  notedServer,
  rawServer,
} from './testing/servers.js';
import { openStage, type Stage } from './testing/stage.js';

const end = ({ opened }: Stage, turnId: string) => opened.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

test('an agent uses two servers, and one of them is killed and started again between two of its steps', async () => {
  const folder = newFolder();
  const raw = rawServer('plain');
  await using stage = await openStage({ all: everything(), files: filesystem(folder), raw: raw.entry });
  const killed = join(folder, 'killed');
  stage.opened.runtime.registerTool({
    name: 'kill',
    description: 'Kills the raw server.',
    input: z.object({}),
    run: async () => {
      const pids = raw.pids().filter(isAlive);
      for (const pid of pids) process.kill(pid, 'SIGKILL');
      writeFileSync(killed, String(pids.length));
      await waitFor(() => stage.events.includes('mcp.disconnected'), { message: 'its end is noticed' });
      return null;
    },
  });
  const path = join(folder, 'note.txt');
  await stage.agent(
    [
      { tool: 'all.echo', arguments: { message: 'one' } },
      { tool: 'raw.work', arguments: { n: 1 } },
      { tool: 'kill' },
      { tool: 'raw.work', arguments: { n: 2 } },
      { tool: 'files.write_file', arguments: { path, content: 'by an agent' } },
      { tool: 'files.read_text_file', arguments: { path } },
      { tool: 'all.get-sum', arguments: { a: 2, b: 3 } },
    ],
    { tools: ['kill'] },
  );
  await stage.worker();
  const turn = await stage.launch();
  expect(await end(stage, turn)).toMatchObject({ status: 'success', result: 'done' });
  expect(readFileSync(killed, 'utf8')).toBe('1');
  expect(readFileSync(path, 'utf8')).toBe('by an agent');
  const calls = await stage.callsOf(turn);
  expect(calls.map(({ name, status }) => [name, status])).toEqual([
    ['all.echo', 'success'],
    ['raw.work', 'success'],
    ['kill', 'success'],
    ['raw.work', 'success'],
    ['files.write_file', 'success'],
    ['files.read_text_file', 'success'],
    ['all.get-sum', 'success'],
  ]);
  expect(calls[0]?.content.result).toBe('Echo: one');
  expect(JSON.stringify(calls[5]?.content.result)).toContain('by an agent');
});

describe('the official servers, killed during a call', () => {
  const SLOW = 'all.trigger-long-running-operation';
  const READ = 'files.read_text_file';

  /** Makes the next call only when it was told that the outcome of the previous call is unknown. */
  const careful =
    ({ pipe, note }: { readonly pipe: string; readonly note: string }): ScriptedFunction =>
    (_request, { call, results }) => {
      const [slow] = results(SLOW);
      const [piped, text] = results(READ);
      const afterLoss = (lost: unknown, tool: string, args: JsonObject) =>
        JSON.stringify(lost).includes('outcome_unknown')
          ? { toolCalls: [call(tool, args)] }
          : { text: `not told: ${JSON.stringify(lost)}` };
      if (slow === undefined) return { toolCalls: [call(SLOW, { duration: 600, steps: 1 })] };
      if (results('all.echo').length === 0) return afterLoss(slow, 'all.echo', { message: 'still there' });
      if (piped === undefined) return { toolCalls: [call(READ, { path: pipe })] };
      if (results('files.write_file').length === 0)
        return afterLoss(piped, 'files.write_file', { path: note, content: 'by an agent' });
      if (text === undefined) return { toolCalls: [call(READ, { path: note })] };
      return { text: `read ${JSON.stringify(text)}` };
    };

  const killDuring = async (server: NotedServer, tool: string): Promise<void> => {
    await waitFor(() => server.notes().includes(`call ${tool}`), { message: `${tool} has begun` });
    for (const pid of server.pids().filter(isAlive)) process.kill(pid, 'SIGKILL');
  };
  /** The events of a server from its first call on. */
  const sinceCalls = (server: NotedServer): readonly string[] => {
    const notes = server.notes().map((line) => (line.startsWith('start ') ? 'start' : line));
    return notes.slice(notes.findIndex((line) => line.startsWith('call ')));
  };

  test('are started again: the agent gets an error, its next call works, and no call reaches a server twice', async () => {
    const folder = newFolder();
    const [pipe, note] = [join(folder, 'pipe'), join(folder, 'note.txt')];
    // Nothing writes to the pipe, so reading it does not end.
    execFileSync('mkfifo', [pipe]);
    const all = notedServer(everything());
    const files = notedServer(filesystem(folder));
    // The server declares the tool read-only; that is not the reason why a call may run again.
    await using stage = await openStage(
      { all: all.entry, files: { ...files.entry, retry_safe: ['read_text_file'] } },
      { careful: careful({ pipe, note }) },
    );
    await stage.agent([], { model: 'scripted:careful', script: undefined });
    await stage.worker();
    const turn = await stage.launch();
    await killDuring(all, 'trigger-long-running-operation');
    await killDuring(files, 'read_text_file');
    expect(await end(stage, turn)).toMatchObject({
      status: 'success',
      result: expect.stringContaining('by an agent'),
    });
    expect(readFileSync(note, 'utf8')).toBe('by an agent');
    const calls = await stage.callsOf(turn);
    expect(calls.map(({ name, content }) => [name, content.error?.code])).toEqual([
      [SLOW, 'outcome_unknown'],
      ['all.echo', undefined],
      [READ, 'outcome_unknown'],
      ['files.write_file', undefined],
      [READ, undefined],
    ]);
    expect(calls[0]?.content.error?.message).toBe(
      `The connection with the MCP server 'all' was lost while ${SLOW} ran. Check the effect before calling it again.`,
    );
    expect(sinceCalls(all)).toEqual(['call trigger-long-running-operation', 'start', 'call echo']);
    expect(sinceCalls(files)).toEqual([
      'call read_text_file',
      'start',
      'call write_file',
      'call read_text_file',
    ]);
  });
});

test('a server that cannot be reached does not stop the turn: its agent gets an error', async () => {
  await using stage = await openStage({ raw: rawServer('exits').entry, good: rawServer('plain').entry });
  await stage.agent([{ tool: 'raw.work' }, { tool: 'raw.unavailable' }, { tool: 'good.work' }]);
  await stage.worker();
  const turn = await stage.launch();
  expect(await end(stage, turn)).toMatchObject({ status: 'success' });
  const calls = await stage.callsOf(turn);
  expect(calls.map(({ name, content }) => [name, content.error?.code])).toEqual([
    ['raw.work', 'tool_unknown'],
    ['raw.unavailable', 'tool_server_unavailable'],
    ['good.work', undefined],
  ]);
});

test('a call that never ends is ended at its deadline, and its server is notified', async () => {
  const raw = rawServer('never');
  await using stage = await openStage({ raw: { ...raw.entry, timeout_ms: 500 } });
  await stage.agent([{ tool: 'raw.work' }]);
  await stage.worker();
  const turn = await stage.launch();
  expect(await end(stage, turn)).toMatchObject({ status: 'success' });
  expect((await stage.callsOf(turn))[0]).toMatchObject({
    status: 'timeout',
    content: { error: { code: 'tool_timeout' } },
  });
  await waitFor(() => raw.notes().includes('cancelled'), { message: 'the server knows' });
});

test('arguments that do not fit never reach the server', async () => {
  const raw = rawServer('plain');
  await using stage = await openStage({ raw: raw.entry });
  await stage.agent([{ tool: 'raw.work', arguments: { n: 'one' } }]);
  await stage.worker();
  const turn = await stage.launch();
  await end(stage, turn);
  expect((await stage.callsOf(turn))[0]?.content.error).toMatchObject({
    code: 'tool_arguments_invalid',
    message: expect.stringMatching(/^n: must be a whole number/),
  });
  expect(raw.notes().some((line) => line.startsWith('call'))).toBe(false);
});

describe('a worker that is killed during a call', () => {
  test.each([
    ['a tool that must not run twice', {}, {}, 'outcome_unknown', 1],
    ['a removed tool that must not run twice', {}, { tools: ['safe'] }, 'outcome_unknown', 1],
    ['a tool that may run again', { retry_safe: ['work'] }, {}, undefined, 2],
    ['a removed tool that may run again', { retry_safe: ['work'] }, { tools: ['safe'] }, 'tool_unknown', 1],
    [
      'a tool that may run again, whose server is away',
      { retry_safe: ['work'] },
      { command: '/no/such/command' },
      'tool_server_unavailable',
      1,
    ],
  ])(
    'is followed by a worker that continues with the same names: %s',
    async (_what, rest, later, code, calls) => {
      const raw = rawServer('gate');
      const gate = join(newFolder(), 'open');
      const entry = {
        ...raw.entry,
        args: [...raw.entry.args, gate],
        ...rest,
      };
      await using stage = await openStage({ raw: { ...entry, ...later } });
      await stage.agent([{ tool: 'raw.work', arguments: { n: 1 } }]);
      const program = new URL('./testing/worker-process.ts', import.meta.url);
      await using first = spawnNode(program, [stage.database.url, JSON.stringify({ raw: entry })]);
      await first.line(/^ready/, { deadlineMs: 60_000 });
      const turn = await stage.launch();
      await waitFor(() => raw.notes().includes('call work {"n":1}'), { message: 'the call has begun' });
      const children = raw.pids().filter(isAlive);
      expect(children).toHaveLength(1);
      await first.kill('SIGKILL');
      await waitFor(() => !children.some(isAlive), { message: 'its child has ended with it' });
      expect(existsSync(gate)).toBe(false);
      writeFileSync(gate, '');
      await stage.worker();
      expect(await end(stage, turn)).toMatchObject({ status: 'success' });
      const [call] = await stage.callsOf(turn);
      expect([call?.name, call?.content.error?.code]).toEqual(['raw.work', code]);
      expect(raw.notes().filter((line) => line.startsWith('call'))).toHaveLength(calls);
    },
  );
});

test('a server that does not end on request ends with a killed worker, together with its child processes', async () => {
  const raw = rawServer('stays');
  await using stage = await openStage({ raw: raw.entry });
  await stage.agent([{ tool: 'raw.work', arguments: { n: 1 } }]);
  const program = new URL('./testing/worker-process.ts', import.meta.url);
  await using worker = spawnNode(program, [stage.database.url, JSON.stringify({ raw: raw.entry })]);
  await worker.line(/^ready/, { deadlineMs: 60_000 });
  const turn = await stage.launch();
  expect(await end(stage, turn)).toMatchObject({ status: 'success' });
  await waitFor(() => raw.pids().filter(isAlive).length === 2, { message: 'both run' });
  await worker.kill('SIGKILL');
  await waitFor(() => !raw.pids().some(isAlive), { message: 'nothing of it is left' });
});
