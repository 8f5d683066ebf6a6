import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { transactOnce } from '../db/index.js';
import { lockAgents } from '../submit/find-agents.js';
import { writeSubmission } from '../submit/submission.js';
import { begin, holdCommits, waitUntilBlocked, watchErrors } from '../testing/interleave.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { promote } from '../work/promote.js';
import { renewLease } from '../work/workers.js';
import { claim } from './claims.js';
import { LARGE } from './commit-sql.js';
import { commitSteps, commitWithin } from './commits.js';
import { recordResults } from './tool-calls.js';
import { loadTurnStates, releaseTurns } from './turns.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

const ring = (turn: TestTurn, epoch = 1) => ({ turnId: turn.turnId, epoch });
const steps = (turn: TestTurn) =>
  world.rows<{
    step: number;
    attempt: number;
    epoch: number;
    from_position: number;
    to_position: number;
    committed_at: Date | null;
  }>('select * from boxcar.steps where turn_id = $1 order by step, attempt', [turn.turnId]);
/** All rows that a stale worker could have left. */
const traces = async (): Promise<Record<string, number>> =>
  Object.fromEntries(
    await Promise.all(
      ['cards', 'tape_entries', 'tool_calls', 'steps', 'grants'].map(
        async (table) => [table, await world.count(table)] as const,
      ),
    ),
  );

describe('a claim', () => {
  test('takes the turn, opens its first step and writes its start', async () => {
    const turn = await world.submit({ profile });
    const [outcome] = await claim(world.pool, [ring(turn)], holder);
    expect(outcome).toMatchObject({
      outcome: 'claimed',
      turn: {
        turnId: turn.turnId,
        epoch: 1,
        stepCount: 0,
        attempt: 1,
        pendingCalls: 0,
        contextBoxId: turn.contextBoxId,
        outputBoxId: turn.tapeId,
        profileId: profile.id,
        parentTurnId: null,
        isAwaited: false,
        maxSteps: 50,
      },
    });
    expect(await world.row(turn)).toMatchObject({ status: 'running', holder_id: holder, start_position: 3 });
    expect((await world.entries(turn))[2]).toMatchObject({
      position: 3,
      kind: 'event',
      turn_id: turn.turnId,
      payload: { name: 'turn.started', data: { turn_id: turn.turnId, context_box_id: turn.contextBoxId } },
    });
    expect(await steps(turn)).toMatchObject([
      { step: 1, attempt: 1, epoch: 1, from_position: 1, to_position: 3, committed_at: null },
    ]);
  });

  test('of a past or a future epoch is stale, and so is a claim of a turn that is not dispatched', async () => {
    const turn = await world.submit({ profile });
    expect(await claim(world.pool, [ring(turn, 0), ring(turn, 2)], holder)).toEqual([
      { outcome: 'stale' },
      { outcome: 'stale' },
    ]);
    const later = await world.submit({ profile, reuse: turn });
    expect(await world.statusOf(later)).toBe('queued');
    expect(await claim(world.pool, [ring(later, 0), ring(later, 1)], holder)).toEqual([
      { outcome: 'stale' },
      { outcome: 'stale' },
    ]);
    await world.claim(turn, holder);
    expect(await claim(world.pool, [ring(turn)], holder)).toEqual([{ outcome: 'stale' }]);
    expect(await claim(world.pool, [{ turnId: newId<'turn'>(), epoch: 1 }], holder)).toEqual([
      { outcome: 'stale' },
    ]);
  });

  test('that occurs twice in one batch wins once', async () => {
    const turn = await world.submit({ profile });
    const other = await world.submit({ profile });
    const outcomes = await claim(world.pool, [ring(turn), ring(other), ring(turn)], holder);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['claimed', 'claimed', 'stale']);
  });

  test('raced by another worker is won by one of the two, whichever waits for the other', async () => {
    const rival = await world.worker();
    const turns = await Promise.all(Array.from({ length: 20 }, () => world.submit({ profile })));
    await using gate = await begin(world.pool);
    await gate.query('select from boxcar.turns for update');
    const races = [
      claim(
        world.pool,
        turns.map((turn) => ring(turn)),
        holder,
      ),
      claim(world.pool, turns.map((turn) => ring(turn)).reverse(), rival),
    ];
    await waitUntilBlocked(world.pool, { n: 2 });
    await gate.query('commit');
    const [mine = [], theirs = []] = await Promise.all(races);
    const wins = (outcomes: typeof mine) => outcomes.filter(({ outcome }) => outcome === 'claimed').length;
    expect(wins(mine) + wins(theirs)).toBe(20);
    expect(await world.count('steps')).toBe(20);
    expect(await world.count('tape_entries', "payload->>'name' = 'turn.started'")).toBe(20);
  });

  test('wins although the row for which it waited was changed, while the turn stays dispatched at its epoch', async () => {
    const turn = await world.submit({ profile });
    await using other = await begin(world.pool);
    await other.query('update boxcar.turns set priority = 1 where id = $1', [turn.turnId]);
    const claimed = claim(world.pool, [ring(turn)], holder);
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('commit');
    expect(await claimed).toMatchObject([{ outcome: 'claimed', turn: { turnId: turn.turnId } }]);
    expect(await world.row(turn)).toMatchObject({ start_position: 3, status: 'running' });
  });

  test('of a turn that the sweep rings again meanwhile is stale', async () => {
    const turn = await world.submit({ profile });
    await using other = await begin(world.pool);
    await other.query('update boxcar.turns set epoch = epoch + 1 where id = $1', [turn.turnId]);
    const claimed = claim(world.pool, [ring(turn)], holder);
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('commit');
    expect(await claimed).toEqual([{ outcome: 'stale' }]);
    expect(await world.tape(turn)).toEqual([]);
  });

  test('of a turn that was released takes the next attempt at the same step, and does not start the turn again', async () => {
    const turn = await world.running({ profile, holder });
    expect(await releaseTurns(world.pool, holder, null)).toEqual([
      { turnId: turn.turnId, epoch: 2, workerTarget: '' },
    ]);
    const claimed = await world.claim(turn, await world.worker());
    expect(claimed).toMatchObject({ epoch: 2, attempt: 2, stepCount: 0 });
    expect(await world.tape(turn)).toEqual(['turn.started']);
    expect((await steps(turn)).map(({ step, attempt }) => [step, attempt])).toEqual([
      [1, 1],
      [1, 2],
    ]);
  });

  test('of a turn with open calls opens no step', async () => {
    const turn = await world.running({ profile, holder });
    await world.call(turn, 1);
    await world.release(holder, [turn]);
    expect(await world.claim(turn, holder)).toMatchObject({ pendingCalls: 1, stepCount: 1, attempt: 1 });
    expect(await steps(turn)).toHaveLength(1);
  });
});

