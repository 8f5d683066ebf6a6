/**
 * Tests each row that a batch of a worker locks: while another session holds the lock of one row, the other items of the batch are
 * done. A worker tries a batch once, and once more if a lock has stopped it.
 */
import type { BatchId, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { sqlStateOf } from '../db/errors.js';
import type { LimitedTry } from '../db/lock-limit.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { begin } from '../testing/interleave.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { addBatch } from './batches.js';
import type { Advance, CallSettlement } from './call-types.js';
import { commitSteps } from './commits.js';
import { findLockedSteps, finishSteps } from './finish-steps.js';
import type { StepCommit } from './step-commit.js';
import { advanceTurns, recordResults } from './tool-calls.js';
import { claimWithViews } from './views.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker({ concurrency: 100_000 });
});

afterAll(() => world[Symbol.asyncDispose]());

/** Selects the rows around a turn; $1 is the turn. */
const ROWS = {
  turn: 'select from boxcar.turns where id = $1',
  tape: 'select from boxcar.boxes where id = (select output_box_id from boxcar.turns where id = $1)',
  'parent turn':
    'select from boxcar.turns where id = (select parent_turn_id from boxcar.turns where id = $1)',
  'tape of the parent turn': `select from boxcar.boxes where id = (
    select p.output_box_id from boxcar.turns t join boxcar.turns p on p.id = t.parent_turn_id where t.id = $1)`,
  'call that waits for the turn':
    'select from boxcar.tool_calls where id = (select parent_tool_call_id from boxcar.turns where id = $1)',
  call: 'select from boxcar.tool_calls where turn_id = $1',
  batch: 'select from boxcar.batches where id in (select unnest(batch_ids) from boxcar.turns where id = $1)',
  'context box':
    'select from boxcar.boxes where id = (select context_box_id from boxcar.turns where id = $1)',
  agent: 'select from boxcar.agents where id = (select agent_id from boxcar.turns where id = $1)',
  run: 'select from boxcar.runs where id = (select run_id from boxcar.turns where id = $1)',
  'budget account':
    'select from boxcar.budgets where id = (select budget_id from boxcar.turns where id = $1)',
  profile: 'select from boxcar.profiles where id = (select profile_id from boxcar.turns where id = $1)',
  'cards of the tape':
    'select from boxcar.cards where id in (select e.card_id from boxcar.tape_entries e join boxcar.turns t on t.output_box_id = e.box_id where t.id = $1)',
};
type Row = keyof typeof ROWS;

/** Gives a turn the account of its run. */
async function withBudget(turn: TestTurn): Promise<TestTurn> {
  await world.rows(
    `insert into boxcar.budgets (id, project_id, run_id, top_depth, limits) values ($1, $2, $1, 0, '{"tokens": 100000}') on conflict do nothing`,
    [turn.runId, turn.projectId],
  );
  await world.rows(
    'update boxcar.turns set budget_id = $2, allotted_tokens = 0, spent_tokens = 0, spent_cost = 0, is_settled = false where id = $1',
    [turn.turnId, turn.runId],
  );
  return turn;
}
const running = async (): Promise<TestTurn> => withBudget(await world.running({ profile, holder }));

/** The outcome of each item: done, or left out. */
interface Result {
  readonly done: readonly boolean[];
  readonly locked: readonly TurnId[];
}

interface Operation<I> {
  /** The rows that exist here and whose lock leaves the item out. The lock of any other row has no effect. */
  readonly needs: readonly Row[];
  readonly make: () => Promise<{ readonly item: I; readonly turnId: TurnId }>;
  readonly run: (items: readonly I[], attempt: LimitedTry) => Promise<Result>;
}

const operation = <I>(of: Operation<I>): Operation<unknown> => of as Operation<unknown>;

const committing = {
  run: async (commits: readonly StepCommit[], attempt: LimitedTry): Promise<Result> => {
    const { outcomes, lockedTurnIds } = await commitSteps(world.pool, commits, attempt);
    return { done: outcomes.map(({ outcome }) => outcome === 'committed'), locked: lockedTurnIds };
  },
};
const committed = (turn: TestTurn, item: StepCommit) => ({ item, turnId: turn.turnId });

