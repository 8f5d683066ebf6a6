import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { topUp } from '../budget/top-ups.js';
import { createPool, dropConnections } from '../db/pool.js';
import { noteSweepFailure } from '../rows/dead-letters.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import type { Caller } from '../work/provider-books.js';
import { noteProviderFailure } from '../work/provider-failures.js';
import { setProviderLimits } from '../work/provider-limits.js';
import { enterProvider, leaveProvider } from '../work/providers.js';
import { retryLater } from '../work/waits.js';
import type { Advance } from './call-types.js';
import { type CommitResult, commitSteps } from './commits.js';
import { finishSteps } from './finish-steps.js';
import { markSent, newMark } from './queue-calls.js';
import { type AdvancedTurns, advanceTurns, recordResults } from './tool-calls.js';
import { releaseNoted, releaseTurns } from './turns.js';
import { claimWithViews } from './views.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;
let proxy: StatementProxy;
let pool: pg.Pool;

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  proxy = await statementProxy(world.database.url);
  pool = createPool({ connectionString: proxy.url, max: 2 });
});
afterAll(async () => {
  await pool.end();
  await proxy[Symbol.asyncDispose]();
  await world[Symbol.asyncDispose]();
});

/** The turns that a transition changes, and the transition itself. */
interface Scene {
  act(): Promise<unknown>;
  readonly turns: readonly TestTurn[];
}

/** The facts about turns that a transition may change, without ids. */
const stateOf = async (turns: readonly TestTurn[]) =>
  Promise.all(
    turns.map(async (turn) => {
      const { status, epoch, attempt, step_count, pending_calls, losses } = await world.row(turn);
      const id = `turn_id = '${turn.turnId}'`;
      return {
        turn: { status, epoch, attempt, step_count, pending_calls, losses },
        tape: await world.tape(turn),
        steps: await world.count('steps', id),
        pending: await world.count('tool_calls', `${id} and status = 'pending'`),
        waits: await world.count('waits', id),
      };
    }),
  );

/**
 * Repeats a transition, and cuts the connection after each of its statements in turn. The server has executed the statement, and its
 * answer is lost. Answer and rows must equal those of a run without faults.
 */
async function cutAfterEach(prepare: () => Promise<Scene>): Promise<void> {
  const whole = await prepare();
  // The first connection prepares the statements.
  proxy.arm();
  const answer = await whole.act();
  const count = proxy.statements.length;
  const state = await stateOf(whole.turns);
  expect(count).toBeGreaterThan(0);
  for (let at = 1; at <= count; at += 1) {
    const scene = await prepare();
    proxy.arm({ at, when: 'after', scope: 'connection' });
    const again = await scene.act();
    expect(proxy.struck, `statement ${at} of ${count} was struck`).toBeDefined();
    expect(again, `after ${proxy.struck}`).toEqual(answer);
    expect(await stateOf(scene.turns), `after ${proxy.struck}`).toEqual(state);
  }
}

const running = (): Promise<TestTurn> => world.running({ profile, holder });
const names = (ids: readonly string[], turns: readonly TestTurn[]): number[] =>
  ids.map((id) => turns.findIndex(({ turnId }) => turnId === id));

/** The result of a commit without ids, and without facts that are unknown after a lost answer. */
const plainCommit = (result: CommitResult, turns: readonly TestTurn[]) => ({
  ...result,
  outcomes: result.outcomes.map(({ outcome }) => outcome),
  endedTurnIds: names(result.endedTurnIds, turns).sort(),
  rings: result.rings.map((ring) => ({ ...ring, turnId: names([ring.turnId], turns) })),
  dueBatchIds: result.dueBatchIds.length,
});
const plainAdvance = ({ outcomes, rings }: AdvancedTurns) => ({
  outcomes: outcomes.map((outcome) =>
    outcome.outcome === 'open' ? { ...outcome, basePosition: null } : outcome,
  ),
  rings: rings.length,
});

