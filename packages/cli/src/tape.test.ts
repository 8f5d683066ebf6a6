import { PassThrough, Readable } from 'node:stream';
import { createWorker, type Tape } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { parseConfig } from './config.js';
import { createContext } from './context.js';
import type { Stack } from './stack.js';
import { findTape } from './tape/find-tape.js';
import { runRepl } from './tape/repl.js';
import type { ReplInput } from './tape/repl-lines.js';
import { cliHere, type Env, prepare } from './testing/cli.js';

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
  await notes.append([{ kind: 'message', content: 'The \u0007pantograph is bent.' }]);
  await notes.handoff('phase-1', { state: { summary: 'Wheels are off.' } });
  await notes.append([{ kind: 'message', content: 'Paint is dry.', role: 'assistant' }]);
});

afterAll(() => stack.close());

const boxcar = (...args: string[]) => cliHere(['tape', ...args], env);
const json = async (...args: string[]) => JSON.parse((await boxcar(...args, '--json')).stdout);
const positions = async (...args: string[]): Promise<number[]> =>
  (await json('show', 'notes', ...args)).entries.map((entry: { position: number }) => entry.position);

interface Said {
  stdout: string;
  stderr: string;
  /** Both, as they came. */
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

/** Types at the terminal of a repl: each text as soon as what is expected has been shown behind the one before. */
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

describe('boxcar tape', () => {
  it('ls lists the tapes with their agents, anchors and lengths, archived ones only when asked', async () => {
    const { tapes } = await json('ls');
    expect(tapes).toMatchObject([
      { name: 'notes', agent: null, entries: 6, anchors: 2, last_anchor: 'phase-1' },
      { name: null, agent: 'writer-1', entries: 2 },
    ]);
    await stack.runtime.tape('old').then((tape) => tape.reset());
    expect((await json('ls')).tapes).toHaveLength(3);
    expect((await json('ls', '--all')).tapes).toHaveLength(4);
    expect((await boxcar('ls')).stdout).toMatch(/writer-1 +agent/);
    const { stdout, stderr } = await boxcar('ls', '--all', '--limit', '3');
    expect(stdout).toMatch(/old #1 +archived/);
    expect(stderr).toContain('--limit shows more');
  });

  it('show prints what follows the last anchor, or the part that was asked for', async () => {
    expect(await positions()).toEqual([5, 6]);
    expect(await positions('--all')).toEqual([1, 2, 3, 4, 5, 6]);
    expect(await positions('--from', 'session/start', '--to', 'phase-1')).toEqual([2, 3]);
    expect(await positions('--all', '--kinds', 'message,anchor', '--limit', '3')).toEqual([1, 3, 4]);
    expect(await positions('--all', '--text', 'PAINT')).toEqual([6]);
    expect(await positions('--all', '--until', '2001-01-01')).toEqual([]);
    const { stdout } = await boxcar('show', 'notes', '--all');
    expect(stdout).toContain('user: The pantograph is bent.');
    expect(stdout).toMatch(/anchor +\d{4}-\d\d-\d\d \d\d:\d\d +phase-1/);
    for (const line of stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  });

  it('show --messages prints what a model would get', async () => {
    const { messages } = await json('show', 'notes', '--messages');
    expect(messages.at(-1)).toEqual({ role: 'assistant', content: 'Paint is dry.' });
    expect(messages[0].content).toContain('Wheels are off.');
  });

  it('info and search say what is on it', async () => {
    expect(await json('info', 'notes')).toMatchObject({ entries: 6, last_anchor: 'phase-1' });
    expect((await boxcar('info', 'writer-1')).stdout).toContain('→ session/start');
    expect((await json('search', 'notes', 'pantograf')).matches).toMatchObject([
      { position: 3, match: 'near' },
    ]);
    expect(await boxcar('search', 'notes', 'submarine')).toMatchObject({
      code: 3,
      stdout: 'no entry has these words\n',
    });
  });

  it('handoff writes an anchor once under a key, and only behind the head it was told', async () => {
    const write = (...args: string[]) => boxcar('handoff', 'drafts', 'a', '--create', ...args);
    expect(await write('--summary', 's', '--state', '{"goal":1}', '--key', 'k')).toMatchObject({
      code: 0,
      stdout: 'anchor added: a\n',
    });
    expect((await write('--key', 'k')).stderr).toContain('nothing was appended again');
    const drafts = await stack.runtime.tape('drafts', { create: false });
    expect(await drafts.anchors()).toMatchObject([{}, { name: 'a', state: { goal: 1, summary: 's' } }]);
    expect(await write('--expect-head', '3')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('tape_conflict'),
    });
  });

  it('reset asks, and begins anew with the old tape still there', async () => {
    const tape = await stack.runtime.tape('worn');
    expect(await boxcar('reset', 'worn')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('--yes'),
    });
    const { archived, box_id } = await json('reset', 'worn', '--archive', '--yes');
    expect(archived).toContain(tape.boxId);
    expect((await json('info', 'worn')).box_id).toBe(box_id);
    expect((await json('info', tape.boxId)).incarnation).toBe(1);
  });

  it.each([
    ['n\n', 3, 1],
    ['', 3, 1],
    ['y\n', 0, 2],
  ])('reset, asked at a terminal and answered %j, exits %i', async (typed, exit, incarnation) => {
    await stack.runtime.tape(`asked-${incarnation}`);
    const input = Object.assign(new PassThrough(), { isTTY: true });
    input.end(typed);
    const spy = vi.spyOn(process, 'stdin', 'get').mockReturnValue(input as unknown as typeof process.stdin);
    try {
      expect((await boxcar('reset', `asked-${incarnation}`)).code).toBe(exit);
    } finally {
      spy.mockRestore();
    }
    expect((await json('info', `asked-${incarnation}`)).incarnation).toBe(incarnation);
  });

  it('finds a tape whose name reads as an id, behind boxes and agents', async () => {
    const name = '0198c1f2-0000-7000-8000-00000000000a';
    expect((await boxcar('handoff', name, 'first')).code).toBe(1);
    expect((await boxcar('handoff', name, 'first', '--create')).code).toBe(0);
    expect(await json('info', name)).toMatchObject({ name, last_anchor: 'first' });
  });

  it.each([
    [['show', 'nothing'], 'not_found', "No tape and no agent 'nothing'"],
    [['show', '0198c1f2-0000-7000-8000-000000000001'], 'not_found', 'No tape and no agent'],
    [['show', 'notes', '--from', 'phase-9'], 'not_found', "Anchor 'phase-9' was not found."],
    [['show', 'notes', '--to', 'phase-1'], 'bad_request', '--from'],
    [['show', 'notes', '--all', '--from', 'x'], 'bad_request', '--all'],
    [['show', 'notes', '--kinds', 'thought'], 'bad_request', 'kinds'],
    [['show', 'notes', '--since', '2026-02-30'], 'bad_request', 'Invalid ISO date or datetime'],
    [['show', 'notes', '--since', '2026-02-02', '--until', '2026-02-01'], 'bad_request', 'Start date must'],
    [['handoff', 'notes', ''], 'bad_request', 'name'],
    [['handoff', 'notes', 'x', '--state', '[1]'], 'bad_request', '--state'],
    [['handoff', 'notes', 'x', '--state', '{'], 'bad_request', '--state'],
    [['show', 'notes', '--messages', '--limit', '5'], 'bad_request', '--limit: does not go with --messages'],
    [
      ['show', 'notes', '--from', 'phase-1', '--to', 'phase-9'],
      'not_found',
      "Anchor 'phase-9' was not found.",
    ],
    [['search', 'notes', 'x', '--since', '2026-02-02', '--until', '2026-02-01'], 'bad_request', 'Start date'],
    [['handoff', 'notes', 'x', '--key', ''], 'bad_request', 'dedupKey'],
    [['handoff', 'notes', 'x', '--key', 'k'.repeat(501)], 'bad_request', 'dedupKey'],
    [['reset', 'nothing', '--yes'], 'not_found', "No tape and no agent 'nothing'"],
    [['info', 'notes', '--project', 'other'], 'not_found', "No project 'other'"],
    [['info', 'nothing', '--project', 'other'], 'not_found', "No project 'other'"],
    [['ls', '--project', 'other'], 'not_found', "No project 'other'"],
    [['export', 'notes', '--to', '/nowhere', '--as', 'nobody'], 'not_found', "No agent 'nobody'"],
    [['import', '/nowhere', 'x'], 'bad_request', '/nowhere'],
  ])('%j is refused with a code, and the tape stays as it was', async (args, code, message) => {
    const before = (await notes.info()).entries;
    const { code: exit, stderr } = await boxcar(...args, '--json');
    expect(exit).toBe(1);
    expect(JSON.parse(stderr).error).toMatchObject({ code, message: expect.stringContaining(message) });
    expect((await notes.info()).entries).toBe(before);
  });
});

it.each([
  ['show', 'notes', '--limit', '-1'],
  ['show', 'notes', '--limit', '0'],
  ['search', 'notes', 'x', '--limit', '-1'],
  ['ls', '--limit', 'many'],
  ['handoff', 'notes', 'x', '--expect-head', '-1'],
  ['handoff', 'notes'],
  ['search', 'notes'],
  ['merge', 'notes'],
  ['export', 'notes'],
  ['show', 'notes', 'too', 'many'],
])('boxcar tape %s %s %s %s is no command line', async (...args) => {
  const { code, stdout, stderr } = await boxcar(...args);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/^boxcar: bad_request: .*see boxcar tape \w+ --help\n$/);
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

  it('prints what the command says, at once, with --wait too, and the same again under its key', async () => {
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

  it('says what is wrong with one, with the list of all, and does nothing', async () => {
    expect(await submit(',handoff name="open')).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringMatching(
        /^boxcar: bad_request: Command: a quote is not closed. Commands: ,handoff/,
      ),
    });
    expect((await json('info', 'writer-1')).anchors).toBe(2);
  });
});

