/**
 * The parts of the statement that writes submissions: one common table expression, or a few that belong together, per function. Times count
 * from the statement, because the transaction of a caller may have begun long before.
 */
import { WINDOW_FACTOR } from '@boxcar/kernel';
import {
  bootstrapEntries,
  CARD_COLUMNS,
  CARD_TARGET,
  CARD_VALUES,
  RUNG_CHANNEL,
  RUNG_PAYLOAD,
  THIS_BUILD,
} from '../rows/index.js';
import { ringPriorityOf, UNDER_WAY, underWayOf } from './ring-priority.js';
import {
  AGENT_COLUMNS,
  BATCH_COLUMNS,
  BUDGET_COLUMNS,
  CONTEXT_BOX_COLUMNS,
  FENCE_COLUMNS,
  GRANT_COLUMNS,
  HANDOFF_COLUMNS,
  OPERATION_COLUMNS,
  SPAWN_COLUMNS,
  TURN_COLUMNS,
  TURN_NAMES,
  WAIT_COLUMNS,
} from './submission-columns.js';

/** The records of a write by table. The field `item` of each record tells which submission it belongs to. */
export interface SubmissionRecords {
  readonly fences: readonly object[];
  /** The runs that the new turns of fenced submissions join, the number of these turns, and the most turns that such a run may have. */
  readonly spawns: readonly object[];
  /** The calls of fenced submissions that wait for the turns or batches of the submission. */
  readonly waits: readonly object[];
  readonly operations: readonly object[];
  readonly cards: readonly object[];
  readonly contextBoxes: readonly object[];
  readonly tapes: readonly object[];
  readonly agents: readonly object[];
  readonly runs: readonly object[];
  readonly budgets: readonly object[];
  readonly grants: readonly object[];
  readonly turns: readonly object[];
  readonly batches: readonly object[];
  readonly handoffs: readonly object[];
}

/** What the parts need to know about the whole statement. */
export interface Parts {
  /** True for a single turn with at most one operation and one fence: then no part has to match one list with another. */
  readonly isOne: boolean;
  /** True when facts that were read earlier about the caller decided at least one submission. */
  readonly hasSeen: boolean;
  has(table: keyof SubmissionRecords): boolean;
  /** The number of the parameter with the records of a table. */
  parameterOf(table: keyof SubmissionRecords): number;
  /** The records of a table, as `x`. */
  from(table: keyof SubmissionRecords, columns: string): string;
  /** The condition that the submission of record `x` is accepted; empty when all are. */
  readonly gate: string;
}

/** The part whose rows are the submissions with a valid fence, and with open calls when they wait. */
export const heldPart = ({ has }: Parts): string => (has('waits') ? 'open_calls' : 'fence');

/**
 * The run is locked before the caller's turn, whose fence reads this part. A transaction that ends a tree also locks the run, so either the
 * fence sees the end, or the end sees the new turns. If the run's own account limits its turns, the account counts them.
 */
export const spawnRuns = ({ from }: Parts): string => `
  spawn_runs as materialized (
    select
      r.id,
      case
        when (select b.limits ? 'turns' from boxcar.budgets b where b.id = r.id) is true then null
        else r.turn_count
      end as turn_count
    from boxcar.runs r
    where r.id = any (array(select x.run_id from ${from('spawns', SPAWN_COLUMNS)}))
    order by r.id
    for no key update
  )`;

/** The callers whose turns are still as they were. Their rows are locked. */
export function fence({ has, from }: Parts): string {
  const fenced = has('spawns')
    ? `
      spawn_runs
      join ${from('spawns', SPAWN_COLUMNS).replace(' as x(', ' as s(')}
        on s.run_id = spawn_runs.id and (spawn_runs.turn_count + s.n > s.max_turns) is not true
      join ${from('fences', FENCE_COLUMNS)} using (item)
      join boxcar.turns t on t.id = x.turn_id and t.run_id = s.run_id`
    : `
      boxcar.turns t
      join ${from('fences', FENCE_COLUMNS)} on t.id = x.turn_id`;
  return `
  fence as (
    select x.item
    from ${fenced}
    where (t.ended_at is not null) = x.is_ended
      and (x.epoch is null or (t.epoch = x.epoch and t.holder_id = x.holder_id and t.status = 'running'))
    order by t.id
    for update of t
  )`;
}

