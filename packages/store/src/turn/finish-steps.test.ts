import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { begin, waitUntilBlocked } from '../testing/interleave.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import type { Advance } from './call-types.js';
import { finishSteps } from './finish-steps.js';
import { recordResults, settleCalls } from './tool-calls.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

async function calling(n: number): Promise<{ turn: TestTurn; calls: ToolCallId[] }> {
  const turn = await world.running({ profile, holder });
  return { turn, calls: await world.call(turn, n) };
}

const finish = (turn: TestTurn, calls: readonly ToolCallId[], change: Partial<Advance> = {}): Advance => ({
  turnId: turn.turnId,
  epoch: 1,
  holderId: holder,
  results: calls.map((call, index) => world.result(turn, call, `result ${index + 1}`)),
  ...change,
});

/** All rows that the results of a step may change. */
const stateOf = async (turn: TestTurn) => ({
  turn: await world.row(turn),
  tape: await world.tape(turn),
  pending: await world.count('tool_calls', `turn_id = '${turn.turnId}' and status = 'pending'`),
  steps: await world.count('steps', `turn_id = '${turn.turnId}'`),
});

describe('the results of whole steps', () => {
  test('are appended in call order and open the next steps, in one statement', async () => {
    const [one, two] = [await calling(1), await calling(3)];
    const before = (await world.entries(two.turn)).length;
    const finished = await finishSteps(world.pool, [
      finish(two.turn, two.calls),
      finish(one.turn, one.calls),
    ]);
    expect(finished.get(two.turn.turnId)).toEqual({ attempt: 1, basePosition: before });
    expect(finished.size).toBe(2);
    expect((await world.tape(two.turn)).slice(-3)).toEqual(['result 1', 'result 2', 'result 3']);
    const positions = (await world.entries(two.turn)).map((entry) => entry.position);
    expect(positions).toEqual(positions.map((_position, index) => index + 1));
    expect(await world.row(two.turn)).toMatchObject({ status: 'running', pending_calls: 0, attempt: 1 });
    expect(await stateOf(one.turn)).toMatchObject({ pending: 0, steps: 2 });
    const [open] = await world.rows(
      'select step, attempt, to_position from boxcar.steps where turn_id = $1 and committed_at is null',
      [two.turn.turnId],
    );
    expect(open).toEqual({ step: 2, attempt: 1, to_position: positions.length });
  });

  test.each<[string, Partial<Advance>]>([
    ['of another epoch', { epoch: 2 }],
    ['of another holder', { holderId: newId<'worker'>() }],
  ])('%s change nothing, and do not affect others of the batch', async (_name, change) => {
    const [stale, good] = [await calling(2), await calling(1)];
    const before = await stateOf(stale.turn);
    const finished = await finishSteps(world.pool, [
      finish(stale.turn, stale.calls, change),
      finish(good.turn, good.calls),
    ]);
    expect([...finished.keys()]).toEqual([good.turn.turnId]);
    expect(await stateOf(stale.turn)).toEqual(before);
  });

  test('change nothing when another process has recorded one of them: the slower statement handles such steps', async () => {
    const { turn, calls } = await calling(2);
    await recordResults(world.pool, [world.result(turn, calls[0] as ToolCallId, 'from outside')]);
    const before = await stateOf(turn);
    expect((await finishSteps(world.pool, [finish(turn, calls)])).size).toBe(0);
    expect(await stateOf(turn)).toEqual(before);
  });

  test('wait for a result that is being recorded, and then change nothing', async () => {
    const { turn, calls } = await calling(2);
    await using other = await begin(world.pool);
    await settleCalls(other, [world.result(turn, calls[1] as ToolCallId, 'from outside')]);
    const finishing = finishSteps(world.pool, [finish(turn, calls)]);
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('commit');
    expect((await finishing).size).toBe(0);
    expect(await world.row(turn)).toMatchObject({ pending_calls: 1, attempt: 0 });
    expect(await world.count('cards', `type = 'tool.result'`)).toBe(1);
  });

  test('that arrive twice count once', async () => {
    const { turn, calls } = await calling(1);
    expect((await finishSteps(world.pool, [finish(turn, calls)])).size).toBe(1);
    const after = await stateOf(turn);
    expect((await finishSteps(world.pool, [finish(turn, calls)])).size).toBe(0);
    expect(await stateOf(turn)).toEqual(after);
  });
});
