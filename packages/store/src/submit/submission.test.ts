import type { AgentId, BoxId, JsonValue, ToolCallId, TurnId } from '@boxcar/kernel';
import { WINDOW_FACTOR } from '@boxcar/kernel';
import type pg from 'pg';
import { beforeEach, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { retryTransient } from '../db/retry.js';
import { begin, waitUntilBlocked, watchErrors } from '../testing/interleave.js';
import {
  card,
  DEFAULT_PROJECT,
  newId,
  OPERATOR,
  type TestProfile,
  type TestTurn,
  text,
  World,
} from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { settleCalls } from '../turn/tool-calls.js';
import { lockAgents } from './find-agents.js';
import { type SubmissionItem, writeSubmission, writeSubmissions } from './submission.js';
import { emptySubmission, type Fence, type NewOperation, type Submission } from './submission-rows.js';

let world: World;
let profile: TestProfile;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  return () => world[Symbol.asyncDispose]();
});

const operation = (key: string, response: JsonValue = { n: 1 }): NewOperation => ({
  projectId: DEFAULT_PROJECT,
  idempotencyKey: key,
  primitive: 'delegate_async',
  requestHash: '11'.repeat(32),
  response,
  awaitedTurnId: null,
  doorJobId: null,
});

const TABLES = ['cards', 'boxes', 'tape_entries', 'agents', 'runs', 'turns', 'grants', 'operations'] as const;
const counts = async (): Promise<Record<string, number>> =>
  Object.fromEntries(
    await Promise.all(TABLES.map(async (table) => [table, await world.count(table)] as const)),
  );

/** A submission that writes to every table. */
const everything = (): Submission & { readonly turnId: TurnId } => {
  const { turn, submission } = world.draft({ profile });
  submission.grants.push({
    projectId: DEFAULT_PROJECT,
    agentId: OPERATOR,
    boxId: turn.tapeId,
    mode: 'read',
    uptoPosition: 7,
    source: OPERATOR,
    expiresAt: null,
  });
  return { ...submission, turnId: turn.turnId };
};
const write = (
  { turnId: _turnId, ...submission }: Submission & { turnId?: TurnId },
  options: Omit<SubmissionItem, 'submission'> = {},
  db: Parameters<typeof writeSubmission>[0] = world.pool,
) =>
  // Outside of a transaction the write is repeated, as its callers do. A transaction is repeated as a whole.
  db === world.pool
    ? retryTransient(() => writeSubmission(db, submission, options))
    : writeSubmission(db, submission, options);
const writeTogether = (db: pg.Pool, items: readonly SubmissionItem[]) =>
  retryTransient(() => writeSubmissions(db, items));

