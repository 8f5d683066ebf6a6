import type { TurnId } from '@boxcar/kernel';
import { BLOCKED_WORKER, createPool } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import type { Tool } from '../tool/tool.js';
import { failStrayCall } from './call-scope.js';
import { newId } from './new-id.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  return () => h[Symbol.asyncDispose]();
});

/** The watchdog's view of the code that runs now. */
const codeNow = (): unknown => (Reflect.get(globalThis, Symbol.for('boxcar.runningCode')) as () => unknown)();

const tool = (name: string, run: Tool['run']): void =>
  h.runtime.registerTool({ name, description: 'For tests.', input: z.looseObject({}), retry: 'safe', run });

async function launch(profile: string): Promise<TurnId> {
  const receipt = await h.runtime.submit('launch_principal', { profile_name: profile, instruction: 'go' });
  return (receipt as { turn_id: TurnId }).turn_id;
}

const ends = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

const calling = (name: string) =>
  h.profile(name, [{ calls: [{ tool: name, arguments: {} }] }, { say: 'went on' }], { tools: [name] });

test('a connection of the pool that a tool opens is not traced to its call', async () => {
  // The test's own pool may already have all its connections.
  const pool = createPool({ connectionString: h.database.url, max: 3 });
  const takeAll = () => Promise.all(Array.from({ length: 3 }, () => pool.connect()));
  const seen: unknown[] = [];
  const inTool: unknown[] = [];
  tool('opener', async () => {
    inTool.push(codeNow());
    pool.on('connect', (client) => {
      client.on('notice', () => seen.push(codeNow()));
    });
    const clients = await takeAll();
    for (const client of clients) client.release();
    return 'opened';
  });
  await calling('opener');
  await h.worker();
  expect(await ends(await launch('opener'))).toMatchObject({ status: 'success' });
  expect(inTool).toMatchObject([{ kind: 'call', tool: 'opener' }]);
  const clients = await takeAll();
  for (const client of clients) await client.query("do $$ begin raise notice 'x'; end $$");
  for (const client of clients) client.release();
  await pool.end();
  expect(seen.length).toBeGreaterThan(0);
  expect(seen.filter((code) => code !== undefined)).toEqual([]);
});

test('a turn that a tool starts is not traced to the call of that tool', async () => {
  const seen: unknown[] = [];
  const looks = new Set<string>();
  h.runtime.registerHandler('look', {
    description: 'For tests.',
    input: z.looseObject({}),
    handle: (_input, { ctx }) => {
      looks.add(ctx.parent?.turnId ?? '');
      seen.push(codeNow());
      return 'seen';
    },
  });
  let child: TurnId | undefined;
  tool('starter', async () => {
    child = await launch('look');
    return 'started';
  });
  await calling('look');
  await calling('starter');
  await h.worker();
  await ends(await launch('starter'));
  if (child === undefined) throw new Error('not started');
  await ends(child);
  expect(seen).toMatchObject([{ kind: 'call', tool: 'look', turnId: child }]);
});

test('a handler is traced to its call, but an error that it leaves unhandled is not charged to the call', async () => {
  const seen: unknown[] = [];
  h.runtime.registerHandler('leaves', {
    description: 'For tests.',
    input: z.looseObject({}),
    handle: async () => {
      await new Promise((resolve) => setTimeout(resolve, 1));
      seen.push(codeNow(), failStrayCall(new Error('left')));
      return 'done';
    },
  });
  await calling('leaves');
  await h.worker();
  const turnId = await launch('leaves');
  expect(await ends(turnId)).toMatchObject({ status: 'success' });
  expect(seen).toMatchObject([{ kind: 'call', tool: 'leaves', turnId }, false]);
});

test('a blocked worker charges only the named turn, and charges all its turns when it does not hold that turn', async () => {
  let waiting = 0;
  tool('waits', (_input, { signal }) => {
    waiting++;
    return new Promise((_resolve, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason));
    });
  });
  await calling('waits');
  const worker = await h.worker({ heartbeatMs: 60_000, leaseMs: 600_000, sweepMs: 60_000 });
  const [first, second] = [await launch('waits'), await launch('waits')];
  await waitFor(() => waiting === 2, { message: 'both turns run' });
  const lossesAfter = async (turnId: string | null, isAll: boolean): Promise<unknown[]> => {
    const client = await h.database.pool.connect();
    try {
      await client.query('begin');
      await client.query(BLOCKED_WORKER.release, [[newId<'worker'>(), worker.id], turnId, isAll]);
      const { rows } = await client.query(
        'select losses from boxcar.turns where id in ($1, $2) order by id = $1 desc',
        [first, second],
      );
      return rows.map(({ losses }) => losses);
    } finally {
      await client.query('rollback');
      client.release();
    }
  };
  expect(await lossesAfter(first, false)).toEqual([1, 0]);
  expect(await lossesAfter(newId(), false)).toEqual([1, 1]);
  expect(await lossesAfter(null, false)).toEqual([0, 0]);
  expect(await lossesAfter(null, true)).toEqual([1, 1]);
});