describe('a commit whose answer was lost', () => {
  test('of steps with and without calls was made, and is made once', async () => {
    await cutAfterEach(async () => {
      const turns = [await running(), await running()] as const;
      const commits = [
        await world.commit(turns[0], { calls: [newId<'tool_call'>(), newId<'tool_call'>()] }),
        await world.commit(turns[1]),
      ];
      return { turns, act: async () => plainCommit(await commitSteps(pool, commits), turns) };
    });
  });

  test('of ends, of which one resumes its parent, returns the parent’s ring', async () => {
    await cutAfterEach(async () => {
      const parent = await running();
      const [call] = (await world.call(parent, 1)) as [ToolCallId];
      await advanceTurns(world.pool, [{ turnId: parent.turnId, epoch: 1, holderId: holder, results: [] }]);
      const child = await world.running({ profile, holder, parent, answers: call });
      const alone = await running();
      const turns = [child, alone, parent];
      const commits = [
        await world.commit(child, { end: 'success', settles: world.result(parent, call, 'result') }),
        await world.commit(alone, { end: 'failed', step: 'none' }),
      ];
      return { turns, act: async () => plainCommit(await commitSteps(pool, commits), turns) };
    });
  });

  test('of an end with results of its own calls was made, and is made once', async () => {
    await cutAfterEach(async () => {
      const turn = await running();
      const [call] = (await world.call(turn, 1)) as [ToolCallId];
      const commit = await world.commit(turn, {
        end: 'success',
        step: 'none',
        results: [world.result(turn, call)],
      });
      return { turns: [turn], act: async () => plainCommit(await commitSteps(pool, [commit]), [turn]) };
    });
  });

  test('is found although another commit of its batch was fenced, and that commit stays fenced', async () => {
    await cutAfterEach(async () => {
      const turns = [await running(), await running()] as const;
      const commits = [
        await world.commit(turns[0]),
        await world.commit(turns[1], { epoch: 7, calls: [newId<'tool_call'>()] }),
      ];
      return { turns, act: async () => plainCommit(await commitSteps(pool, commits), turns) };
    });
  });

  test('is reported as fenced when another worker has since taken the turn: its worker stops', async () => {
    const turn = await running();
    const commit = await world.commit(turn, { calls: [newId<'tool_call'>()] });
    await commitSteps(world.pool, [commit]);
    await world.pool.query(
      "update boxcar.turns set status = 'dispatched', holder_id = null, epoch = epoch + 1 where id = $1",
      [turn.turnId],
    );
    const { outcomes } = await commitSteps(world.pool, [commit]);
    expect(outcomes).toEqual([{ outcome: 'fenced' }]);
  });

  test('is reported as `left` when its worker has since lost the turn', async () => {
    const turns = [await running(), await running()] as const;
    const commits = [
      await world.commit(turns[0], { calls: [newId<'tool_call'>()] }),
      await world.commit(turns[1]),
    ];
    await pool.query('select 1');
    proxy.arm({ at: 1, when: 'after', scope: 'connection', effect: 'silence' });
    const committing = commitSteps(pool, commits);
    await waitFor(() => proxy.strike.aborted, { message: 'it is committed, and the answer lost' });
    await world.pool.query(
      "update boxcar.turns set status = 'dispatched', holder_id = null, epoch = epoch + 1 where id = $1",
      [turns[0].turnId],
    );
    dropConnections(pool);
    const { outcomes } = await committing;
    expect(outcomes).toEqual([{ outcome: 'left' }, { outcome: 'committed', basePosition: null }]);
  });

  test('is found by a larger batch than the original batch', async () => {
    const turns = [await running(), await running(), await running()] as const;
    const commits = await Promise.all(turns.map((turn) => world.commit(turn)));
    await commitSteps(world.pool, commits.slice(0, 2));
    const { outcomes } = await commitSteps(world.pool, commits);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['committed', 'committed', 'committed']);
    expect(await stateOf(turns)).toMatchObject(turns.map(() => ({ turn: { step_count: 1 }, steps: 2 })));
  });
});