describe('a submission', () => {
  test('writes all its rows once, and nothing when its key is used again', async () => {
    const before = await counts();
    const first = everything();
    expect(await write(first, { operation: operation('key') })).toEqual({
      outcome: 'accepted',
      turns: [{ turn_id: first.turnId, status: 'queued', epoch: 0, worker_target: '', priority: 0 }],
    });
    const after = await counts();
    expect(after).toEqual({
      cards: (before.cards ?? 0) + 1,
      boxes: (before.boxes ?? 0) + 2,
      tape_entries: (before.tape_entries ?? 0) + 2,
      agents: (before.agents ?? 0) + 1,
      runs: 1,
      turns: 1,
      grants: 1,
      operations: 1,
    });
    expect(await write(everything(), { operation: operation('key', { n: 2 }) })).toEqual({
      outcome: 'refused',
    });
    expect(await counts()).toEqual(after);
    expect(await world.rows('select response from boxcar.operations')).toEqual([{ response: { n: 1 } }]);
  });

  test('of another project may use the same key', async () => {
    const { projectId } = await world.project('other');
    const options = { operation: operation('key') };
    expect(await write(emptySubmission(), options)).toMatchObject({ outcome: 'accepted' });
    expect(await write(emptySubmission(), { operation: { ...operation('key'), projectId } })).toMatchObject({
      outcome: 'accepted',
    });
  });

  test('writes nothing when one of its rows fails', async () => {
    const before = await counts();
    const broken = everything();
    broken.cards.push({ ...card(text('x')), type: '' });
    await expect(write(broken, { operation: operation('key') })).rejects.toMatchObject({ code: '23514' });
    expect(await counts()).toEqual(before);
  });

  test('under a key in use waits, and is refused when the other submission commits', async () => {
    await using other = await begin(world.pool);
    await write(emptySubmission(), { operation: operation('key') }, other);
    const before = await counts();
    const second = write(everything(), { operation: operation('key') });
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('commit');
    expect(await second).toEqual({ outcome: 'refused' });
    expect(await counts()).toEqual({ ...before, operations: 1 });
  });

  test('under a key in use waits, and is accepted when the other submission rolls back', async () => {
    await using other = await begin(world.pool);
    await write(emptySubmission(), { operation: operation('key') }, other);
    const second = write(everything(), { operation: operation('key') });
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('rollback');
    expect(await second).toMatchObject({ outcome: 'accepted' });
  });

  test('keeps the exact bytes of a content, including the key order', async () => {
    const submission = emptySubmission();
    const odd = card({ kind: 'json', data: { z: 1, a: 'ä\u2028"\\', m: [1e21, 0.1] } });
    submission.cards.push(odd);
    await write(submission);
    const [row] = await world.rows<{ content: string; hash: string }>(
      "select content::text as content, encode(content_hash, 'hex') as hash from boxcar.cards where id = $1",
      [odd.id],
    );
    expect(row).toEqual({ content: odd.contentText, hash: odd.contentHash });
  });
});

describe('submissions written together', () => {
  const item = (key: string) => {
    const { turnId, ...submission } = everything();
    return { turnId, item: { submission, operation: operation(key) } };
  };

  test('are each accepted or refused by their own key', async () => {
    await write(emptySubmission(), { operation: operation('used') });
    const [a, used, b, again] = [item('a'), item('used'), item('b'), item('a')] as const;
    const before = await counts();
    const results = await writeSubmissions(world.pool, [a.item, used.item, b.item, again.item]);
    expect(results.map(({ outcome }) => outcome)).toEqual(['accepted', 'refused', 'accepted', 'refused']);
    expect(results[0]).toMatchObject({ turns: [{ turn_id: a.turnId }] });
    expect(results[2]).toMatchObject({ turns: [{ turn_id: b.turnId }] });
    expect(await counts()).toMatchObject({
      turns: (before.turns ?? 0) + 2,
      operations: (before.operations ?? 0) + 2,
      cards: (before.cards ?? 0) + 2,
      boxes: (before.boxes ?? 0) + 4,
      grants: (before.grants ?? 0) + 2,
    });
  });

  test('are all undone when one of them fails', async () => {
    const before = await counts();
    const [good, bad] = [item('a'), item('b')] as const;
    bad.item.submission.cards.push({ ...card(text('x')), type: '' });
    await expect(writeSubmissions(world.pool, [good.item, bad.item])).rejects.toMatchObject({
      code: '23514',
    });
    expect(await counts()).toEqual(before);
  });

  test('under the same keys in opposite order never wait in a circle, and use each key once', async () => {
    const watched = watchErrors(world.pool);
    for (let round = 0; round < 10; round++) {
      const keys = Array.from({ length: 20 }, (_none, index) => `${round}-${index}`);
      const [one, two] = await Promise.all([
        writeTogether(
          watched.pool,
          keys.map((key) => item(key).item),
        ),
        writeTogether(
          watched.pool,
          [...keys].reverse().map((key) => item(key).item),
        ),
      ]);
      const accepted = [...one, ...two].filter(({ outcome }) => outcome === 'accepted');
      expect(accepted).toHaveLength(20);
    }
    expect(watched.states).toEqual([]);
    expect(await world.count('turns')).toBe(200);
  });

  test('share the window: no more turns enter than fit', async () => {
    await world.worker({ concurrency: 1 });
    const results = await writeSubmissions(
      world.pool,
      Array.from({ length: 6 }, (_none, index) => item(String(index)).item),
    );
    expect(
      results.flatMap((result) =>
        result.outcome === 'accepted' ? result.turns.map(({ status }) => status) : [],
      ),
    ).toEqual([...Array.from({ length: 4 }, () => 'dispatched'), 'queued', 'queued']);
  });
});

