/** Facts that only this process knows are written as soon as an absent server accepts connections again. */
import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { type TcpProxy, tcpProxy } from '@boxcar/testkit';
import type pg from 'pg';
import { beforeEach, expect, test } from 'vitest';
import { type TestProfile, type TestTurn, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { finishSteps } from '../turn/finish-steps.js';
import { markSent, newMark } from '../turn/queue-calls.js';
import { advanceTurns, recordResults } from '../turn/tool-calls.js';
import { transaction } from './db.js';
import { createPool, endPool, limitByLease } from './pool.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;
let proxy: TcpProxy;
let pool: pg.Pool;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  proxy = await tcpProxy(world.database.url);
  pool = createPool({ connectionString: proxy.url });
  return async () => {
    await endPool(pool);
    await proxy.close();
    await world[Symbol.asyncDispose]();
  };
});

/** A turn that its worker holds, with one open call. */
async function calling(): Promise<{ turn: TestTurn; call: ToolCallId }> {
  const turn = await world.running({ profile, holder });
  const [call] = await world.call(turn, 1);
  return { turn, call: call as ToolCallId };
}

test('results, commits and marks are written when the server is back; other work has failed by then', async () => {
  const [finished, advanced, recorded, marked] = [
    await calling(),
    await calling(),
    await calling(),
    await calling(),
  ] as const;
  const step = ({ turn, call }: Awaited<ReturnType<typeof calling>>) => ({
    turnId: turn.turnId,
    epoch: 1,
    holderId: holder,
    results: [world.result(turn, call)],
  });
  const stepping = await world.running({ profile, holder });
  const commit = await world.commit(stepping);
  await pool.query('select 1');
  await proxy.cut();
  let isOver = false;
  const writing = Promise.all([
    finishSteps(pool, [step(finished)]),
    advanceTurns(pool, [step(advanced)]),
    recordResults(pool, step(recorded).results),
    commitSteps(pool, [commit]),
    markSent(pool, [newMark(marked.call)]),
  ]).finally(() => {
    isOver = true;
  });
  writing.catch(() => undefined);
  const plain = (): Promise<string> =>
    transaction(pool, (tx) => tx.query({ text: 'select 1' })).then(
      () => 'done',
      (error: { code: string }) => error.code,
    );
  // Twice the time that a few tries need.
  expect([await plain(), await plain()]).toEqual(['database_unavailable', 'database_unavailable']);
  expect(isOver).toBe(false);
  await proxy.restore();
  const [step1, step2, results, commits, marks] = await writing;
  expect(step1.get(finished.turn.turnId)).toMatchObject({ attempt: 1 });
  expect(step2.outcomes).toMatchObject([{ outcome: 'open' }]);
  expect(results.duplicates).toEqual([]);
  expect(commits.outcomes).toMatchObject([{ outcome: 'committed' }]);
  expect([...marks]).toEqual([marked.call]);
  expect(await world.count('tool_calls', "status = 'success'")).toBe(3);
});

test('work for a server that stays away fails in the end', async () => {
  const { turn, call } = await calling();
  limitByLease(pool, 1_000);
  await proxy.cut();
  await expect(recordResults(pool, [world.result(turn, call)])).rejects.toMatchObject({
    code: 'database_unavailable',
  });
});

test('a mark whose answer was lost is recognized by its signature, at every repetition', async () => {
  const { call } = await calling();
  const mark = newMark(call);
  expect([...(await markSent(world.pool, [mark]))]).toEqual([call]);
  // If the answer was lost, only the process that made the mark may take the call.
  const other = { ...newMark(call), signature: (mark.signature + 1) % 1_000_000, mayExist: true };
  expect([...(await markSent(world.pool, [other]))]).toEqual([]);
  expect([...(await markSent(world.pool, [{ ...mark, mayExist: true }]))]).toEqual([call]);
});
