/** Exit code 2: usage errors are reported without a database query. No server listens here, so a query would give exit code 1. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '@boxcar/embedded';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env } from '../testing/cli.js';

const NO_ID = '0198c1f2-0000-7000-8000-000000000001';
let env: Env;
const folder = mkdtempSync(join(tmpdir(), 'boxcar-usage-'));
const broken = join(folder, 'broken.json');

beforeAll(async () => {
  env = {
    DATABASE_URL: `postgres://boxcar@127.0.0.1:${await freePort()}/none`,
    BOXCAR_DATABASE_WAIT_SECONDS: '0',
  };
  writeFileSync(broken, '{');
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe.each<readonly [what: string, lines: readonly (readonly string[])[]]>([
  ['an unknown command', [['nothing'], ['tape', 'nothing'], ['profiles', 'aply']]],
  [
    'the help of an unknown command',
    [
      ['help', 'nothing'],
      ['help', 'runs', 'nothing'],
      ['help', '--json', 'runs', 'nothing'],
      ['runs', 'help', 'nothing'],
      ['nothing', '--help'],
      ['runs', 'nothing', '-h'],
    ],
  ],
  ['an unknown flag', [['submit', 'x', '--nothing'], ['--nothing'], ['health', '--nothing']]],
  [
    'something that is missing',
    [
      ['submit'],
      ['tree'],
      ['submit', 'x', '--arg'],
      ['profiles', 'apply'],
      ['tape', 'export', '--to', folder],
      ['erase'],
      ['box', 'create'],
      ['budget', 'raise', NO_ID],
      ['projects', 'set', 'default'],
      ['providers', 'set', 'openai'],
      ['prices', 'set', 'openai:gpt-4.1'],
      ['prices', 'set', 'openai:gpt-4.1', '--input', '2'],
      ['pack'],
    ],
  ],
  [
    'too much',
    [
      ['tree', NO_ID, NO_ID],
      ['health', 'x'],
      ['submit', 'x', '-', 'y'],
      ['submit', 'x', 'y'],
    ],
  ],
  [
    'a value that its flag refuses',
    [
      ['submit', 'x', '--arg', 'x'],
      ['submit', 'x', '--arg', '=x'],
      ['submit', 'x', '--arg', 'x:={'],
      ['submit', 'x', '--json-args', '{'],
      ['submit', 'x', '--json-args', '[]'],
      ['submit', 'x', '--priority', 'high'],
      ['submit', 'x', '--timeout', 'soon'],
      ['health', '--pid', 'x'],
      ['explain', NO_ID, '--step', '0'],
      ['purge', '--older-than', 'long', '--yes'],
      ['erase', 'no-id', '--yes'],
      ['erase', '--box', 'no-id', '--yes'],
      ['box', 'grant', NO_ID, 'writer', '--until', 'tomorrow'],
      ['tape', 'forks', 'notes', '--status', 'x'],
      ['tape', 'handoff', 'notes', 'x', '--state', '{'],
      ['tape', 'show', 'notes', '--since', 'x'],
      ['tape', 'search', 'notes', 'x', '--kinds', ','],
      ['tape', 'search', 'notes', ' '],
      ['tape', 'search', 'notes', 'x', '--limit', '1000'],
      ['projects', 'set', 'default', '--max-depth', 'deep'],
      ['projects', 'set', 'default', '--run-budget', '{'],
      ['turns', 'ls', '--status', 'nope'],
      ['runs', 'ls', '--status', 'failed,nope'],
      ['turns', 'ls', '--status', ''],
      ['turns', 'ls', '--status', 'failed,'],
      ['runs', 'ls', '--since', 'x'],
      ['agents', 'ls', '--text', ' '],
      ['agents', 'ls', '--since', '2026-02-30'],
      ['boxes', 'ls', '--since', '0000-01-01'],
      ['projects', 'ls', '--since', '300000-01-01'],
      ['box', 'grant', NO_ID, 'writer', '--until', '2030-02-30'],
      ['why', NO_ID, ''],
      ['why', NO_ID, ' '],
    ],
  ],
  [
    'an id that cannot be one',
    [
      ['show', 'xyz'],
      ['show', '0198c1f'],
      ['show', `${NO_ID}0`],
      ['tree', 'xyz'],
      ['explain', 'xyz'],
      ['why', 'xyz', 'a text'],
      ['why-stuck', 'xyz', '--json'],
      ['cancel', 'xyz'],
      ['box', 'show', 'xyz'],
      ['box', 'grant', 'xyz', 'writer'],
      ['budget', 'show', 'xyz'],
      ['budget', 'raise', 'xyz', '--tokens', '1'],
    ],
  ],
  [
    'flags that contradict each other',
    [
      ['submit', 'x', '--json-args', '{}', '--file', broken],
      ['submit', 'x', '--workspace', folder],
      ['submit', 'x', '--profile', 'writer'],
      ['submit', 'ask_expert', '--session', 'main'],
      ['submit', 'delegate_async', '--session', 'main', '--arg', 'target_ref=writer'],
      ['tape', 'show', 'notes', '--workspace', folder],
      ['tape', 'show', 'notes', '--to', 'x'],
      ['tape', 'show', 'notes', '--all', '--from', 'x'],
      ['tape', 'show', 'notes', '--messages', '--kinds', 'message'],
      ['tape', 'fork', 'notes', '--from-anchor', 'x'],
      ['tape', 'export', 'notes', '--workspace', folder, '--to', folder],
      ['profiles', 'show', 'writer', '--yaml', '--json'],
      ['profiles', 'diff', 'writer@1', 'writer@2', '--file', broken],
      ['prices', 'set', 'openai:gpt-4.1', '--free', '--none'],
      ['box', 'create', '--file', '-', '--cards', '-'],
      ['pack', '--handover', '-', '--file', '-'],
      ['pack', '--profile', 'writer', '--arg', 'other=x'],
      ['pack', '--profile', 'writer', '--messages'],
    ],
  ],
])('%s', (_what, lines) => {
  it.each(lines.map((words) => [words.join(' ').replaceAll(folder, 'FOLDER'), words] as const))(
    'boxcar %s is refused as wrong usage',
    async (_title, words) => {
      const { code, stdout, stderr } = await cliHere(words, env);
      expect({ code, stdout }, stderr).toEqual({ code: 2, stdout: '' });
      expect(stderr).toMatch(
        words.includes('--json') ? /^\{"error":\{"code":"bad_request"/ : /^boxcar: bad_request: /,
      );
    },
  );
});

it.each([
  ['a file that does not exist', ['submit', 'x', '--file', join(folder, 'none.json')], 'bad_request'],
  ['a file without valid JSON', ['submit', 'x', '--file', broken], 'bad_request'],
  ['a server that is away', ['show', NO_ID], 'database_unavailable'],
  ['a prefix of an id', ['show', NO_ID.slice(0, 13).toUpperCase()], 'database_unavailable'],
  ['a list of statuses', ['turns', 'ls', '--status', 'failed, running'], 'database_unavailable'],
])('%s is an error, not wrong usage', async (_what, words, code) => {
  expect(await cliHere(words, env)).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(new RegExp(`^boxcar: ${code}: `)),
  });
});
