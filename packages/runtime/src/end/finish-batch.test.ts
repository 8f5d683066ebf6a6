import { type BatchId, KernelError, type RunId, type TurnId } from '@boxcar/kernel';
import { closeBatch, transaction } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { endSubtrees } from './end-subtrees.js';
import { finishBatch } from './finish-batch.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  return () => h[Symbol.asyncDispose]();
});

const task = (target_ref: string, instruction = 'go') => ({
  target_strategy: 'new',
  target_ref,
  instruction,
});
const forked = async (tasks: readonly unknown[], rest = {}): Promise<{ batchId: BatchId }> => {
  const accepted = await h.runtime.accept('fork_join', { tasks, ...rest });
  if (accepted.awaitedBatchId === null) throw new Error('nothing is awaited');
  return { batchId: accepted.awaitedBatchId };
};

const sweep = () =>
  new Sweeper(h.runtime, {
    lostRingMs: 1e9,
    claimFromRows: async () => undefined,
    wakeProvider: async () => undefined,
  }).sweep();
/** Ends turns like a process that dies immediately after its commit: no process is notified. */
const endUnheard = async (rootTurnIds: readonly TurnId[]): Promise<void> => {
  const runs = await h.rows<{ run_id: RunId }>(
    'select distinct run_id from boxcar.turns where id = any ($1::uuid[])',
    [rootTurnIds],
  );
  for (const { run_id: runId } of runs)
    await transaction(h.runtime.pool, (tx) =>
      endSubtrees(tx, {
        runId,
        rootTurnIds,
        status: 'canceled',
        error: new KernelError('batch_closed').toJSON(),
      }),
    );
};

describe('a batch that is due when its process has died', () => {
  const children = async () =>
    (
      await h.rows<{ id: TurnId }>(
        'select t.id from boxcar.turns t join boxcar.batches b on b.id = any (t.batch_ids) order by t.id',
      )
    ).map((row) => row.id);
  const ended = () =>
    waitFor(async () => (await h.rows('select id from boxcar.turns where ended_at is null')).length === 0, {
      message: 'all have ended',
    });
  const results = () =>
    h.rows<{ status: string; batch: string }>(
      "select c.content->>'status' as status, c.content->'result'->>'status' as batch from boxcar.cards c where c.type = 'tool.result'",
    );

  beforeEach(async () => {
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    await h.profile(
      'lead',
      [
        { calls: [{ tool: 'fork_join', arguments: { tasks: [task('parked'), task('parked')] } }] },
        { say: 'done' },
      ],
      { tools: ['fork_join'], delegation_policy: { target_profiles: null } },
    );
    await h.worker({ sweepMs: 3_600_000 });
  });

  const due = async (): Promise<BatchId> => {
    await h.runtime.submit('launch_principal', { profile_name: 'lead', instruction: 'go' });
    await waitFor(
      async () => (await h.rows("select id from boxcar.turns where status = 'suspended'")).length === 1,
      { message: 'the parent waits' },
    );
    await endUnheard(await children());
    const [batch] = await h.rows<{ id: BatchId; is_due: boolean; remaining: number }>(
      'select id, is_due, remaining from boxcar.batches',
    );
    expect(batch).toMatchObject({ is_due: true, remaining: 0 });
    return batch?.id ?? ('' as BatchId);
  };

  test('is ended by the sweep, and its parent continues', async () => {
    await due();
    await sweep();
    await ended();
    expect(await results()).toEqual([{ status: 'success', batch: 'failed' }]);
    await checkInvariants(h.database.pool);
  });

  test('is ended once, however many processes try at the same time, and its result is recorded once', async () => {
    const batchId = await due();
    await Promise.all(Array.from({ length: 8 }, () => finishBatch(h.runtime, batchId)));
    await ended();
    await finishBatch(h.runtime, batchId);
    expect(await results()).toHaveLength(1);
    await checkInvariants(h.database.pool);
  });

  test('has its members ended by the sweep when the process died before it ended them early', async () => {
    const { batchId } = await forked([task('parked'), task('parked'), task('parked')], { fail_fast: true });
    await endUnheard((await children()).slice(0, 1));
    // The state that such a process has reached.
    await closeBatch(h.runtime.pool, batchId, 'fail_fast');
    await sweep();
    expect(await h.runtime.waitForBatch(batchId, { timeoutMs: 60_000 })).toMatchObject({
      status: 'failed',
      results: [{ status: 'canceled' }, { status: 'canceled' }, { status: 'canceled' }],
    });
    await checkInvariants(h.database.pool);
  });
});
