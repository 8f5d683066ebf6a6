/** Handlers share the pool with the kernel. They cannot take the whole pool, wait for each other, or keep a connection forever. */
import { setTimeout as delay } from 'node:timers/promises';
import { type JsonValue, KernelError } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool, limitByLease } from '@boxcar/store';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Handler, HandlerTools } from '../handler/handler.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { statementsOf } from '../testing/count-statements.js';
import { createWorker } from '../worker/worker.js';

interface Logged {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

interface Program extends AsyncDisposable {
  readonly pool: pg.Pool;
  readonly runtime: Runtime;
  readonly log: readonly Logged[];
}

let database: TestDatabase;

beforeEach(async () => {
  database = await testDatabase();
  return () => database.close();
});

/** A runtime with its own small pool. */
function program(options: { readonly max: number; readonly handlerTimeoutMs?: number }): Program {
  const { max, ...rest } = options;
  const log: Logged[] = [];
  const pool = createPool({ connectionString: database.url, max });
  const runtime = new Runtime({
    pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    log: (level, event, fields = {}) => void log.push({ level, event, fields }),
    ...rest,
  });
  return {
    pool,
    runtime,
    log,
    [Symbol.asyncDispose]: async () => {
      await runtime.close();
      await pool.end();
    },
  };
}

function register(runtime: Runtime, name: string, handle: (tools: HandlerTools) => Promise<JsonValue>): void {
  const handler: Handler = {
    description: name,
    input: z.looseObject({}),
    handle: (_input, tools) => handle(tools),
  };
  runtime.registerHandler(name, handler);
}

function gate(): { readonly opened: Promise<void>; open(): void } {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'accepted',
    (error: unknown) => (error instanceof KernelError ? error.code : String(error)),
  );

const createBox = (runtime: Runtime): Promise<JsonValue> =>
  runtime.submit('create_box', { cards: [{ type: 't', content: { kind: 'text', text: 'x' } }] });

const SELECT = { text: 'select 1' };

describe('the connection pool of a process', () => {
  test('is used by handlers for at most one half: a plain submission is accepted while slow handlers wait', async () => {
    await using one = program({ max: 5 });
    const { runtime } = one;
    const slow = gate();
    let begun = 0;
    register(runtime, 'slow', async ({ tx }) => {
      await tx.query(SELECT);
      begun++;
      await slow.opened;
      return null;
    });
    const running = Array.from({ length: 9 }, () => runtime.submit('slow', {}));
    const all = Promise.allSettled(running);
    try {
      await waitFor(() => begun === 3, { message: 'handlers hold their half of the pool' });
      for (let i = 0; i < 20; i++)
        expect(await createBox(runtime)).toMatchObject({ box_id: expect.any(String) });
      // A handler without a transaction does not wait for handlers with one.
      register(
        runtime,
        'plain',
        async ({ db }) => (await db.query<{ n: number }>({ text: 'select 1 as n' })).rows[0]?.n ?? 0,
      );
      expect(await runtime.submit('plain', {})).toBe(1);
      expect(begun).toBe(3);
    } finally {
      slow.open();
    }
    expect((await all).map(({ status }) => status)).toEqual(Array(9).fill('fulfilled'));
    expect(begun).toBe(9);
    expect(one.pool.idleCount).toBe(one.pool.totalCount);
  });

  test('gives transactions of the kernel a connection while handlers wait for one', async () => {
    await using one = program({ max: 4 });
    const { runtime } = one;
    const { opened, open } = gate();
    let entered = 0;
    register(runtime, 'slow', async ({ tx }) => {
      await tx.query({ text: 'select 1' });
      entered += 1;
      await opened;
      return null;
    });
    await runtime.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] });
    const { turn_id, agent_id } = (await runtime.submit('launch_principal', {
      profile_name: 'p',
      instruction: 'x',
    })) as { turn_id: string; agent_id: string };
    const slow = Promise.all(Array.from({ length: 5 }, () => codeOf(runtime.submit('slow', {}))));
    await waitFor(() => entered === 2, { message: 'handlers hold their half, and others wait' });
    const again = { target_strategy: 'reuse', target_ref: agent_id, instruction: 'x' };
    expect(await codeOf(runtime.submit('delegate_async', again))).toBe('accepted');
    expect(await runtime.submit('cancel', { turn_id })).toMatchObject({ status: 'canceled' });
    expect(entered).toBe(2);
    open();
    await slow;
  });

  test('serves waiting handlers in the order of their requests', async () => {
    await using one = program({ max: 2 });
    const { runtime } = one;
    const slow = gate();
    const asked: number[] = [];
    const begun: number[] = [];
    let count = 0;
    register(runtime, 'slow', async ({ tx }) => {
      const place = count++;
      const statement = tx.query(SELECT);
      asked.push(place);
      await statement;
      begun.push(place);
      await slow.opened;
      return place;
    });
    const all = Promise.all(Array.from({ length: 7 }, () => runtime.submit('slow', {})));
    await waitFor(() => asked.length === 7, { message: 'all have asked for a connection' });
    slow.open();
    await all;
    expect(begun).toEqual(asked);
  });

  test('stays free while imports wait for the lines of a slow source', async () => {
    await using one = program({ max: 2 });
    const { runtime } = one;
    const slow = gate();
    const begun: number[] = [];
    const line = '{"id": 1, "kind": "message", "payload": {"role": "user", "content": "hello"}, "meta": {}}';
    const imported = Promise.all(
      [0, 1].map((index) =>
        runtime.importTape(`notes ${index}`, {
          main: {
            lines: async function* () {
              begun.push(index);
              yield line;
              await slow.opened;
            },
          },
        }),
      ),
    );
    try {
      await waitFor(() => begun.length === 2, { message: 'both imports read' });
      await waitFor(() => one.pool.totalCount === one.pool.idleCount, { message: 'no connection is held' });
      for (let i = 0; i < 10; i++) await createBox(runtime);
    } finally {
      slow.open();
    }
    expect(await imported).toMatchObject([{ lines: 1 }, { lines: 1 }]);
  });

  test('cannot deadlock on handlers that submit primitives, since a submission inside a transaction is refused', async () => {
    await using one = program({ max: 2 });
    const { runtime } = one;
    register(runtime, 'inner', async ({ tx }) => {
      await tx.query(SELECT);
      return 'inner';
    });
    register(runtime, 'before', async ({ tx }) => {
      const answer = await runtime.submit('inner', {});
      await tx.query(SELECT);
      return answer;
    });
    register(runtime, 'within', async ({ tx }) => {
      await tx.query(SELECT);
      return runtime.submit('inner', {});
    });
    const eight = (name: string): Promise<string[]> =>
      Promise.all(Array.from({ length: 8 }, () => codeOf(runtime.submit(name, {}))));
    expect(await eight('before')).toEqual(Array(8).fill('accepted'));
    expect(await eight('within')).toEqual(Array(8).fill('nested_connection'));
    expect(one.pool.idleCount).toBe(one.pool.totalCount);
  });

  test('logs its holders when a wait for a connection exceeds a second', async () => {
    await using one = program({ max: 2 });
    const { runtime, log } = one;
    const slow = gate();
    const holding = gate();
    let asked = 0;
    register(runtime, 'slow', async ({ tx }) => {
      asked++;
      await tx.query(SELECT);
      holding.open();
      await slow.opened;
      return null;
    });
    const running = runtime.submit('slow', {});
    await holding.opened;
    const startedAt = performance.now();
    const second = runtime.submit('slow', {});
    await waitFor(() => asked === 2, { message: 'the second handler waits' });
    const client = await one.pool.connect();
    const waiting = createBox(runtime);
    const seen = (): readonly Logged[] => log.filter(({ event }) => event === 'pool.waiting');
    try {
      await waitFor(() => seen().length >= 2, { message: 'the wait is logged twice' });
      const elapsedMs = performance.now() - startedAt;
      expect(seen().length).toBeLessThanOrEqual(Math.floor(elapsedMs / 1000));
    } finally {
      client.release();
      slow.open();
    }
    await Promise.all([running, waiting, second]);
    expect(seen()[0]).toMatchObject({
      level: 'warn',
      fields: {
        max_connections: 2,
        max_handlers: 1,
        waiting_handlers: ['slow'],
        handlers: [{ primitive: 'slow', since: expect.stringMatching(/^\d{4}-\d\d-\d\dT/) }],
        held_by_kernel: 1,
      },
    });
    expect(seen()[1]?.fields).toMatchObject({ waiting_for_connection: 1, waiting_handlers: ['slow'] });
    expect(Number(seen()[0]?.fields.waited_ms)).toBeGreaterThanOrEqual(999);
  });
});

