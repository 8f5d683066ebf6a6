/**
 * The one write of a submission: a single statement writes everything that a primitive makes.
 *
 * This file owns idempotency (the operation row decides whether anything is written), the fence of the calling turn, and the decision
 * whether a new turn is dispatched at once or queued.
 *
 * S1  A second submission under the same key writes nothing.
 * S2  A turn that has ended or has another holder cannot submit. New turns below it are added under the lock of their run. The end of a
 *     whole tree takes the same lock, so no turn is added below a canceled turn.
 * S3  A turn is dispatched only while the window of its target has room and no turn is queued before it. A turn of a project with
 *     `max_concurrent` is queued: only one promotion at a time works, so it counts exactly. A turn that waits for the prompt cache of
 *     another turn is also queued.
 * S4  A call that waits for the result of the submission gets its deadline here. If the call has been answered in the meantime, nothing
 *     is written.
 */
import type { BatchId, Ring, TurnId, TurnStatus } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { cardRecord, contextBoxRecord } from '../rows/index.js';
import type {
  CallWait,
  Fence,
  NewContextBox,
  NewGrant,
  NewOperation,
  Submission,
} from './submission-rows.js';
import { prepareSubmission } from './submission-sql.js';

export interface SubmittedTurn {
  readonly turn_id: TurnId;
  /** `queued` or `dispatched` for a turn that has just been submitted. */
  readonly status: TurnStatus;
  readonly epoch: number;
  readonly worker_target: string;
  /** The priority of its ring; absent when the submission was read back. */
  readonly priority?: number;
}

export type SubmissionResult =
  | {
      readonly outcome: 'accepted';
      readonly turns: readonly SubmittedTurn[];
    }
  /**
   * Nothing was written. The key was used before, or the fence no longer holds. `because` names the other reasons: the project is
   * archived, the run has no room for these turns, the call has been answered, or the caller has changed since it was read.
   */
  | { readonly outcome: 'refused'; readonly because?: 'archived' | 'full' | 'answered' | 'stale' };

/** A submission with the facts that decide whether it is written. */
export interface SubmissionItem {
  readonly submission: Submission;
  readonly operation?: NewOperation;
  readonly fence?: Fence;
  readonly wait?: CallWait;
}

const columnNames = new Map<string, string>();

function columnOf(property: string): string {
  const known = columnNames.get(property);
  if (known !== undefined) return known;
  const column = property.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  columnNames.set(property, column);
  return column;
}

/** The record of a row: its properties, under the names of the columns. */
function snake(row: object): Record<string, unknown> {
  const record: Record<string, unknown> = {};
  for (const [property, value] of Object.entries(row)) record[columnOf(property)] = value;
  return record;
}

const boxRecord = (box: NewContextBox): Record<string, unknown> => ({
  id: box.id,
  project_id: box.projectId,
  owner_agent_id: box.ownerAgentId,
  maker_agent_id: box.makerAgentId,
  ...contextBoxRecord(box),
});

/** The records of one table over all items, each with the index of its item. */
function recordsOf<T>(
  items: readonly SubmissionItem[],
  rows: (submission: Submission) => readonly T[],
  toRecord: (row: T) => Record<string, unknown>,
): Record<string, unknown>[] {
  return items.flatMap((item, index) =>
    rows(item.submission).map((row) => ({ item: index, ...toRecord(row) })),
  );
}

const withSeen = ({ seen, ...operation }: NewOperation): object =>
  seen === undefined
    ? operation
    : {
        ...operation,
        seenProject: seen.projectVersion,
        seenSource: seen.sourceId,
        seenSourceVersion: seen.sourceVersion,
        seenProfiles: seen.profileIds,
      };

/** The ids that an operation records as made: batches of new turns, and new turns outside of these batches. */
function listMade({ turns, batches }: Submission): readonly (TurnId | BatchId)[] {
  const single = new Set<TurnId>(turns.map(({ id }) => id));
  const made = batches.filter(({ turnIds }) => turnIds.length > 0 && turnIds.every((id) => single.has(id)));
  for (const { turnIds } of made) for (const id of turnIds) single.delete(id);
  return [...made.map(({ id }) => id), ...single];
}

/** One row per key: a statement cannot touch a row twice. */
const distinctGrants = (submission: Submission): readonly NewGrant[] => [
  ...new Map(
    submission.grants.map((grant) => [`${grant.agentId} ${grant.boxId} ${grant.mode}`, grant]),
  ).values(),
];

interface WrittenRow extends pg.QueryResultRow {
  readonly accepted: number[] | null;
  readonly turns: SubmittedTurn[];
  /** Items whose run is full, and items whose call is no longer open. */
  readonly full: number[] | null;
  readonly answered: number[] | null;
  /** Items that were refused because their project is archived. */
  readonly closed: number[] | null;
  /** Items whose caller has changed since it was read. */
  readonly stale: number[] | null;
}