describe('results whose answer was lost', () => {
  const calling = async (n: number): Promise<{ turn: TestTurn; calls: ToolCallId[] }> => {
    const turn = await running();
    return { turn, calls: await world.call(turn, n) };
  };
  const advance = (turn: TestTurn, calls: readonly ToolCallId[]): Advance => ({
    turnId: turn.turnId,
    epoch: 1,
    holderId: holder,
    results: calls.map((call, index) => world.result(turn, call, `result ${index + 1}`)),
  });

  test('of whole steps have opened the next steps once', async () => {
    await cutAfterEach(async () => {
      const { turn, calls } = await calling(2);
      const step = advance(turn, calls);
      const act = async () => (await finishSteps(pool, [step])).get(turn.turnId)?.attempt;
      return { turns: [turn], act };
    });
  });

  test('of parts of steps have suspended their turns, or opened the next step', async () => {
    await cutAfterEach(async () => {
      const [waiting, whole] = [await calling(2), await calling(1)];
      const steps = [advance(waiting.turn, waiting.calls.slice(0, 1)), advance(whole.turn, whole.calls)];
      const turns = [waiting.turn, whole.turn];
      return { turns, act: async () => plainAdvance(await advanceTurns(pool, steps)) };
    });
  });

  test('of a step that only waits have suspended its turn', async () => {
    await cutAfterEach(async () => {
      const { turn } = await calling(1);
      const step = advance(turn, []);
      return { turns: [turn], act: async () => plainAdvance(await advanceTurns(pool, [step])) };
    });
  });

  test('from outside were the first results, and resume their turn', async () => {
    await cutAfterEach(async () => {
      const { turn, calls } = await calling(2);
      await advanceTurns(world.pool, [advance(turn, calls.slice(0, 1))]);
      const results = [world.result(turn, calls[1] as ToolCallId)];
      const act = async () => {
        const { rings, duplicates } = await recordResults(pool, results);
        return { rings: rings.map(({ epoch, workerTarget }) => ({ epoch, workerTarget })), duplicates };
      };
      return { turns: [turn], act };
    });
  });
});

describe('a claim whose answer was lost', () => {
  const ring = ({ turnId }: TestTurn, epoch = 1) => ({ turnId, epoch });
  const dispatched = (): Promise<TestTurn> => world.submit({ profile });

  test('has won, and returns the turn as the first try did', async () => {
    await cutAfterEach(async () => {
      const turns = [await dispatched(), await dispatched(), await running()] as const;
      const act = async () => {
        const claims = await claimWithViews(pool, [ring(turns[0]), ring(turns[1], 5)], {
          holderId: holder,
          maxViewBytes: 10_000,
        });
        return claims.map((claim) => (claim.outcome === 'stale' ? claim : { attempt: claim.turn.attempt }));
      };
      return { turns, act };
    });
  });

  test('of a turn that another worker holds is stale', async () => {
    const turn = await dispatched();
    await world.claim(turn, await world.worker());
    proxy.arm({ at: 1, when: 'after', scope: 'connection' });
    const claims = await claimWithViews(pool, [ring(turn)], { holderId: holder, maxViewBytes: 10_000 });
    expect(proxy.struck).toBeDefined();
    expect(claims).toEqual([{ outcome: 'stale' }]);
  });
});

