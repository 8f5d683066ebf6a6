import { WINDOW_FACTOR } from '@boxcar/kernel';
import { type Statement, statement } from '../db/index.js';
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

// Times count from the statement, because the transaction of a caller may have begun long before.

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

const OPERATION_COLUMNS = `
  item int, project_id uuid, idempotency_key text, primitive text, request_hash text, response text,
  awaited_turn_id uuid, awaited_batch_id uuid, door_job_id text, made uuid[], is_outside boolean, seen_project text,
  seen_source uuid, seen_source_version text, seen_profiles uuid[]`;
const SPAWN_COLUMNS = 'item int, run_id uuid, n int, max_turns int';
const WAIT_COLUMNS = 'item int, tool_call_id uuid, batch_id uuid, deadline_ms float8';
const FENCE_COLUMNS = 'item int, turn_id uuid, epoch int, holder_id uuid, is_ended boolean';
const CONTEXT_BOX_COLUMNS = `
  item int, id uuid, project_id uuid, owner_agent_id uuid, maker_agent_id uuid, card_ids uuid[], card_tokens int[],
  segments jsonb, card_count int, token_estimate int`;
const AGENT_COLUMNS = `
  item int, id uuid, project_id uuid, name text, profile_id uuid, owner_agent_id uuid, derived_from uuid,
  tape_box_id uuid, is_shared boolean`;
const BUDGET_COLUMNS = `
  item int, id uuid, project_id uuid, run_id uuid, parent_id uuid, top_depth int, limits jsonb, seconds float8,
  parent_deadline_at timestamptz, tokens_reserved bigint, cost_reserved bigint, steps_reserved int, turns_used int`;
const GRANT_COLUMNS = `
  item int, project_id uuid, agent_id uuid, box_id uuid, mode text, upto_position int, source text,
  expires_at timestamptz`;
const BATCH_COLUMNS = `
  item int, id uuid, project_id uuid, run_id uuid, turn_id uuid, tool_call_id uuid, primitive text, kind text,
  turn_ids uuid[], remaining int, succeeded int, failed int, min_success int, fail_fast boolean, deadline_ms float8`;
const TURN_COLUMNS = `
  id uuid, project_id uuid, run_id uuid, agent_id uuid, profile_id uuid, parent_turn_id uuid,
  parent_tool_call_id uuid, is_awaited boolean, depth int, primitive text, channel_id text, max_steps int,
  context_box_id uuid, output_box_id uuid, worker_target text, deadline_ms float8, traceparent text, is_reuse boolean,
  batch_ids uuid[], priority smallint, budget_id uuid, allotted_tokens bigint, allotted_cost bigint,
  allotted_steps int, budget_deadline_at timestamptz, is_metered boolean, format smallint, is_waited_for boolean,
  is_woken boolean, own_view_anchor int, own_view_position int, selector text, warm_turn_id uuid, is_told boolean`;
const HANDOFF_COLUMNS = `
  id uuid, project_id uuid, phase text, is_ended boolean, source_agent text, source_agent_id uuid, target_agent text,
  platform text, run_id text, parent_turn_id uuid, tool_call_id uuid, is_awaited boolean, context_box_id uuid,
  task_card_id uuid, context_card_id uuid, payload_card_id uuid, worker_target text, turn_id uuid, ticket_id uuid,
  root_handoff_id uuid, parent_handoff_id uuid, depth int, decision jsonb, error jsonb, timeout_ms bigint,
  retry jsonb, idempotency_key text, request_hash text, callback_url text, told_agent_id uuid, notifies boolean,
  public_agent text, conversation text, message_id text, serving_agent_id uuid, events jsonb, mode text, hop int,
  compensates uuid, cached_from uuid, cache_key text, cache_seconds int, session_id uuid, session_request text,
  session_head int`;
const TURN_NAMES = TURN_COLUMNS.replace(
  / (uuid\[\]|uuid|boolean|smallint|int|text|float8|bigint|timestamptz)/g,
  '',
);

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

