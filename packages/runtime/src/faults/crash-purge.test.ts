/**
 * A purge dies at any of its statements while the data that it is about to remove is used: each use sees whole data or is refused, and the
 * next purge continues.
 */
import { KernelError } from '@boxcar/kernel';
import { createPool, purgeRuns, purgeTapes } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { faultsSeed, isSample } from '../testing/faults/survival.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

interface Receipt {
  readonly turn_id: never;
  readonly agent_id: string;
  readonly context_box_id: string;
  readonly output_box_id: string;
}

let h: Harness;
let shared: string;

beforeAll(async () => {
  // Each use may hold a connection of its own while it waits, and turns need connections too.
  h = await harness({ connections: 20 });
  await h.profile('child', [{ say: 'done' }]);
  await h.worker();
  shared = (await h.runtime.tape('shared')).boxId;
});
afterAll(() => h[Symbol.asyncDispose]());

const OWN_TABLES = /^\s*(insert into purge_|analyze purge_)/;

class Killed extends Error {}

/**
 * A pool of a process that dies before its statement `at`, counted from 1: no later statement of it arrives.
 *
 * @param options.atDeath - Runs after the previous statements, while the transaction is open. Its argument is the process id of the
 *   backend.
 */
function mortalPool(options: { readonly at: number; readonly atDeath: (pid: number) => Promise<void> }) {
  const pool = createPool({ connectionString: h.database.url, max: 1 });
  let sent = 0;
  let isDead = false;
  let dying: Promise<never> | undefined;
  const connect = async (): Promise<pg.PoolClient> => {
    if (isDead) throw new Killed();
    const client = await pool.connect();
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    const pid = rows[0]?.pid ?? 0;
    let last: Promise<unknown> = Promise.resolve();
    const die = async (): Promise<never> => {
      await last.catch(() => undefined);
      await options.atDeath(pid);
      isDead = true;
      // The system closes the sockets of a killed process in the same way.
      const { connection } = client as unknown as { connection: { stream: { destroy(): void } } };
      client.on('error', () => undefined);
      connection.stream.destroy();
      await waitFor(
        async () => (await h.rows('select from pg_stat_activity where pid = $1', [pid])).length === 0,
        { message: 'the server has seen it' },
      );
      throw new Killed();
    };
    const query = async (...args: Parameters<pg.PoolClient['query']>): Promise<unknown> => {
      // A statement may be sent before the previous statement was answered.
      if (dying !== undefined) return dying;
      const [config] = args as unknown as readonly [string | { readonly text: string }];
      // A statement that only fills tables of the purge itself changes nothing for others: a death before it is the same as a death before
      // the next statement.
      if (!OWN_TABLES.test(typeof config === 'string' ? config : config.text)) sent += 1;
      if (sent === options.at) {
        dying = die();
        return dying;
      }
      last = client.query(...args) as unknown as Promise<unknown>;
      return last;
    };
    return new Proxy(client, {
      get: (target, key) => {
        if (key === 'query') return query;
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  };
  const query = async (...args: Parameters<pg.PoolClient['query']>): Promise<unknown> => {
    const client = await connect();
    try {
      return await client.query(...args);
    } finally {
      client.release(isDead);
    }
  };
  const mortal = new Proxy(pool, {
    get: (target, key) => {
      if (key === 'connect') return connect;
      if (key === 'query') return query;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  return { pool: mortal, isDead: () => isDead, end: () => pool.end() };
}

async function now(): Promise<Date> {
  const [row] = await h.rows<{ at: Date }>("select clock_timestamp() + interval '1 millisecond' as at");
  const at = row?.at ?? new Date(0);
  await h.rows('select pg_sleep(greatest(0, extract(epoch from $1::timestamptz - clock_timestamp())))', [at]);
  return at;
}

async function play(rest: Record<string, unknown> = {}): Promise<Receipt> {
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: 'child',
    instruction: 'go',
    ...rest,
  })) as unknown as Receipt;
  expect(await h.runtime.waitForTurn(receipt.turn_id)).toMatchObject({ status: 'success' });
  return receipt;
}

const MESSAGE = '{"id":1,"kind":"message","payload":{"role":"user","content":"imported"},"meta":{}}';
const lines = (): readonly string[] => [MESSAGE];
const cardOf = async (box: string): Promise<string> => {
  const [row] = await h.rows<{ id: string }>('select card_ids[1] as id from boxcar.boxes where id = $1', [
    box,
  ]);
  return row?.id ?? '';
};

/** Uses of an old run, each with a preparation while the run is young. */
const uses: Readonly<Record<string, (old: Receipt) => Promise<() => Promise<unknown>>>> = {
  packing: async (old) => async () => play({ context_box_id: old.output_box_id }),
  'listing a card': async (old) => {
    const card = await cardOf(old.context_box_id);
    return async () => {
      const box = (await h.runtime.submit('create_box', { card_ids: [card] })) as { box_id: string };
      await play({ context_box_id: box.box_id });
    };
  },
  merging: async (old) => {
    for (const mode of ['read', 'append'])
      await h.runtime.submit('grant_box', { box_id: shared, grantee: old.agent_id, mode });
    const fork = await (await h.runtime.tape({ box: shared }, { as: old.agent_id })).forkTape();
    await fork.tape.append([{ kind: 'message', content: `within ${old.turn_id}` }]);
    return () => fork.merge();
  },
  making: async (old) => async () => {
    await h.runtime.submit(
      'create_box',
      { cards: [{ type: 'note', content: { kind: 'text', text: 'late' } }] },
      { sourceAgentId: old.agent_id as never },
    );
  },
  importing: async (old) => () =>
    h.runtime.importTape({ agent: old.agent_id }, { main: { lines } }, { append: true }),
  resuming: async (old) => async () => {
    const turn = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: old.agent_id,
      instruction: 'again',
    })) as unknown as Receipt;
    expect(await h.runtime.waitForTurn(turn.turn_id)).toMatchObject({ status: 'success' });
  },
};