describe('a wait whose answer was lost', () => {
  test('for a model call that is made again later has suspended its turn', async () => {
    await cutAfterEach(async () => {
      const turn = await running();
      const { step } = await world.commit(turn);
      if (step === null) throw new Error('no step');
      const error = { code: 'model_failed', message: 'no' };
      const failed = { ...step, thoughtCardId: null, error };
      const of = { turnId: turn.turnId, epoch: 1, holderId: holder };
      const act = () => retryLater(pool, { ...of, step: failed, delayMs: 1_000, detail: {} });
      return { turns: [turn], act };
    });
  });

  test('for room at a provider has suspended its turn, and admits no other caller in its place', async () => {
    await setProviderLimits(world.pool, 'narrow', { maxConcurrent: 1 });
    await cutAfterEach(async () => {
      await world.pool.query(
        "delete from boxcar.provider_slots; delete from boxcar.waits where kind = 'limit'",
      );
      const turns = [await running(), await running()] as const;
      const callers = turns.map(({ turnId }) => ({
        turnId,
        epoch: 1,
        holderId: holder,
        step: 1,
        attempt: 1,
      }));
      const act = async () =>
        (await enterProvider(pool, 'narrow', { callers })).map(({ outcome }) => outcome);
      return { turns, act };
    });
  });

  test('for room at a provider that has since ended admits the next holder, and not the old one', async () => {
    await setProviderLimits(world.pool, 'one', { maxConcurrent: 1 });
    const [first, second] = [await running(), await running()] as const;
    const callerOf = (turn: TestTurn, options: Partial<Caller> = {}): Caller => ({
      turnId: turn.turnId,
      epoch: 1,
      holderId: holder,
      step: 1,
      attempt: 1,
      ...options,
    });
    const enter = async (of: pg.Pool, caller: Caller): Promise<readonly string[]> =>
      (await enterProvider(of, 'one', { callers: [caller] })).map(({ outcome }) => outcome);
    expect(await enter(world.pool, callerOf(first))).toEqual(['admitted']);
    await pool.query('select 1');
    proxy.arm({ at: { text: 'commit', nth: 1 }, when: 'after', scope: 'connection', effect: 'silence' });
    const entering = enter(pool, callerOf(second));
    await waitFor(() => proxy.strike.aborted, { message: 'the wait is committed, the answer lost' });
    // A place becomes free: the waiting turn is woken, at the next epoch.
    const woken = await leaveProvider(world.pool, 'one', { turns: [callerOf(first)], hasProved: false });
    expect(woken.rings).toMatchObject([{ turnId: second.turnId, epoch: 2 }]);
    const other = await world.worker();
    await claimWithViews(world.pool, woken.rings, { holderId: other, maxViewBytes: 10_000 });
    dropConnections(pool);
    expect(await entering).toEqual(['waiting']);
    expect(await enter(world.pool, callerOf(second, { epoch: 2, holderId: other }))).toEqual(['admitted']);
  });
});

test('a top-up whose answer was lost reserves once, and ends at the deadline of its account', async () => {
  const limits = { tokens: 100_000, seconds: 60 };
  const held = async (): Promise<TestTurn> => {
    const turn = await running();
    const { runId } = turn;
    await world.rows(
      'insert into boxcar.budgets (id, project_id, run_id, top_depth, limits) values ($1, $2, $1, 0, $3)',
      [runId, turn.projectId, JSON.stringify(limits)],
    );
    await world.rows(
      `update boxcar.turns set budget_id = $2, allotted_tokens = 0, spent_tokens = 0, spent_cost = 0, is_settled = false
       where id = $1`,
      [turn.turnId, runId],
    );
    return turn;
  };
  const grow = ({ turnId, projectId, runId }: TestTurn) =>
    topUp(pool, {
      turnId,
      projectId,
      runId,
      epoch: 1,
      holderId: holder,
      need: { tokens: 100, costMicros: 0, steps: 1 },
      mayPause: false,
    });
  await cutAfterEach(async () => {
    const turn = await held();
    const act = async () => {
      const answer = await grow(turn);
      const budget = await world.rows('select tokens_reserved::int from boxcar.budgets where id = $1', [
        turn.runId,
      ]);
      const allotted = answer.outcome === 'granted' ? answer.purse.allotment : undefined;
      return { outcome: answer.outcome, allotted, budget };
    };
    return { turns: [turn], act };
  });
  const late = await held();
  await pool.query('select 1');
  proxy.arm({ at: { text: 'commit', nth: 1 }, when: 'after', scope: 'connection', effect: 'silence' });
  const growing = grow(late);
  await waitFor(() => proxy.strike.aborted, { message: 'the grant is committed, the answer lost' });
  await world.rows('update boxcar.budgets set deadline_at = now() where id = $1', [late.runId]);
  dropConnections(pool);
  expect(await growing).toMatchObject({ outcome: 'refused', hit: { kind: 'seconds' } });
});