describe('the fence', () => {
  test('lets only the holder of the calling turn write, at its epoch, while the turn runs', async () => {
    const holder = await world.worker();
    const stranger = await world.worker();
    const turn = await world.running({ profile, holder });
    const fence = { turnId: turn.turnId, epoch: 1, holderId: holder };
    const before = await counts();
    for (const wrong of [
      { ...fence, epoch: 0 },
      { ...fence, epoch: 2 },
      { ...fence, holderId: stranger },
      { ...fence, turnId: newId<'turn'>() },
    ]) {
      expect(await write(everything(), { operation: operation('key'), fence: wrong })).toEqual({
        outcome: 'refused',
      });
      expect(await write(everything(), { fence: wrong })).toEqual({ outcome: 'refused' });
    }
    expect(await counts()).toEqual(before);
    expect(await write(everything(), { operation: operation('key'), fence })).toMatchObject({
      outcome: 'accepted',
    });
    await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    expect(await write(everything(), { operation: operation('other'), fence })).toEqual({
      outcome: 'refused',
    });
  });

  test('waits for an end in progress, and then refuses', async () => {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    const fence = { turnId: turn.turnId, epoch: 1, holderId: holder };
    await using ending = await begin(world.pool);
    await ending.query(
      "update boxcar.turns set status = 'failed', holder_id = null, ended_at = now(), deliverable_card_id = $2 where id = $1",
      [turn.turnId, newId()],
    );
    const submitted = write(everything(), { operation: operation('key'), fence });
    await waitUntilBlocked(world.pool, { by: ending.pid });
    await ending.query('commit');
    expect(await submitted).toEqual({ outcome: 'refused' });
    expect(await world.count('operations')).toBe(0);
  });
});

describe('a call that waits for turns that its own turn submits', () => {
  const calling = async () => {
    const holder = await world.worker();
    const turn = await world.running({ profile, holder });
    const [toolCallId] = (await world.call(turn, 1)) as [ToolCallId];
    const fence: Fence = { turnId: turn.turnId, epoch: 1, holderId: holder, spawnRunId: turn.runId };
    return { turn, toolCallId, fence };
  };
  const below = (parent: TestTurn, answers: ToolCallId): Submission =>
    world.draft({ profile, parent, answers }).submission;

  test('gets its deadline and its batch in the same write', async () => {
    const { turn, toolCallId, fence } = await calling();
    const batchId = newId<'batch'>();
    const wait = { toolCallId, batchId, deadlineMs: 7_200_000 };
    const options = { operation: operation('key'), fence, wait };
    expect(await write(below(turn, toolCallId), options)).toMatchObject({ outcome: 'accepted' });
    expect(
      await world.rows(
        "select status, batch_id, deadline_at > now() + interval '90 minutes' as is_late from boxcar.tool_calls",
      ),
    ).toEqual([{ status: 'pending', batch_id: batchId, is_late: true }]);
  });

  test('undoes the whole submission when the call already has its answer', async () => {
    const { turn, toolCallId, fence } = await calling();
    const before = await counts();
    await using settling = await begin(world.pool);
    await settleCalls(settling, [world.result(turn, toolCallId)]);
    const wait = { toolCallId, batchId: null, deadlineMs: 7_200_000 };
    const submitted = write(below(turn, toolCallId), { operation: operation('key'), fence, wait });
    await waitUntilBlocked(world.pool, { by: settling.pid });
    await settling.query('commit');
    expect(await submitted).toEqual({ outcome: 'refused', because: 'answered' });
    expect(await counts()).toEqual({
      ...before,
      cards: (before.cards ?? 0) + 1,
      tape_entries: (before.tape_entries ?? 0) + 1,
    });
  });

  test('is refused when other submissions have filled its run meanwhile', async () => {
    const { turn, toolCallId, fence } = await calling();
    const limited = { ...fence, maxRunTurns: 2 };
    await using other = await begin(world.pool);
    expect(
      await write(below(turn, toolCallId), { operation: operation('a'), fence: limited }, other),
    ).toMatchObject({
      outcome: 'accepted',
    });
    const second = write(below(turn, toolCallId), { operation: operation('b'), fence: limited });
    await waitUntilBlocked(world.pool, { by: other.pid });
    await other.query('commit');
    expect(await second).toEqual({ outcome: 'refused', because: 'full' });
    expect(await world.rows('select turn_count from boxcar.runs')).toEqual([{ turn_count: 2 }]);
    expect(await world.count('turns')).toBe(2);
  });
});