/** True when the caller of submission `x` has not changed since it was read. */
const IS_AS_SEEN = `
  (select p.xmin::text = x.seen_project from boxcar.projects p where p.id = x.project_id)
  and (select a.xmin::text = x.seen_source_version from boxcar.agents a where a.id = x.seen_source)
  and (
    select count(*)
    from boxcar.profiles f
    where f.id = any (x.seen_profiles) and f.is_current
  ) = cardinality(x.seen_profiles)`;

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

interface TextKind {
  readonly isOne: boolean;
  /** True when facts that were read earlier about the caller decided at least one submission. */
  readonly hasSeen: boolean;
  /** True when the commit notifies a worker of the turn. */
  readonly hints: boolean;
}

const statements = new Map<string, Statement>();

/** The statement that writes these records. There is one text per combination of tables, so that a connection prepares each text once. */
export function prepareSubmission(
  records: SubmissionRecords,
  { hints }: Pick<TextKind, 'hints'>,
): { prepared: Statement; values: unknown[] } {
  const present = Object.values(records).filter((rows: readonly object[]) => rows.length > 0);
  const isOne = isOneTurn(records);
  const kind = { isOne, hasSeen: wasSeen(records.operations), hints: hints && isOne };
  const key = `${kind.isOne} ${kind.hasSeen} ${kind.hints} ${Object.values(records)
    .map((rows: readonly object[]) => (rows.length > 0 ? '1' : '0'))
    .join('')}`;
  const known = statements.get(key);
  const prepared = known ?? statement(buildText(records, kind));
  if (known === undefined) statements.set(key, prepared);
  return { prepared, values: present.map((rows: readonly object[]) => JSON.stringify(rows)) };
}

/** True for a single turn with at most one operation and one fence: then the statement never has to match one list with another. */
const isOneTurn = ({ turns, operations, fences }: SubmissionRecords): boolean =>
  turns.length === 1 && operations.length <= 1 && fences.length <= 1;

const wasSeen = (operations: readonly object[]): boolean =>
  operations.some((operation) => 'seen_project' in operation);

