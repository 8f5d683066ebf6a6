/**
 * The commit of a step, and the end of a turn with it.
 *
 * C2  A commit writes only while the turn is `running` at its epoch in its holder's hands (or, for the sweep, as it saw it).
 * C3  Tape positions are taken under the lock of the tape's head row, so they are gapless.
 * C4  Turns are locked before tapes, tapes before tool calls, each class in id order, whatever the batch.
 */

import { type BatchId, isFinal, type TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type BatchTry,
  firstLimit,
  isTransient,
  type LimitedTry,
  limited,
  patientOn,
  retriesOf,
  retryBatch,
  run,
  sendOnce,
  statement,
  type Tx,
  transactOnce,
} from '../db/index.js';
import type { Row } from '../schema/index.js';
import { closeBatchesOf, lockBatchesOf } from './batches.js';
import type { SettledTurns } from './call-types.js';
import { type CommitRow, LARGE, toCommit } from './commit-sql.js';
import { findCommitted, findRings, lockTapes, lockTurns } from './first-tries.js';
import type { StepCommit, TurnEnding } from './step-commit.js';
import { settleCalls } from './tool-calls.js';
import { AlongClaim, type ClaimAlong, type ViewedClaim } from './views.js';

export type CommitOutcome =
  | {
      readonly outcome: 'committed';
      /** The head of the tape before this commit's entries. */
      readonly basePosition: number | null;
    }
  /** It was committed; since then the turn has ended or another worker has taken it. */
  | { readonly outcome: 'left' }
  /** The turn is in other hands or has ended: nothing of this commit took effect. */
  | { readonly outcome: 'fenced' };

export interface CommitResult extends SettledTurns {
  readonly outcomes: readonly CommitOutcome[];
  /**
   * Targets where a turn ended: there may be room for queued turns now. Whoever ends a turn and whoever queues one look
   * after their own commit (`promote`), so the later of the two sees both.
   */
  readonly backlogTargets: readonly string[];
  readonly endedTurnIds: readonly TurnId[];
  /** Ended turns that a job at the queue door waits for. */
  readonly doorTurnIds: readonly TurnId[];
  /** Batches that these ends have made due: they are to be finished now (`finishBatches`), else the sweep finds them. */
  readonly dueBatchIds: readonly BatchId[];
  /** Ended turns of which something is to be told (`sessions.ts`): now, else the sweep finds them. */
  readonly noticeTurnIds: readonly TurnId[];
  /** Fenced only because a row was locked, when the commits were to leave such turns out: to be tried again. */
  readonly lockedTurnIds: readonly TurnId[];
  /** Of the turns that were to be taken along, one for each; undefined when the commits were made without them. */
  readonly claims?: readonly ViewedClaim[];
}

const OF_TURNS =
  'id, status, epoch, holder_id, batch_ids is not null as is_member from boxcar.turns where id = any ($1::uuid[])';
const LOCK_TURNS = statement(`select /* commits.lock_turns */ ${OF_TURNS} order by id for update`);
const LOOK_AT_TURNS = statement(`select /* commits.look_at_turns */ ${OF_TURNS}`);

type LockedTurn = Row<'turns', 'id' | 'status' | 'epoch' | 'holder_id'> & { readonly is_member: boolean };

/** C2, read under the lock of the turn: the same condition as in COMMIT. */
const isFenceOpen = (commit: StepCommit, turn: LockedTurn | undefined): boolean =>
  turn !== undefined &&
  !isFinal(turn.status) &&
  turn.epoch === commit.epoch &&
  turn.holder_id === commit.holderId &&
  (commit.holderId === null || turn.status === 'running');

/**
 * Commits steps and ends of turns. A commit without calls and without an end opens the next step; an end settles the call
 * that awaits it, grants the parent the output box, and may resume the parent: all in one transaction and, unless something
 * must be decided between, in one round trip. In its first try it also takes the turns of `along` that the ends resume.
 *
 * A commit that was made before returns the result of that time, also when the answer was lost. A turn with open calls is ended by
 * `commitWithin`, together with the turns that it waits for. With a limit for locks it works like a repetition. With `leavesLocked` a
 * commit that needs a locked row is fenced and reported in `lockedTurnIds`, or, in a first try, fails all commits as `55P03`.
 */
