import { randomUUID } from 'node:crypto';
import { queueBackends, spawnNode, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { openRuntime } from '../open.js';
import { createFaultyModel, EFFECTS_TABLE } from '../testing/faulty.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';

const HOUR_MS = 3_600_000;
const WORKER = { leaseMs: 10_000, heartbeatMs: 300, sweepMs: 100, lostRingMs: 1_000, concurrency: 4 };

/** Loaded before all other code. It shifts the wall clock by this time, but not the monotonic clock. */
const shiftedBy = (ms: number): string =>
  `--import data:text/javascript,${encodeURIComponent(
    `const Real = Date, off = ${ms}; globalThis.Date = class extends Real {
       constructor(...args) { if (args.length === 0) super(Real.now() + off); else super(...args); }
       static now() { return Real.now() + off; } };`,
  )}`;

describe.each(queueBackends())('workers whose clocks are two hours apart, queues on %s', (kind) => {
  test('neither take turns from each other nor end, wake or repeat them at the wrong time', async () => {
    await using backend = await testBackend(kind);
    const { pool } = backend.database;
    await pool.query(EFFECTS_TABLE);
    await using submitter = openRuntime({ ...backend.urls, model: createFaultyModel(() => undefined) });
    const { runtime } = submitter;
    const apply = (name: string, script: readonly object[], rest: object = {}) =>
      runtime.applyProfile({ name, instructions: `You are ${name}.`, model: 'scripted', script, ...rest });
    await apply('quick', [{ say: 'quick', delayMs: 30 }]);
    await apply('patient', [{ fail: { status: 429, retryAfter: 0.5, times: 1 }, say: 'in time' }], {
      limits: { retry_base_seconds: 0.1 },
    });
    const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'go' });
    await apply(
      'lead',
      [
        {
          calls: [
            {
              tool: 'fork_join',
              arguments: { tasks: ['quick', 'patient', 'quick'].map(task), deadline_seconds: 600 },
            },
          ],
        },
        {
          // All of them share one agent, so its queue contains ids of both clocks.
          calls: [
            {
              tool: 'delegate_async',
              arguments: { target_strategy: 'reuse', target_ref: 'shared', instruction: 'go', wait: true },
            },
          ],
        },
        { say: 'done' },
      ],
      { tools: ['fork_join', 'delegate_async'], delegation_policy: { target_profiles: null } },
    );
    await runtime.submit('provision_agent', {
      action: 'create',
      agent_id: 'shared',
      profile_name: 'quick',
      shared: true,
    });
    const workers = [HOUR_MS, -HOUR_MS].map((offMs) =>
      spawnNode(
        new URL('../testing/worker-process.ts', import.meta.url),
        [JSON.stringify({ ...backend.urls, effectsUrl: backend.database.url, worker: WORKER })],
        { NODE_OPTIONS: shiftedBy(offMs) },
      ),
    );
    for (const worker of workers) await worker.line(/^ready /, { deadlineMs: 90_000 });
    const turnIds = await Promise.all(
      Array.from({ length: 6 }, async () => {
        const receipt = await runtime.submit(
          'launch_principal',
          { profile_name: 'lead', instruction: 'go', deadline_seconds: 600 },
          { idempotencyKey: randomUUID() },
        );
        return (receipt as { turn_id: string }).turn_id;
      }),
    );
    await waitFor(
      async () => {
        await checkInvariants(pool, { isSettled: false });
        const { rows } = await pool.query('select from boxcar.turns where ended_at is null');
        return rows.length === 0;
      },
      { message: 'all turns have ended', deadlineMs: 60_000, intervalMs: 100 },
    );
    for (const turnId of turnIds)
      expect(await runtime.waitForTurn(turnId, { timeoutMs: 1_000 })).toMatchObject({ status: 'success' });
    const { rows } = await pool.query(
      `select count(distinct t.status)::int as statuses, sum(t.losses)::int as losses, count(*)::int as turns,
         (select count(distinct s.holder_id)::int from boxcar.steps s) as workers,
         (select max(extract(epoch from t.dispatched_at - s.opened_at)) < 60 from boxcar.turns t join boxcar.steps s on s.turn_id = t.id) as is_woken_soon
       from boxcar.turns t`,
    );
    expect(rows).toEqual([{ statuses: 1, losses: 0, turns: 6 * 5, workers: 2, is_woken_soon: true }]);
    // Each was retried once, and no more.
    const retried = await pool.query(
      'select count(*)::int as n from boxcar.steps where error is not null group by turn_id',
    );
    expect(retried.rows).toEqual(Array.from({ length: 6 }, () => ({ n: 1 })));
    await checkInvariants(pool);
    for (const worker of workers) await worker.kill('SIGTERM');
  });
});
