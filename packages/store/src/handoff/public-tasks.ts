/**
 * Public agents, and the tasks that other platforms give to them.
 *
 * P1  A task is a handoff. A caller sees only the tasks that it has itself given to an agent.
 * P2  A task waits for input while a question of the task, or of a handoff below it, is open. The task shows its oldest open question.
 * P3  The agent of a conversation is made with the first turn of one of its tasks. A process that makes a turn for the conversation must
 *     hold its lock.
 * Rule: docs/reference/a2a.md.
 */
import type { AgentId, Handoff, HandoffId, HandoffPhase, ProjectId } from '@boxcar/kernel';
import { handoffStatusOf } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { HANDOFF, FROM as HANDOFFS, type HandoffRow, PHASE, toHandoff } from './handoffs.js';

/** The owner of the tasks. */
export interface TaskScope {
  readonly projectId: ProjectId;
  /** The name of the agent's profile. */
  readonly publicAgent: string;
  readonly sourceAgent: string;
  /** Null: the operator of the project. */
  readonly sourceAgentId: AgentId | null;
}

/** The open question of a task. */
export interface TaskQuestion {
  /** The asking handoff: the task itself, or a handoff below it. */
  readonly handoff_id: HandoffId;
  readonly seq: number;
  /** Null after erasure. */
  readonly text: string | null;
  readonly asked_at: Date;
}

/** A handoff with the data that its external caller may see. */
export interface PublicTask extends Handoff {
  readonly conversation: string;
  readonly message_id: string;
  /** Null: no open question. */
  readonly question: TaskQuestion | null;
}

export interface TaskRow extends HandoffRow {
  readonly conversation: string;
  readonly message_id: string;
  readonly task_phase: HandoffPhase;
  readonly asking_id: HandoffId | null;
  readonly question_seq: number;
  readonly question_text: string | null;
  readonly asked_at: Date;
}

/** Joins `q`, the oldest open question of task `h` (P2). */
export const TASK_FROM = `
  ${HANDOFFS}
  left join lateral (
    select m.handoff_id, m.seq, m.card_id, m.created_at
    from boxcar.handoffs b
    join boxcar.handoff_messages m on m.handoff_id = b.id
    left join boxcar.turns bt on bt.id = b.turn_id
    where b.root_handoff_id = h.id
      and b.asking_since is not null
      and b.ended_at is null
      and bt.ended_at is null
      and m.replies_to is null
      and m.closed_at is null
      and m.expires_at > now()
    order by m.created_at, m.handoff_id, m.seq
    limit 1
  ) q on h.ended_at is null and t.ended_at is null`;
const TASK_PHASE = `case when q.seq is not null then 'waiting_input' else ${PHASE} end`;
export const TASK = `
  ${HANDOFF}, h.conversation, h.message_id, ${TASK_PHASE} as task_phase, q.handoff_id as asking_id,
  q.seq as question_seq,
  (select c.content->>'text' from boxcar.cards c where c.id = q.card_id) as question_text,
  q.created_at as asked_at`;
const IS_OURS = `
  h.project_id = $1
  and h.public_agent = $2
  and h.source_agent = $3
  and h.source_agent_id = coalesce($4::uuid, (select p.operator_agent_id from boxcar.projects p where p.id = $1))`;

export const toTask = (row: TaskRow): PublicTask => ({
  ...toHandoff(row),
  phase: row.task_phase,
  status: handoffStatusOf(row.task_phase),
  question:
    row.asking_id === null
      ? null
      : {
          handoff_id: row.asking_id,
          seq: row.question_seq,
          text: row.question_text,
          asked_at: row.asked_at,
        },
  conversation: row.conversation,
  message_id: row.message_id,
});
const valuesOf = ({ projectId, publicAgent, sourceAgent, sourceAgentId }: TaskScope): unknown[] => [
  projectId,
  publicAgent,
  sourceAgent,
  sourceAgentId,
];

const FIND = statement(
  `select /* public-tasks.find */ ${TASK} from ${TASK_FROM} where ${IS_OURS} and h.id = $5`,
);

export async function findPublicTask(
  db: Queryable,
  scope: TaskScope,
  handoffId: HandoffId,
): Promise<PublicTask | undefined> {
  const [row] = await run<TaskRow>(db, FIND, [...valuesOf(scope), handoffId]);
  return row && toTask(row);
}

