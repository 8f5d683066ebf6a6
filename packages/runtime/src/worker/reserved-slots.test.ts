import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import { createWorker } from './worker.js';

const LAUNCH = { profile_name: 'worker', instruction: 'go' };
const NEVER_MS = 3_600_000;
interface Receipt {
  readonly turn_id: never;
}

/** Holds an idempotency key in an open transaction, as another process does that submits under it. */
async function holdKey(h: Harness, key: string): Promise<{ free(): Promise<void> }> {
  const client = new pg.Client({ connectionString: h.database.url });
  await client.connect();
  await client.query('begin');
  await client.query(
    `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response)
       select id, $1, 'launch_principal', 'x', '{}' from boxcar.projects limit 1`,
    [key],
  );
  return {
    free: async () => {
      await client.query('rollback');
      await client.end();
    },
  };
}

/** A submission under the key is waiting for the other transaction. */
const untilBlocked = (h: Harness): Promise<unknown> =>
  waitFor(
    async () =>
      (
        await h.rows(
          "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
      ).length > 0,
    { message: 'the submission waits' },
  );

const submit = (h: Harness, options: object = {}): Promise<Receipt> =>
  h.runtime.submit('launch_principal', LAUNCH, options) as unknown as Promise<Receipt>;

describe('a submission that claims its turn and waits for a lock', () => {
  test('does not fail the close of its worker; another worker runs the turn', async () => {
    await using h = await harness({ connections: 8 });
    await h.profile('worker', [{ say: 'done' }]);
    const worker = await createWorker(h.runtime, { concurrency: 1, sweepMs: NEVER_MS });
    const held = await holdKey(h, 'key');
    const waiting = submit(h, { idempotencyKey: 'key' });
    await untilBlocked(h);
    await worker.close({ graceMs: 500 });
    await held.free();
    const { turn_id } = await waiting;
    await h.worker({ concurrency: 1 });
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await h.rows('select losses from boxcar.turns')).toEqual([{ losses: 0 }]);
  });

  test('gives the turn back, before a tool has run, when the worker has another identity meanwhile', async () => {
    await using h = await harness({ connections: 8 });
    let paid = 0;
    h.runtime.registerTool({
      name: 'pay',
      description: 'Pays.',
      input: z.strictObject({}),
      retry: 'never',
      // Longer than the heartbeats that would abort a turn of the lost identity.
      run: async (_input, { signal }) => {
        paid += 1;
        await new Promise<void>((settle, fail) => {
          signal.addEventListener('abort', () => fail(signal.reason));
          setTimeout(settle, 1_500);
        });
        return 'paid';
      },
    });
    await h.profile('worker', [{ calls: [{ tool: 'pay', arguments: {} }] }, { say: 'done' }], {
      tools: ['pay'],
    });
    const worker = await h.worker({ concurrency: 1, sweepMs: 300, heartbeatMs: 200 });
    const held = await holdKey(h, 'key');
    const waiting = submit(h, { idempotencyKey: 'key' });
    await untilBlocked(h);
    const { id } = worker;
    await h.rows('delete from boxcar.workers');
    await waitFor(() => worker.id !== id, { message: 'the worker has another identity' });
    await held.free();
    const { turn_id } = await waiting;
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(paid).toBe(1);
    expect(await h.rows('select name, status from boxcar.tool_calls')).toEqual([
      { name: 'pay', status: 'success' },
    ]);
  });
});

test('the end of a child that waits for a lock does not keep a slot for its parent', async () => {
  const router = createModelRouter({});
  let isAsked = false;
  let answer = (): void => undefined;
  const answered = new Promise<void>((settle) => {
    answer = settle;
  });
  await using h = await harness({
    connections: 8,
    model: {
      ...router,
      generate: async (request, options) => {
        if (JSON.stringify(request.messages).includes('You are child')) {
          isAsked = true;
          await answered;
        }
        return router.generate(request, options);
      },
    },
  });
  await h.profile('worker', [{ say: 'done' }]);
  await h.profile('child', [{ say: 'answered' }]);
  const ask = { tool: 'ask_expert', arguments: { expert_profile: 'child', question: 'q' } };
  const policy = { tools: ['ask_expert'], delegation_policy: { target_profiles: null } };
  await h.profile('parent', [{ calls: [ask] }, { say: 'done' }], policy);
  await h.worker({ concurrency: 2, sweepMs: NEVER_MS });
  const parent = (await h.runtime.submit('launch_principal', {
    profile_name: 'parent',
    instruction: 'go',
  })) as unknown as Receipt;
  await waitFor(() => isAsked, { message: 'the child asks its model' });
  await waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where id = $1 and status = 'suspended'", [parent.turn_id]))
        .length === 1,
    { message: 'the parent waits' },
  );
  const lock = new pg.Client({ connectionString: h.database.url });
  await lock.connect();
  await lock.query('begin');
  await lock.query(
    'select from boxcar.boxes where id = (select output_box_id from boxcar.turns where parent_turn_id = $1) for update',
    [parent.turn_id],
  );
  answer();
  await untilBlocked(h);
  // The end of the child tries for 15 s; the other slot must not wait as long.
  const { turn_id } = await submit(h);
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 10_000 })).toMatchObject({ status: 'success' });
  await lock.query('rollback');
  await lock.end();
  expect(await h.runtime.waitForTurn(parent.turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
});
