import { PassThrough } from 'node:stream';
import type { Stack } from '@boxcar/host/open';
import type { Tape } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

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

describe('boxcar tape', () => {
  it('ls lists the tapes with their agents, anchors and lengths, and archived tapes only on request', async () => {
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

  it('show prints the entries after the last anchor, or the requested part', async () => {
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

  it('show --messages prints chat messages, the state of the last anchor first', async () => {
    const { messages } = await json('show', 'notes', '--messages');
    expect(messages.at(-1)).toEqual({ role: 'assistant', content: 'Paint is dry.' });
    expect(messages[0].content).toContain('Wheels are off.');
  });

  it('info and search describe the content of the tape', async () => {
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

  it('show and search print at most 1 MiB, or one entry, and say that there is more', async () => {
    const large = await stack.runtime.tape('large');
    for (let n = 0; n < 6; n += 1)
      await large.append([{ kind: 'message', content: `needle ${n} ${'x'.repeat(400_000)}` }]);
    await large.append([{ kind: 'message', content: 'y'.repeat(1_048_000) }]);
    const pages: unknown[] = [];
    for (let after: number | undefined = 0; after !== undefined; ) {
      const page: { entries: { position: number }[]; next?: number } = await json(
        'show',
        'large',
        '--all',
        '--after',
        String(after),
      );
      pages.push(page.entries.map(({ position }) => position));
      after = page.next;
    }
    expect(pages).toEqual([[1, 2, 3, 4], [5, 6], [7, 8], [9]]);
    const { stdout, stderr } = await boxcar('show', 'large', '--all', '--limit', '2');
    expect(stdout).toMatch(/session\/start/);
    expect(stderr).toContain('shown: 2; --limit shows more, --after 2 shows what follows');
    expect((await boxcar('show', 'large', '--all')).stderr).toContain('shown: 4; --after 4 shows');
    expect(await json('search', 'large', 'needle')).toMatchObject({
      matches: [{ position: 8 }, { position: 7 }],
      has_more: true,
    });
    expect((await boxcar('search', 'large', 'needle')).stderr).toContain('there are more');
  });

  it('handoff writes an anchor once with a key, and only at the given head', async () => {
    const write = (...args: string[]) => boxcar('handoff', 'drafts', 'a', '--create', ...args);
    const said = ['--summary', 's', '--state', '{"goal":1}', '--key', 'k'];
    expect(await write(...said)).toMatchObject({ code: 0, stdout: 'anchor added: a\n' });
    expect((await write(...said)).stderr).toContain('nothing was appended again');
    expect((await write('--key', 'k')).stderr).toContain('idempotency_conflict');
    const drafts = await stack.runtime.tape('drafts', { create: false });
    expect(await drafts.anchors()).toMatchObject([{}, { name: 'a', state: { goal: 1, summary: 's' } }]);
    expect(await write('--expect-head', '3')).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('tape_conflict'),
    });
  });

  it('handoff with an empty summary is a handoff without a summary', async () => {
    await boxcar('handoff', 'empty', 'a', '--create', '--summary', '', '--next-steps', '');
    await boxcar('handoff', 'empty', 'b', '--summary', '', '--next-steps', 'go on');
    const empty = await stack.runtime.tape('empty', { create: false });
    expect((await empty.anchors()).slice(1)).toMatchObject([
      { name: 'a', state: null },
      { name: 'b', state: { next_steps: 'go on' } },
    ]);
    expect(JSON.stringify(await empty.anchors())).not.toContain('summary');
  });

  it('reset asks for confirmation, and begins a new tape while the old tape stays', async () => {
    const tape = await stack.runtime.tape('worn');
    expect(await boxcar('reset', 'worn')).toMatchObject({
      code: 2,
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
  ])('reset, confirmed at a terminal with %j, exits with %i', async (typed, exit, incarnation) => {
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

  it('a tape is found by a name that looks like an id, after boxes and agents', async () => {
    const name = '0198c1f2-0000-7000-8000-00000000000a';
    expect((await boxcar('handoff', name, 'first')).code).toBe(1);
    expect((await boxcar('handoff', name, 'first', '--create')).code).toBe(0);
    expect(await json('info', name)).toMatchObject({ name, last_anchor: 'first' });
  });

  it.each([
    [['show', 'nothing'], 'not_found', "No tape and no agent 'nothing'"],
    [['show', '0198c1f2-0000-7000-8000-000000000001'], 'not_found', 'No tape and no agent'],
    [['show', 'notes', '--from', 'phase-9'], 'not_found', "Anchor 'phase-9' was not found."],
    [['show', 'notes', '--to', 'phase-1'], 'usage', '--from'],
    [['show', 'notes', '--all', '--from', 'x'], 'usage', '--all'],
    [['show', 'notes', '--kinds', 'k'.repeat(201)], 'usage', 'kinds'],
    [['show', 'notes', '--since', '2026-02-30'], 'usage', 'Invalid ISO date or datetime'],
    [['show', 'notes', '--since', '2026-02-02', '--until', '2026-02-01'], 'usage', 'Start date must'],
    [['handoff', 'notes', ''], 'usage', 'name'],
    [['handoff', 'notes', 'x', '--state', '[1]'], 'usage', '--state'],
    [['handoff', 'notes', 'x', '--state', '{'], 'usage', '--state'],
    [['show', 'notes', '--messages', '--limit', '5'], 'usage', '--limit: does not go with --messages'],
    [
      ['show', 'notes', '--from', 'phase-1', '--to', 'phase-9'],
      'not_found',
      "Anchor 'phase-9' was not found.",
    ],
    [['search', 'notes', 'x', '--since', '2026-02-02', '--until', '2026-02-01'], 'usage', 'Start date'],
    [['search', 'notes', ' '], 'usage', "'query'. It must not be blank"],
    [['search', 'notes', 'x', '--limit', '501'], 'usage', '--limit: must be at most 500'],
    [['handoff', 'notes', 'x', '--key', ''], 'usage', '--key'],
    [['handoff', 'notes', 'x', '--key', 'k'.repeat(501)], 'bad_request', 'dedupKey'],
    [['reset', 'nothing', '--yes'], 'not_found', "No tape and no agent 'nothing'"],
    [['info', 'notes', '--project', 'other'], 'not_found', "No project 'other'"],
    [['info', 'nothing', '--project', 'other'], 'not_found', "No project 'other'"],
    [['ls', '--project', 'other'], 'not_found', "No project 'other'"],
    [['export', 'notes', '--to', '/nowhere', '--as', 'nobody'], 'not_found', "No agent 'nobody'"],
    [['import', '/nowhere', 'x'], 'bad_request', '/nowhere'],
  ])('%j is refused with a code, and the tape stays unchanged', async (args, code, message) => {
    const before = (await notes.info()).entries;
    const { code: exit, stderr } = await boxcar(...args, '--json');
    expect(exit).toBe(code === 'usage' ? 2 : 1);
    expect(JSON.parse(stderr).error).toMatchObject({
      code: code === 'usage' ? 'bad_request' : code,
      message: expect.stringContaining(message),
    });
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
])('boxcar tape %s %s %s %s is not a valid command line', async (...args) => {
  const { code, stdout, stderr } = await boxcar(...args);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/^boxcar: bad_request: .*see boxcar tape \w+ --help\n$/);
});
