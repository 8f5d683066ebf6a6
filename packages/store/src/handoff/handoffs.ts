/**
 * Reads handoffs.
 *
 * H1  A turn serves a handoff. Meanwhile the turn's row shows the progress: `phase` in the row of the handoff is written only while no
 *     turn serves it, and when the end of its turn is recorded (`closeOfTurn`).
 * H2  Task, context and payload are cards of the handoff's context box, and the result is the deliverable of its turn: erasure finds all
 *     of them. No other column contains their text.
 * H3  A handoff that was joined to another handoff has the turn of that handoff.
 * Rule: docs/reference/handoff.md.
 */
import type {
  AgentId,
  BoxId,
  CardId,
  ErrorBody,
  Handoff,
  HandoffEvent,
  HandoffId,
  HandoffMode,
  HandoffOutline,
  HandoffPhase,
  JsonObject,
  JsonValue,
  ProjectId,
  TicketId,
  ToolCallId,
  TurnId,
} from '@boxcar/kernel';
import { handoffStatusOf, isFinalPhase, isJsonObject } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';

/** The phase that follows from the end of turn `t`. */
export const END_PHASE = `
  case t.status
    when 'success' then 'completed'
    when 'partial' then case when t.error is null then 'completed' else 'failed' end
    when 'timeout' then 'timed_out'
    when 'canceled' then 'canceled'
    else case t.error->>'code'
      when 'chain_failed' then coalesce(t.error->'details'->>'phase', 'failed')
      else 'failed'
    end
  end`;

/** The phase of handoff `h`, served by turn `t` or by no turn (H1). */
export const PHASE = `
  case
    when h.ended_at is not null or t.id is null then h.phase
    when t.ended_at is not null then ${END_PHASE}
    when t.start_position is null then 'pending'
    when h.asking_since is not null then 'waiting_input'
    when h.worker_target is not null and t.status <> 'running' then 'queued'
    else 'in_progress'
  end`;

/** Joins turn `t` to handoff `h` (H3). */
export const ON_TURN = `
  left join boxcar.handoffs j on j.id = h.joined_to
  left join boxcar.turns t on t.id = coalesce(h.turn_id, j.turn_id)`;

export const CARD_VALUE = (card: string): string =>
  `case ${card}.content->>'kind' when 'text' then to_json(${card}.content->>'text') else ${card}.content->'data' end`;

/** All columns except context, payload and result, each of which may be large. */
const OUTLINE = `
  h.id as handoff_id, h.source_agent, h.target_agent, h.platform, ${PHASE} as phase, h.created_at,
  coalesce(h.ended_at, t.ended_at) as ended_at,
  (select c.content->>'text' from boxcar.cards c where c.id = h.task_card_id) as task,
  coalesce(h.error, t.error) as error, h.run_id, h.parent_turn_id, h.tool_call_id, t.run_id as target_run_id,
  t.id as turn_id, h.ticket_id, h.joined_to,
  (select p.run_id from boxcar.turns p where p.id = h.parent_turn_id) as calling_run_id,
  h.root_handoff_id, h.parent_handoff_id, h.depth, h.mode, h.hop, h.compensates, h.cached_from, h.decision,
  h.attempts, d.metadata->'handoff'->'loss' as loss, h.context_box_id`;

export const HANDOFF = `
  ${OUTLINE},
  (select c.content->'data' from boxcar.cards c where c.id = h.context_card_id) as context,
  (
    select case when c.metadata->>'wrapped' = 'true' then c.content->'data'->'payload' else c.content->'data' end
    from boxcar.cards c
    where c.id = h.payload_card_id
  ) as payload,
  ${CARD_VALUE('d')} as result`;

export const FROM = `
  boxcar.handoffs h ${ON_TURN}
  left join boxcar.cards d on d.id = coalesce(h.result_card_id, t.deliverable_card_id)`;