describe('the window of a target', () => {
  const statuses = async (n: number, of = profile): Promise<string[]> => {
    const all: string[] = [];
    for (let i = 0; i < n; i++) all.push(await world.statusOf(await world.submit({ profile: of })));
    return all;
  };
  const many = (status: string, n: number) => Array.from({ length: n }, () => status);

  test('is closed while no worker lives: all turns stay queued', async () => {
    expect(await statuses(3)).toEqual(many('queued', 3));
    await world.worker({ leaseMs: 0 });
    await world.worker({ targets: ['gpu'] });
    expect(await statuses(2)).toEqual(many('queued', 2));
    expect(await world.count('turns', 'epoch <> 0')).toBe(0);
  });

  test('holds four times the concurrency of the living workers, and not a turn more', async () => {
    await world.worker({ concurrency: 1 });
    await world.worker({ concurrency: 1 });
    expect(WINDOW_FACTOR).toBe(4);
    expect(await statuses(10)).toEqual([...many('dispatched', 8), ...many('queued', 2)]);
    expect(
      await world.count('turns', "status = 'dispatched' and epoch = 1 and dispatched_at is not null"),
    ).toBe(8);
  });

  test('is filled to its limit by one large submission', async () => {
    await world.worker({ concurrency: 1 });
    const submission = emptySubmission();
    for (let i = 0; i < 6; i++) {
      const { submission: one } = world.draft({ profile });
      for (const key of Object.keys(submission) as (keyof Submission)[])
        (submission[key] as unknown[]).push(...one[key]);
    }
    const result = await write(submission);
    expect(result.outcome === 'accepted' && result.turns.map((turn) => turn.status)).toEqual([
      ...many('dispatched', 4),
      ...many('queued', 2),
    ]);
  });

  test('is separate from the windows of other targets', async () => {
    const gpu = await world.profile('gpu', { workerTarget: 'gpu' });
    await world.worker({ concurrency: 1, targets: ['gpu', 'other'] });
    expect(await statuses(1)).toEqual(['queued']);
    expect(await statuses(5, gpu)).toEqual([...many('dispatched', 4), 'queued']);
  });

  test('does not count turns that run or wait', async () => {
    const holder = await world.worker({ concurrency: 1 });
    for (let i = 0; i < 4; i++) await world.running({ profile, holder });
    expect(await statuses(4)).toEqual(many('dispatched', 4));
  });

  test('lets no new turn overtake a queued turn', async () => {
    expect(await statuses(1)).toEqual(['queued']);
    await world.worker();
    expect(await statuses(1)).toEqual(['queued']);
  });
});

