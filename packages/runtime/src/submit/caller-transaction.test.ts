/** Submissions and packings in a transaction of the caller. */
import type { AgentId, BoxId, TurnId } from '@boxcar/kernel';
import type { CallerTx } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { drizzle } from 'drizzle-orm/node-postgres';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

interface Receipt {
  readonly status: string;
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
}

let h: Harness;
let outside: pg.Pool;

beforeAll(async () => {
  h = await harness();
  await h.profile('expert', [{ say: 'did {{instruction}}' }]);
  await h.rows('create table public.orders (id int primary key)');
  // The caller's own pool, independent of the kernel.
  outside = new pg.Pool({ connectionString: h.database.url });
});
afterAll(async () => {
  await outside.end();
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});
beforeEach(() => h.rows('delete from orders'));

const LAUNCH = { profile_name: 'expert', instruction: 'go' };
const submit = async (tx: pg.ClientBase, rest: object = {}, options: object = {}): Promise<Receipt> =>
  (await h.runtime.submit(
    'launch_principal',
    { ...LAUNCH, ...rest },
    { tx, ...options },
  )) as unknown as Receipt;

/** Works on a connection of the caller, after `begin`. */
async function inside<T>(work: (client: pg.PoolClient) => Promise<T>, begin = 'begin'): Promise<T> {
  const client = await outside.connect();
  try {
    await client.query(begin);
    return await work(client);
  } finally {
    await client.query('rollback');
    client.release();
  }
}
const orders = async (): Promise<number> => (await h.rows('select from orders')).length;
const exists = async (turnId: string): Promise<boolean> =>
  (await h.rows('select from boxcar.turns where id = $1', [turnId])).length === 1;
const end = (turnId: string) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

