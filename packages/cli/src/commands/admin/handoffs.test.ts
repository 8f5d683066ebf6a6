/** Handoffs on the command line: submitted, listed, shown, approved. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createWorker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-handoffs-'));
const fileOf = (name: string, text: string): string => {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
};

let database: TestDatabase;
let env: Env;
let stack: Awaited<ReturnType<typeof prepare>>;
let worker: Awaited<ReturnType<typeof createWorker>>;

beforeAll(async () => {
  database = await testDatabase();
  const policy = fileOf(
    'policy.yaml',
    [
      'rules:',
      '  - condition: { tool_name: handoff, context: { target_agent: helper } }',
      '    permission: ALWAYS',
      '  - condition: { tool_name: handoff, context: { target_agent: "external-*" } }',
      '    permission: NEVER',
    ].join('\n'),
  );
  env = { DATABASE_URL: database.url, BOXCAR_HANDOFF_ENABLED: 'true', BOXCAR_POLICY_FILE: policy };
  stack = await prepare(env);
  for (const name of ['helper', 'careful'])
    await stack.runtime.applyProfile({
      name,
      instructions: 'You help.',
      model: 'scripted',
      script: [{ say: `${name} has helped` }],
    });
  worker = await createWorker(stack.runtime, { sweepMs: 200 });
});
afterAll(async () => {
  await worker.close();
  await stack[Symbol.asyncDispose]();
});

const json = async (...args: string[]) => JSON.parse((await cliHere([...args, '--json'], env)).stdout);
const submit = (target_agent: string, rest: object = {}, ...flags: string[]) =>
  cliHere(
    [
      'submit',
      'handoff',
      '--json-args',
      JSON.stringify({ source_agent: 'cli', target_agent, task: 'help', ...rest }),
      ...flags,
    ],
    env,
  );

test('a handoff is submitted, listed and shown with what the policy said', async () => {
  const done = await submit('helper', { context: { a: 1 } }, '--wait');
  expect([done.code, done.stdout.includes('helper has helped')]).toEqual([0, true]);
  const list = await cliHere(['handoffs', 'ls', '--target', 'helper'], env);
  for (const part of ['completed', 'cli', 'helper', 'agdd', 'help']) expect(list.stdout).toContain(part);
  const [handoff] = (await json('handoffs', 'ls', '--platform', 'native')).handoffs;
  const shown = await cliHere(['handoffs', 'show', handoff.handoff_id.slice(0, 23)], env);
  for (const part of [
    `${handoff.handoff_id}  completed (completed)`,
    'policy: always by rules.0',
    'rules.1 never: not, by context.target_agent',
    'result: helper has helped',
    'handoff.requested  ',
    'handoff.completed  ',
  ])
    expect(shown.stdout).toContain(part);
  expect(await json('handoffs', 'show', handoff.handoff_id)).toMatchObject({
    handoff: { status: 'completed', context: { a: 1 } },
    events: [
      { event_type: 'handoff.requested', seq: 1 },
      { event_type: 'handoff.completed', seq: 2 },
    ],
  });
});

test('what a policy forbids is refused and recorded', async () => {
  const refused = await submit('external-bank');
  expect(refused.code).toBe(1);
  expect(refused.stderr).toContain('permission_denied: Handoff to external-bank not allowed by policy');
  expect((await json('handoffs', 'ls', '--status', 'rejected')).handoffs).toMatchObject([
    { target_agent: 'external-bank', decision: { level: 'never' } },
  ]);
});

test('what needs an approval waits for it, and goes on after it', async () => {
  const waiting = await submit('careful', { wait: false });
  expect(waiting.code).toBe(0);
  const [handoff] = (await json('handoffs', 'ls', '--status', 'pending')).handoffs;
  expect(handoff).toMatchObject({ phase: 'awaiting_approval', target_agent: 'careful' });
  expect((await cliHere(['handoffs', 'ls'], env)).stdout).toContain('pending (approval)');
  await cliHere(['approvals', 'approve', handoff.ticket_id], env);
  const { handoff: begun } = await json('handoffs', 'show', handoff.handoff_id);
  expect(begun.turn_id).toEqual(expect.any(String));
  await stack.runtime.waitForTurn(begun.turn_id, { timeoutMs: 60_000 });
  expect((await json('handoffs', 'show', handoff.handoff_id)).handoff).toMatchObject({
    status: 'completed',
    result: 'careful has helped',
  });
});

test('pages go on by a cursor, and what does not fit is refused by name', async () => {
  const first = await json('handoffs', 'ls', '--limit', '1');
  const second = await json('handoffs', 'ls', '--limit', '1', '--cursor', first.next_cursor);
  expect(second.handoffs[0].handoff_id).not.toBe(first.handoffs[0].handoff_id);
  for (const [args, code, text] of [
    [['show', 'ffffffff'], 1, 'not_found'],
    [['show', 'x'], 2, 'must be an id'],
    [['ls', '--status', 'open'], 2, 'Allowed choices'],
    [['ls', '--cursor', 'x'], 1, 'next_cursor'],
    [['ls', '--project', 'nowhere'], 1, 'not_found'],
  ] as const) {
    const done = await cliHere(['handoffs', ...args], env);
    expect([args, done.code, done.stdout]).toEqual([args, code, '']);
    expect(done.stderr).toContain(text);
  }
});

test('where it is off, submissions are refused; targets that cannot be read stop the program', async () => {
  const off = await cliHere(
    ['submit', 'handoff', '--json-args', '{"target_agent":"helper","task":"x","source_agent":"y"}'],
    {
      DATABASE_URL: database.url,
    },
  );
  expect([off.code, off.stderr.includes('feature_disabled: Handoff feature is disabled')]).toEqual([1, true]);
  for (const [path, text] of [
    [join(folder, 'none.yaml'), 'ENOENT'],
    [fileOf('wrong.yaml', 'writer: { platform: openai }\n'), 'writer.model'],
  ] as const) {
    const broken = await cliHere(['handoffs', 'ls'], { ...env, BOXCAR_TARGETS_FILE: path });
    expect(broken.code).not.toBe(0);
    expect(broken.stderr).toContain('bad_config');
    expect(broken.stderr).toContain(text);
  }
});