/** The submissions whose waiting call is still open. Its row is locked. */
export const openCalls = ({ from }: Parts): string => `
  open_calls as materialized (
    select fence.item
    from fence
    join ${from('waits', WAIT_COLUMNS)} using (item)
    cross join lateral (
      select k.id
      from boxcar.tool_calls k
      where k.id = x.tool_call_id and k.status = 'pending'
      offset 0
      for update of k
    ) k
  )`;

/** The submissions from outside to archived projects. `is true` makes Postgres look up each project by its key. */
export const closedProjects = ({ from }: Parts): string => `
  closed as materialized (
    select x.item
    from ${from('operations', OPERATION_COLUMNS)}
    where (
      x.is_outside
      and exists (select from boxcar.projects p where p.id = x.project_id and p.archived_at is not null)
    ) is true
  )`;

/** True when the caller of submission `x` has not changed since it was read. */
const IS_AS_SEEN = `
  (select p.xmin::text = x.seen_project from boxcar.projects p where p.id = x.project_id)
  and (select a.xmin::text = x.seen_source_version from boxcar.agents a where a.id = x.seen_source)
  and (
    select count(*)
    from boxcar.profiles f
    where f.id = any (x.seen_profiles) and f.is_current
  ) = cardinality(x.seen_profiles)`;

/** The submissions whose caller has changed since it was read. */
export const staleCallers = ({ from }: Parts): string => `
  stale as materialized (
    select x.item
    from ${from('operations', OPERATION_COLUMNS)}
    where x.seen_project is not null and (${IS_AS_SEEN}) is not true
  )`;

/** The operations of keys that are new, and the submissions that this statement accepts. */
export function operations(of: Parts): string {
  const { isOne, hasSeen, has, from } = of;
  const isWritten =
    '((x.project_id, x.idempotency_key) in (select project_id, idempotency_key from op)) is true';
  const isOpen = (list: string): string =>
    isOne ? `not exists (select from ${list})` : `(x.item in (select item from ${list})) is not true`;
  return `
  op as (
    insert into boxcar.operations (
      project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, awaited_batch_id,
      door_job_id, made
    )
    select x.project_id, x.idempotency_key, x.primitive, decode(x.request_hash, 'hex'), x.response::json,
      x.awaited_turn_id, x.awaited_batch_id, x.door_job_id, x.made
    from ${from('operations', OPERATION_COLUMNS)}
    ${has('fences') ? `join ${heldPart(of)} using (item)` : ''}
    where ${[isOpen('closed'), ...(hasSeen ? [isOpen('stale')] : [])].join(' and ')}
    order by x.project_id, x.idempotency_key
    on conflict do nothing
    returning project_id, idempotency_key
  ),
  accepted as (
    select x.item
    from ${from('operations', OPERATION_COLUMNS)}
    where ${isOne ? 'exists (select from op)' : isWritten}
  )`;
}

export const cards = ({ from, gate }: Parts): string => `
  new_cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from ${from('cards', `item int, ${CARD_COLUMNS}`)}
    ${gate}
  )`;

export const contextBoxes = ({ from, gate }: Parts): string => `
  new_boxes as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, card_ids, card_tokens, segments, card_count,
      token_estimate
    )
    select x.id, x.project_id, 'context', x.owner_agent_id, x.maker_agent_id, x.card_ids, x.card_tokens,
      x.segments, x.card_count, x.token_estimate
    from ${from('contextBoxes', CONTEXT_BOX_COLUMNS)}
    ${gate}
  )`;