describe('a commit of a step', () => {
  test('without calls writes thought and step, and opens the next step', async () => {
    const turn = await world.running({ profile, holder });
    const { outcomes, rings } = await commitSteps(world.pool, [await world.commit(turn, { says: 'one' })]);
    expect(outcomes).toMatchObject([{ outcome: 'committed' }]);
    expect(rings).toEqual([]);
    expect(await world.row(turn)).toMatchObject({ status: 'running', step_count: 1, attempt: 1, epoch: 1 });
    expect(await world.tape(turn)).toEqual(['turn.started', 'one']);
    expect(await steps(turn)).toMatchObject([
      { step: 1, attempt: 1, committed_at: expect.any(Date), to_position: 3 },
      { step: 2, attempt: 1, committed_at: null, to_position: 4 },
    ]);
  });

  test('with calls makes them pending and opens no step', async () => {
    const turn = await world.running({ profile, holder });
    await world.call(turn, 3);
    expect(await world.row(turn)).toMatchObject({ status: 'running', pending_calls: 3, attempt: 0 });
    expect(await steps(turn)).toHaveLength(1);
    expect(await world.rows('select ordinal, status, epoch from boxcar.tool_calls order by ordinal')).toEqual(
      [1, 2, 3].map((ordinal) => ({ ordinal, status: 'pending', epoch: 1 })),
    );
  });

  test.each<[string, (turn: TestTurn) => Promise<Parameters<World['commit']>[1]>]>([
    ['a past epoch', async () => ({ epoch: 0 })],
    ['a future epoch', async () => ({ epoch: 2 })],
    ['another holder', async () => ({ holder: await world.worker() })],
    ['no holder, while the turn has a holder', async () => ({ holder: null })],
  ])('by %s is fenced and writes nothing', async (_who, wrong) => {
    const turn = await world.running({ profile, holder });
    const wrongly = await wrong(turn);
    const before = await traces();
    const row = await world.row(turn);
    const calls = [newId<'tool_call'>()];
    const stale = [
      await world.commit(turn, { ...wrongly }),
      await world.commit(turn, { ...wrongly, calls }),
      await world.commit(turn, { ...wrongly, end: 'success' }),
    ];
    for (const commit of stale) {
      const result = await commitSteps(world.pool, [commit]);
      expect(result.outcomes).toEqual([{ outcome: 'fenced' }]);
      expect(result.endedTurnIds).toEqual([]);
    }
    expect(await traces()).toEqual(before);
    expect(await world.row(turn)).toEqual(row);
  });

  test('that a parent waits for answers nothing when it is fenced, while another commit of its batch answers', async () => {
    const parent = await world.running({ profile, holder });
    const [a, b] = (await world.call(parent, 2)) as [ToolCallId, ToolCallId];
    const [stale, good] = await Promise.all(
      [a, b].map(async (answers, index) => {
        const child = await world.running({ profile, holder, parent, answers });
        const settles = world.result(parent, answers);
        return world.commit(child, { end: 'success', settles, ...(index === 0 ? { epoch: 0 } : {}) });
      }),
    );
    if (stale === undefined || good === undefined) throw new Error('no commits');
    const { outcomes } = await commitSteps(world.pool, [stale, good]);
    expect(outcomes).toMatchObject([{ outcome: 'fenced' }, { outcome: 'committed' }]);
    expect(await world.rows('select id, status from boxcar.tool_calls order by ordinal')).toEqual([
      { id: a, status: 'pending' },
      { id: b, status: 'success' },
    ]);
    expect(await world.row(parent)).toMatchObject({ status: 'running', pending_calls: 1 });
  });

  test('after the turn was taken over is fenced in every form', async () => {
    const turn = await world.running({ profile, holder });
    const late = await world.commit(turn, { says: 'late' });
    await releaseTurns(world.pool, holder, null);
    expect((await commitSteps(world.pool, [late])).outcomes).toEqual([{ outcome: 'fenced' }]);
    const rival = await world.worker();
    await world.claim(turn, rival);
    expect((await commitSteps(world.pool, [late])).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await world.tape(turn)).toEqual(['turn.started']);
  });

  test('that waited for a takeover in progress is fenced', async () => {
    const turn = await world.running({ profile, holder });
    const late = await world.commit(turn, { end: 'success' });
    await using takeover = await begin(world.pool);
    await takeover.query(
      "update boxcar.turns set status = 'dispatched', holder_id = null, epoch = epoch + 1, dispatched_at = now() where id = $1",
      [turn.turnId],
    );
    const committed = commitSteps(world.pool, [late]);
    await waitUntilBlocked(world.pool, { by: takeover.pid });
    await takeover.query('commit');
    expect((await committed).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await world.tape(turn)).toEqual(['turn.started']);
  });

  test('that is fenced does not record its results', async () => {
    const turn = await world.running({ profile, holder });
    const [callId] = (await world.call(turn, 1)) as [ToolCallId];
    // The `submit_result` of a stale worker: an accepted answer without the end of its turn would never end anything.
    const late = await world.commit(turn, {
      step: 'none',
      end: 'success',
      results: [world.result(turn, callId)],
    });
    await releaseTurns(world.pool, holder, null);
    const before = await traces();
    expect((await commitSteps(world.pool, [late])).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await traces()).toEqual(before);
    expect(await world.row(turn)).toMatchObject({ status: 'dispatched', pending_calls: 1 });
    expect(await world.rows('select status from boxcar.tool_calls')).toEqual([{ status: 'pending' }]);
  });

  test('of more turns than a small batch has is fenced turn by turn', async () => {
    const turns: TestTurn[] = [];
    for (let i = 0; i < LARGE + 4; i += 1) turns.push(await world.submit({ profile }));
    const [past, future, theirs, held, ended] = turns as [TestTurn, TestTurn, TestTurn, TestTurn, TestTurn];
    const rival = await world.worker();
    for (const [turn, by] of [
      [theirs, rival],
      [held, holder],
    ] as const)
      await world.claim(turn, by);
    await commitSteps(world.pool, [await world.commit(ended, { step: 'none', end: 'canceled' })]);
    const wrongly = new Map<TestTurn, Parameters<World['commit']>[1]>([
      [past, { epoch: 0 }],
      [future, { epoch: 2 }],
      [theirs, { holder }],
      [held, { holder: null }],
    ]);
    const before = await Promise.all([past, future, theirs, held, ended].map((turn) => world.row(turn)));
    const ends = [];
    for (const turn of turns)
      ends.push(await world.commit(turn, { step: 'none', end: 'failed', ...wrongly.get(turn) }));
    const { outcomes, endedTurnIds } = await transactOnce(world.pool, commitWithin(ends));
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(
      turns.map((_turn, index) => (index < 5 ? 'fenced' : 'committed')),
    );
    expect(endedTurnIds).toHaveLength(LARGE - 1);
    expect(await Promise.all([past, future, theirs, held, ended].map((turn) => world.row(turn)))).toEqual(
      before,
    );
  });

  test('in a batch with stale commits takes effect alone', async () => {
    const [one, two, three] = [
      await world.running({ profile, holder }),
      await world.running({ profile, holder }),
      await world.running({ profile, holder }),
    ] as [TestTurn, TestTurn, TestTurn];
    const { outcomes } = await commitSteps(world.pool, [
      await world.commit(three, { says: 'three' }),
      await world.commit(two, { epoch: 9 }),
      await world.commit(one, { says: 'one', end: 'success' }),
    ]);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['committed', 'fenced', 'committed']);
    expect(await world.tape(two)).toEqual(['turn.started']);
    expect(await world.statusOf(one)).toBe('success');
  });
});

