/**
 * Processes that make, rotate and revoke keys die, or lose a connection, at each of their statements. Afterwards every usable key was shown
 * to its caller, or the next request revokes it.
 *
 * These rows belong to no turn and no queue, so the process under fault has only a pool.
 */
import { createPool, isTransient } from '@boxcar/store';
import { type StatementFault, statementProxy, type TestDatabase, testDatabase } from '@boxcar/testkit';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { authenticateKey } from '../key/authenticate-key.js';
import { createKey, listKeys, revokeKey, rotateKey } from '../key/keys.js';
import { untilAborted } from '../testing/faults/client.js';

type Moment = Omit<StatementFault, 'at'>;

const MOMENTS: readonly Moment[] = [
  { scope: 'connection', when: 'before' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'before' },
  { scope: 'process', when: 'after' },
];

let database: TestDatabase;

beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => database.close());

type Work<T> = (pool: pg.Pool) => Promise<T>;

/** `failed`: the caller got a transient error. `died`: the caller got no answer. */
type End<T> = { readonly kind: 'told'; readonly answer: T } | { readonly kind: 'failed' | 'died' };

interface Life<T> {
  readonly end: End<T>;
  readonly statements: readonly string[];
  readonly struck: string | undefined;
}

/** One request in a process of its own. */
async function live<T>(work: Work<T>, fault?: StatementFault): Promise<Life<T>> {
  await using proxy = await statementProxy(database.url, fault);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  try {
    const end = await untilAborted(work(pool), proxy.life).then(
      (answer): End<T> => ({ kind: 'told', answer }),
      (error: unknown): End<T> => {
        if (!proxy.isDead && !isTransient(error)) throw error;
        return { kind: proxy.isDead ? 'died' : 'failed' };
      },
    );
    return { end, statements: proxy.statements, struck: proxy.struck };
  } finally {
    await pool.end();
  }
}

interface Case<S, T> {
  readonly prepare: () => Promise<S>;
  readonly request: (start: S) => Work<T>;
  /** The conditions after the cut, and after the next request of a caller without an answer. */
  readonly check: (start: S, end: End<T>) => Promise<void>;
}

/** Cuts the request at each statement, at each moment. */
async function cutEverywhere<S, T>({ prepare, request, check }: Case<S, T>): Promise<void> {
  const { statements } = await live(request(await prepare()));
  expect(statements.length).toBeGreaterThan(1);
  for (const at of statements.keys())
    for (const moment of MOMENTS) {
      const fault = { at: at + 1, ...moment };
      await database.pool.query('delete from boxcar.api_keys');
      const start = await prepare();
      try {
        const { end, struck } = await live(request(start), fault);
        expect(struck).toBe(statements[at]);
        expect(end.kind === 'died').toBe(moment.scope === 'process');
        await check(start, end);
      } catch (cause) {
        throw new Error(`${JSON.stringify(fault)}: ${statements[at]}`, { cause });
      }
    }
}

const make: Work<Awaited<ReturnType<typeof createKey>>> = (pool) =>
  createKey(pool, { scopes: ['approvals:read'] });
const makeOld = () => make(database.pool);
const usableIds = async (): Promise<readonly string[]> =>
  (await listKeys(database.pool)).keys.map(({ key_id }) => key_id);
const works = async ({ key }: { readonly key: string }): Promise<boolean> =>
  (await authenticateKey(database.pool, key)) !== undefined;

describe('a request about a key that is cut at any of its statements', () => {
  test('leaves only the key that it has shown; a key that was never shown is listed, and ends when it is revoked', async () => {
    await cutEverywhere({
      prepare: () => Promise.resolve(),
      request: () => make,
      check: async (_start, end) => {
        const shown = end.kind === 'told' ? end.answer : await make(database.pool);
        expect(await works(shown)).toBe(true);
        const unshown = (await usableIds()).filter((id) => id !== shown.key_id);
        expect(unshown.length).toBeLessThanOrEqual(end.kind === 'died' ? 1 : 0);
        for (const id of unshown) await revokeKey(database.pool, id);
        expect(await usableIds()).toEqual([shown.key_id]);
      },
    });
  });

  test('leaves the old key or the new key, and a second rotation ends a key that was never shown', async () => {
    await cutEverywhere({
      prepare: makeOld,
      request: (old) => (pool) => rotateKey(pool, old.key_id),
      check: async (old, end) => {
        const [left, ...more] = await usableIds();
        expect(more).toEqual([]);
        expect(await works(old)).toBe(left === old.key_id);
        if (end.kind === 'told') expect(left).toBe(end.answer.key_id);
        // An error after the old key was revoked would leave the caller without any key.
        if (end.kind === 'failed') expect(left).toBe(old.key_id);
        const shown = end.kind === 'told' ? end.answer : await rotateKey(database.pool, String(left));
        expect([await works(old), await works(shown)]).toEqual([false, true]);
        expect(await usableIds()).toEqual([shown.key_id]);
      },
    });
  });

  test('leaves a key that works or has ended, and a second revocation reports it as ended', async () => {
    await cutEverywhere({
      prepare: makeOld,
      request: (old) => (pool) => revokeKey(pool, old.key_id),
      check: async (old, end) => {
        const left = await usableIds();
        expect(await works(old)).toBe(left.length === 1);
        if (end.kind !== 'died') expect(left).toHaveLength(end.kind === 'told' ? 0 : 1);
        const { revoked_at } = end.kind === 'told' ? end.answer : await revokeKey(database.pool, old.key_id);
        expect(await revokeKey(database.pool, old.key_id)).toMatchObject({ revoked_at, status: 'revoked' });
        await expect(rotateKey(database.pool, old.key_id)).rejects.toMatchObject({ code: 'conflict' });
        expect([await works(old), await usableIds()]).toEqual([false, []]);
      },
    });
  });
});