interface OutlineRow extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly platform: string;
  readonly phase: HandoffPhase;
  readonly created_at: Date;
  readonly ended_at: Date | null;
  /** Null after erasure, like all contents. */
  readonly task: string | null;
  readonly error: ErrorBody | null;
  readonly run_id: string | null;
  readonly parent_turn_id: TurnId | null;
  readonly tool_call_id: ToolCallId | null;
  readonly target_run_id: string | null;
  readonly turn_id: TurnId | null;
  readonly ticket_id: TicketId | null;
  readonly joined_to: HandoffId | null;
  readonly calling_run_id: string | null;
  readonly root_handoff_id: HandoffId;
  readonly parent_handoff_id: HandoffId | null;
  readonly depth: number;
  readonly mode: HandoffMode;
  readonly hop: number | null;
  readonly compensates: HandoffId | null;
  readonly cached_from: HandoffId | null;
  readonly decision: JsonObject | null;
  readonly attempts: number;
  readonly loss: JsonObject | null;
  readonly context_box_id: BoxId;
}

export interface HandoffRow extends OutlineRow {
  /** Also null after erasure. */
  readonly context: JsonObject | null;
  readonly payload: JsonValue;
  readonly result: JsonValue;
}

const ERASED = '(erased)';

const toOutline = (row: OutlineRow): HandoffOutline => ({
  handoff_id: row.handoff_id,
  source_agent: row.source_agent,
  target_agent: row.target_agent,
  task: row.task ?? ERASED,
  platform: row.platform,
  phase: row.phase,
  status: handoffStatusOf(row.phase),
  created_at: row.created_at,
  ended_at: row.ended_at,
  error: row.error,
  run_id: row.run_id,
  calling_run_id: row.calling_run_id,
  target_run_id: row.target_run_id,
  turn_id: row.turn_id,
  ticket_id: row.ticket_id,
  joined_to: row.joined_to,
  root_handoff_id: row.root_handoff_id,
  parent_handoff_id: row.parent_handoff_id,
  depth: row.depth,
  mode: row.mode,
  hop: row.hop,
  compensates: row.compensates,
  cached_from: row.cached_from,
  cached: row.cached_from !== null,
  decision: row.decision,
  attempts: row.attempts,
  loss: row.loss,
});

export const toHandoff = (row: HandoffRow): Handoff => ({
  ...toOutline(row),
  context: isJsonObject(row.context) ? row.context : {},
  payload: row.payload,
  // The deliverable may also contain the partial result of a turn that did not complete.
  result: row.phase === 'completed' ? row.result : null,
});

const FIND = statement(
  `select /* handoffs.find */ ${HANDOFF} from ${FROM} where h.id = $1 and h.project_id = $2`,
);

export async function findHandoff(
  db: Queryable,
  { handoffId, projectId }: { readonly handoffId: HandoffId; readonly projectId: ProjectId },
): Promise<Handoff | undefined> {
  const [row] = await run<HandoffRow>(db, FIND, [handoffId, projectId]);
  return row && toHandoff(row);
}

const CHAIN = statement(`
  select /* handoffs.chain */ ${OUTLINE}
  from ${FROM}
  where h.root_handoff_id = $1 and h.project_id = $2
  order by h.created_at, h.id
  limit $3`);

/** All handoffs with the same root handoff, the oldest first, without context, payload and result. */
export const loadChain = async (
  db: Queryable,
  of: { readonly rootId: HandoffId; readonly projectId: ProjectId; readonly limit: number },
): Promise<HandoffOutline[]> =>
  (await run<OutlineRow>(db, CHAIN, [of.rootId, of.projectId, of.limit])).map(toOutline);

/** The filters of a list of handoffs. */
export interface HandoffFilters {
  readonly projectId: ProjectId;
  readonly sourceAgent?: string | undefined;
  /** Only handoffs that this agent has requested. External requests may use any source name. */
  readonly sourceAgentId?: AgentId | undefined;
  readonly targetAgent?: string | undefined;
  readonly platform?: string | undefined;
  readonly phases?: readonly HandoffPhase[] | undefined;
  /** The caller's run, or the run of the requesting or serving turn. */
  readonly run?: string | undefined;
  readonly limit: number;
  /** The last handoff of the previous page. */
  readonly after?: { readonly at: string; readonly id: string } | undefined;
}

/** A handoff of a list, with its place in the list. */
export interface ListedHandoff extends Handoff {
  /** ISO 8601, to the microsecond. */
  readonly place_at: string;
}