describe('an end', () => {
  test('is final: it leaves one deliverable, and holder and epoch stay unchanged', async () => {
    const turn = await world.running({ profile, holder });
    const end = await world.commit(turn, { says: 'done', end: 'success' });
    const again = await world.commit(turn, { says: 'again', end: 'failed' });
    const result = await commitSteps(world.pool, [end]);
    expect(result).toMatchObject({
      outcomes: [{ outcome: 'committed' }],
      endedTurnIds: [turn.turnId],
      backlogTargets: [''],
    });
    expect((await commitSteps(world.pool, [again])).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await claim(world.pool, [ring(turn, 1), ring(turn, 2)], holder)).toEqual([
      { outcome: 'stale' },
      { outcome: 'stale' },
    ]);
    expect(await releaseTurns(world.pool, holder, null)).toEqual([]);
    expect(await world.row(turn)).toMatchObject({
      status: 'success',
      holder_id: null,
      deliverable_card_id: end.end?.deliverableCardId,
    });
    expect(await world.tape(turn)).toEqual(['turn.started', 'done']);
    expect(await loadTurnStates(world.pool, [turn.turnId])).toMatchObject([
      { status: 'success', content: { kind: 'text', text: 'done' } },
    ]);
  });

  test('of a turn by two processes at once happens once', async () => {
    const turn = await world.running({ profile, holder });
    const ends = [
      await world.commit(turn, { says: 'one', end: 'success' }),
      await world.commit(turn, { says: 'two', end: 'timeout' }),
    ];
    await using gate = await begin(world.pool);
    await gate.query('select from boxcar.turns where id = $1 for update', [turn.turnId]);
    const racing = ends.map((end) => commitSteps(world.pool, [end]));
    await waitUntilBlocked(world.pool, { n: 2 });
    await gate.query('commit');
    const outcomes = (await Promise.all(racing)).flatMap((result) => result.outcomes);
    expect(outcomes.map(({ outcome }) => outcome).sort()).toEqual(['committed', 'fenced']);
    expect(await world.tape(turn)).toHaveLength(2);
  });

  test('gives no right to any agent', async () => {
    const parent = await world.running({ profile, holder });
    const child = await world.running({ profile, holder, parent });
    await commitSteps(world.pool, [await world.commit(child, { end: 'success' })]);
    const next = await world.running({ profile, holder, parent, reuse: child });
    await commitSteps(world.pool, [await world.commit(next, { end: 'failed' })]);
    expect(await world.count('grants')).toBe(0);
  });

  test('of a turn without a holder needs the turn’s epoch', async () => {
    const active = await world.running({ profile, holder });
    const queued = await world.submit({ profile, reuse: active });
    const end = await world.commit(queued, { step: 'none', end: 'timeout', holder: null });
    expect((await commitSteps(world.pool, [{ ...end, epoch: 5 }])).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect((await commitSteps(world.pool, [end])).outcomes).toMatchObject([{ outcome: 'committed' }]);
    expect(await world.statusOf(queued)).toBe('timeout');
    expect(await world.row(active)).toMatchObject({ status: 'running' });
    expect(await world.tape(active)).toEqual(['turn.started', 'thought']);
  });

  test('answers the call that waits for it, in the same transaction', async () => {
    const parent = await world.running({ profile, holder });
    const [callId] = (await world.call(parent, 1)) as [ToolCallId];
    const child = await world.running({ profile, holder, parent, answers: callId });
    const held = holdCommits(world.pool);
    const end = await world.commit(child, {
      end: 'success',
      settles: world.result(parent, callId, 'answer'),
    });
    const ending = commitSteps(held.pool, [end]);
    await held.atCommit;
    expect(await world.statusOf(child)).toBe('running');
    expect(await world.row(parent)).toMatchObject({ pending_calls: 1 });
    held.release();
    expect(await ending).toMatchObject({ outcomes: [{ outcome: 'committed' }], duplicates: [] });
    expect(await world.row(parent)).toMatchObject({ pending_calls: 0, status: 'running' });
    expect(await world.tape(parent)).toEqual(['turn.started', 'thought', 'tool_call', 'answer']);
  });
});

describe('ends of siblings at once', () => {
  /** A suspended parent that waits for two children. */
  async function family(): Promise<{
    parent: TestTurn;
    children: [TestTurn, TestTurn];
    calls: ToolCallId[];
  }> {
    const parent = await world.running({ profile, holder });
    const calls = await world.call(parent, 2);
    const children = (await Promise.all(
      calls.map((answers) => world.running({ profile, holder, parent, answers })),
    )) as [TestTurn, TestTurn];
    await world.pool.query("update boxcar.turns set status = 'suspended', holder_id = null where id = $1", [
      parent.turnId,
    ]);
    return { parent, children, calls };
  }

  test.each([
    [0, 1],
    [1, 0],
  ])(
    'resume their parent once, with both answers in call order (first %i, then %i)',
    async (first, second) => {
      const { parent, children, calls } = await family();
      const ends = await Promise.all(
        children.map((child, index) =>
          world.commit(child, {
            end: 'success',
            settles: world.result(parent, calls[index] as ToolCallId, `answer ${index}`),
          }),
        ),
      );
      const held = holdCommits(world.pool);
      const one = commitSteps(
        held.pool,
        [ends[first]].flatMap((end) => end ?? []),
      );
      const pid = await held.atCommit;
      const two = commitSteps(
        world.pool,
        [ends[second]].flatMap((end) => end ?? []),
      );
      await waitUntilBlocked(world.pool, { by: pid });
      held.release();
      expect((await one).rings).toEqual([]);
      expect((await two).rings).toEqual([{ turnId: parent.turnId, epoch: 2, workerTarget: '' }]);
      expect(await world.row(parent)).toMatchObject({ status: 'dispatched', epoch: 2, pending_calls: 0 });
      expect((await world.tape(parent)).slice(-2)).toEqual(['answer 0', 'answer 1']);
    },
  );

  test('in one batch also resume their parent once', async () => {
    const { parent, children, calls } = await family();
    const ends = await Promise.all(
      children.map((child, index) =>
        world.commit(child, {
          end: 'success',
          settles: world.result(parent, calls[index] as ToolCallId, `answer ${index}`),
        }),
      ),
    );
    const { rings } = await commitSteps(world.pool, ends.reverse());
    expect(rings).toEqual([{ turnId: parent.turnId, epoch: 2, workerTarget: '' }]);
    expect((await world.tape(parent)).slice(-2)).toEqual(['answer 0', 'answer 1']);
  });
});

describe('an agent’s next turn is never forgotten', () => {
  /** Submits a turn for the agent of `turn` in an open transaction. */
  async function submitNext(turn: TestTurn, tx: Parameters<typeof writeSubmission>[0]): Promise<TestTurn> {
    const { turn: next, submission } = world.draft({ profile, reuse: turn });
    await lockAgents(tx, [turn.agentId]);
    await writeSubmission(tx, submission);
    return next;
  }

  test('when the current turn ends before the submission commits', async () => {
    const turn = await world.running({ profile, holder });
    await using submitting = await begin(world.pool);
    const next = await submitNext(turn, submitting);
    const ended = await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    for (const target of ended.backlogTargets) expect(await promote(world.pool, target)).toEqual([]);
    await submitting.query('commit');
    expect(await world.statusOf(next)).toBe('queued');
    // The submission looks for queued turns after its own commit.
    expect(await promote(world.pool, '')).toEqual([
      { turnId: next.turnId, epoch: 1, workerTarget: '', priority: 0 },
    ]);
  });

  test('when the submission commits while the end is in progress', async () => {
    const parent = await world.running({ profile, holder });
    const turn = await world.running({ profile, holder, parent });
    const held = holdCommits(world.pool);
    const ending = commitSteps(held.pool, [await world.commit(turn, { end: 'success' })]);
    await held.atCommit;
    const next = await world.submit({ profile, reuse: turn });
    expect(await world.statusOf(next)).toBe('queued');
    expect(await promote(world.pool, '')).toEqual([]);
    held.release();
    // The end looks for queued turns after its commit, although it saw none when it was written.
    const { backlogTargets } = await ending;
    expect(backlogTargets).toEqual(['']);
    expect(await promote(world.pool, '')).toEqual([
      { turnId: next.turnId, epoch: 1, workerTarget: '', priority: 1 },
    ]);
  });
});

describe('batches in opposite order', () => {
  test('never wait for each other in a circle', async () => {
    const parents: TestTurn[] = [];
    const ends: (() => Promise<Parameters<typeof commitSteps>[1][number]>)[] = [];
    for (let i = 0; i < 12; i++) {
      const parent = await world.running({ profile, holder });
      parents.push(parent);
      for (const answers of await world.call(parent, 2)) {
        const child = await world.running({ profile, holder, parent, answers });
        ends.push(() => world.commit(child, { end: 'success', settles: world.result(parent, answers) }));
      }
    }
    const commits = await Promise.all(ends.map((end) => end()));
    const odd = commits.filter((_commit, index) => index % 2 === 1);
    const even = commits.filter((_commit, index) => index % 2 === 0);
    const watched = watchErrors(world.pool);
    // Each batch locks the same twelve parents.
    await Promise.all([
      commitSteps(watched.pool, odd),
      commitSteps(watched.pool, even.reverse()),
      recordResults(watched.pool, commits.flatMap((commit) => commit.end?.settles ?? []).reverse()),
    ]);
    expect(watched.states).toEqual([]);
    for (const parent of parents) expect((await world.row(parent)).pending_calls).toBe(0);
  });
});

test('a worker’s turns are found and handed back, separately or all together', async () => {
  const turns = [await world.running({ profile, holder }), await world.running({ profile, holder })] as const;
  const other = await world.running({ profile, holder: await world.worker() });
  const held = (await renewLease(world.pool, holder, { leaseMs: 60_000, hasLock: true }))?.held;
  expect(held?.map(({ turnId }) => turnId).sort()).toEqual(turns.map((turn) => turn.turnId));
  expect(await world.release(holder, [turns[1], other])).toEqual([
    { turnId: turns[1].turnId, epoch: 2, workerTarget: '' },
  ]);
  expect(await releaseTurns(world.pool, holder, null)).toEqual([
    { turnId: turns[0].turnId, epoch: 2, workerTarget: '' },
  ]);
  expect(await world.statusOf(other)).toBe('running');
});

test('a release that is repeated hands back nothing that was claimed since', async () => {
  const turn = await world.running({ profile, holder });
  const held = [{ turnId: turn.turnId, epoch: 1 }];
  expect(await releaseTurns(world.pool, holder, held, { begunIds: [] })).toHaveLength(1);
  await world.claim(turn, holder);
  expect(await releaseTurns(world.pool, holder, held, { begunIds: [] })).toEqual([]);
  expect(await world.row(turn)).toMatchObject({ status: 'running', epoch: 2 });
});
