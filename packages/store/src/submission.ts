/**
 * The one write of a submission: everything that a primitive makes, in a single statement.
 *
 * It owns: idempotency (the operation row decides whether anything is written), the fence of the calling turn, and the
 * decision whether a new turn is dispatched at once or queued.
 *
 * S1  A second submission under the same key writes nothing.
 * S2  A turn that has ended or changed hands cannot submit.
 * S3  A turn is dispatched only while the window of its target has room and none is queued before it.
 */
import type {
  AgentId,
  BoxId,
  ContextBoxDraft,
  JsonValue,
  NewCard,
  ProfileId,
  ProjectId,
  Ring,
  RunId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run } from './db.js';
import { cardRecord, contextBoxRecord } from './records.js';
import { prepareSubmission } from './submission-sql.js';

export interface NewContextBox extends ContextBoxDraft {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId | null;
  readonly makerAgentId: AgentId;
}

export interface NewTape {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId;
}

export interface NewAgent {
  readonly id: AgentId;
  readonly projectId: ProjectId;
  readonly name: string;
  readonly profileId: ProfileId;
  readonly ownerAgentId: AgentId;
  readonly derivedFrom: AgentId | null;
  readonly tapeBoxId: BoxId;
}

export interface NewRun {
  readonly id: RunId;
  readonly projectId: ProjectId;
  readonly rootTurnId: TurnId;
  readonly traceparent: string | null;
}

export interface NewTurn {
  readonly id: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly agentId: AgentId;
  readonly profileId: ProfileId;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly depth: number;
  readonly primitive: string;
  readonly channelId: string;
  readonly maxSteps: number;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly workerTarget: string;
  readonly deadlineMs: number | null;
  readonly traceparent: string | null;
  /** True for an agent that exists already: it may have a turn in hand, so its row must be locked before this write. */
  readonly isReuse: boolean;
}

export interface NewGrant {
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly boxId: BoxId;
  readonly mode: 'read' | 'append';
  /** The last readable position of a tape; null = all, also what comes later. */
  readonly uptoPosition: number | null;
  readonly source: string;
  readonly expiresAt: string | null;
}

export interface NewOperation {
  readonly projectId: ProjectId;
  readonly idempotencyKey: string;
  readonly primitive: string;
  readonly requestHash: string;
  readonly response: JsonValue;
  readonly awaitedTurnId: TurnId | null;
  readonly doorJobId: string | null;
}

/** The calling turn must still be running at this epoch in this worker's hands. */
export interface Fence {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
}

/** Everything a primitive writes, gathered before the one statement. */
export interface Submission {
  readonly cards: NewCard[];
  readonly contextBoxes: NewContextBox[];
  readonly tapes: NewTape[];
  readonly agents: NewAgent[];
  readonly runs: NewRun[];
  readonly turns: NewTurn[];
  readonly grants: NewGrant[];
}

export const emptySubmission = (): Submission => ({
  cards: [],
  contextBoxes: [],
  tapes: [],
  agents: [],
  runs: [],
  turns: [],
  grants: [],
});

export interface SubmittedTurn {
  readonly turn_id: TurnId;
  readonly status: 'queued' | 'dispatched';
  readonly epoch: number;
  readonly worker_target: string;
}

export type SubmissionResult =
  | { readonly outcome: 'accepted'; readonly turns: readonly SubmittedTurn[] }
  /** The key was used before, or the fence no longer holds: nothing was written. */
  | { readonly outcome: 'refused' };

/** A submission with what decides whether it is written. */
export interface SubmissionItem {
  readonly submission: Submission;
  readonly operation?: NewOperation;
  readonly fence?: Fence;
}

const columnNames = new Map<string, string>();

function columnOf(property: string): string {
  const known = columnNames.get(property);
  if (known !== undefined) return known;
  const column = property.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  columnNames.set(property, column);
  return column;
}

/** The record of a row: its properties under the names of their columns. */
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

/** One row per key: a statement cannot touch a row twice. */
const distinctGrants = (submission: Submission): readonly NewGrant[] => [
  ...new Map(
    submission.grants.map((grant) => [`${grant.agentId} ${grant.boxId} ${grant.mode}`, grant]),
  ).values(),
];

/** Of several items under one key only the first can be accepted. */
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
 * Writes submissions in one statement: each wholly or not at all. Either all carry an operation or none does, and likewise
 * a fence. Rule: docs/primitives.md, "Accepting".
 *
 * @returns One result per item: `refused` when its key exists already or its fence no longer holds.
 */
export async function writeSubmissions(
  db: Queryable,
  all: readonly SubmissionItem[],
): Promise<readonly SubmissionResult[]> {
  const items = all.filter((_item, index) => !isRepeated(all, index));
  const fences = items.flatMap(({ fence }, index) =>
    fence === undefined ? [] : [{ item: index, ...snake(fence) }],
  );
  const operations = items.flatMap(({ operation }, index) =>
    operation === undefined
      ? []
      : [{ item: index, ...snake({ ...operation, response: JSON.stringify(operation.response) }) }],
  );
  const { prepared, values } = prepareSubmission({
    fences,
    operations,
    cards: recordsOf(items, (submission) => submission.cards, cardRecord),
    contextBoxes: recordsOf(items, (submission) => submission.contextBoxes, boxRecord),
    tapes: recordsOf(items, (submission) => submission.tapes, snake),
    agents: recordsOf(items, (submission) => submission.agents, snake),
    runs: recordsOf(items, (submission) => submission.runs, snake),
    grants: recordsOf(items, distinctGrants, snake),
    turns: recordsOf(items, (submission) => submission.turns, snake),
  });
  const [row] = await run<{ accepted: number[] | null; turns: SubmittedTurn[] } & pg.QueryResultRow>(
    db,
    prepared,
    values,
  );
  const isGated = fences.length + operations.length > 0;
  const accepted = new Set(row?.accepted);
  const turns = new Map(row?.turns.map((turn) => [turn.turn_id, turn]));
  return all.map((item): SubmissionResult => {
    const index = items.indexOf(item);
    if (index === -1 || (isGated && !accepted.has(index))) return { outcome: 'refused' };
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

/** The rings of freshly dispatched turns. */
export const ringsOf = (turns: readonly SubmittedTurn[]): Ring[] =>
  turns
    .filter((turn) => turn.status === 'dispatched')
    .map((turn) => ({ turnId: turn.turn_id, epoch: turn.epoch, workerTarget: turn.worker_target }));