export function commitSteps(
  pool: pg.Pool,
  commits: readonly StepCommit[],
  { lockMs, along, ...options }: LimitedTry & { readonly along?: ClaimAlong | undefined } = {},
): Promise<CommitResult> {
  return retryBatch(
    async (isRepeated) => {
      if (isRepeated || lockMs !== undefined)
        return transactOnce(pool, limited({ lockMs }, commitAgain(commits, options)));
      try {
        return await commitFirst(pool, commits, { leavesLocked: options.leavesLocked, along });
      } catch (error) {
        // A turn that cannot be taken along does not hold up the commit.
        if (!isTaken(error) && (along === undefined || isTransient(error))) throw error;
        return transactOnce(pool, commitAgain(commits, options), firstLimit(options.leavesLocked));
      }
    },
    { ...patientOn(pool), ...retriesOf({ lockMs }), ...options },
  );
}

async function commitFirst(
  pool: pg.Pool,
  commits: readonly StepCommit[],
  {
    leavesLocked = false,
    along,
  }: { readonly leavesLocked: boolean | undefined; readonly along: ClaimAlong | undefined },
): Promise<CommitResult> {
  const decide = (some: readonly StepCommit[]) =>
    transactOnce(pool, commitWithin(some, { leavesLocked }), firstLimit(leavesLocked));
  if (mustDecide(commits)) return decide(commits);
  const result = await commitAtOnce(pool, commits, { leavesLocked, along });
  const fenced = commits.filter((_commit, index) => result.outcomes[index]?.outcome === 'fenced');
  const locked = leavesLocked && fenced.length > 0 ? await findLocked(pool, fenced) : [];
  // In other hands, or joined since its worker took it: the locks tell.
  const left = fenced.filter((commit) => commit.end !== null && !locked.includes(commit.turnId));
  const whole = { ...result, lockedTurnIds: locked };
  if (left.length === 0) return whole;
  return merge(commits, whole, { of: left, ...(await decide(left)) });
}

/** The turns of fenced commits that are still in the hands of their holder. Those that were joined meanwhile are left to the locks. */
async function findLocked(pool: pg.Pool, fenced: readonly StepCommit[]): Promise<TurnId[]> {
  const rows = await run<LockedTurn>(pool, LOOK_AT_TURNS, [fenced.map(({ turnId }) => turnId)]);
  const turns = new Map(rows.map((turn) => [turn.id, turn]));
  return fenced.flatMap((commit) => {
    const turn = turns.get(commit.turnId);
    const hasJoined = commit.end !== null && turn?.is_member === true && commit.isMember !== true;
    return isFenceOpen(commit, turn) && !hasJoined ? [commit.turnId] : [];
  });
}

/** An id of a commit is in use by the same commit: its first try was still running, or was part of another batch. */
const isTaken = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && error.code === '23505';

/**
 * `commitWithin` after a try whose answer was lost: commits of that try return the result of that time.
 *
 * @param options.leavesLocked - Commits that need a locked row are left out.
 */
export const commitAgain =
  (given: readonly StepCommit[], { leavesLocked = false }: Pick<BatchTry, 'leavesLocked'> = {}) =>
  async (tx: Tx): Promise<CommitResult> => {
    const locked = await lockTurns(tx, familyOf(given), { leavesLocked });
    const commits = given.filter((commit) => !familyOf([commit]).some((id) => locked.has(id)));
    const rows = await findCommitted(tx, commits);
    const done = new Set(rows.map((row) => row.turn_id));
    const found: CommitResult = {
      ...readResult(
        commits,
        // The earlier head of the tape is no longer known, so the worker reads the tape again.
        rows.map((row): CommitRow => ({ ...row, base: null, due_batch_ids: null, has_open_calls: false })),
      ),
      dueBatchIds: [...new Set(rows.flatMap((row) => row.due_batch_ids ?? []))],
      rings: await findRings(
        tx,
        commits.flatMap(({ turnId, end }) => (end?.settles && done.has(turnId) ? [end.settles.turnId] : [])),
      ),
    };
    const of = commits.filter(({ turnId }) => !done.has(turnId));
    const rest =
      of.length === 0
        ? undefined
        : { of, ...(await commitWithin(of, { leavesLocked, isRepeated: true })(tx)) };
    const result = rest === undefined ? found : merge(commits, found, rest);
    if (commits.length === given.length) return result;
    return {
      ...result,
      outcomes: given.map((commit) => result.outcomes[commits.indexOf(commit)] ?? { outcome: 'fenced' }),
      lockedTurnIds: [
        ...result.lockedTurnIds,
        ...given.filter((commit) => !commits.includes(commit)).map(({ turnId }) => turnId),
      ],
    };
  };

