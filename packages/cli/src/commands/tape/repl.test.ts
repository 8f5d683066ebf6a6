import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { PassThrough, Readable } from 'node:stream';
import { parseConfig } from '@boxcar/host/config';
import type { Stack } from '@boxcar/host/open';
import { createWorker, type Tape } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { createContext } from '../../context.js';
import { type CliResult, cliHere, type Env, prepare } from '../../testing/cli.js';
import { findTape } from './find-tape.js';
import { runRepl } from './repl.js';
import type { ReplInput } from './repl-lines.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;
let notes: Tape;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  await stack.runtime.submit('provision_agent', {
    action: 'create',
    profile_name: 'writer',
    agent_id: 'writer-1',
  });
  notes = await stack.runtime.tape('notes');
  await notes.handoff('phase-1', { state: { summary: 'Wheels are off.' } });
});

afterAll(() => stack.close());

const boxcar = (...args: string[]) => cliHere(['tape', ...args], env);
const json = async (...args: string[]) => JSON.parse((await boxcar(...args, '--json')).stdout);

/** Runs a command line with the given standard input. */
async function fed(input: string, ...args: string[]): Promise<CliResult> {
  const stdin = Object.assign(Readable.from([input]), { isTTY: false, fd: 0 as const });
  const spy = vi.spyOn(process, 'stdin', 'get').mockReturnValue(stdin as unknown as typeof process.stdin);
  try {
    return await cliHere(args, env);
  } finally {
    spy.mockRestore();
  }
}

interface Said {
  stdout: string;
  stderr: string;
  /** Both outputs, in their order. */
  all: string;
}

/** Runs a repl on a tape in this process. */
async function replOn(ref: string, use: (said: Said) => ReplInput, isJson = false) {
  const said: Said = { stdout: '', stderr: '', all: '' };
  const spies = (['stdout', 'stderr'] as const).map((name) =>
    vi.spyOn(process[name], 'write').mockImplementation((part) => {
      said[name] += String(part);
      said.all += String(part);
      return true;
    }),
  );
  try {
    const context = createContext({ config: parseConfig(env), isJson, stop: new AbortController().signal });
    const found = await findTape(stack.runtime, ref, { project: 'default' });
    const code = await runRepl(context, stack.runtime, { found, input: use(said) });
    return { code, ...said };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

/** Feeds lines to a repl. */
const repl = (ref: string, text: string, isJson = false) => replOn(ref, () => Readable.from([text]), isJson);

/** Types at the terminal of a repl. Each text is typed as soon as the expected output has appeared after the previous text. */
const typeInto = (ref: string, ...steps: readonly (readonly [expected: RegExp, keys: string])[]) =>
  replOn(ref, (said) => {
    const input = Object.assign(new PassThrough(), { isTTY: true });
    const type = async (): Promise<void> => {
      let from = 0;
      for (const [expected, keys] of steps) {
        await waitFor(() => expected.test(said.all.slice(from)), { message: `${expected} is shown` });
        from = said.all.length;
        input.write(keys);
      }
    };
    void type().finally(() => input.end());
    return input;
  });

describe('boxcar submit with a comma command', () => {
  const submit = (instruction: string, ...args: string[]) =>
    cliHere(
      [
        ...['submit', 'delegate_async', '--arg', 'target_strategy=reuse', '--arg', 'target_ref=writer-1'],
        ...['--arg', `instruction=${instruction}`, ...args],
      ],
      env,
    );

  it('prints the answer of the command at once, also with --wait, and the same answer again with the same key', async () => {
    for (const args of [[], ['--wait']])
      expect(await submit(',anchors limit=1', ...args)).toEqual({
        code: 0,
        stdout: '→ session/start\n',
        stderr: '',
      });
    const { stdout } = await submit(',handoff name=start summary="Setup done"', '--key', 'one', '--json');
    expect(JSON.parse(stdout)).toMatchObject({ command: 'handoff', output: 'anchor added: start' });
    expect(await submit(',handoff name=start summary="Setup done"', '--key', 'one')).toMatchObject({
      stdout: 'anchor added: start\n',
      stderr: expect.stringContaining('nothing was done again'),
    });
    expect((await json('info', 'writer-1')).anchors).toBe(2);
  });

  it('refuses an invalid command with the list of commands, and does nothing', async () => {
    expect(await submit(',handoff name="open')).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringMatching(
        /^boxcar: bad_request: Command: a quote is not closed. Usage: ,handoff .* Commands: ,handoff/,
      ),
    });
    expect((await json('info', 'writer-1')).anchors).toBe(2);
  });
});