/** New tapes, each with its bootstrap entries. */
export const tapes = ({ from, gate }: Parts): string => `
  new_tapes as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, incarnation, head_position, last_anchor_position,
      view_position
    )
    select x.id, x.project_id, 'tape', x.owner_agent_id, x.owner_agent_id, 1, 2, 1, 1
    from ${from('tapes', 'item int, id uuid, project_id uuid, owner_agent_id uuid')}
    ${gate}
    returning id, project_id, owner_agent_id
  ),
  bootstrap as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
    select
      n.id, e.position, e.kind,
      case e.position when 1 then p.bootstrap_card_id end,
      case e.position when 1 then 10 else 0 end,
      e.payload::json, e.anchor_name, n.owner_agent_id::text
    from new_tapes n
    join boxcar.projects p on p.id = n.project_id
    cross join ${bootstrapEntries()}
  )`;

export const agents = ({ from, gate }: Parts): string => `
  new_agents as (
    insert into boxcar.agents (
      id, project_id, name, profile_id, owner_agent_id, derived_from, tape_box_id, is_shared
    )
    select x.id, x.project_id, x.name, x.profile_id, x.owner_agent_id, x.derived_from, x.tape_box_id, x.is_shared
    from ${from('agents', AGENT_COLUMNS)}
    ${gate}
  )`;

export const runs = ({ from, gate }: Parts): string => `
  new_runs as (
    insert into boxcar.runs (id, project_id, root_turn_id, traceparent, turn_count)
    select x.id, x.project_id, x.root_turn_id, x.traceparent, coalesce(x.turn_count, 1)
    from ${from('runs', 'item int, id uuid, project_id uuid, root_turn_id uuid, traceparent text, turn_count int')}
    ${gate}
  )`;

export const budgets = ({ from, gate }: Parts): string => `
  new_budgets as (
    insert into boxcar.budgets (
      id, project_id, run_id, parent_id, top_depth, limits, deadline_at, tokens_reserved, cost_reserved,
      steps_reserved, turns_used
    )
    select
      x.id, x.project_id, x.run_id, x.parent_id, x.top_depth, x.limits,
      least(x.parent_deadline_at, statement_timestamp() + x.seconds * interval '1 second'),
      x.tokens_reserved, x.cost_reserved, x.steps_reserved, x.turns_used
    from ${from('budgets', BUDGET_COLUMNS)}
    ${gate}
  )`;

// The holder of a box may widen and narrow the rights of others. An agent that only has a granted right cannot reduce the right of
// another agent. Readers ignore the grants that ends of turns wrote, so these are replaced.
const IS_WIDER = `
  (
    (excluded.upto_position is null or grants.upto_position <= excluded.upto_position)
    and (excluded.expires_at is null or grants.expires_at <= excluded.expires_at)
  )`;
const IS_BY_OWNER = `
  exists (
    select from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.id = excluded.box_id
      and excluded.source in (b.owner_agent_id::text, b.maker_agent_id::text, p.operator_agent_id::text)
  )`;

export const grants = ({ from, gate }: Parts): string => `
  new_grants as (
    insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source, expires_at)
    select x.project_id, x.agent_id, x.box_id, x.mode, x.upto_position, x.source, x.expires_at
    from ${from('grants', GRANT_COLUMNS)}
    ${gate}
    on conflict (agent_id, box_id, mode) do update
      set expires_at = excluded.expires_at,
        upto_position = excluded.upto_position,
        source = excluded.source
      where grants.expires_at <= statement_timestamp()
        or grants.source like 'turn:%'
        or ${IS_WIDER}
        or ${IS_BY_OWNER}
  )`;