describe('a submission in a transaction of the caller', () => {
  test('takes effect with the commit, together with the caller’s own rows, and is then rung', async () => {
    // This worker never sweeps, so only a ring can show it the turn.
    const worker = await h.worker({ sweepMs: 3_600_000, heartbeatMs: 3_600_000, leaseMs: 7_200_000 });
    const { turn_id } = await inside(async (client) => {
      await client.query('insert into orders values (1)');
      const receipt = await submit(client);
      expect(receipt.status).toBe('accepted');
      expect(await exists(receipt.turn_id)).toBe(false);
      await client.query('commit');
      return receipt;
    });
    expect(await end(turn_id)).toMatchObject({ status: 'success', result: 'did go' });
    expect(await orders()).toBe(1);
    await worker.close();
  });

  test('is rung with the same priority as without the transaction', async () => {
    const worker = await h.worker({ takesOwnRings: false });
    const rung = vi.spyOn(h.runtime, 'ring');
    try {
      const plain = (await h.runtime.submit('launch_principal', LAUNCH)) as unknown as Receipt;
      const { turn_id } = await inside(async (client) => {
        const receipt = await submit(client);
        await client.query('commit');
        return receipt;
      });
      const ringOf = (id: TurnId) =>
        rung.mock.calls.flatMap(([rings]) => rings).find(({ turnId }) => turnId === id);
      await waitFor(() => ringOf(turn_id) !== undefined, { message: 'it is rung' });
      for (const id of [plain.turn_id, turn_id]) {
        expect(await end(id)).toMatchObject({ status: 'success' });
        expect(ringOf(id)?.priority).toEqual(expect.any(Number));
      }
    } finally {
      rung.mockRestore();
      await worker.close();
    }
  });

  test('leaves nothing when the caller rolls back, or rolls back to a savepoint', async () => {
    const before = await rowCounts(h.database.pool);
    await inside(async (client) => {
      await submit(client);
      await client.query('rollback');
    });
    await inside(async (client) => {
      await client.query('savepoint mine');
      await submit(client);
      await client.query('rollback to mine');
      await client.query('insert into orders values (2)');
      await client.query('commit');
    });
    expect(await rowCounts(h.database.pool)).toEqual(before);
    expect(await orders()).toBe(1);
  });

  test('can use a drizzle transaction, also a nested one; a drizzle database is refused', async () => {
    const db = drizzle(outside);
    const ids = await db.transaction(async (tx) => {
      const { turn_id: first } = (await h.runtime.submit('launch_principal', LAUNCH, {
        tx,
      })) as unknown as Receipt;
      const second = await tx.transaction(
        async (inner) =>
          (await h.runtime.submit('launch_principal', LAUNCH, { tx: inner })) as unknown as Receipt,
      );
      expect(await exists(first)).toBe(false);
      return [first, second.turn_id];
    });
    expect(await Promise.all(ids.map(exists))).toEqual([true, true]);
    const before = await rowCounts(h.database.pool);
    const undone = db.transaction(async (tx) => {
      await h.runtime.submit('launch_principal', LAUNCH, { tx });
      tx.rollback();
    });
    await expect(undone).rejects.toThrow();
    for (const tx of [db, outside, {} as never, null as never, 'tx' as never])
      await expect(h.runtime.submit('launch_principal', LAUNCH, { tx })).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringMatching(/^tx: must be a pg client/),
      });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('sees what the transaction has made: two with one key are one, and a new agent can be reused at once', async () => {
    const key = { idempotencyKey: 'order-7' };
    const [first, again, reuse] = await inside(async (client) => {
      const one = await submit(client, {}, key);
      const two = await submit(client, {}, key);
      await expect(submit(client, { instruction: 'other' }, key)).rejects.toMatchObject({
        code: 'idempotency_conflict',
      });
      const three = (await h.runtime.submit(
        'delegate_async',
        { target_strategy: 'reuse', target_ref: one.agent_id, instruction: 'more' },
        { tx: client },
      )) as unknown as Receipt;
      await client.query('commit');
      return [one, two, three];
    });
    expect(again).toEqual(first);
    expect(reuse.agent_id).toBe(first.agent_id);
    expect(await submit(h.database.pool as never, {}, { ...key, tx: undefined })).toEqual(first);
    await h.worker();
    for (const { turn_id } of [first, reuse]) expect(await end(turn_id)).toMatchObject({ status: 'success' });
  });

  test('that repeats a committed key gets that answer, and the caller continues', async () => {
    const key = { idempotencyKey: 'order-8' };
    const first = (await h.runtime.submit('launch_principal', LAUNCH, key)) as unknown as Receipt;
    await inside(async (client) => {
      expect(await submit(client, {}, key)).toEqual(first);
      await client.query('insert into orders values (8)');
      await client.query('commit');
    });
    expect(await orders()).toBe(1);
    // The next test counts rows, so the turn must have ended.
    await end(first.turn_id);
  });

  test('can be accepted next to a refused submission, and takes effect with the commit', async () => {
    await h.profile('unrun', [{ say: 'late' }], { worker_target: 'nobody' });
    const unrun = { profile_name: 'unrun' };
    const all = await inside(async (client) => {
      const settled = await Promise.allSettled([
        submit(client, unrun),
        submit(client, { profile_name: 'nobody' }),
        submit(client, unrun),
      ]);
      await client.query('commit');
      return settled;
    });
    const accepted = all.filter((one) => one.status === 'fulfilled').map(({ value }) => value.turn_id);
    expect(await Promise.all(accepted.map(exists))).toEqual([true]);
    for (const one of all.slice(1))
      expect(one).toMatchObject({
        status: 'rejected',
        reason: { code: 'bad_request', message: expect.stringContaining('await each submission') },
      });
  });

  test('reads the rows correctly, whatever type parsers the client has', async () => {
    await h.profile('unrun', [{ say: 'late' }], { worker_target: 'nobody' });
    const odd = new pg.Pool({
      connectionString: h.database.url,
      types: { getTypeParser: () => (value: unknown) => String(value) } as never,
    });
    const client = await odd.connect();
    try {
      await client.query('begin');
      const first = await submit(client, { profile_name: 'unrun' });
      const reuse = { target_strategy: 'reuse', target_ref: first.agent_id, instruction: 'more' };
      await h.runtime.submit('delegate_async', reuse, { tx: client });
      await client.query('commit');
      expect(await exists(first.turn_id)).toBe(true);
      const { rows } = await client.query('select 1 as n');
      expect(rows).toEqual([{ n: '1' }]);
    } finally {
      client.release();
      await odd.end();
    }
  });

  test('that is refused leaves the transaction usable, and leaves no change', async () => {
    const before = await rowCounts(h.database.pool);
    const limits = await inside(async (client) => {
      await client.query("set local lock_timeout = '0'");
      await expect(submit(client, { profile_name: 'nobody' })).rejects.toMatchObject({ code: 'not_found' });
      await expect(submit(client, { wait: true })).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringContaining('after your commit'),
      });
      const asked = h.runtime.submit(
        'ask_expert',
        { expert_profile: 'expert', question: 'q' },
        { tx: client },
      );
      await expect(asked).rejects.toMatchObject({ code: 'bad_request' });
      const { rows } = await client.query('show lock_timeout');
      await client.query('insert into orders values (3)');
      await client.query('commit');
      return rows;
    });
    expect(limits).toEqual([{ lock_timeout: '0' }]);
    expect(await rowCounts(h.database.pool)).toEqual(before);
    expect(await orders()).toBe(1);
  });

  test('reads values correctly in a packing, too, whatever parsers the client has', async () => {
    const types = { getTypeParser: () => (value: string) => value } as unknown as pg.CustomTypesConfig;
    const client = new pg.Client({ connectionString: h.database.url, types });
    await client.connect();
    await client.query('begin');
    const first = await submit(client, { budget: { turns: 3 } });
    const packed = await h.runtime.packer.packContextWithInstruction({
      projectId: 'default',
      toolSuffix: 'tool',
      sourceAgentId: 'operator',
      profileName: 'expert',
      instruction: 'go',
      inputBoxIds: [first.context_box_id],
      tx: client,
    });
    expect(packed.attachedCardIds).toHaveLength(4);
    await client.query('commit');
    await client.end();
    expect(await exists(first.turn_id)).toBe(true);
  });

  test('counts its times from the submission, and uses no expired right, however old the transaction is', async () => {
    const agent = (await submit(h.database.pool as never, {}, { tx: undefined })).agent_id;
    const box = (await h.runtime.packer.createBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      cards: [{ type: 'note', role: 'user', content: { kind: 'text', text: 'n' } }],
    })) as string;
    const grant = { projectId: 'default', sourceAgentId: 'operator', grantee: agent, boxId: box };
    await h.runtime.packer.grantBox({ ...grant, mode: 'read' });
    await inside(async (client) => {
      await client.query('select 1');
      const { turn_id } = await submit(client, { deadline_seconds: 60, budget: { seconds: 60 } });
      const { rows } = await client.query(
        `select t.deadline_at > now() + interval '60 seconds' as is_turn_later, b.deadline_at > now() + interval '60 seconds' as is_budget_later
        from boxcar.turns t join boxcar.budgets b on b.id = t.budget_id where t.id = $1`,
        [turn_id],
      );
      expect(rows).toEqual([{ is_turn_later: true, is_budget_later: true }]);
      const pack = () =>
        h.runtime.packer.packContextWithInstruction({
          projectId: 'default',
          toolSuffix: 'tool',
          sourceAgentId: agent,
          profileName: 'expert',
          instruction: 'go',
          inputBoxIds: [box],
          tx: client,
        });
      expect((await pack()).attachedCardIds).toHaveLength(3);
      await h.rows(
        'update boxcar.grants set expires_at = clock_timestamp() where agent_id = $1 and box_id = $2',
        [agent, box],
      );
      await expect(pack()).rejects.toMatchObject({ code: 'box_not_authorized' });
    });
  });

  test('takes its share of a budget with the commit: a rollback gives it back', async () => {
    await h.profile('parked', [{ say: 'late' }], { worker_target: 'nobody' });
    const run = (await h.runtime.submit('launch_principal', {
      ...LAUNCH,
      profile_name: 'parked',
      budget: { turns: 2 },
    })) as unknown as Receipt;
    const child = { parentTurnId: run.turn_id };
    await inside(async (client) => {
      await submit(client, {}, child);
      await expect(submit(client, {}, child)).rejects.toMatchObject({ code: 'budget_exceeded' });
      await client.query('rollback');
    });
    await inside(async (client) => {
      await submit(client, {}, child);
      await client.query('commit');
    });
    await expect(h.runtime.submit('launch_principal', LAUNCH, child)).rejects.toMatchObject({
      code: 'budget_exceeded',
    });
  });

  test.each([
    ['begin isolation level serializable', /isolation level 'serializable'/],
    ['begin isolation level repeatable read', /isolation level 'repeatable read'/],
    ['begin read only', /read only/],
    ['select 1', /is not inside a transaction/],
  ])('is refused after %s', async (begin, message) => {
    // Turns of earlier tests may still write.
    await waitFor(
      async () =>
        (await h.rows("select from boxcar.turns where status in ('dispatched', 'running')")).length === 0,
      { message: 'the worker has nothing to do' },
    );
    const before = await rowCounts(h.database.pool);
    await inside(async (client) => {
      await expect(submit(client)).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringMatching(message),
      });
      // The transaction continues.
      await client.query('select 1');
    }, begin);
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('waits for a lock for a limited time, and the caller can continue', async () => {
    const key = { idempotencyKey: 'order-9' };
    await inside(async (first) => {
      await submit(first, {}, key);
      await inside(async (second) => {
        await second.query("set local lock_timeout = '50ms'");
        await expect(submit(second, {}, key)).rejects.toMatchObject({
          code: 'database_unavailable',
          cause: { code: '55P03' },
        });
        await second.query('insert into orders values (9)');
        await second.query('commit');
      });
    });
    expect(await orders()).toBe(1);
  });

  test('is found by the sweep when the end of the transaction is not seen; a ring before the commit does no harm', async () => {
    await h.worker({ sweepMs: 100, lostRingMs: 100 });
    const { turn_id } = await inside(async (client) => {
      // An object without a connection: the kernel cannot see the end of the transaction.
      const tx = { query: client.query.bind(client) } as unknown as pg.ClientBase;
      const receipt = await submit(tx);
      h.runtime.ring([{ turnId: receipt.turn_id, epoch: 1, workerTarget: '', priority: 0 }]);
      h.runtime.ring([{ turnId: newId<'turn'>(), epoch: 1, workerTarget: '', priority: 0 }]);
      // A turn that was rung later has run, so the early ring was taken before it.
      const later = (await h.runtime.submit('launch_principal', LAUNCH)) as unknown as Receipt;
      await end(later.turn_id);
      expect(await exists(receipt.turn_id)).toBe(false);
      await client.query('commit');
      return receipt;
    });
    expect(await end(turn_id)).toMatchObject({ status: 'success', result: 'did go' });
    const rows = await h.rows<{ losses: number; step_count: number }>(
      'select losses, step_count from boxcar.turns where id = $1',
      [turn_id],
    );
    expect(rows).toEqual([{ losses: 0, step_count: 1 }]);
  });
});