/** The result of all commits, when some of them were committed after the others. */
function merge(
  commits: readonly StepCommit[],
  result: CommitResult,
  rest: CommitResult & { readonly of: readonly StepCommit[] },
): CommitResult {
  return {
    outcomes: commits.map(
      (commit, index) =>
        rest.outcomes[rest.of.indexOf(commit)] ?? result.outcomes[index] ?? { outcome: 'fenced' },
    ),
    backlogTargets: [...new Set([...result.backlogTargets, ...rest.backlogTargets])],
    endedTurnIds: [...result.endedTurnIds, ...rest.endedTurnIds],
    doorTurnIds: [...result.doorTurnIds, ...rest.doorTurnIds],
    dueBatchIds: [...new Set([...result.dueBatchIds, ...rest.dueBatchIds])],
    rings: [...result.rings, ...rest.rings],
    duplicates: [...result.duplicates, ...rest.duplicates],
    noticeTurnIds: [...result.noticeTurnIds, ...rest.noticeTurnIds],
    lockedTurnIds: [...result.lockedTurnIds, ...rest.lockedTurnIds],
  };
}

/**
 * Parts of the work depend on rows that are read first: results that are valid only with their commit, ends of parent and
 * child.
 */
function mustDecide(commits: readonly StepCommit[]): boolean {
  const ids = new Set(commits.map((commit) => commit.turnId));
  // A row is changed once by a statement, and a parent may be one of those that commit.
  const isOfOneFamily = ({ settles }: TurnEnding): boolean => settles !== null && ids.has(settles.turnId);
  return (
    commits.length > LARGE ||
    commits.some((commit) => commit.results.length > 0 || (commit.end !== null && isOfOneFamily(commit.end)))
  );
}

/** In one statement where nobody waits for the ends; else with the locks before it and the results after it, sent together. */
async function commitAtOnce(
  pool: pg.Pool,
  commits: readonly StepCommit[],
  { leavesLocked, along }: { readonly leavesLocked: boolean; readonly along: ClaimAlong | undefined },
): Promise<CommitResult> {
  const settlements = commits.flatMap(({ turnId, end }) =>
    end === null || end.settles === null
      ? []
      : [{ ...end.settles, ifEnded: { turnId, deliverableCardId: end.deliverableCardId } }],
  );
  const hasMembers = commits.some((commit) => commit.end !== null && commit.isMember === true);
  const { prepared, values } = toCommit(commits, { batches: hasMembers ? 'some' : 'unknown', leavesLocked });
  if (settlements.length === 0 && !hasMembers)
    return readResult(commits, await run<CommitRow>(pool, prepared, values));
  const claiming = along && new AlongClaim(along);
  const send = async (tx: Tx): Promise<CommitResult> => {
    const [, rows, settled] = await Promise.all([
      run<LockedTurn>(tx, LOCK_TURNS, [familyOf(commits)]),
      run<CommitRow>(tx, prepared, values),
      settleCalls(tx, settlements),
      claiming?.claim(tx),
    ]);
    return { ...readResult(commits, rows), ...settled };
  };
  const result = await sendOnce(pool, send, {
    ...firstLimit(leavesLocked),
    after: claiming && ((db) => claiming.read(db)),
  });
  return claiming === undefined ? result : { ...result, claims: await claiming.outcomes() };
}

/** The turns that commits lock: children and parents together, by id, so that two ends of one family never wait in a circle. */
const familyOf = (commits: readonly StepCommit[]): TurnId[] =>
  commits.flatMap((commit) => [commit.turnId, ...(commit.end?.settles ? [commit.end.settles.turnId] : [])]);