const OPERATIONS: Record<string, Operation<unknown>> = {
  'a claim': operation<TurnId>({
    needs: ['turn', 'tape'],
    make: async () => {
      const { turnId } = await withBudget(await world.submit({ profile }));
      return { item: turnId, turnId };
    },
    run: async (turnIds, attempt) => {
      const outcomes = await claimWithViews(
        world.pool,
        turnIds.map((turnId) => ({ turnId, epoch: 1 })),
        { holderId: holder, maxViewBytes: 100_000, try: attempt },
      );
      return {
        done: outcomes.map(({ outcome }) => outcome === 'claimed'),
        locked: turnIds.filter((_id, n) => {
          const outcome = outcomes[n];
          return outcome?.outcome === 'stale' && outcome.isLocked === true;
        }),
      };
    },
  }),
  'the commit of a step': operation<StepCommit>({
    ...committing,
    needs: ['turn', 'tape'],
    make: async () => {
      const turn = await running();
      return committed(turn, await world.commit(turn));
    },
  }),
  'an end': operation<StepCommit>({
    ...committing,
    needs: ['turn', 'tape'],
    make: async () => {
      const turn = await running();
      return committed(turn, await world.commit(turn, { end: 'success' }));
    },
  }),
  'an end that answers a call': operation<StepCommit>({
    ...committing,
    needs: ['turn', 'tape', 'parent turn', 'tape of the parent turn', 'call that waits for the turn'],
    make: async () => {
      const parent = await running();
      const [call] = (await world.call(parent, 1)) as [ToolCallId];
      const turn = await withBudget(await world.running({ profile, holder, parent, answers: call }));
      const settles = world.result(parent, call);
      return committed(turn, await world.commit(turn, { end: 'success', settles }));
    },
  }),
  'an end with a result of its own': operation<StepCommit>({
    ...committing,
    needs: ['turn', 'tape', 'call'],
    make: async () => {
      const turn = await running();
      const [call] = (await world.call(turn, 1)) as [ToolCallId];
      return committed(
        turn,
        await world.commit(turn, { end: 'success', results: [world.result(turn, call)] }),
      );
    },
  }),
  ...Object.fromEntries(
    [true, false].map((isKnown) => [
      `an end of a member of a batch${isKnown ? '' : ' that was joined late'}`,
      operation<StepCommit>({
        ...committing,
        needs: ['turn', 'tape', 'batch'],
        make: async () => {
          const turn = await running();
          await joined(turn);
          const commit = await world.commit(turn, { end: 'success' });
          return committed(turn, { ...commit, isMember: isKnown });
        },
      }),
    ]),
  ),
  'the results of a whole step': operation<Advance>({
    needs: ['turn', 'tape', 'call'],
    make: () => advance({ calls: 2, results: 2 }),
    run: async (steps, attempt) => {
      const finished = await finishSteps(world.pool, steps, attempt);
      const missing = steps.filter(({ turnId }) => !finished.has(turnId));
      return {
        done: steps.map(({ turnId }) => finished.has(turnId)),
        locked: [...(await findLockedSteps(world.pool, missing))],
      };
    },
  }),
  'the last results of a step': operation<Advance>({
    needs: ['turn', 'tape', 'call'],
    make: () => advance({ calls: 2, results: 2 }),
    run: advancing,
  }),
  'a suspension with a result': operation<Advance>({
    needs: ['turn', 'call'],
    make: () => advance({ calls: 2, results: 1 }),
    run: advancing,
  }),
  'a suspension': operation<Advance>({
    needs: ['turn'],
    make: () => advance({ calls: 1, results: 0 }),
    run: advancing,
  }),
  'a result': operation<CallSettlement>({
    needs: ['turn', 'tape', 'call'],
    make: async () => {
      const turn = await running();
      const [call] = (await world.call(turn, 1)) as [ToolCallId];
      return { item: world.result(turn, call), turnId: turn.turnId };
    },
    run: async (results, attempt) => {
      const { lockedTurnIds, duplicates } = await recordResults(world.pool, results, attempt);
      return {
        done: results.map(
          ({ turnId, toolCallId }) => !lockedTurnIds.includes(turnId) && !duplicates.includes(toolCallId),
        ),
        locked: lockedTurnIds,
      };
    },
  }),
};

async function joined(turn: TestTurn): Promise<void> {
  const id: BatchId = newId<'batch'>();
  await transaction(world.pool, async (tx) => {
    await addBatch(tx, [turn.turnId], id);
    await writeSubmission(tx, {
      ...emptySubmission(),
      batches: [
        {
          id,
          projectId: turn.projectId,
          runId: null,
          turnId: null,
          toolCallId: null,
          primitive: 'collect',
          kind: 'collect',
          turnIds: [turn.turnId],
          remaining: 1,
          succeeded: 0,
          failed: 0,
          minSuccess: null,
          failFast: false,
          deadlineMs: null,
        },
      ],
    });
  });
}

async function advance(of: { readonly calls: number; readonly results: number }) {
  const turn = await running();
  const calls = await world.call(turn, of.calls);
  const results = calls.slice(0, of.results).map((call) => world.result(turn, call));
  return { item: { turnId: turn.turnId, epoch: 1, holderId: holder, results }, turnId: turn.turnId };
}

async function advancing(advances: readonly Advance[], attempt: LimitedTry): Promise<Result> {
  const { outcomes, lockedTurnIds } = await advanceTurns(world.pool, advances, attempt);
  return { done: outcomes.map(({ outcome }) => outcome !== 'fenced'), locked: lockedTurnIds };
}

const FIRST = { leavesLocked: true, isPatient: false };
const PROBE = { isRepeated: true, leavesLocked: true, isPatient: false, lockMs: 50 };

/** Tries a batch as a worker does. An item that nothing can leave out is tried alone. */
async function tryBatch<I>({ run }: Operation<I>, items: readonly I[]): Promise<readonly boolean[]> {
  const isLock = (error: unknown): undefined => {
    expect(sqlStateOf(error)).toBe('55P03');
    return undefined;
  };
  const tried = (await run(items, FIRST).catch(isLock)) ?? (await run(items, PROBE).catch(isLock));
  if (tried !== undefined) {
    expect(tried.locked).toHaveLength(tried.done.filter((isDone) => !isDone).length);
    return tried.done;
  }
  const alone: boolean[] = [];
  for (const item of items) alone.push((await run([item], PROBE).catch(isLock))?.done[0] === true);
  return alone;
}

describe.each(Object.entries(OPERATIONS))('%s', (_name, of) => {
  test.each(Object.keys(ROWS) as Row[])('is not delayed by the locked %s of another item', async (row) => {
    const made = [await of.make(), await of.make(), await of.make(), await of.make()] as const;
    const [{ turnId }] = made;
    const items = made.map(({ item }) => item);
    await using elsewhere = await begin(world.pool);
    await elsewhere.query(`${ROWS[row]} for update`, [turnId]);
    // The connection waits four seconds for a lock, and then the work fails. So an item that waits is not done.
    const done = await tryBatch(of, items);
    expect(done).toEqual([!of.needs.includes(row), true, true, true]);
    await elsewhere.query('rollback');
    if (!done[0]) expect(await tryBatch(of, items.slice(0, 1))).toEqual([true]);
  });
});