describe('boxcar tape repl', () => {
  it('runs commands, also over several lines, and leaves at ,quit', async () => {
    const { code, stdout, stderr } = await repl(
      'writer-1',
      ',handoff name=debug-complete \n       summary="Found it,\nline 45"\n,anchors\n,help\n,quit\n,handoff name=never\n',
    );
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain(
      'anchor added: debug-complete\n→ session/start\n→ start\n→ debug-complete\n,handoff',
    );
    const tape = await stack.runtime.tape({ agent: 'writer-1' });
    expect((await tape.anchors()).at(-1)).toMatchObject({ state: { summary: 'Found it,\nline 45' } });
  });

  it('refuses an invalid line with the list of commands, and continues with the next line', async () => {
    const before = (await notes.info()).entries;
    const { code, stdout, stderr } = await repl(
      'notes',
      ',ls -la\n,anchors limit=x\n,tape.info\n,handoff "a',
    );
    expect(code).toBe(1);
    expect(stderr.match(/^boxcar: bad_request: /gm)).toHaveLength(3);
    expect(stderr).toContain("There is no command ',ls'. Commands: ,handoff, ");
    expect(stderr).toContain('a quote is not closed');
    expect(stdout).toContain('last_anchor: phase-1');
    expect((await notes.info()).entries).toBe(before);
  });

  it('with --json prints one object per line', async () => {
    const { stdout, stderr } = await repl('notes', ',anchors limit=1\n,nothing\n', true);
    expect(JSON.parse(stdout)).toMatchObject({
      command: 'anchors',
      output: '→ phase-1',
      result: [{ name: 'phase-1' }],
    });
    expect(JSON.parse(stderr).error.details.commands).toContain(',anchors');
  });

  it('appends other lines to a tape without an agent, and gives them to the agent of a tape that has one', async () => {
    const tape = await stack.runtime.tape('diary');
    expect((await repl('diary', 'Dear diary\n\n')).stdout).toBe('appended at 3\n');
    expect(await tape.fromLastAnchor({ kinds: ['message'] })).toMatchObject([
      { payload: { role: 'user', content: 'Dear diary' } },
    ]);
    const worker = await createWorker(stack.runtime);
    try {
      const { stdout, code } = await repl('writer-1', 'there\n');
      expect({ stdout, code }).toEqual({ stdout: expect.stringContaining('there'), code: 0 });
    } finally {
      await worker.close();
    }
  });
});

describe('boxcar tape repl at a terminal', () => {
  const CTRL_C = '\u0003';

  it('reads lines until Ctrl-C at an empty prompt, and never runs a line that was dropped before', async () => {
    const before = (await notes.info()).entries;
    const { code, stdout, stderr } = await typeInto(
      'notes',
      [/,quit leaves.*> /s, ',anchors limit=1\r'],
      [/→ phase-1.*> /s, ',handoff "open\r'],
      [/… /, 'still\r'],
      [/… /, CTRL_C],
      [/\^C\n.*> /s, 'half a line'],
      [/half a line/, CTRL_C],
      [/\^C\n.*> /s, ',nothing\r'],
      [/no command.*> /s, CTRL_C],
    );
    expect({ code, stdout }).toEqual({ code: 0, stdout: '→ phase-1\n' });
    expect(stderr).not.toContain('a quote is not closed');
    expect(stderr).toMatch(/\n$/);
    expect((await notes.info()).entries).toBe(before);
  });

  it('stops waiting for an answer at Ctrl-C, says how to see the answer, and continues to read', async () => {
    await stack.runtime.submit('provision_agent', {
      action: 'create',
      profile_name: 'writer',
      agent_id: 'patient',
    });
    const { code, stdout, stderr } = await typeInto(
      'patient',
      [/> /, 'Write.\r'],
      [/no worker is running/, CTRL_C],
      [/> /, ',tape.reset\r'],
      [/tape_busy.*> /s, ',quit\r'],
    );
    expect({ code, stdout }).toEqual({ code: 0, stdout: '' });
    const turnId = /turn continues: boxcar show ([0-9a-f-]{36})/.exec(stderr)?.[1] ?? 'none';
    expect(stderr).toContain(`tape_busy: Turn ${turnId} of`);
    await stack.runtime.submit('cancel', { turn_id: turnId });
  });
});

describe('boxcar tape resume', () => {
  const resume = (lines: string, ...args: string[]) => fed(lines, 'tape', 'resume', 'notes', ...args);

  it('prints the name and state of the last anchor, and continues from there as a repl', async () => {
    expect(await resume(',handoff name=phase-2\n,quit\n')).toEqual({
      code: 0,
      stdout: 'Resuming from: phase-1\nState: {"summary":"Wheels are off."}\nanchor added: phase-2\n',
      stderr: '',
    });
    const { stdout } = await resume('', '--json');
    expect(JSON.parse(stdout)).toMatchObject({ name: 'phase-2', state: null });
    expect((await resume('')).stdout).toBe('Resuming from: phase-2\nState: none\n');
  });
});

it('the example of docs/how-to/tapes.md prints the output on the page', async () => {
  const page = readFileSync(new URL('../../../../../docs/how-to/tapes.md', import.meta.url), 'utf8');
  const shown = /```console\n([\s\S]*?)```/.exec(page)?.[1] ?? '';
  const said: string[] = [];
  for (const line of shown.split('\n').filter((each) => each.startsWith('$ '))) {
    // A shell splits the line, and prints the words that its command would receive.
    const words = execFileSync(
      'bash',
      ['--norc', '-c', `npx() { cat; printf '\\0%s' "$@"; }; ${line.slice(2)}`],
      { encoding: 'utf8', input: '' },
    );
    const [input = '', , ...args] = words.split('\0');
    const { stdout, stderr } = await fed(input, ...args);
    said.push(line, `${stdout}${stderr}`.trimEnd());
  }
  expect(said.length).toBeGreaterThan(4);
  expect(`${said.filter((text) => text !== '').join('\n')}\n`).toBe(shown);
});