/** Runs each of `works` until it ends, or until it waits for the backend `pid`, directly or through another backend. */
async function runUntilBlocked(works: readonly Promise<unknown>[], pid: number): Promise<void> {
  let left = works.length;
  for (const work of works) {
    const end = (): void => {
      left -= 1;
    };
    work.then(end, end);
  }
  await waitFor(
    async () => {
      if (left === 0) return true;
      const waiting = await h.rows(
        `with recursive w as (
           select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))
           union select a.pid from pg_stat_activity a join w on w.pid = any (pg_blocking_pids(a.pid)))
         select from w`,
        [pid],
      );
      return waiting.length >= left;
    },
    { message: 'each is done, or waits' },
  );
}

type Use = () => Promise<unknown>;

/** @returns Whether the purge reached this statement. */
async function dieAt(
  at: number,
  prepare: () => Promise<readonly Use[]>,
  purge: (pool: pg.Pool, before: Date) => Promise<unknown>,
): Promise<boolean> {
  const uses = await prepare();
  const before = await now();
  let using: readonly Promise<unknown>[] = [];
  const mortal = mortalPool({
    at,
    atDeath: async (pid) => {
      using = uses.map((use) => use());
      await runUntilBlocked(using, pid);
    },
  });
  const outcome = await purge(mortal.pool, before).catch((error: unknown) => error);
  if (mortal.isDead()) expect(outcome).toBeInstanceOf(Killed);
  await mortal.end();
  for (const used of await Promise.allSettled(using)) {
    if (used.status === 'fulfilled') continue;
    expect(used.reason).toBeInstanceOf(KernelError);
    if ((used.reason as KernelError).code !== 'not_found') throw used.reason;
  }
  await checkInvariants(h.database.pool);
  // Marks of the dead purge do not stop another purge.
  await purge(h.database.pool, await now());
  await checkInvariants(h.database.pool);
  return mortal.isDead();
}

/**
 * Dies at each statement. A sample dies at every third statement, and starts at one of the first three. @returns The last statement at
 * which it died.
 */
async function dieEverywhere(...args: Parameters<typeof dieAt> extends [number, ...infer R] ? R : never) {
  const every = isSample() ? 3 : 1;
  let at = 1 + (faultsSeed() % every);
  const die = async (): Promise<boolean> => {
    try {
      return await dieAt(at, ...args);
    } catch (error) {
      throw new Error(`at statement ${at} (BOXCAR_FAULTS_SEED=${faultsSeed()})`, { cause: error });
    }
  };
  while (await die()) at += every;
  return at - every;
}

describe('a purge that is killed at each statement', { timeout: 600_000 }, () => {
  test(`of runs leaves no broken reference while one is used for each of ${Object.keys(uses).join(', ')}`, async () => {
    const died = await dieEverywhere(
      () => Promise.all(Object.values(uses).map(async (use) => use(await play()))),
      (pool, before) => purgeRuns(pool, { before }),
    );
    expect(died).toBeGreaterThan(40);
  });

  test('of tapes leaves no broken reference while one of them is forked', async () => {
    let n = 0;
    const died = await dieEverywhere(
      async () => {
        n += 1;
        const { boxId } = await h.runtime.importTape(`imported ${n}`, { main: { lines } });
        return [async () => (await h.runtime.tape({ box: boxId })).forkTape({ mergeBack: false })];
      },
      (pool, before) => purgeTapes(pool, { before }),
    );
    expect(died).toBeGreaterThan(20);
  });
});