describe('boxcar tape repl', () => {
  it('runs commands, over several lines too, and leaves at ,quit', async () => {
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

  it('says what is wrong with a line, with the commands there are, and goes on with the next', async () => {
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

  it('with --json prints one object a line', async () => {
    const { stdout, stderr } = await repl('notes', ',anchors limit=1\n,nothing\n', true);
    expect(JSON.parse(stdout)).toMatchObject({
      command: 'anchors',
      output: '→ phase-1',
      result: [{ name: 'phase-1' }],
    });
    expect(JSON.parse(stderr).error.details.commands).toContain(',anchors');
  });

  it('appends other lines to a tape without agent, and gives them to the agent of one', async () => {
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

  it('reads lines until Ctrl-C behind an empty prompt, and what it drops before is never run', async () => {
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

  it('stops waiting for an answer at Ctrl-C, says how to see it, and reads on', async () => {
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
    expect(stderr).toMatch(/no longer waiting; the turn goes on: boxcar show [0-9a-f-]{36}/);
    await stack.runtime.submit('cancel', { turn_id: /turn ([0-9a-f-]{36})/.exec(stderr)?.[1] ?? '' });
  });
});

describe('boxcar tape resume', () => {
  const resume = async (lines: string, ...args: string[]) => {
    const input = Object.assign(Readable.from([lines]), { isTTY: false, fd: 0 as const });
    const spy = vi.spyOn(process, 'stdin', 'get').mockReturnValue(input as unknown as typeof process.stdin);
    try {
      return await boxcar('resume', 'notes', ...args);
    } finally {
      spy.mockRestore();
    }
  };

  it('prints the name and state of the last anchor, and goes on from it as a repl', async () => {
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
