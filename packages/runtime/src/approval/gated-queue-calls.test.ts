/** Calls of tool workers that wait for an approval: no sweep sends their jobs before the decision. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { openRuntime } from '../open.js';
import { Sweeper } from '../sweep/sweeper.js';
import { testBackend } from '../testing/queue-backend.js';
import { createWorker } from '../worker/worker.js';
import { ApprovalGate } from './approval-gate.js';

test.each(queueBackends())(
  'a job is put into the queue only after its call was approved, and only then does the queue need a worker, on %s',
  async (kind) => {
    await using backend = await testBackend(kind);
    await using opened = openRuntime({ ...backend.urls, model: createModelRouter() });
    const { runtime } = opened;
    opened.serveToolResultsDoor();
    await runtime.applyProfile({
      name: 'payer',
      instructions: 'You pay.',
      model: 'scripted',
      script: [{ calls: [{ tool: 'pay', arguments: { amount: 5 } }] }, { say: 'done' }],
      requires_approval: ['pay'],
      tools: [
        {
          name: 'pay',
          description: 'Pays.',
          parameters: { type: 'object', properties: { amount: { type: 'number' } } },
          target: 'bank',
        },
      ],
    });
    const gate = new ApprovalGate({ runtime });
    const queue = backend.queue('boxcar-tools-bank');
    const jobs = async () =>
      Object.values(await queue.getJobCounts('waiting', 'active', 'completed', 'failed', 'delayed')).reduce(
        (a, b) => a + b,
        0,
      );
    const rows = async <R extends object>(text: string): Promise<R[]> =>
      (await backend.database.pool.query(text)).rows;
    const sweeper = new Sweeper(runtime, {
      lostRingMs: 3_600_000,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    });
    const worker = await createWorker(runtime, { sweepMs: 3_600_000 });
    const { turn_id } = (await runtime.submit('launch_principal', {
      profile_name: 'payer',
      instruction: 'go',
    })) as {
      turn_id: TurnId;
    };
    const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
      message: 'a ticket',
    });
    await waitFor(
      async () => (await rows("select from boxcar.turns where status = 'suspended'")).length === 1,
      {
        message: 'the turn waits',
      },
    );
    for (const minutes of [1, 5, 20]) await sweeper.sweep({ now: new Date(Date.now() + minutes * 60_000) });
    expect(await rows('select look_at, sent_at from boxcar.tool_calls')).toEqual([
      { look_at: null, sent_at: null },
    ]);
    expect(await jobs()).toBe(0);
    // Its queue has no worker, and needs none yet.
    expect(await runtime.outside?.findUnserved(0)).toEqual([]);
    // The call was not begun. A worker that dies between the step and the ticket leaves the same state.
    await rows("update boxcar.tool_calls set created_at = created_at - interval '1 hour'");
    await gate.approve(ticket.ticket_id);
    await waitFor(async () => (await runtime.outside?.findUnserved(0))?.length === 1, {
      message: 'the call waits for a worker',
    });
    // The hour was the time of the person who decided.
    expect(await runtime.outside?.findUnserved(1_800_000)).toEqual([]);
    backend.worker('boxcar-tools-bank', async () => ({ paid: true }));
    expect(await runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await rows("select from boxcar.tool_calls where status = 'success'")).toHaveLength(1);
    await worker.close();
  },
);

test.each(queueBackends())(
  'a lost job of a call that the policy allows is sent again, on %s',
  async (kind) => {
    await using backend = await testBackend(kind);
    const permissionEvaluator = new PermissionEvaluator({
      text: 'tools: { look: { permission: ALWAYS } }',
      environment: 'production',
    });
    await using opened = openRuntime({ ...backend.urls, model: createModelRouter(), permissionEvaluator });
    const { runtime } = opened;
    await runtime.applyProfile({
      name: 'seer',
      instructions: 'You look.',
      model: 'scripted',
      script: [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'done' }],
      tools: [
        {
          name: 'look',
          description: 'Looks.',
          parameters: { type: 'object', properties: {} },
          target: 'eyes',
          retry: 'safe',
        },
      ],
    });
    const queue = backend.queue('boxcar-tools-eyes');
    const waiting = async () => (await queue.getJobCounts('waiting')).waiting;
    const worker = await createWorker(runtime, { sweepMs: 3_600_000 });
    await runtime.submit('launch_principal', { profile_name: 'seer', instruction: 'go' });
    await waitFor(async () => (await waiting()) === 1, { message: 'the job is sent' });
    await queue.obliterate({ force: true });
    await new Sweeper(runtime, {
      lostRingMs: 3_600_000,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    }).sweep({ now: new Date(Date.now() + 10_000) });
    await waitFor(async () => (await waiting()) === 1, { message: 'the job is sent again' });
    await worker.close();
  },
);
