/** Handoffs on the command line: requested by one process, served by a worker, listed and shown by another process. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ApprovalGate, createWorker, HandoffTool } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - condition: { tool_name: handoff, context: { target_agent: "external-*" } }
    permission: NEVER
  - condition: { tool_name: handoff, context: { target_agent: boss } }
    permission: REQUIRE_APPROVAL
`;

const folder = mkdtempSync(join(tmpdir(), 'boxcar-handoffs-'));
let database: TestDatabase;
let env: Env;
let stack: Awaited<ReturnType<typeof prepare>>;
let worker: Awaited<ReturnType<typeof createWorker>>;
let tool: HandoffTool;

beforeAll(async () => {
  const policy = join(folder, 'policy.yaml');
  writeFileSync(policy, POLICY);
  database = await testDatabase();
  env = { DATABASE_URL: database.url, BOXCAR_HANDOFF_ENABLED: 'true', BOXCAR_POLICY_FILE: policy };
  stack = await prepare(env);
  worker = await createWorker(stack.runtime, { sweepMs: 200 });
  tool = new HandoffTool({ runtime: stack.runtime });
});
afterAll(async () => {
  await worker.close();
  await stack[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

const json = async (...args: string[]) => JSON.parse((await cliHere([...args, '--json'], env)).stdout);
const askFor = (target: string, more: readonly string[] = []): string[] => [
  ...['submit', 'handoff', '--arg', 'source_agent=main', '--arg', `target_agent=${target}`],
  ...['--arg', 'task=world', ...more],
];

test('a handoff is accepted, and with --wait its result is printed', async () => {
  const { handoff_id, status, turn_id } = await json(...askFor('writer'));
  expect({ status, turn_id }).toEqual({ status: 'pending', turn_id: expect.any(String) });
  expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 30_000 })).toMatchObject({
    result: 'Hello world',
  });
  const waited = await cliHere(askFor('writer', ['--wait', '--arg', 'run_id=run-7']), env);
  expect(waited.code).toBe(0);
  expect(waited.stdout).toMatch(/^status {6}completed\nhandoff_id {2}\S+\n\nHello world\n$/);
  const failed = await cliHere(askFor('failure', ['--wait', '--json']), env);
  expect(failed.code).toBe(3);
  expect(JSON.parse(failed.stdout)).toMatchObject({ status: 'failed', error: { code: 'model_failed' } });
});

test('a handoff that the policy forbids is refused with the policy’s reason, and leaves a row', async () => {
  const refused = await cliHere(askFor('external-billing', ['--wait']), env);
  expect(refused).toMatchObject({ code: 1, stdout: '' });
  expect(refused.stderr).toBe(
    'boxcar: permission_denied: Handoff to external-billing not allowed by policy\n',
  );
  const { handoffs } = await json('handoffs', 'ls', '--status', 'rejected');
  expect(handoffs).toMatchObject([{ target_agent: 'external-billing', decision: { rule_id: 'rules.0' } }]);
  const shown = await cliHere(['handoffs', 'show', handoffs[0].handoff_id], env);
  const lines = shown.stdout.split('\n').map((line) => line.trim().replace(/ +/g, ' '));
  expect(lines).toEqual(
    expect.arrayContaining([
      'status rejected',
      'to external-billing on agdd',
      'error permission_denied: Handoff to external-billing not allowed by policy',
      `policy never by rules.0, version ${handoffs[0].decision.policy_version.slice(0, 12)}`,
      'rules.0 never 2 matches',
      'rules.1 require_approval 2 not by context.target_agent',
      '1 +0 ms handoff.requested',
      '2 +0 ms handoff.rejected code permission_denied, status rejected',
    ]),
  );
});

test('a handoff that needs an approval prints its ticket, and continues after the decision', async () => {
  const { handoff_id, ticket_id, status } = await json(...askFor('boss', ['--key', 'one']));
  expect(status).toBe('pending');
  const before = await cliHere(['handoffs', 'show', handoff_id.replaceAll('-', '')], env);
  expect(before.stdout).toMatch(/^phase +awaiting_approval$/m);
  expect(before.stdout).toMatch(new RegExp(`^ticket +${ticket_id}$`, 'm'));
  const waiting = cliHere(askFor('boss', ['--wait', '--arg', 'run_id=other']), env);
  const other = await waitFor(
    async () => {
      const page = await tool.listHandoffs({ run: 'other' });
      return page.handoffs[0]?.ticket_id ?? undefined;
    },
    { message: 'the second ticket' },
  );
  expect(other).not.toBe(ticket_id);
  // A second command line in this process would receive the output of the first.
  await new ApprovalGate({ runtime: stack.runtime }).deny(other, { reason: 'not now' });
  const denied = await waiting;
  expect(denied.code).toBe(3);
  expect(denied.stderr).toContain(`boxcar approvals approve ${other}`);
  expect(denied.stdout).toContain('Handoff to boss denied: not now');
  expect((await cliHere(['approvals', 'approve', ticket_id], env)).code).toBe(0);
  await tool.waitForHandoff(handoff_id, { timeoutMs: 30_000 });
  const { handoff, events } = await json('handoffs', 'show', handoff_id);
  expect(handoff).toMatchObject({ status: 'completed', phase: 'completed', ticket_id });
  expect(events.map(({ seq, event_type }: { seq: number; event_type: string }) => [seq, event_type])).toEqual(
    [
      [1, 'handoff.requested'],
      [2, 'approval.required'],
      [3, 'approval.updated'],
      [4, 'handoff.completed'],
    ],
  );
});

test('a list is filtered, and continues by a cursor', async () => {
  const list = await cliHere(['handoffs', 'ls'], env);
  expect(list.code).toBe(0);
  for (const part of ['completed', 'failed', 'rejected', 'agdd', 'main', 'external-billing'])
    expect(list.stdout).toContain(part);
  expect(list.stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
  const only = async (...flags: string[]) =>
    (await json('handoffs', 'ls', ...flags)).handoffs.map(
      ({ target_agent }: { target_agent: string }) => target_agent,
    );
  expect(await only('--run', 'run-7')).toEqual(['writer']);
  expect(await only('--target', 'failure')).toEqual(['failure']);
  expect(await only('--platform', 'native', '--status', 'rejected')).toEqual(['boss', 'external-billing']);
  expect(await only('--source', 'nobody')).toEqual([]);
  expect((await cliHere(['handoffs', 'ls', '--platform', 'openai'], env)).stdout).toBe('no handoffs\n');
  const first = await cliHere(['handoffs', 'ls', '--limit', '1'], env);
  const cursor = /--cursor (\S+)/.exec(first.stderr)?.[1] ?? '';
  const [newest, next] = (await json('handoffs', 'ls')).handoffs;
  const page = await json('handoffs', 'ls', '--limit', '1', '--cursor', cursor);
  expect(page.handoffs).toEqual([next]);
  expect(page.handoffs).not.toEqual([newest]);
});

test('the parts of a handoff name the whole', async () => {
  const { handoffs } = await json('handoffs', 'ls', '--run', 'run-7');
  const parent = handoffs[0].handoff_id;
  const { handoff_id } = await json(...askFor('writer', ['--arg', `parent_handoff_id=${parent}`])).catch(
    () => ({ handoff_id: undefined }),
  );
  expect(handoff_id).toBeUndefined();
  const cycle = await cliHere(askFor('writer', ['--arg', `parent_handoff_id=${parent}`]), env);
  expect(cycle).toMatchObject({ code: 1, stderr: expect.stringContaining('delegation_cycle') });
  const part = await json(...askFor('sleeper', ['--arg', `parent_handoff_id=${parent}`]));
  expect((await cliHere(['handoffs', 'show', part.handoff_id], env)).stdout).toContain(`${parent}, depth 1`);
});

test('a chain is one request with one overview, and a failed compensation is retried by a person', async () => {
  let isBroken = true;
  tool.registerAgent('flight', () => 'booked');
  tool.registerAgent('unflight', () => {
    if (isBroken) throw new Error('the desk is closed');
    return 'given back';
  });
  const hops = [
    { target_agent: 'flight', task: 'Book.', compensate: { target_agent: 'unflight', task: 'Give back.' } },
    { target_agent: 'failure', task: 'Fail.' },
  ];
  const submit = [
    'submit',
    'handoff_chain',
    '--arg',
    'source_agent=main',
    '--arg',
    `hops:=${JSON.stringify(hops)}`,
  ];
  const { handoff_id } = await json(...submit);
  // The functions of the tool are served by this process.
  expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ phase: 'compensation_failed' });
  const shown = await cliHere(['handoffs', 'show', handoff_id, '--chain'], env);
  const lines = shown.stdout
    .split('\n')
    .map((line) => line.replace(/^\S+ +/, '').replace(/\d+(\.\d+)? m?s/, 'TIME'));
  expect(lines.map((line) => line.trim().replace(/ {2,}/g, ' | '))).toEqual([
    'phase | took | to',
    'compensation_failed | TIME | chain: flight → failure',
    'completed | TIME | 1. flight',
    'model_failed | TIME | 2. failure',
    'platform_failed | TIME | undo 1: unflight',
    '',
  ]);
  expect(await cliHere(['handoffs', 'compensate', handoff_id], env)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('the desk is closed'),
  });
  isBroken = false;
  const { handoff, chain } = await json('handoffs', 'compensate', handoff_id);
  expect(handoff.phase).toBe('rolled_back');
  expect(chain.map(({ mode, phase }: { mode: string; phase: string }) => `${mode} ${phase}`)).toEqual([
    'chain rolled_back',
    'handoff completed',
    'handoff failed',
    'compensate failed',
    'compensate failed',
    'compensate completed',
  ]);
  expect(await cliHere(['handoffs', 'compensate', handoff_id], env)).toMatchObject({ code: 1 });
});

test('a question is listed, and is answered once', async () => {
  tool.registerAgent(
    'asker',
    async (_input, { ask }) => `painted ${await ask('Which colour?\nAny will do.')}`,
    {
      retry: 'safe',
    },
  );
  const { handoff_id } = await tool.handoff({
    source_agent: 'main',
    target_agent: 'asker',
    task: 'Paint.',
    wait: false,
  });
  const open = await waitFor(
    async () => {
      const { messages } = await json('handoffs', 'messages', handoff_id);
      return messages[0];
    },
    { message: 'a question' },
  );
  expect(open).toMatchObject({ seq: 1, type: 'question', state: 'open' });
  expect((await cliHere(['handoffs', 'messages', handoff_id], env)).stdout).toMatch(
    /^1 {2}question, open, .* left, \S+Z\n {3}Which colour\?\n {3}Any will do\.\n$/,
  );
  expect((await cliHere(['handoffs', 'show', handoff_id], env)).stdout).toMatch(/^phase +waiting_input$/m);
  const replied = await cliHere(['handoffs', 'reply', handoff_id, 'blue', '--question', '1'], env);
  expect(replied.stdout).toMatch(
    /^1 {2}question, answered, .*\n.*\n.*\n2 {2}reply to 1 by operator, \S+Z\n {3}blue\n$/,
  );
  expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ result: 'painted blue' });
  expect(await cliHere(['handoffs', 'reply', handoff_id, 'red'], env)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('question_closed'),
  });
});

/** No database is reachable at this address. */
const NOWHERE = { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none', BOXCAR_DATABASE_WAIT_SECONDS: '0' };

test('invalid values are refused by name before the database is asked, and unknown ids afterwards', async () => {
  for (const [args, text] of [
    [['show', 'x'], 'must be an id'],
    [['ls', '--status', 'open'], 'Allowed choices'],
    [['reply', '0198c1f2', 'x', '--question', 'one'], 'whole number'],
    [['ls', '--limit', '0'], 'whole number from 1'],
    [['ls', '--cursor', 'x'], '--cursor: must be the next_cursor'],
  ] as const) {
    const done = await cliHere(['handoffs', ...args], NOWHERE);
    expect([args, done.code, done.stdout]).toEqual([args, 2, '']);
    expect(done.stderr).toContain(text);
  }
  for (const [args, text] of [
    [['show', 'ffffffff'], "not_found: No handoff 'ffffffff'"],
    [['ls', '--project', 'nowhere'], 'No project'],
  ] as const) {
    const done = await cliHere(['handoffs', ...args], env);
    expect([args, done.code, done.stdout]).toEqual([args, 1, '']);
    expect(done.stderr).toContain(text);
  }
});

test('no handoff is made while the feature is off', async () => {
  const off = await cliHere(askFor('writer'), { ...env, BOXCAR_HANDOFF_ENABLED: 'false' });
  expect(off).toMatchObject({ code: 1, stdout: '' });
  expect(off.stderr).toContain('feature_disabled: Handoff feature is disabled');
});