describe('a second connection inside an open transaction', () => {
  type Use = (runtime: Runtime, pool: pg.Pool, ctx: HandlerTools['ctx']) => Promise<unknown>;
  const USES: readonly [string, Use][] = [
    ['runtime.submit', (runtime) => createBox(runtime)],
    ['runtime.accept', (runtime) => runtime.accept('create_box', { cards: [] })],
    [
      'runtime.packer',
      (runtime, _pool, { projectId, source }) =>
        runtime.packer.createBox({
          projectId,
          sourceAgentId: source.agentId,
          cards: [{ type: 't', content: { kind: 'text', text: 'x' } }],
        }),
    ],
    ['runtime.tape', (runtime) => runtime.tape('notes')],
    ['runtime.waitForTurn', (runtime) => runtime.waitForTurn('00000000-0000-7000-8000-000000000000')],
    ['runtime.waitForBatch', (runtime) => runtime.waitForBatch('00000000-0000-7000-8000-000000000000')],
    ['runtime.getTurn', (runtime) => runtime.getTurn('00000000-0000-7000-8000-000000000000')],
    ['runtime.listProfiles', (runtime) => runtime.listProfiles()],
    [
      'runtime.applyProfile',
      (runtime) =>
        runtime.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] }),
    ],
    ['a statement on the pool', (_runtime, pool) => pool.query('select 1')],
    ['a connection of the pool', (_runtime, pool) => pool.connect().then((client) => client.release())],
  ];

  test.each(USES)('taken by %s is refused with its reason', async (_title, use) => {
    await using one = program({ max: 4 });
    const { runtime, pool } = one;
    let refused: unknown;
    register(runtime, 'nests', async ({ tx, ctx }) => {
      await tx.query(SELECT);
      refused = await use(runtime, pool, ctx).then(
        () => undefined,
        (error: unknown) => error,
      );
      // The transaction of the handler continues.
      return (await tx.query<{ n: number }>({ text: 'select 2 as n' })).rows[0]?.n ?? 0;
    });
    expect(await runtime.submit('nests', {})).toBe(2);
    expect(refused).toBeInstanceOf(KernelError);
    expect(refused).toMatchObject({
      code: 'nested_connection',
      message: expect.stringMatching(/nests.*tx/s),
      details: { primitive: 'nests' },
    });
  });

  test('is refused to parallel calls of the handler, and allowed before and after the transaction', async () => {
    await using one = program({ max: 4 });
    const { runtime, pool } = one;
    const codes: string[] = [];
    let later: Promise<string> | undefined;
    const over = gate();
    register(runtime, 'nests', async ({ tx, db }) => {
      codes.push(await codeOf(pool.query('select 1')));
      const statement = tx.query(SELECT);
      codes.push(await codeOf(pool.query('select 1')));
      // Reads through `db` are within the transaction.
      codes.push(await codeOf(db.query(SELECT)));
      await statement;
      later = over.opened.then(() => codeOf(pool.query('select 1')));
      return null;
    });
    await runtime.submit('nests', {});
    over.open();
    expect(codes).toEqual(['accepted', 'nested_connection', 'accepted']);
    expect(await later).toBe('accepted');
  });

  test('is refused only to the handler: other submissions at the same time are accepted', async () => {
    await using one = program({ max: 4 });
    const { runtime, log } = one;
    await runtime.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] });
    await using worker = await createWorker(runtime, { sweepMs: 200 });
    expect(worker).toBeDefined();
    const holding = gate();
    const done = gate();
    let own: Promise<string>[] = [];
    let waiting: Promise<unknown> | undefined;
    register(runtime, 'nests', async ({ tx }) => {
      // This work starts before the transaction and uses shared parts: batches, rings, promotions, the watcher.
      const started = (await runtime.submit('launch_principal', { profile_name: 'p', instruction: 'x' })) as {
        turn_id: string;
      };
      waiting = runtime.waitForTurn(started.turn_id, { timeoutMs: 60_000 });
      waiting.catch(() => undefined);
      own = Array.from({ length: 4 }, () => codeOf(createBox(runtime)));
      const statement = tx.query(SELECT);
      // Other submissions now share a batch with the submissions of this handler, or follow them.
      holding.open();
      await statement;
      own.push(codeOf(createBox(runtime)));
      await done.opened;
      return null;
    });
    const running = runtime.submit('nests', {});
    await holding.opened;
    for (let round = 0; round < 20; round++) {
      const others = Array.from({ length: 10 }, () => codeOf(createBox(runtime)));
      expect(await Promise.all(others)).toEqual(Array(10).fill('accepted'));
    }
    const other = (await runtime.submit('launch_principal', { profile_name: 'p', instruction: 'x' })) as {
      turn_id: string;
    };
    expect(await runtime.waitForTurn(other.turn_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
    });
    expect(await waiting).toMatchObject({ status: 'success' });
    done.open();
    await running;
    expect((await Promise.all(own)).at(-1)).toBe('nested_connection');
    const failed = log.filter(
      ({ event, fields }) => /failed|error/.test(event) || JSON.stringify(fields).includes('nested'),
    );
    expect(failed).toEqual([]);
  });
});