/** Only the first of several items under one key can be accepted. */
function isRepeated(items: readonly SubmissionItem[], index: number): boolean {
  const operation = items[index]?.operation;
  if (operation === undefined) return false;
  return items
    .slice(0, index)
    .some(
      (other) =>
        other.operation?.projectId === operation.projectId &&
        other.operation.idempotencyKey === operation.idempotencyKey,
    );
}

/**
 * Writes submissions in one statement. Each submission is written as a whole or not at all. Either all of them carry an operation or
 * none does; the same holds for a fence and for a wait. Rule: docs/reference/primitives.md, "Accepting".
 *
 * @param options.hints - True: the commit notifies a worker of a single turn before its ring arrives. Default: false.
 * @returns One result per item: `refused` when its key already exists or its fence no longer holds.
 */
export async function writeSubmissions(
  db: Queryable,
  all: readonly SubmissionItem[],
  { hints = false }: { readonly hints?: boolean } = {},
): Promise<readonly SubmissionResult[]> {
  const items = all.filter((_item, index) => !isRepeated(all, index));
  const fences = items.flatMap(({ fence }, index) =>
    fence === undefined
      ? []
      : [
          {
            item: index,
            turn_id: fence.turnId,
            epoch: fence.epoch,
            holder_id: fence.holderId,
            is_ended: fence.isEnded === true,
          },
        ],
  );
  const spawns = items.flatMap(({ fence, submission }, index) =>
    fence?.spawnRunId == null
      ? []
      : [
          {
            item: index,
            run_id: fence.spawnRunId,
            n: submission.turns.length,
            max_turns: fence.maxRunTurns ?? null,
          },
        ],
  );
  const waits = items.flatMap(({ wait }, index) =>
    wait === undefined ? [] : [{ item: index, ...snake(wait) }],
  );
  const operations = items.flatMap(({ operation, submission }, index) =>
    operation === undefined
      ? []
      : [
          {
            item: index,
            ...snake({
              ...withSeen(operation),
              response: JSON.stringify(operation.response),
              made: listMade(submission),
            }),
          },
        ],
  );
  const records = {
    fences,
    spawns,
    waits,
    operations,
    cards: recordsOf(items, (submission) => submission.cards, cardRecord),
    contextBoxes: recordsOf(items, (submission) => submission.contextBoxes, boxRecord),
    tapes: recordsOf(items, (submission) => submission.tapes, snake),
    agents: recordsOf(items, (submission) => submission.agents, snake),
    runs: recordsOf(items, (submission) => submission.runs, snake),
    budgets: recordsOf(items, (submission) => submission.budgets, snake),
    grants: recordsOf(items, distinctGrants, snake),
    turns: recordsOf(items, (submission) => submission.turns, snake),
    batches: recordsOf(items, (submission) => submission.batches, snake),
    handoffs: recordsOf(items, (submission) => submission.handoffs, snake),
  };
  const { prepared, values } = prepareSubmission(records, { hints });
  const [row] = await run<WrittenRow>(db, prepared, values);
  const isGated = fences.length + operations.length > 0;
  const accepted = new Set(row?.accepted);
  const turns = new Map(row?.turns.map((turn) => [turn.turn_id, turn]));
  return all.map((item): SubmissionResult => {
    const index = items.indexOf(item);
    if (index === -1) return { outcome: 'refused' };
    if (isGated && !accepted.has(index)) {
      if (row?.closed?.includes(index) === true) return { outcome: 'refused', because: 'archived' };
      if (row?.stale?.includes(index) === true) return { outcome: 'refused', because: 'stale' };
      if (row?.full?.includes(index) === true) return { outcome: 'refused', because: 'full' };
      if (row?.answered?.includes(index) === true) return { outcome: 'refused', because: 'answered' };
      return { outcome: 'refused' };
    }
    return {
      outcome: 'accepted',
      turns: item.submission.turns.flatMap((turn) => turns.get(turn.id) ?? []),
    };
  });
}

/** Writes one submission; see `writeSubmissions`. */
export async function writeSubmission(
  db: Queryable,
  submission: Submission,
  options: Omit<SubmissionItem, 'submission'> = {},
): Promise<SubmissionResult> {
  const [result] = await writeSubmissions(db, [{ submission, ...options }]);
  return result ?? { outcome: 'refused' };
}

const SUBMITTED = statement(`
  select /* submission.submitted */ t.id as turn_id, t.status, t.epoch, t.worker_target
  from boxcar.turns t
  where t.id = any ($1::uuid[])`);

/** Returns those of the turns that exist. */
export async function findSubmitted(
  db: Queryable,
  turnIds: readonly TurnId[],
): Promise<readonly SubmittedTurn[]> {
  return turnIds.length === 0 ? [] : run<SubmittedTurn & pg.QueryResultRow>(db, SUBMITTED, [turnIds]);
}

/** The rings of freshly dispatched turns. */
export const ringsOf = (turns: readonly SubmittedTurn[]): Ring[] =>
  turns
    .filter((turn) => turn.status === 'dispatched')
    .map((turn) => ({
      turnId: turn.turn_id,
      epoch: turn.epoch,
      workerTarget: turn.worker_target,
      ...(turn.priority === undefined ? {} : { priority: turn.priority }),
    }));
