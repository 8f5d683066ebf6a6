/**
 * The commit of a step, and the end of a turn together with it.
 *
 * C2  A commit writes only while the turn is `running` at its epoch and held by its holder (or, for the sweep, unchanged since the
 *     sweep read it).
 * C3  Tape positions are taken under the lock of the tape's head row, so they are gapless.
 * C4  Turns are locked before tapes, and tapes before tool calls, each in id order, whatever the batch contains.
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
  /** The commit was made. Since then the turn has ended, or another worker has taken it. */
  | { readonly outcome: 'left' }
  /** The turn has another holder or has ended: nothing of this commit took effect. */
  | { readonly outcome: 'fenced' };

export interface CommitResult extends SettledTurns {
  readonly outcomes: readonly CommitOutcome[];
  /**
   * Targets where a turn ended, so there may be room for queued turns. A process that ends a turn and a process that queues a turn both
   * call `promote` after their own commit, so the later call sees both changes.
   */
  readonly backlogTargets: readonly string[];
  readonly endedTurnIds: readonly TurnId[];
  /** Ended turns that a job at the queue door waits for. */
  readonly doorTurnIds: readonly TurnId[];
  /** Batches that these ends have made due. The caller finishes them now (`finishBatches`), or the sweep does so later. */
  readonly dueBatchIds: readonly BatchId[];
  /** Ended turns with notices to deliver (`sessions.ts`). The caller delivers them now, or the sweep does so later. */
  readonly noticeTurnIds: readonly TurnId[];
  /** Turns that are fenced only because a row was locked, when locked turns are to be left out. The caller tries them again. */
  readonly lockedTurnIds: readonly TurnId[];
  /** One outcome for each turn of `along`; undefined when the commits were made without these turns. */
  readonly claims?: readonly ViewedClaim[];
}

const OF_TURNS =
  'id, status, epoch, holder_id, batch_ids is not null as is_member from boxcar.turns where id = any ($1::uuid[])';
const LOCK_TURNS = statement(`select /* commits.lock_turns */ ${OF_TURNS} order by id for update`);
const LOOK_AT_TURNS = statement(`select /* commits.look_at_turns */ ${OF_TURNS}`);

type LockedTurn = Row<'turns', 'id' | 'status' | 'epoch' | 'holder_id'> & { readonly is_member: boolean };

/** C2, read under the lock of the turn. The same condition as in the statement of the commit (`commit-sql.ts`). */
const isFenceOpen = (commit: StepCommit, turn: LockedTurn | undefined): boolean =>
  turn !== undefined &&
  !isFinal(turn.status) &&
  turn.epoch === commit.epoch &&
  turn.holder_id === commit.holderId &&
  (commit.holderId === null || turn.status === 'running');

/**
 * Commits steps and ends of turns. A commit without calls and without an end opens the next step. An end settles the call that awaits
 * the turn, grants the parent the output box, and may resume the parent. All of this is one transaction and, unless something must be
 * decided in between, one round trip. The first try also claims the turns of `along` that the ends resume.
 *
 * A commit that was already made returns the result of that time, also when its answer was lost. `commitWithin` ends a turn with open
 * calls, together with the turns that it waits for. With a limit for locks the function works like a repetition. With `leavesLocked`, a
 * commit that needs a locked row is fenced and reported in `lockedTurnIds`, or, in a first try, makes all commits fail as `55P03`.
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
        // A failure to claim the turns of `along` must not delay the commit.
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
  // The turn has another holder, or joined a batch after its worker took it: a look under the lock decides.
  const left = fenced.filter((commit) => commit.end !== null && !locked.includes(commit.turnId));
  const whole = { ...result, lockedTurnIds: locked };
  if (left.length === 0) return whole;
  return merge(commits, whole, { of: left, ...(await decide(left)) });
}

/** The turns of fenced commits that their holder still holds. Turns that joined a batch in the meantime are decided under their locks. */
async function findLocked(pool: pg.Pool, fenced: readonly StepCommit[]): Promise<TurnId[]> {
  const rows = await run<LockedTurn>(pool, LOOK_AT_TURNS, [fenced.map(({ turnId }) => turnId)]);
  const turns = new Map(rows.map((turn) => [turn.id, turn]));
  return fenced.flatMap((commit) => {
    const turn = turns.get(commit.turnId);
    const hasJoined = commit.end !== null && turn?.is_member === true && commit.isMember !== true;
    return isFenceOpen(commit, turn) && !hasJoined ? [commit.turnId] : [];
  });
}

/** True when the ids of a commit are in use by the same commit: its first try was still running, or was part of another batch. */
const isTaken = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && error.code === '23505';

/**
 * `commitWithin` after a try whose answer was lost: commits that the try made return the result of that time.
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

/** Joins the results when some commits were made after the others. */
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
 * True when parts of the work depend on rows that must be read first: results that are valid only with their commit, or ends of a
 * parent and its child.
 */
function mustDecide(commits: readonly StepCommit[]): boolean {
  const ids = new Set(commits.map((commit) => commit.turnId));
  // A statement changes a row only once, and the parent may be one of the turns that commit.
  const isOfOneFamily = ({ settles }: TurnEnding): boolean => settles !== null && ids.has(settles.turnId);
  return (
    commits.length > LARGE ||
    commits.some((commit) => commit.results.length > 0 || (commit.end !== null && isOfOneFamily(commit.end)))
  );
}

/**
 * Uses one statement when nothing waits for the ends. Otherwise it sends the locks, the commit and the results together, in this order.
 */
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

/** The turns that commits lock: children and parents together, by id, so that two ends of one family cannot deadlock. */
const familyOf = (commits: readonly StepCommit[]): TurnId[] =>
  commits.flatMap((commit) => [commit.turnId, ...(commit.end?.settles ? [commit.end.settles.turnId] : [])]);

/**
 * The same as {@link commitSteps}, as part of the caller's transaction. Turns that end each other's waiting calls are locked first, all
 * at once.
 *
 * @param options.leavesLocked - As for `commitSteps`, for a batch of unrelated turns. For a repetition the caller has locked the turns.
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
    // Results are recorded only if their commit is: a stale `submit_result` must not look answered to the next holder.
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

/** Locks the tapes of commits. Returns the turns whose tapes other transactions have locked. */
async function findTapeless(tx: Tx, commits: readonly StepCommit[]): Promise<readonly TurnId[]> {
  return [
    ...(await lockTapes(
      tx,
      commits.map(({ turnId }) => turnId),
    )),
  ];
}

/**
 * Locks all rows that commits need apart from their turns: their tapes, the parents' tapes, and batches. Returns the turns for which
 * other transactions have locked one of these rows.
 */
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