test('a top-up that finds enough grants nothing more, so a worker with a fast clock asks before each step', async () => {
  const turn = await running();
  const { turnId, projectId, runId } = turn;
  await world.rows(
    'insert into boxcar.budgets (id, project_id, run_id, top_depth, limits) values ($1, $2, $1, 0, $3)',
    [runId, projectId, JSON.stringify({ tokens: 100_000 })],
  );
  await world.rows(
    'update boxcar.turns set budget_id = $2, allotted_tokens = 0, spent_tokens = 0, spent_cost = 0, is_settled = false where id = $1',
    [turnId, runId],
  );
  const need = { tokens: 100, costMicros: 0, steps: 1 };
  const ask = { turnId, projectId, runId, epoch: 1, holderId: holder, need, mayPause: false };
  const first = await topUp(world.pool, ask);
  expect(first).toMatchObject({ outcome: 'granted' });
  expect(await topUp(world.pool, ask)).toEqual(first);
  expect(
    await world.rows('select tokens_reserved::int as n from boxcar.budgets where id = $1', [runId]),
  ).toEqual([{ n: 400 }]);
});

test('a failure of a provider whose answer was lost is counted once, even when other failures are counted meanwhile', async () => {
  const fail = (of: pg.Pool) => noteProviderFailure(of, 'weak', { hasSucceeded: false });
  const books = () => world.rows("select failures, openings from boxcar.providers where name = 'weak'");
  await setProviderLimits(world.pool, 'weak', { breakerAfter: 3 });
  await cutAfterEach(async () => {
    await world.rows("update boxcar.providers set failures = 0 where name = 'weak'");
    return { turns: [], act: async () => ({ ...(await fail(pool)), books: await books() }) };
  });
  await world.rows("update boxcar.providers set failures = 0 where name = 'weak'");
  await pool.query('select 1');
  proxy.arm({ at: { text: 'commit', nth: 1 }, when: 'after', scope: 'connection', effect: 'silence' });
  const failing = fail(pool);
  await waitFor(() => proxy.strike.aborted, { message: 'the failure is noted, the answer lost' });
  expect(await fail(world.pool)).toEqual({ closedForMs: null });
  dropConnections(pool);
  expect(await failing).toEqual({ closedForMs: null });
  expect(await books()).toEqual([{ failures: 2, openings: 0 }]);
  expect(await fail(world.pool)).toEqual({ closedForMs: expect.closeTo(10_000, 0) });
});

test('a release whose answer was lost returns its note', async () => {
  const failure = { kind: 'turn_runs', projectId: null, error: 'no' } as const;
  const release = { epoch: 1, isLoss: true, begunIds: [] };
  await cutAfterEach(async () => {
    const turn = await running();
    const act = () => releaseNoted(pool, holder, { ...failure, rowId: turn.turnId }, release);
    return { turns: [turn], act };
  });
  const [held, noted, taken] = [await running(), await running(), await running()];
  const other = await world.worker();
  proxy.arm();
  // A refused release must not return a note of an earlier run.
  for (const turn of [noted, taken]) {
    await noteSweepFailure(world.pool, { ...failure, rowId: turn.turnId });
    await world.pool.query(
      "update boxcar.sweep_failures set next_try_at = now() - interval '1 second' where row_id = $1",
      [turn.turnId],
    );
  }
  await releaseTurns(world.pool, holder, [{ turnId: taken.turnId, epoch: 1 }]);
  for (const [turn, holderId] of [
    [held, other],
    [noted, other],
    [taken, holder],
  ] as const) {
    proxy.arm({ at: 1, when: 'after', scope: 'connection' });
    expect(await releaseNoted(pool, holderId, { ...failure, rowId: turn.turnId }, release)).toBeUndefined();
  }
});

test('the process that marked a call that may be sent once recognizes its mark, even if the answer was lost', async () => {
  await cutAfterEach(async () => {
    const turn = await running();
    const calls = await world.call(turn, 2);
    const act = async () => {
      const [first, second] = [
        await markSent(pool, calls.map(newMark)),
        await markSent(world.pool, calls.map(newMark)),
      ];
      return [first.size, second.size];
    };
    return { turns: [turn], act };
  });
});