describe('the deadline of a handler that was submitted from outside', () => {
  const NEVER = (): Promise<never> => new Promise(() => undefined);

  test.each([
    ['waits for other work', async () => undefined],
    [
      'waits for a statement',
      async ({ tx }: HandlerTools) => void (await tx.query({ text: 'select pg_sleep(25)' })),
    ],
  ])('frees the connection of a handler that %s', async (_title, wait) => {
    await using one = program({ max: 2, handlerTimeoutMs: 1_000 });
    const { runtime, pool } = one;
    await pool.query('create table notes (words text)');
    let signal: AbortSignal | undefined;
    register(runtime, 'stuck', async (tools) => {
      signal = tools.signal;
      await tools.tx.query({ text: "insert into notes values ('made')" });
      await wait(tools);
      return NEVER();
    });
    register(runtime, 'quick', async ({ tx }) => {
      await tx.query(SELECT);
      return 'done';
    });
    const startedAt = performance.now();
    const stuck = runtime.submit('stuck', {}, { idempotencyKey: 'k' }).catch((error: unknown) => error);
    // This submission waits for the only connection that handlers may hold. The deadline frees it.
    const quick = waitFor(() => signal !== undefined, { message: 'the handler has begun' }).then(() =>
      codeOf(runtime.submit('quick', {})),
    );
    expect(await stuck).toMatchObject({
      code: 'handler_timeout',
      message: expect.stringContaining('stuck'),
      details: { primitive: 'stuck', timeout_ms: 1_000 },
    });
    expect(['accepted', 'handler_timeout']).toContain(await quick);
    expect(await runtime.submit('quick', {})).toBe('done');
    expect(performance.now() - startedAt).toBeLessThan(20_000);
    expect(signal?.aborted).toBe(true);
    expect(await pool.query('select * from notes')).toMatchObject({ rows: [] });
    await waitFor(() => pool.idleCount === pool.totalCount, {
      message: 'the connection is free',
      deadlineMs: 10_000,
    });
  });

  test('ends the wait for a connection, so that no connection is taken later', async () => {
    await using one = program({ max: 1, handlerTimeoutMs: 500 });
    const { runtime, pool } = one;
    let begun = 0;
    register(runtime, 'waits', async ({ tx }) => {
      begun++;
      await tx.query(SELECT);
      return null;
    });
    // The handler's caller has been looked up before the only connection is taken.
    register(runtime, 'first', async ({ tx }) => {
      await tx.query(SELECT);
      return NEVER();
    });
    const first = codeOf(runtime.submit('first', {}));
    expect(await first).toBe('handler_timeout');
    const client = await pool.connect();
    const waits = codeOf(runtime.submit('waits', {}));
    await delay(50);
    client.release();
    expect(await waits).toBe('accepted');
    expect(begun).toBe(1);
    await waitFor(() => pool.idleCount === pool.totalCount, { message: 'the connection is free' });
  });

  test('is 60 s by default, and is checked like other durations', () => {
    expect(program({ max: 1 }).runtime.handlerTimeoutMs).toBe(60_000);
    for (const handlerTimeoutMs of [0, -1, Number.NaN, Infinity, 31 * 86_400_000])
      expect(() => program({ max: 1, handlerTimeoutMs })).toThrow(
        expect.objectContaining({ code: 'bad_request', details: { field: 'handlerTimeoutMs' } }),
      );
  });

  test('is the timeout of the call within a turn, and frees the connection too', async () => {
    await using one = program({ max: 2, handlerTimeoutMs: 1_000 });
    const { runtime } = one;
    register(runtime, 'stuck', async ({ tx }) => {
      await tx.query({ text: 'select pg_sleep(25)' });
      return null;
    });
    register(runtime, 'quick', async ({ tx }) => {
      await tx.query(SELECT);
      return 'done';
    });
    await runtime.applyProfile({
      name: 'p',
      instructions: 'x',
      model: 'scripted',
      script: [{ calls: [{ tool: 'stuck' }] }, { say: 'done' }],
      tools: ['stuck'],
      limits: { tool_timeout_seconds: 1 },
    });
    await using worker = await createWorker(runtime, { sweepMs: 200 });
    expect(worker).toBeDefined();
    const startedAt = performance.now();
    const { turn_id } = (await runtime.submit('launch_principal', {
      profile_name: 'p',
      instruction: 'x',
    })) as {
      turn_id: string;
    };
    expect(await runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(
      (await database.pool.query('select status from boxcar.tool_calls where turn_id = $1', [turn_id])).rows,
    ).toEqual([{ status: 'timeout' }]);
    expect(await runtime.submit('quick', {})).toBe('done');
    expect(performance.now() - startedAt).toBeLessThan(20_000);
  });
});

describe('a handler that waits for other work inside its transaction', () => {
  /** With this lease the server lets a transaction idle for four seconds. */
  const LEASE_MS = 5_000;

  const isIdle = async (): Promise<boolean> => {
    const { rows } = await database.pool.query<{ n: number }>(
      `select count(*)::int as n from pg_stat_activity
       where datname = current_database() and state = 'idle in transaction'`,
    );
    return (rows[0]?.n ?? 0) > 0;
  };

  test.each([
    ['its next statement', async ({ tx }: HandlerTools) => void (await tx.query(SELECT))],
    ['its commit', async () => undefined],
  ])(
    'until the server has ended it fails with transaction_idle at %s, and does not run again',
    async (_title, next) => {
      await using one = program({ max: 2 });
      const { runtime, pool } = one;
      limitByLease(pool, LEASE_MS);
      let runs = 0;
      register(runtime, 'idles', async (tools) => {
        runs++;
        await tools.tx.query(SELECT);
        await waitFor(async () => !(await isIdle()), { message: 'the server has ended the transaction' });
        await next(tools);
        return null;
      });
      const thrown = await runtime.submit('idles', {}).catch((error: unknown) => error);
      expect(thrown).toMatchObject({
        code: 'transaction_idle',
        message: expect.stringMatching(/idles.*first statement/s),
        details: { primitive: 'idles' },
      });
      expect(runs).toBe(1);
    },
  );
});

describe('a statement of a handler that is cut off', () => {
  /** With this lease a statement may wait 400 ms for a lock. */
  const LEASE_MS = 1_000;

  /** A row that another session has locked. */
  async function lockedRow(): Promise<{ letGo(): Promise<void> } & AsyncDisposable> {
    await database.pool.query('create table things (n int); insert into things values (1)');
    const client = await database.pool.connect();
    await client.query(
      'begin; set local idle_in_transaction_session_timeout = 0; select from things for update',
    );
    let isOver = false;
    const letGo = async (): Promise<void> => {
      if (isOver) return;
      isOver = true;
      await client.query('rollback');
      client.release();
    };
    return { letGo, [Symbol.asyncDispose]: letGo };
  }

  const UPDATE = { text: 'update things set n = n + 1' };

  test.each<[string, string, (tools: HandlerTools) => Promise<unknown>]>([
    [
      'its own limit for locks',
      '55P03',
      async ({ tx }) => {
        await tx.query({ text: "set local lock_timeout = '20ms'" });
        await tx.query(UPDATE);
      },
    ],
    [
      'its own, longer limit for locks',
      '55P03',
      async ({ tx }) => {
        await tx.query({ text: "select set_config('lock_timeout', '600ms', true)" });
        await tx.query(UPDATE);
      },
    ],
    [
      'a lock that it asks for with `nowait`',
      '55P03',
      ({ tx }) => tx.query({ text: 'select from things for update nowait' }),
    ],
    [
      'its own limit for statements',
      '57014',
      async ({ tx }) => {
        await tx.query({ text: 'set local statement_timeout = 20' });
        await tx.query({ text: 'select pg_sleep(10)' });
      },
    ],
    [
      'a user who cancels it',
      '57014',
      async ({ tx }) => {
        const { rows } = await tx.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' });
        const asleep = tx.query({ text: 'select pg_sleep(10)' });
        asleep.catch(() => undefined);
        await waitFor(
          async () =>
            (
              await database.pool.query(
                "select pg_cancel_backend(pid) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'",
                [rows[0]?.pid],
              )
            ).rowCount === 1,
          { message: 'it sleeps and is canceled' },
        );
        await asleep;
      },
    ],
  ])('by %s gets the error of Postgres, and does not run again', async (_title, code, work) => {
    await using one = program({ max: 2 });
    await using row = await lockedRow();
    expect(row).toBeDefined();
    limitByLease(one.pool, LEASE_MS);
    let runs = 0;
    let told: unknown;
    register(one.runtime, 'cut', async (tools) => {
      runs++;
      await work(tools).catch((error: unknown) => {
        told = error;
        throw error;
      });
      return null;
    });
    const thrown = await one.runtime.submit('cut', {}).catch((error: unknown) => error);
    expect(thrown).toMatchObject({ code });
    expect(told).toBe(thrown);
    expect(thrown).not.toBeInstanceOf(KernelError);
    expect(runs).toBe(1);
  });

  test('by its own limit during its commit gets the error of Postgres too', async () => {
    await using one = program({ max: 2 });
    await database.pool.query(`
      create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(10); return new; end $$;
      create trigger slow before insert on boxcar.operations for each row execute function public.slow()`);
    let runs = 0;
    register(one.runtime, 'cut', async ({ tx }) => {
      runs++;
      await tx.query({ text: 'set local statement_timeout = 50' });
      return null;
    });
    const thrown = await one.runtime.submit('cut', {}).catch((error: unknown) => error);
    expect(thrown).toMatchObject({ code: '57014' });
    expect(runs).toBe(1);
  });

  test('by the limit of its connection runs again until the lock is free', async () => {
    await using one = program({ max: 2 });
    await using row = await lockedRow();
    limitByLease(one.pool, LEASE_MS);
    let runs = 0;
    register(one.runtime, 'waits', async ({ tx }) => {
      runs++;
      if (runs === 2) await row.letGo();
      await tx.query(UPDATE);
      return 'done';
    });
    expect(await one.runtime.submit('waits', {})).toBe('done');
    expect(runs).toBe(2);
  });
});

test('a handler that opens no transaction costs two statements', async () => {
  await using one = program({ max: 2 });
  const { runtime } = one;
  register(runtime, 'plain', async () => 'done');
  await runtime.submit('plain', {});
  expect(await statementsOf(database, () => runtime.submit('plain', {}))).toHaveLength(2);
});