describe('an agent that has turns', () => {
  test('gets its next turn queued while a turn is under way', async () => {
    const holder = await world.worker();
    const first = await world.running({ profile, holder });
    const second = await world.submit({ profile, reuse: first });
    expect(await world.statusOf(second)).toBe('queued');
    await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
  });

  test('gets its next turn at once when it is free, on its existing tape', async () => {
    const holder = await world.worker();
    const first = await world.running({ profile, holder });
    await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
    const second = await world.submit({ profile, reuse: first });
    expect(await world.row(second)).toMatchObject({ status: 'dispatched', epoch: 1 });
    expect(second.tapeId).toBe(first.tapeId);
  });

  test('never has two turns under way, also when one submission brings both', async () => {
    const holder = await world.worker();
    const first = await world.running({ profile, holder });
    await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
    const one = world.draft({ profile, reuse: first });
    const two = world.draft({ profile, reuse: first });
    for (const key of Object.keys(one.submission) as (keyof Submission)[])
      (one.submission[key] as unknown[]).push(...two.submission[key]);
    const result = await transaction(world.pool, async (tx) => {
      await lockAgents(tx, [first.agentId]);
      return write(one.submission, {}, tx);
    });
    expect(result).toMatchObject({
      outcome: 'accepted',
      turns: [
        { turn_id: one.turn.turnId, status: 'dispatched' },
        { turn_id: two.turn.turnId, status: 'queued' },
      ],
    });
  });

  test('can get a grant from the end of its child while a submission holds its lock', async () => {
    const holder = await world.worker();
    const parent = await world.running({ profile, holder });
    const child = await world.running({ profile, holder, parent });
    await using submitting = await begin(world.pool);
    await lockAgents(submitting, [parent.agentId]);
    // The end of a child grants the tape to its parent's agent. It must not wait for the submission, which waits for turns.
    const ended = await commitSteps(world.pool, [await world.commit(child, { end: 'success' })]);
    expect(ended.outcomes).toMatchObject([{ outcome: 'committed' }]);
    await submitting.query('rollback');
  });
});

describe('grants', () => {
  const grant = async (
    boxId: BoxId,
    agentId: AgentId,
    options: { upto?: number | null; expiresAt?: string | null; source?: string } = {},
  ): Promise<void> => {
    const submission = emptySubmission();
    submission.grants.push({
      projectId: DEFAULT_PROJECT,
      agentId,
      boxId,
      mode: 'read',
      uptoPosition: options.upto ?? null,
      source: options.source ?? OPERATOR,
      expiresAt: options.expiresAt ?? null,
    });
    await write(submission);
  };
  const held = async (boxId: BoxId, agentId: AgentId) =>
    (
      await world.rows('select * from boxcar.grants where box_id = $1 and agent_id = $2', [boxId, agentId])
    )[0];
  const future = '2999-01-01T00:00:00.000Z';

  test('by the owner of the box replace earlier grants', async () => {
    const { tapeId } = await world.submit({ profile });
    const reader = (await world.submit({ profile })).agentId;
    await grant(tapeId, reader);
    await grant(tapeId, reader, { upto: 1, expiresAt: future });
    expect(await held(tapeId, reader)).toMatchObject({ upto_position: 1, expires_at: new Date(future) });
  });

  test('by other agents only widen a grant, unless the grant has ended', async () => {
    const { tapeId } = await world.submit({ profile });
    const reader = (await world.submit({ profile })).agentId;
    const giver = (await world.submit({ profile })).agentId;
    await grant(tapeId, reader, { upto: 5 });
    await grant(tapeId, reader, { source: giver, upto: 4 });
    await grant(tapeId, reader, { source: giver, upto: 5, expiresAt: future });
    expect(await held(tapeId, reader)).toMatchObject({
      upto_position: 5,
      expires_at: null,
      source: OPERATOR,
    });
    await grant(tapeId, reader, { source: giver, upto: 6 });
    expect(await held(tapeId, reader)).toMatchObject({ upto_position: 6, source: giver });
    await grant(tapeId, reader, { upto: 9, expiresAt: '2001-01-01T00:00:00Z' });
    await grant(tapeId, reader, { source: giver, upto: 2 });
    expect(await held(tapeId, reader)).toMatchObject({ upto_position: 2, expires_at: null });
  });

  test('in one submission may repeat each other: the last one is used', async () => {
    const { tapeId } = await world.submit({ profile });
    const reader = (await world.submit({ profile })).agentId;
    const submission = emptySubmission();
    for (const uptoPosition of [1, 2]) {
      submission.grants.push({
        projectId: DEFAULT_PROJECT,
        agentId: reader,
        boxId: tapeId,
        mode: 'read',
        uptoPosition,
        source: OPERATOR,
        expiresAt: null,
      });
    }
    await write(submission);
    expect(await held(tapeId, reader)).toMatchObject({ upto_position: 2 });
  });
});
