/** Requests for approval on the command line: a worker waits, another process decides. */

import { createWorker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Awaited<ReturnType<typeof prepare>>;
let worker: Awaited<ReturnType<typeof createWorker>>;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  stack.runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    requiresApproval: true,
    input: z.object({ amount: z.number(), token: z.string() }),
    run: () => ({ paid: true }),
  });
  await stack.runtime.applyProfile({
    name: 'payer',
    instructions: 'You pay.',
    model: 'scripted',
    tools: ['pay'],
    script: [{ calls: [{ tool: 'pay', arguments: { amount: 5, token: 'secret' } }] }, { say: 'done' }],
  });
  worker = await createWorker(stack.runtime, { sweepMs: 200 });
});
afterAll(async () => {
  await worker.close();
  await stack[Symbol.asyncDispose]();
});

/** A waiting turn, and its ticket. */
async function ask(): Promise<{ turn: string; ticket: string }> {
  const { turn_id: turn } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'payer',
    instruction: 'go',
  })) as { turn_id: string };
  const ticket = await waitFor(
    async () => {
      const { rows } = await database.pool.query<{ id: string }>(
        'select id from boxcar.approvals where turn_id = $1',
        [turn],
      );
      return rows[0]?.id;
    },
    { message: 'a ticket' },
  );
  return { turn, ticket };
}
const end = async (turn: string) =>
  (await stack.runtime.waitForTurn(turn as never, { timeoutMs: 60_000 })).status;
const json = async (...args: string[]) => JSON.parse((await cliHere([...args, '--json'], env)).stdout);

test('a request is listed, is shown with masked secrets, and is approved', async () => {
  const { turn, ticket } = await ask();
  const list = await cliHere(['approvals', 'ls', '--status', 'pending'], env);
  expect(list.code).toBe(0);
  for (const part of ['pending', 'pay', 'left', '{"amount":5']) expect(list.stdout).toContain(part);
  const shown = await cliHere(['approvals', 'show', ticket.slice(0, 23)], env);
  expect(shown.stdout).toContain(`${ticket}  pending`);
  expect(shown.stdout).not.toContain('secret');
  const { approval } = await json('approvals', 'approve', ticket, '--reason', 'fine');
  expect(approval).toMatchObject({ status: 'approved', resolved_by: 'operator', decision_reason: 'fine' });
  expect(await end(turn)).toBe('success');
  const again = await cliHere(['approvals', 'deny', ticket], env);
  expect(again).toMatchObject({ code: 1, stdout: '' });
  expect(again.stderr).toContain(`approval_resolved: Approval ticket ${ticket} already approved`);
});

test('a denied request is the result of the call', async () => {
  const { turn, ticket } = await ask();
  expect((await cliHere(['approvals', 'deny', ticket, '--reason', 'too much'], env)).stdout).toContain(
    'denied by operator at ',
  );
  expect(await end(turn)).toBe('success');
  expect((await json('approvals', 'ls', '--status', 'denied')).approvals).toHaveLength(1);
  expect((await cliHere(['show', turn], env)).stdout).toContain('too much');
});

test('pages continue by a cursor, and invalid values are refused by name', async () => {
  const first = await json('approvals', 'ls', '--limit', '1');
  const second = await json('approvals', 'ls', '--limit', '1', '--cursor', first.next_cursor);
  expect(second.approvals[0].ticket_id).not.toBe(first.approvals[0].ticket_id);
  for (const [args, code, text] of [
    [['show', 'ffffffff'], 1, 'not_found'],
    [['show', 'x'], 2, 'must be an id'],
    [['ls', '--status', 'open'], 2, 'Allowed choices'],
    [['ls', '--cursor', 'x'], 1, 'next_cursor'],
    [['approve', first.approvals[0].ticket_id, '--project', 'nowhere'], 1, 'No project'],
  ] as const) {
    const done = await cliHere(['approvals', ...args], env);
    expect([args, done.code, done.stdout]).toEqual([args, code, '']);
    expect(done.stderr).toContain(text);
  }
});