export const batches = ({ from, gate }: Parts): string => `
  new_batches as (
    insert into boxcar.batches (
      id, project_id, run_id, turn_id, tool_call_id, primitive, kind, turn_ids, remaining, succeeded, failed,
      min_success, fail_fast, status, is_due, deadline_at
    )
    select
      x.id, x.project_id, x.run_id, x.turn_id, x.tool_call_id, x.primitive, x.kind, x.turn_ids, x.remaining,
      x.succeeded, x.failed, x.min_success, x.fail_fast, 'running', x.remaining = 0,
      statement_timestamp() + x.deadline_ms * interval '1 millisecond'
    from ${from('batches', BATCH_COLUMNS)}
    ${gate}
  )`;

/**
 * The room in the window of each target of the new turns. Turns that no living worker can read take no room. The limit keeps the
 * planner from reading a whole backlog to find out whether there is one. The order keeps it from searching the backlog of other
 * targets.
 */
const ROOM = `
  select
    g.worker_target, p.newest,
    ${WINDOW_FACTOR} * p.concurrency - d.waiting as free,
    (
      select true
      from boxcar.turns t
      where t.status = 'queued' and t.worker_target = g.worker_target
      order by t.worker_target, t.project_id
      limit 1
    ) as has_backlog
  from (select distinct worker_target from new_turns) g
  cross join lateral (
    select sum(w.concurrency) as concurrency, max(w.schema_version) as newest
    from boxcar.workers w
    where w.lease_until > statement_timestamp() and w.targets @> array[g.worker_target]
    offset 0
  ) p
  cross join lateral (
    select count(*) as waiting
    from boxcar.turns t
    where t.status = 'dispatched' and t.worker_target = g.worker_target and t.format <= p.newest
    offset 0
  ) d`;

/** The first turn of a project without a turn under way may exceed the window, unless other turns of the project are already queued. */
const HAS_NO_QUEUE = `
  (
    select true
    from boxcar.turns t
    where t.status = 'queued' and t.worker_target = n.worker_target and t.project_id = n.project_id
    order by t.worker_target, t.project_id
    limit 1
  ) is null`;

const HAS_TURN = `
  (
    select true
    from boxcar.turns t
    where t.agent_id = n.agent_id and t.status in ('dispatched', 'running', 'suspended')
    limit 1
  ) is not null
  or (select true from boxcar.turns t where t.agent_id = n.agent_id and t.status = 'queued' limit 1) is not null`;

/**
 * The new turns, each with the decision whether it is dispatched. Nothing locks the window, so submissions of the same moment may all see its
 * last room: they exceed it by a few rings. An agent never has two turns under way: the caller has locked the agents whose tapes it reuses
 * (`lockAgents`), and a promotion locks the same rows.
 */
export function decided({ isOne, parameterOf, gate }: Parts): string {
  const ranks = isOne
    ? '1 as rank, 1 as project_rank, 1 as place'
    : `
      row_number() over (partition by x.worker_target order by x.ord) as rank,
      row_number() over (
        partition by x.worker_target, x.project_id
        order by coalesce(x.priority, 0) desc, x.ord
      )::int as project_rank,
      row_number() over (partition by x.agent_id order by x.ord) as place`;
  return `
  new_turns as materialized (
    select ${ranks}, x.*
    from rows from (
      json_to_recordset($${parameterOf('turns')}) as (item int, ${TURN_COLUMNS})
    ) with ordinality as x(item, ${TURN_NAMES}, ord)
    ${gate}
  ),
  room as materialized (${ROOM}),
  ${UNDER_WAY},
  limited as materialized (
    select p.id
    from boxcar.projects p
    where p.id = any (array(select distinct project_id from new_turns)) and p.limits ? 'max_concurrent'
  ),
  decided as materialized (
    select
      n.*,
      ${ringPriorityOf('n', 'n.project_rank - 1')} as ring_priority,
      case
        when r.free >= n.rank and r.has_backlog is null then true
        else n.project_rank = 1 and ${underWayOf('n')} = 0 and ${HAS_NO_QUEUE}
      end
      and n.place = 1
      and coalesce(n.format, ${THIS_BUILD.turnFormat}) <= r.newest
      and coalesce(n.warm_turn_id = n.id, true)
      and not (n.is_reuse and (${HAS_TURN}))
      and (n.project_id in (select id from limited)) is not true as is_ready
    from new_turns n
    join room r using (worker_target)
  )`;
}