/** The filters of a list of tasks. */
export interface TaskFilters {
  readonly conversation?: string | undefined;
  readonly phases?: readonly HandoffPhase[] | undefined;
  /** Only tasks whose state has changed since this time. */
  readonly since?: Date | undefined;
}

const IS_WANTED = `
  ${IS_OURS}
  and (h.conversation = $5 or $5 is null)
  and ($6::text[] is null or ${TASK_PHASE} = any ($6))
  and ($7::timestamptz is null or coalesce(h.ended_at, t.ended_at, h.created_at) >= $7)`;
const filterValues = (scope: TaskScope, { conversation, phases, since }: TaskFilters): unknown[] => [
  ...valuesOf(scope),
  conversation ?? null,
  phases ?? null,
  since ?? null,
];

const LIST = statement(`
  select /* public-tasks.list */
    ${TASK},
    to_char(h.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at
  from ${TASK_FROM}
  where ${IS_WANTED} and ($8::timestamptz is null or (h.created_at, h.id) < ($8, $9::uuid))
  order by h.created_at desc, h.id desc
  limit $10`);

/** Tasks of a caller, the newest first. */
export async function listPublicTasks(
  db: Queryable,
  scope: TaskScope,
  of: TaskFilters & {
    readonly limit: number;
    /** The last task of the previous page. */
    readonly after?: { readonly at: string; readonly id: string } | undefined;
  },
): Promise<readonly (PublicTask & { readonly place_at: string })[]> {
  const values = [...filterValues(scope, of), of.after?.at ?? null, of.after?.id ?? null, of.limit];
  const rows = await run<TaskRow & { place_at: string }>(db, LIST, values);
  return rows.map((row) => ({ ...toTask(row), place_at: row.place_at }));
}

/** Tasks of a list are counted up to this number. */
const MAX_COUNTED_TASKS = 10_000;

const COUNT = statement(`
  select /* public-tasks.count */ count(*)::int as n
  from (select from ${TASK_FROM} where ${IS_WANTED} limit ${MAX_COUNTED_TASKS}) x`);

export async function countPublicTasks(
  db: Queryable,
  scope: TaskScope,
  filters: TaskFilters,
): Promise<number> {
  const [row] = await run<{ n: number }>(db, COUNT, filterValues(scope, filters));
  return row?.n ?? 0;
}

/** A profile that other platforms can reach. */
export interface PublicAgent extends pg.QueryResultRow {
  readonly name: string;
  readonly version: number;
  readonly description: string | null;
  readonly tags: readonly string[];
}

const IS_PUBLIC = `f.is_current and c.content->'data'->>'public' = 'true'`;
const AGENT = `f.name, f.version, c.content->'data'->>'description' as description, f.tags`;

const FIND_AGENT = statement(`
  select /* public-tasks.find_agent */ ${AGENT}
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  where f.project_id = $1 and f.name = $2 and ${IS_PUBLIC}`);

/** Undefined: the profile does not exist or is not public. */
export const findPublicAgent = async (
  db: Queryable,
  projectId: ProjectId,
  name: string,
): Promise<PublicAgent | undefined> => (await run<PublicAgent>(db, FIND_AGENT, [projectId, name]))[0];

const LIST_AGENTS = statement(`
  select /* public-tasks.list_agents */ p.name as project, ${AGENT}
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  join boxcar.projects p on p.id = f.project_id
  where ${IS_PUBLIC}
  order by p.name, f.name
  limit $1`);

/** The public agents of all projects. */
export const listPublicAgents = (
  db: Queryable,
  limit: number,
): Promise<(PublicAgent & { readonly project: string })[]> =>
  run<PublicAgent & { project: string }>(db, LIST_AGENTS, [limit]);

const LOCK = statement(
  'select /* public-tasks.lock_conversation */ pg_advisory_xact_lock(hashtextextended($1::text, 38))',
);

/** Serializes the creation of turns for a conversation (P3). */
export async function lockConversation(tx: Tx, servingAgentId: AgentId): Promise<void> {
  await run(tx, LOCK, [servingAgentId]);
}