describe.each(['a pg client', 'drizzle'])('in a transaction of the caller, by %s,', (kind) => {
  class Undone extends Error {}
  /** Submits in a transaction that is rolled back, and then in a transaction that is committed. */
  async function both<T>(work: (tx: CallerTx) => Promise<T>, look: () => Promise<unknown>): Promise<T> {
    const before = await rowCounts(h.database.pool);
    const seen = await look();
    const once = async (isKept: boolean): Promise<T | undefined> => {
      if (kind === 'drizzle')
        return drizzle(outside)
          .transaction(async (tx) => {
            const answer = await work(tx);
            if (!isKept) throw new Undone();
            return answer;
          })
          .catch((error: unknown) => {
            if (error instanceof Undone) return undefined;
            throw error;
          });
      return inside(async (client) => {
        const answer = await work(client);
        if (isKept) await client.query('commit');
        return answer;
      });
    };
    await once(false);
    expect(await look()).toEqual(seen);
    expect(await rowCounts(h.database.pool)).toEqual(before);
    const answer = await once(true);
    if (answer === undefined) throw new Error('nothing was kept');
    return answer;
  }
  const parked = async (budget: object = {}): Promise<Receipt & { run_id: string }> => {
    await h.profile('parked', [{ say: 'late' }], { worker_target: 'nobody' });
    const receipt = (await h.runtime.submit('launch_principal', {
      profile_name: 'parked',
      instruction: 'go',
      ...budget,
    })) as unknown as Receipt;
    const [row] = await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [
      receipt.turn_id,
    ]);
    return { ...receipt, run_id: row?.run_id ?? '' };
  };

  test('a cancel ends the turns with the commit, wakes the waiting callers, and reports nothing else', async () => {
    const turn = await parked();
    const status = async () => await h.rows('select status from boxcar.turns where id = $1', [turn.turn_id]);
    const waiting = h.runtime.waitForTurn(turn.turn_id, { timeoutMs: 60_000 });
    const answer = await both((tx) => h.runtime.submit('cancel', { turn_id: turn.turn_id }, { tx }), status);
    expect(answer).toMatchObject({ status: 'canceled', turn_ids: [turn.turn_id] });
    expect(await waiting).toMatchObject({ status: 'canceled' });
    await inside(async (client) => {
      await expect(
        h.runtime.submit('cancel', { turn_id: turn.turn_id }, { tx: client }),
      ).rejects.toMatchObject({ code: 'turn_ended' });
      await client.query('insert into orders values (11)');
      await client.query('commit');
    });
  });

  test('a raise of a budget takes effect with the commit', async () => {
    const { run_id: target } = await parked({ budget: { turns: 2 } });
    const limits = async () => await h.rows('select limits from boxcar.budgets where id = $1', [target]);
    await both((tx) => h.runtime.submit('raise_budget', { target, budget: { turns: 5 } }, { tx }), limits);
    expect(await limits()).toEqual([{ limits: { turns: 5 } }]);
  });

  test('a context_handoff writes, grants and starts its turn with the commit', async () => {
    await h.worker();
    await h.profile('hander', [{ say: 'begun' }], { delegation_policy: { target_profiles: ['expert'] } });
    const first = (await h.runtime.submit('launch_principal', {
      ...LAUNCH,
      profile_name: 'hander',
    })) as unknown as Receipt;
    await end(first.turn_id);
    const args = {
      target_ref: 'profile:expert',
      tape_ref: `tape://default/${first.output_box_id}/entry/3`,
      reason: 'done',
      summary: 'all of it',
      intention: { next_steps: 'go on' },
    };
    const receipt = await both(
      (tx) => h.runtime.submit('context_handoff', args, { tx, sourceAgentId: first.agent_id }),
      () =>
        h.rows('select head_position from boxcar.boxes where owner_agent_id = $1 order by id', [
          first.agent_id,
        ]),
    );
    const { turn_id } = receipt as unknown as Receipt;
    expect(await end(turn_id)).toMatchObject({ status: 'success', result: expect.stringContaining('go on') });
  });

  test('a collect is refused, since it waits, and the error says what to do', async () => {
    const turn = await parked();
    const before = await rowCounts(h.database.pool);
    const refused = async (tx: CallerTx) =>
      expect(h.runtime.submit('collect', { turn_ids: [turn.turn_id] }, { tx })).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringMatching(/^collect: .*waits.*without tx/),
        details: { primitive: 'collect', field: 'tx' },
      });
    if (kind === 'drizzle') await drizzle(outside).transaction(refused);
    else
      await inside(async (client) => {
        await refused(client);
        await client.query('commit');
      });
    expect(await rowCounts(h.database.pool)).toEqual(before);
    expect(await h.rows('select batch_ids from boxcar.turns where id = $1', [turn.turn_id])).toEqual([
      { batch_ids: null },
    ]);
  });
});

test('a packing in a drizzle transaction of the caller is committed with it', async () => {
  const db = drizzle(outside);
  const pack = (tx: never) =>
    h.runtime.packer.packContextWithInstruction({
      projectId: 'default',
      toolSuffix: 'tool',
      sourceAgentId: 'operator',
      profileName: 'expert',
      instruction: 'go',
      tx,
    });
  const boxes = async (id: string): Promise<number> =>
    (await h.rows('select from boxcar.boxes where id = $1', [id])).length;
  let undone = '';
  await db
    .transaction(async (tx) => {
      undone = (await pack(tx as never)).contextBoxId;
      tx.rollback();
    })
    .catch(() => undefined);
  const kept = await db.transaction(async (tx) => (await pack(tx as never)).contextBoxId);
  expect([await boxes(undone), await boxes(kept)]).toEqual([0, 1]);
  await waitFor(async () => outside.idleCount === outside.totalCount, { message: 'connections are free' });
});