/** One of the workers that may have a free slot for turn `d`. The choice differs from turn to turn. */
const HINT = `
  select pg_notify(${RUNG_CHANNEL}, ${RUNG_PAYLOAD})
  from decided d
  cross join lateral (
    select w.id
    from boxcar.workers w
    where w.lease_until > statement_timestamp()
      and w.targets @> array[d.worker_target]
      and w.schema_version >= coalesce(d.format, ${THIS_BUILD.turnFormat})
    order by hashtextextended(w.id::text, hashtext(d.id::text))
    limit 1
  ) w
  where d.is_ready`;

export const hinted = `hinted as materialized (${HINT})`;

/** Handoffs and their first events. New rows under new ids: no other transaction sees them before the commit, so they need no lock. */
export const handoffs = ({ from, gate }: Parts): string => `
  new_handoffs as (
    insert into boxcar.handoffs (
      id, project_id, phase, ended_at, source_agent, source_agent_id, target_agent, platform, run_id,
      parent_turn_id, tool_call_id, is_awaited, context_box_id, task_card_id, context_card_id, payload_card_id,
      worker_target, turn_id, ticket_id, root_handoff_id, parent_handoff_id, depth, decision, error, timeout_ms,
      retry, idempotency_key, request_hash, callback_url, told_agent_id, notifies, public_agent, conversation,
      message_id, serving_agent_id, event_count, mode, hop, compensates, joined_to, cached_from, cache_key,
      cache_seconds, session_id, session_request, session_head
    )
    select
      x.id, x.project_id, x.phase,
      case when x.is_ended then statement_timestamp() end,
      x.source_agent, x.source_agent_id, x.target_agent, x.platform, x.run_id, x.parent_turn_id, x.tool_call_id,
      x.is_awaited, x.context_box_id, x.task_card_id, x.context_card_id, x.payload_card_id, x.worker_target,
      x.turn_id, x.ticket_id, x.root_handoff_id, x.parent_handoff_id, x.depth, x.decision, x.error, x.timeout_ms,
      x.retry, x.idempotency_key, x.request_hash, x.callback_url, x.told_agent_id, x.notifies, x.public_agent,
      x.conversation, x.message_id, x.serving_agent_id, jsonb_array_length(x.events), x.mode, x.hop,
      x.compensates, x.cached_from, x.cached_from, x.cache_key, x.cache_seconds, x.session_id, x.session_request,
      x.session_head
    from ${from('handoffs', `item int, ${HANDOFF_COLUMNS}`)}
    ${gate}
  ),
  new_handoff_events as (
    insert into boxcar.handoff_events (handoff_id, seq, type, data)
    select x.id, e.n, e.value->>'type', e.value->'data'
    from ${from('handoffs', `item int, ${HANDOFF_COLUMNS}`)}
    cross join lateral jsonb_array_elements(x.events) with ordinality as e(value, n)
    ${gate}
  )`;

/** The number of turns of each run that new turns join. */
export const spawnCounts = ({ from, gate }: Parts): string => `
  counted as (
    update boxcar.runs r
    set turn_count = r.turn_count + s.n
    from (
      select x.run_id, sum(x.n)::int as n
      from ${from('spawns', SPAWN_COLUMNS)}
      ${gate}
      group by x.run_id
    ) s
    where r.id = s.run_id
  )`;

/** The calls that wait for the submission. */
export const waits = ({ from, gate }: Parts): string => `
  waiting as (
    update boxcar.tool_calls k
    set batch_id = coalesce(x.batch_id, k.batch_id),
      deadline_at = statement_timestamp() + x.deadline_ms * interval '1 millisecond'
    from (select x.* from ${from('waits', WAIT_COLUMNS)} ${gate}) x
    where k.id = x.tool_call_id
  )`;