/**
 * The same as part of the caller's transaction. Turns that end each other's waiting calls are locked before, all at once.
 *
 * @param options.leavesLocked - As for `commitSteps`; for a batch of turns that have nothing to do with each other. For a repetition
 *   the caller has locked the turns.
 */
export const commitWithin =
  (
    given: readonly StepCommit[],
    { leavesLocked = false, isRepeated = false }: Pick<BatchTry, 'leavesLocked' | 'isRepeated'> = {},
  ) =>
  async (tx: Tx): Promise<CommitResult> => {
    const locked = await run<LockedTurn>(tx, LOCK_TURNS, [familyOf(given)]);
    const turns = new Map(locked.map((turn) => [turn.id, turn]));
    const open = leavesLocked ? given.filter((commit) => isFenceOpen(commit, turns.get(commit.turnId))) : [];
    const lockedTurnIds = await (isRepeated ? findHeldUp(tx, open) : findTapeless(tx, open));
    const commits = given.filter(({ turnId }) => !lockedTurnIds.includes(turnId));
    // Results that belong to a commit fall with it: a stale `submit_result` must not look answered to the next holder.
    const results = commits.flatMap((commit) =>
      isFenceOpen(commit, turns.get(commit.turnId)) ? commit.results : [],
    );
    if (results.length > 0) await settleCalls(tx, results);
    const hasMembers = commits.some((commit) => turns.get(commit.turnId)?.is_member === true);
    const { prepared, values } = toCommit(commits, { batches: hasMembers ? 'some' : 'none' });
    const rows = await run<CommitRow>(tx, prepared, values);
    const result = { ...readResult(given, rows), lockedTurnIds };
    const waiting = rows.filter((row) => row.has_open_calls).map((row) => row.turn_id);
    const closed = waiting.length === 0 ? [] : await closeBatchesOf(tx, waiting);
    return {
      ...result,
      dueBatchIds: [...new Set([...result.dueBatchIds, ...closed])],
      ...(await settleParents(tx, commits, new Set(rows.map((row) => row.turn_id)))),
    };
  };

/** Locks the tapes of commits. Returns the turns whose tapes others have locked. */
async function findTapeless(tx: Tx, commits: readonly StepCommit[]): Promise<readonly TurnId[]> {
  return [
    ...(await lockTapes(
      tx,
      commits.map(({ turnId }) => turnId),
    )),
  ];
}

/** Locks all that commits need besides their turns: their tapes, those of the parents, and batches. Returns the turns of which others have locked some. */
async function findHeldUp(tx: Tx, commits: readonly StepCommit[]): Promise<readonly TurnId[]> {
  const locked = await lockTapes(tx, familyOf(commits));
  const ends = commits.filter(({ end }) => end !== null).map(({ turnId }) => turnId);
  const joined = await lockBatchesOf(tx, ends);
  return commits
    .filter((commit) => joined.has(commit.turnId) || familyOf([commit]).some((id) => locked.has(id)))
    .map(({ turnId }) => turnId);
}

function readResult(commits: readonly StepCommit[], rows: readonly CommitRow[]): CommitResult {
  const committed = new Map(rows.map((row) => [row.turn_id, row]));
  return {
    outcomes: commits.map((commit): CommitOutcome => {
      const row = committed.get(commit.turnId);
      if (row === undefined) return { outcome: 'fenced' };
      return row.has_left === true ? { outcome: 'left' } : { outcome: 'committed', basePosition: row.base };
    }),
    backlogTargets: [...new Set(rows.filter((row) => row.is_ended).map((row) => row.worker_target))],
    endedTurnIds: rows.filter((row) => row.is_ended).map((row) => row.turn_id),
    doorTurnIds: rows.filter((row) => row.has_door).map((row) => row.turn_id),
    dueBatchIds: rows[0]?.due_batch_ids ?? [],
    noticeTurnIds: rows.filter((row) => row.has_notice).map((row) => row.turn_id),
    lockedTurnIds: [],
    rings: [],
    duplicates: [],
  };
}

function settleParents(
  tx: Tx,
  commits: readonly StepCommit[],
  committed: ReadonlySet<TurnId>,
): Promise<SettledTurns> {
  return settleCalls(
    tx,
    commits.flatMap(({ turnId, end }) => (end?.settles && committed.has(turnId) ? [end.settles] : [])),
  );
}