const listOf = (which: string): string => `
  select /* handoffs.list */
    ${HANDOFF},
    to_char(h.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at
  from ${FROM}
  where h.project_id = $1${which}
    and (h.source_agent = $2 or $2 is null)
    and (h.target_agent = $3 or $3 is null)
    and (h.platform = $4 or $4 is null)
    and ($5::text[] is null or ((h.ended_at is null or h.phase = any ($5)) and ${PHASE} = any ($5)))
    and (
      $6::text is null
      or h.run_id = $6
      or t.run_id::text = $6
      or h.parent_turn_id in (select p.id from boxcar.turns p where p.run_id::text = $6)
    )
    and ($7::timestamptz is null or (h.created_at, h.id) < ($7, $8::uuid))
    and ($10::uuid is null or h.source_agent_id = $10)
  order by h.created_at desc, h.id desc
  limit $9`;

const LIST = statement(listOf(''));
/** Open handoffs are few compared to ended ones, and have a separate index. */
const LIST_OPEN = statement(listOf(' and h.ended_at is null'));

/** Handoffs of a project, the newest first. */
export async function listHandoffs(db: Queryable, filters: HandoffFilters): Promise<ListedHandoff[]> {
  const {
    projectId,
    sourceAgent,
    sourceAgentId,
    targetAgent,
    platform,
    phases,
    run: runId,
    after,
    limit,
  } = filters;
  const isOpen = phases?.every((phase) => !isFinalPhase(phase)) === true;
  const rows = await run<HandoffRow & { place_at: string }>(db, isOpen ? LIST_OPEN : LIST, [
    projectId,
    sourceAgent ?? null,
    targetAgent ?? null,
    platform ?? null,
    phases ?? null,
    runId ?? null,
    after?.at ?? null,
    after?.id ?? null,
    limit,
    sourceAgentId ?? null,
  ]);
  return rows.map((row) => ({ ...toHandoff(row), place_at: row.place_at }));
}

const EVENTS = statement(`
  select /* handoffs.events */ e.seq, e.type, e.data, e.created_at
  from boxcar.handoff_events e
  where e.handoff_id = $1 and e.seq > $2
  order by e.seq`);

/** The log of a handoff, in order. */
export async function loadHandoffEvents(
  db: Queryable,
  handoffId: HandoffId,
  options: { readonly afterSeq?: number } = {},
): Promise<readonly HandoffEvent[]> {
  const rows = await run<{ seq: number; type: string; data: JsonObject; created_at: Date }>(db, EVENTS, [
    handoffId,
    options.afterSeq ?? 0,
  ]);
  return rows.map(({ seq, type, data, created_at }) => ({
    event_type: type,
    handoff_id: handoffId,
    ...data,
    seq,
    created_at: created_at.toISOString(),
  }));
}

/** The state of a handoff, for a caller that waits for it. */
export interface WaitedHandoff extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly turn_id: TurnId | null;
  readonly has_ended: boolean;
}

const WAITED = statement(`
  select /* handoffs.waited */
    h.id as handoff_id, t.id as turn_id,
    h.ended_at is not null or t.ended_at is not null as has_ended
  from boxcar.handoffs h
  ${ON_TURN}
  where h.id = any ($1::uuid[])`);

/** The given handoffs that exist. */
export const findWaitedHandoffs = (
  db: Queryable,
  handoffIds: readonly HandoffId[],
): Promise<WaitedHandoff[]> => run<WaitedHandoff>(db, WAITED, [handoffIds]);

/** A handoff with the data that a new handoff below it needs. */
export interface HandoffPlace extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly root_handoff_id: HandoffId;
  readonly depth: number;
  /** From this handoff to the root. */
  readonly chain: readonly {
    readonly handoff_id: HandoffId;
    readonly source_agent: string;
    readonly target_agent: string;
    readonly platform: string;
  }[];
}

