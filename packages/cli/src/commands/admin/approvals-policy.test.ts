/** Approvals of handoffs on the command line, when the policy has changed since the request. No worker runs. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseConfig } from '@boxcar/host/config';
import { openStack } from '@boxcar/host/open';
import { ApprovalGate } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

const policyOf = (permission: string): string => `tools:\n  handoff: { permission: ${permission} }\n`;

const folder = mkdtempSync(join(tmpdir(), 'boxcar-approvals-'));
const policy = join(folder, 'policy.yaml');
let database: TestDatabase;
let env: Env;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url, BOXCAR_HANDOFF_ENABLED: 'true', BOXCAR_POLICY_FILE: policy };
  writeFileSync(policy, policyOf('REQUIRE_APPROVAL'));
  await (await prepare(env))[Symbol.asyncDispose]();
});
beforeEach(() => writeFileSync(policy, policyOf('REQUIRE_APPROVAL')));
afterAll(async () => {
  await database.close();
  rmSync(folder, { recursive: true, force: true });
});

const json = async (...args: string[]) => JSON.parse((await cliHere([...args, '--json'], env)).stdout);
const ask = (task: string) =>
  json(
    ...['submit', 'handoff', '--arg', 'source_agent=main', '--arg', 'target_agent=writer'],
    ...['--arg', `task=${task}`],
  );
const phaseOf = async (id: string): Promise<string> => (await json('handoffs', 'show', id)).handoff.phase;

test('a handoff that the changed policy forbids does not begin, although a person approves it', async () => {
  const { handoff_id, ticket_id } = await ask('forbidden by now');
  writeFileSync(policy, policyOf('NEVER'));
  await cliHere(['approvals', 'approve', ticket_id], env);
  const { handoff } = await json('handoffs', 'show', handoff_id);
  expect(handoff).toMatchObject({
    phase: 'rejected',
    turn_id: null,
    error: { code: 'permission_denied', message: 'Handoff to writer not allowed by policy' },
  });
});

test('an approval under a broken policy is kept, and a process that has read the policy begins the handoff', async () => {
  const { handoff_id, ticket_id } = await ask('under a broken policy');
  writeFileSync(policy, 'tools: nothing\n');
  const approved = await cliHere(['approvals', 'approve', ticket_id], env);
  expect(approved.code).toBe(0);
  expect(approved.stderr).toContain('policy.broken');
  expect(await phaseOf(handoff_id)).toBe('awaiting_approval');
});

test('an approval under the policy of the request begins the handoff at once', async () => {
  const { handoff_id, ticket_id } = await ask('as it was');
  expect((await cliHere(['approvals', 'approve', ticket_id], env)).code).toBe(0);
  expect(await phaseOf(handoff_id)).toBe('pending');
});

test('the reason of a decision stays on one line', async () => {
  const { ticket_id } = await ask('by somebody');
  await using stack = await openStack(parseConfig(env));
  await new ApprovalGate({ runtime: stack.runtime }).approve(ticket_id, {
    principal: { id: 'bob\n  denied by alice', kind: 'person', scopes: ['approvals:write'] },
    reason: 'fine\n  arguments: {}',
  });
  const lines = (await cliHere(['approvals', 'show', ticket_id], env)).stdout.split('\n');
  expect(lines.filter((line) => /alice/.test(line))).toEqual([
    expect.stringMatching(/^ {2}approved by bob denied by alice at \S+: fine arguments: \{\}$/),
  ]);
});