function buildText(records: SubmissionRecords, { isOne, hasSeen, hints }: TextKind): string {
  const present = Object.keys(records).filter((name) => records[name as keyof SubmissionRecords].length > 0);
  const has = (name: keyof SubmissionRecords): boolean => present.includes(name);
  const from = (name: keyof SubmissionRecords, columns: string): string =>
    `json_to_recordset($${present.indexOf(name) + 1}) as x(${columns})`;
  const isGated = has('fences') || has('operations');
  // Hashed: `is true` keeps the condition from becoming a join, which would go through both lists for every row.
  const accept = isOne ? '(select true from accepted)' : '(x.item in (select item from accepted)) is true';
  const gate = isGated ? `where ${accept}` : '';
  const ctes: string[] = [];

  if (has('fences')) {
    if (has('spawns')) {
      // The run is locked before the caller's turn, whose fence reads this part. A transaction that ends a tree also locks the run, so
      // either the fence sees the end, or the end sees the new turns. If the run's own account limits its turns, the account counts
      // them.
      ctes.push(`
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
        )`);
    }
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
    ctes.push(`
      fence as (
        select x.item
        from ${fenced}
        where (t.ended_at is not null) = x.is_ended
          and (x.epoch is null or (t.epoch = x.epoch and t.holder_id = x.holder_id and t.status = 'running'))
        order by t.id
        for update of t
      )`);
  }
  if (has('waits')) {
    ctes.push(`
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
      )`);
  }
  const held = has('waits') ? 'open_calls' : 'fence';
  if (has('operations')) {
    // `is true` makes Postgres look up each project by its key.
    ctes.push(`
      closed as materialized (
        select x.item
        from ${from('operations', OPERATION_COLUMNS)}
        where (
          x.is_outside
          and exists (select from boxcar.projects p where p.id = x.project_id and p.archived_at is not null)
        ) is true
      )`);
    if (hasSeen)
      ctes.push(`
        stale as materialized (
          select x.item
          from ${from('operations', OPERATION_COLUMNS)}
          where x.seen_project is not null and (${IS_AS_SEEN}) is not true
        )`);
    const isWritten =
      '((x.project_id, x.idempotency_key) in (select project_id, idempotency_key from op)) is true';
    const isOpen = (list: string): string =>
      isOne ? `not exists (select from ${list})` : `(x.item in (select item from ${list})) is not true`;
    ctes.push(`
      op as (
        insert into boxcar.operations (
          project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, awaited_batch_id,
          door_job_id, made
        )
        select x.project_id, x.idempotency_key, x.primitive, decode(x.request_hash, 'hex'), x.response::json,
          x.awaited_turn_id, x.awaited_batch_id, x.door_job_id, x.made
        from ${from('operations', OPERATION_COLUMNS)}
        ${has('fences') ? `join ${held} using (item)` : ''}
        where ${[isOpen('closed'), ...(hasSeen ? [isOpen('stale')] : [])].join(' and ')}
        order by x.project_id, x.idempotency_key
        on conflict do nothing
        returning project_id, idempotency_key
      ),
      accepted as (
        select x.item
        from ${from('operations', OPERATION_COLUMNS)}
        where ${isOne ? 'exists (select from op)' : isWritten}
      )`);
  } else if (has('fences')) {
    ctes.push(`accepted as (select item from ${held})`);
  }
  if (has('cards')) {
    ctes.push(`
      new_cards as (
        insert into ${CARD_TARGET}
        select ${CARD_VALUES}
        from ${from('cards', `item int, ${CARD_COLUMNS}`)}
        ${gate}
      )`);
  }
  if (has('contextBoxes')) {
    ctes.push(`
      new_boxes as (
        insert into boxcar.boxes (
          id, project_id, kind, owner_agent_id, maker_agent_id, card_ids, card_tokens, segments, card_count,
          token_estimate
        )
        select x.id, x.project_id, 'context', x.owner_agent_id, x.maker_agent_id, x.card_ids, x.card_tokens,
          x.segments, x.card_count, x.token_estimate
        from ${from('contextBoxes', CONTEXT_BOX_COLUMNS)}
        ${gate}
      )`);
  }
  if (has('tapes')) {
    ctes.push(`
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
      )`);
  }
  if (has('agents')) {
    ctes.push(`
      new_agents as (
        insert into boxcar.agents (
          id, project_id, name, profile_id, owner_agent_id, derived_from, tape_box_id, is_shared
        )
        select x.id, x.project_id, x.name, x.profile_id, x.owner_agent_id, x.derived_from, x.tape_box_id, x.is_shared
        from ${from('agents', AGENT_COLUMNS)}
        ${gate}
      )`);
  }
  if (has('runs')) {
    ctes.push(`
      new_runs as (
        insert into boxcar.runs (id, project_id, root_turn_id, traceparent, turn_count)
        select x.id, x.project_id, x.root_turn_id, x.traceparent, coalesce(x.turn_count, 1)
        from ${from('runs', 'item int, id uuid, project_id uuid, root_turn_id uuid, traceparent text, turn_count int')}
        ${gate}
      )`);
  }
  if (has('budgets')) {
    ctes.push(`
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
      )`);
  }
  if (has('grants')) {
    ctes.push(`
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
      )`);
  }
  if (has('batches')) {
    ctes.push(`
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
      )`);
  }
  if (has('turns')) {
    const ranks = isOne
      ? '1 as rank, 1 as project_rank, 1 as place'
      : `
        row_number() over (partition by x.worker_target order by x.ord) as rank,
        row_number() over (
          partition by x.worker_target, x.project_id
          order by coalesce(x.priority, 0) desc, x.ord
        )::int as project_rank,
        row_number() over (partition by x.agent_id order by x.ord) as place`;
    // Nothing locks the window, so submissions of the same moment may all see its last room: they exceed it by a few rings. An agent never
    // has two turns under way: the caller has locked the agents whose tapes it reuses (`lockAgents`), and a promotion locks the same rows.
    ctes.push(`
      new_turns as materialized (
        select ${ranks}, x.*
        from rows from (
          json_to_recordset($${present.indexOf('turns') + 1}) as (item int, ${TURN_COLUMNS})
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
      ),
      turns as (
        insert into boxcar.turns (
          id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth,
          primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target, deadline_at, traceparent,
          batch_ids, priority, status, epoch, dispatched_at, budget_id, allotted_tokens, allotted_cost,
          allotted_steps, spent_tokens, spent_cost, is_settled, format, notifies, is_woken, own_view_anchor,
          own_view_position, selector, warm_turn_id
        )
        select
          id, project_id, run_id, agent_id, profile_id, parent_turn_id, parent_tool_call_id, is_awaited, depth,
          primitive, channel_id, max_steps, context_box_id, output_box_id, worker_target,
          least(
            statement_timestamp() + deadline_ms * interval '1 millisecond',
            budget_deadline_at,
            case
              when is_waited_for then (select p.deadline_at from boxcar.turns p where p.id = decided.parent_turn_id)
            end
          ),
          traceparent, batch_ids, coalesce(priority, 0),
          case when is_ready then 'dispatched' else 'queued' end,
          case when is_ready then 1 else 0 end,
          case when is_ready then statement_timestamp() end,
          budget_id, allotted_tokens, allotted_cost, allotted_steps,
          case when is_metered then 0 end,
          case when is_metered then 0 end,
          case when budget_id is not null then false end,
          coalesce(format, ${THIS_BUILD.turnFormat}),
          coalesce(
            is_told,
            case
              when is_reuse then (
                select true
                from boxcar.sessions s
                where s.agent_id = decided.agent_id and s.notifies and s.status = 'active'
              )
            end
          ),
          is_woken, own_view_anchor, own_view_position, selector, warm_turn_id
        from decided
      )`);
  }
  if (hints) ctes.push(`hinted as materialized (${HINT})`);
  if (has('handoffs')) {
    // New rows under new ids: no other transaction sees them before the commit, so they need no lock.
    ctes.push(`
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
      )`);
  }
  if (has('spawns')) {
    ctes.push(`
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
      )`);
  }
  if (has('waits')) {
    ctes.push(`
      waiting as (
        update boxcar.tool_calls k
        set batch_id = coalesce(x.batch_id, k.batch_id),
          deadline_at = statement_timestamp() + x.deadline_ms * interval '1 millisecond'
        from (select x.* from ${from('waits', WAIT_COLUMNS)} ${gate}) x
        where k.id = x.tool_call_id
      )`);
  }
  const full = has('spawns')
    ? `
      (
        select json_agg(x.item)
        from spawn_runs r
        join ${from('spawns', SPAWN_COLUMNS)} on x.run_id = r.id
        where r.turn_count + x.n > x.max_turns
      )`
    : 'null::json';
  const answered = has('waits')
    ? '(select json_agg(item) from fence where (item in (select item from open_calls)) is not true)'
    : 'null::json';
  const closed = has('operations') ? '(select json_agg(item) from closed)' : 'null::json';
  const stale = hasSeen ? '(select json_agg(item) from stale)' : 'null::json';
  const accepted = isGated ? '(select json_agg(item) from accepted)' : 'null::json';
  // Reads the values that `turns` has written. A join with its result would go through both lists.
  const turns = has('turns')
    ? `
      (
        select coalesce(json_agg(json_build_object(
          'turn_id', d.id,
          'status', case when d.is_ready then 'dispatched' else 'queued' end,
          'epoch', case when d.is_ready then 1 else 0 end,
          'worker_target', d.worker_target, 'priority', d.ring_priority
        )), '[]')
        from decided d
      )`
    : "'[]'::json";
  const parts = ctes.length > 0 ? `with /* submission-sql.build */ ${ctes.join(',\n')}\n` : '';
  return `
    ${parts}
    select
      ${accepted} as accepted,
      ${turns} as turns,
      ${full} as full,
      ${answered} as answered,
      ${closed} as closed,
      ${stale} as stale${hints ? ', (select count(*) from hinted) as hints' : ''}`;
}