// A turn that was started by the end of a handoff is below the turn that has served that handoff, and serves no handoff above it. Takes no
// locks: a handoff never gets another parent.
const PLACE = statement(`
  with recursive /* handoffs.place */
  woken as (
    select min(u.n) as n
    from unnest($3::uuid[]) with ordinality as u(id, n)
    join boxcar.turns t on t.id = u.id
    where t.is_woken
  ),
  start as (
    (
      select h.id, 0 as n
      from boxcar.handoffs h
      where h.id = $2 and h.project_id = $1
    )
    union all
    (
      select h.id, u.n::int
      from unnest($3::uuid[]) with ordinality as u(id, n)
      join boxcar.handoffs h on h.turn_id = u.id
      cross join woken
      where $2::uuid is null and (woken.n is null or u.n <= woken.n)
      order by u.n
      limit 1
    )
  ),
  up as (
    select h.*, 1 as n
    from boxcar.handoffs h
    join start on start.id = h.id
    union all
    select h.*, up.n + 1
    from up
    join boxcar.handoffs h on h.id = up.parent_handoff_id
    where up.n < 1000
  )
  select
    f.id as handoff_id, f.root_handoff_id, f.depth,
    (
      select json_agg(json_build_object(
        'handoff_id', up.id, 'source_agent', up.source_agent, 'target_agent', up.target_agent, 'platform', up.platform
      ) order by up.n)
      from up
    ) as chain
  from up f
  where f.n = 1`);

/**
 * The parent of a new handoff: the named handoff, or the nearest handoff that a turn of the chain serves.
 *
 * @param of.chain - Turns from the calling one to the root.
 */
export async function findHandoffPlace(
  db: Queryable,
  of: {
    readonly projectId: ProjectId;
    readonly handoffId: HandoffId | undefined;
    readonly chain: readonly TurnId[];
  },
): Promise<HandoffPlace | undefined> {
  return (await run<HandoffPlace>(db, PLACE, [of.projectId, of.handoffId ?? null, of.chain]))[0];
}

const LOCK_KEY = statement(
  "select /* handoffs.lock_key */ pg_advisory_xact_lock(hashtextextended($1::text || ' ' || $2::text, 35))",
);

/** Serializes the requests for handoffs under the same key. */
export async function lockHandoffKey(tx: Tx, projectId: ProjectId, key: string): Promise<void> {
  await run(tx, LOCK_KEY, [projectId, key]);
}

/** The first handoff under a key. */
export interface KeyedHandoff extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly request_hash: string;
}

const KEYED = statement(`
  select /* handoffs.keyed */ h.id as handoff_id, h.request_hash
  from boxcar.handoffs h
  where h.project_id = $1 and h.idempotency_key = $2`);

export const findKeyedHandoff = async (
  db: Queryable,
  projectId: ProjectId,
  key: string,
): Promise<KeyedHandoff | undefined> => (await run<KeyedHandoff>(db, KEYED, [projectId, key]))[0];

/** A handoff with the data for the process that serves it with an adapter or a function. */
export interface ServedHandoff extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly platform: string;
  readonly task: string | null;
  readonly context: JsonObject | null;
  readonly payload: JsonValue;
  readonly parent_run_id: string | null;
  readonly attempts: number;
  readonly is_attempt_open: boolean;
  /** The id of the open attempt's task on the other platform. */
  readonly remote_task: string | null;
  /** Task, context or payload was erased, so the request is incomplete. */
  readonly is_erased: boolean;
  readonly retry: { readonly max_attempts: number; readonly base_ms: number; readonly max_ms: number };
  /** Task, context and payload. */
  readonly card_ids: readonly CardId[];
}

const SERVED = statement(`
  select /* handoffs.served */
    h.id as handoff_id, h.turn_id, h.project_id, h.source_agent, h.target_agent, h.platform, h.attempts,
    h.is_attempt_open, h.remote_task, h.retry,
    (select c.content->>'text' from boxcar.cards c where c.id = h.task_card_id) as task,
    (select c.content->'data' from boxcar.cards c where c.id = h.context_card_id) as context,
    (
      select case when c.metadata->>'wrapped' = 'true' then c.content->'data'->'payload' else c.content->'data' end
      from boxcar.cards c
      where c.id = h.payload_card_id
    ) as payload,
    coalesce(h.run_id, (select p.run_id::text from boxcar.turns p where p.id = h.parent_turn_id)) as parent_run_id,
    array_remove(array[h.task_card_id, h.context_card_id, h.payload_card_id], null) as card_ids,
    exists (
      select from boxcar.cards c
      where c.id in (h.task_card_id, h.context_card_id, h.payload_card_id) and c.content is null
    ) as is_erased
  from boxcar.handoffs h
  where h.turn_id = $1`);

/** The handoff that a turn serves; undefined when it serves none. */
export const findServedHandoff = async (db: Queryable, turnId: TurnId): Promise<ServedHandoff | undefined> =>
  (await run<ServedHandoff>(db, SERVED, [turnId]))[0];
