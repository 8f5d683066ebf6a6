/** Invariants of turns, their calls, batches and budgets (`invariants.ts`): reads of one snapshot, without locks. */
import type { Invariant } from './invariant.js';

const FINAL = "('success', 'partial', 'failed', 'timeout', 'canceled')";

/** Work that was due before this time counts as forgotten. */
const LATE = "now() - interval '1 minute'";

/** The newest batches, and those that have not ended. */
const BATCHES = `
  select *
  from boxcar.batches
  where id in (
    (select id from boxcar.batches order by id desc limit :turns)
    union
    (select id from boxcar.batches where status = 'running' order by id limit :turns)
  )`;

/** The clock that made the id of a turn agrees with the clock of the server closely enough for this check. */
const HAS_SERVER_TIME = (turn: string): string => `
  abs(
    ('x' || left(replace(${turn}.id::text, '-', ''), 12))::bit(48)::bigint
      - extract(epoch from ${turn}.created_at) * 1000
  ) < 60000`;

export const TURN_INVARIANTS: readonly Invariant[] = [
  {
    name: 'all-ended',
    rule: 'every accepted turn has ended',
    when: 'settled',
    broken: `select id, 'is ' || status as what from scope where status not in ${FINAL}`,
  },
  {
    name: 'end-is-whole',
    rule: 'a turn has an end, a deliverable and no holder, or neither an end nor a deliverable',
    when: 'always',
    broken: `
      select
        id,
        'is ' || status || ', ended at ' || coalesce(ended_at::text, 'no time')
          || ', deliverable ' || coalesce(deliverable_card_id::text, 'none')
          || ', held by ' || coalesce(holder_id::text, 'nobody') as what
      from scope
      where (status in ${FINAL}) <> (ended_at is not null)
        or (ended_at is null) <> (deliverable_card_id is null)
        or (status = 'running') <> (holder_id is not null)`,
  },
  {
    name: 'one-deliverable',
    rule: 'a turn that has ended leaves exactly one deliverable, which is on its tape; a turn that has not ended leaves none',
    when: 'always',
    broken: `
      select t.id, 'has ' || count(c.id) || ' deliverables on its tape' as what
      from scope t
      left join boxcar.tape_entries e on e.box_id = t.output_box_id and e.turn_id = t.id
      left join boxcar.cards c on c.id = e.card_id and c.type = 'task.deliverable'
      group by t.id, t.ended_at, t.deliverable_card_id
      having count(c.id) <> case when t.ended_at is null then 0 else 1 end
        or (t.ended_at is not null and not bool_or(c.id is not null and c.id = t.deliverable_card_id))`,
  },
  {
    name: 'decided-before-begun',
    rule: 'a call that waits for an approval, was denied it or let it expire has not succeeded',
    when: 'always',
    broken: `
      select k.id, k.name || ' has succeeded, and its ticket ' || a.id || ' is ' || a.status as what
      from scope t
      join boxcar.approvals a on a.turn_id = t.id
      join boxcar.tool_calls k on k.id = a.tool_call_id
      where k.status = 'success' and a.consumed_at is null and a.voided_at is null`,
  },
  {
    name: 'no-stray-deliverable',
    rule: 'a deliverable is on a tape',
    when: 'wide',
    broken: `
      select c.id, 'is on no tape' as what
      from boxcar.cards c
      where c.type = 'task.deliverable'
        and not exists (select from boxcar.tape_entries e where e.card_id = c.id)`,
  },
  {
    name: 'operation-names-turn',
    rule: 'the record of an accepted submission names only rows that exist, and each turn belongs to one request',
    when: 'wide',
    // Older builds wrote null, without a record of the made turns: only the time of the submission links their turns.
    broken: `
      with made as materialized (
        select o.idempotency_key, o.request_hash, m.id, b.turn_ids
        from boxcar.operations o
        cross join lateral unnest(o.made) as m(id)
        left join boxcar.batches b on b.id = m.id
      ),
      asked as materialized (
        select idempotency_key, request_hash, id as turn_id
        from made
        where turn_ids is null
        union all
        select idempotency_key, request_hash, u.turn_id
        from made
        cross join lateral unnest(turn_ids) as u(turn_id)
      )
      select a.turn_id as id, 'was made by operation ' || a.idempotency_key || ' and does not exist' as what
      from asked a
      where not exists (select from boxcar.turns t where t.id = a.turn_id)
      union all
      select t.id, 'was asked for by ' || count(distinct a.request_hash) || ' requests'
      from scope t
      left join asked a on a.turn_id = t.id
      group by t.id, t.project_id, t.created_at
      having count(distinct a.request_hash) > 1
        or (
          count(a.request_hash) = 0
          and (t.project_id, t.created_at) not in (
            select o.project_id, o.created_at
            from boxcar.operations o
            where o.made is null
          )
        )`,
  },
  {
    name: 'references-exist',
    rule: 'the run, agent, profile, context and tape that a turn names exist',
    when: 'always',
    broken: `
      select t.id, 'names the ' || r.kind || ' ' || r.id || ', which does not exist' as what
      from scope t
      cross join lateral (
        values
          ('run', t.run_id),
          ('agent', t.agent_id),
          ('profile', t.profile_id),
          ('context box', t.context_box_id),
          ('tape', t.output_box_id)
      ) r(kind, id)
      where not case r.kind
        when 'run' then exists (select from boxcar.runs x where x.id = r.id)
        when 'agent' then exists (select from boxcar.agents x where x.id = r.id)
        when 'profile' then exists (select from boxcar.profiles x where x.id = r.id)
        else exists (select from boxcar.boxes x where x.id = r.id)
      end`,
  },
  {
    name: 'nothing-orphaned',
    rule: 'steps and calls belong to a turn that exists, entries and grants to a box, and an agent has its tape; the maker of a box exists, and so do the owner of an agent and the agent that it was cloned from',
    when: 'wide',
    broken: `
      select s.turn_id as id, 'does not exist and has steps' as what
      from boxcar.steps s
      where not exists (select from boxcar.turns t where t.id = s.turn_id)
      union
      select k.turn_id, 'does not exist and has calls'
      from boxcar.tool_calls k
      where not exists (select from boxcar.turns t where t.id = k.turn_id)
      union
      select e.box_id, 'does not exist and has entries'
      from boxcar.tape_entries e
      where not exists (select from boxcar.boxes b where b.id = e.box_id)
      union
      select a.id, 'has the tape ' || a.tape_box_id || ', which does not exist'
      from boxcar.agents a
      where a.tape_box_id is not null
        and not exists (select from boxcar.boxes b where b.id = a.tape_box_id)
      union
      select g.box_id, 'does not exist and is granted to ' || g.agent_id
      from boxcar.grants g
      where not exists (select from boxcar.boxes b where b.id = g.box_id)
      union
      select b.id, 'was made by ' || b.maker_agent_id || ', who does not exist'
      from boxcar.boxes b
      where b.maker_agent_id is not null
        and not exists (select from boxcar.agents a where a.id = b.maker_agent_id)
      union
      select a.id, x.what || ' ' || x.id || ', who does not exist'
      from boxcar.agents a
      cross join lateral (values ('is owned by', a.owner_agent_id), ('was cloned from', a.derived_from)) x(what, id)
      where x.id is not null and not exists (select from boxcar.agents o where o.id = x.id)`,
  },
  {
    name: 'budget-sums',
    rule: 'the amounts that an account has reserved and spent equal the amounts that its turns were allotted and have spent, and its number of turns is right',
    when: 'always',
    broken: `
      with recursive up as (
        select b.id as leaf, b.id, b.parent_id
        from boxcar.budgets b
        where b.run_id in (select t.run_id from scope t where t.budget_id is not null)
        union all
        select up.leaf, p.id, p.parent_id
        from up
        join boxcar.budgets p on p.id = up.parent_id
      )
      select
        b.id,
        'has reserved ' || concat_ws('/', b.tokens_reserved, b.cost_reserved, b.steps_reserved)
          || ', spent ' || concat_ws('/', b.tokens_spent, b.cost_spent, b.steps_spent) || ' in ' || b.turns_used
          || ' turns; its ' || s.turns
          || ' turns say ' || concat_ws('/', s.tokens_reserved, s.cost_reserved, s.steps_reserved)
          || ', ' || concat_ws('/', s.tokens_spent, s.cost_spent, s.steps_spent) as what
      from boxcar.budgets b
      join (
        select
          up.id, count(*) as turns,
          coalesce(sum(t.allotted_tokens) filter (where not t.is_settled), 0) as tokens_reserved,
          coalesce(sum(t.spent_tokens) filter (where t.is_settled), 0) as tokens_spent,
          coalesce(sum(t.allotted_cost) filter (where not t.is_settled), 0) as cost_reserved,
          coalesce(sum(t.spent_cost) filter (where t.is_settled), 0) as cost_spent,
          coalesce(sum(t.allotted_steps) filter (where not t.is_settled), 0) as steps_reserved,
          coalesce(sum(t.step_count) filter (where t.is_settled), 0) as steps_spent
        from up
        join boxcar.turns t on t.budget_id = up.leaf
        group by up.id
      ) s on s.id = b.id
      where (
        b.turns_used, b.tokens_reserved, b.tokens_spent, b.cost_reserved, b.cost_spent, b.steps_reserved,
        b.steps_spent
      ) is distinct from (
        s.turns, s.tokens_reserved, s.tokens_spent, s.cost_reserved, s.cost_spent, s.steps_reserved, s.steps_spent
      )`,
  },
  {
    name: 'budget-limit',
    rule: 'no account has granted more than its limit: only the excess of calls over their reservation can exceed it',
    when: 'always',
    broken: `
      with recursive up as (
        select b.id as leaf, b.id, b.parent_id
        from boxcar.budgets b
        where b.run_id in (select t.run_id from scope t where t.budget_id is not null)
        union all
        select up.leaf, p.id, p.parent_id
        from up
        join boxcar.budgets p on p.id = up.parent_id
      )
      select b.id, 'has granted more than ' || b.limits::text as what
      from boxcar.budgets b
      join (
        select
          up.id,
          coalesce(sum(greatest(t.spent_tokens - t.allotted_tokens, 0)) filter (where t.is_settled), 0) as tokens,
          coalesce(sum(greatest(t.spent_cost - t.allotted_cost, 0)) filter (where t.is_settled), 0) as cost
        from up
        join boxcar.turns t on t.budget_id = up.leaf
        group by up.id
      ) o on o.id = b.id
      where b.tokens_reserved + b.tokens_spent - o.tokens > (b.limits->>'tokens')::bigint
        or b.cost_reserved + b.cost_spent - o.cost > (b.limits->>'cost_micros')::bigint
        or b.steps_reserved + b.steps_spent > (b.limits->>'steps')::bigint
        or b.turns_used > (b.limits->>'turns')::bigint`,
  },
  {
    name: 'family',
    rule: 'a child is one level below its parent, in its run, and answers a call of the parent; a root has no parent, and is the first root of its run or was submitted with it',
    when: 'always',
    broken: `
      select
        t.id,
        case
          when t.parent_turn_id is null then 'is no root and has no parent'
          when p.id is null then 'has the parent ' || t.parent_turn_id || ', which does not exist'
          else 'does not fit its parent ' || p.id || ': depth ' || t.depth || ' below ' || p.depth
            || ', call ' || coalesce(t.parent_tool_call_id::text, 'none')
        end as what
      from scope t
      join boxcar.runs r on r.id = t.run_id
      left join boxcar.turns p on p.id = t.parent_turn_id
      left join boxcar.tool_calls k on k.id = t.parent_tool_call_id
      where case
        when t.parent_turn_id is null
          then t.depth <> 0
            or t.is_awaited
            or (
              r.root_turn_id <> t.id
              and not exists (select from boxcar.turns o where o.id = r.root_turn_id and o.created_at = t.created_at)
            )
        else p.id is null
          or p.run_id <> t.run_id
          or p.depth + 1 <> t.depth
          or p.project_id <> t.project_id
          or (t.parent_tool_call_id is not null and k.turn_id is distinct from p.id)
      end`,
  },
  {
    name: 'starts-once',
    rule: 'a turn starts once on its tape, at the position that it records',
    when: 'always',
    broken: `
      select
        t.id,
        'started ' || count(e.position) || ' times, at ' || coalesce(min(e.position)::text, 'no position')
          || ', and remembers ' || coalesce(t.start_position::text, 'none') as what
      from scope t
      left join boxcar.tape_entries e
        on e.box_id = t.output_box_id
        and e.turn_id = t.id
        and e.kind = 'event'
        and e.payload->>'name' = 'turn.started'
      group by t.id, t.start_position
      having count(e.position) <> case when t.start_position is null then 0 else 1 end
        or min(e.position) <> t.start_position`,
  },
  {
    name: 'one-result',
    rule: 'a settled call has its result card, and is once on the tape of its turn, with its result at most once and later',
    when: 'always',
    broken: `
      select
        k.id,
        '(' || k.name || ', ' || k.status || ') stands ' || count(*) filter (where e.kind = 'tool_call')
          || ' times, its result ' || count(*) filter (where e.kind = 'tool_result')
          || ' times, result card ' || coalesce(r.id::text, 'none') as what
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      left join boxcar.cards r on r.id = k.result_card_id and r.type = 'tool.result' and r.tool_call_id = k.id
      left join (boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id)
        on e.box_id = t.output_box_id
        and e.turn_id = t.id
        and e.kind in ('tool_call', 'tool_result')
        and c.tool_call_id = k.id
      group by k.id, r.id, t.status
      having (k.status = 'pending') <> (r.id is null)
        or count(*) filter (where e.kind = 'tool_call') <> 1
        or count(*) filter (where e.kind = 'tool_result') > 1
        or (t.status = 'success' and count(*) filter (where e.kind = 'tool_result') <> 1)
        or max(e.position) filter (where e.kind = 'tool_call') > min(e.position) filter (where e.kind = 'tool_result')`,
  },
  {
    name: 'one-result-card',
    rule: 'a call has no second result card',
    when: 'wide',
    broken: `
      select c.tool_call_id as id, 'has ' || count(*) || ' result cards' as what
      from boxcar.cards c
      where c.type = 'tool.result' and c.tool_call_id is not null
      group by c.tool_call_id
      having count(*) > 1`,
  },
  {
    name: 'open-calls-counted',
    rule: 'a turn counts its open calls, and has none once it has ended',
    when: 'always',
    broken: `
      select t.id, 'is ' || t.status || ' and counts ' || t.pending_calls || ' open calls of ' || count(k.id) as what
      from scope t
      left join boxcar.tool_calls k on k.turn_id = t.id and k.status = 'pending'
      group by t.id, t.status, t.pending_calls
      having t.pending_calls <> count(k.id) or (t.status in ${FINAL} and count(k.id) > 0)`,
  },
  {
    name: 'waits-with-cause',
    rule: 'nothing waits without a live cause: a suspended turn has open calls or records another reason for its wait, an open call has a deadline, and a call whose awaited turn has ended is answered',
    when: 'always',
    broken: `
      select t.id, 'is suspended, no call of it is out, and nothing else it waits for' as what
      from scope t
      where t.status = 'suspended'
        and not exists (select from boxcar.tool_calls k where k.turn_id = t.id and k.status = 'pending')
        and not exists (select from boxcar.waits w where w.turn_id = t.id)
      union all
      select k.id, '(' || k.name || ') is open without a deadline'
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      where k.status = 'pending' and k.deadline_at is null
      union all
      select k.id, '(' || k.name || ') is open and its turn ' || c.id || ' has ended'
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
      where k.status = 'pending' and c.ended_at is not null`,
  },
  {
    name: 'wait-is-of-turn',
    rule: 'a wait belongs to a suspended turn without open calls; a wait for a time, for room at a provider or for a selector records its next check',
    when: 'always',
    broken: `
      select
        w.turn_id as id,
        'waits (' || w.kind || ') and is ' || coalesce(t.status, 'no turn')
          || ' with ' || coalesce(t.pending_calls, 0)
          || ' open calls, due ' || coalesce(w.due_at::text, 'never') as what
      from boxcar.waits w
      left join boxcar.turns t on t.id = w.turn_id
      where t.status is distinct from 'suspended'
        or t.pending_calls <> 0
        or (w.due_at is null and w.kind in ('retry', 'limit', 'selector'))`,
  },
  {
    name: 'live-cause',
    rule: 'every wait has a live cause: while a worker has lived for a minute, no turn stays with a dead worker, no deadline of a turn, call or batch and no time to wake is a minute over, no pause for a budget is forgotten, no turn stays queued while its pool is idle, and the sweep has given up no row',
    when: 'always',
    broken: `
      with living as (
        select unnest(w.targets) as target
        from boxcar.workers w
        where w.lease_until > now() and w.started_at < ${LATE}
      ),
      pools as (
        select worker_target, max(dispatched_at) as last
        from scope
        group by worker_target
      )
      select
        t.id,
        'is in the hands of ' || t.holder_id
          || ', whose lease ended at ' || coalesce(w.lease_until::text, 'an unknown time') as what
      from scope t
      left join boxcar.workers w on w.id = t.holder_id
      where t.status = 'running'
        and coalesce(w.lease_until, '-infinity') < ${LATE}
        and t.dispatched_at < ${LATE}
        and exists (select from living)
      union all
      select t.id, 'is ' || t.status || ', due since ' || t.deadline_at
      from scope t
      where t.ended_at is null and t.deadline_at < ${LATE} and exists (select from living)
      union all
      select k.id, '(' || k.name || ') is open, due since ' || k.deadline_at
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      where k.status = 'pending'
        and k.batch_id is null
        and t.ended_at is null
        and k.deadline_at < ${LATE}
        and exists (select from living)
      union all
      select b.id, 'is a running batch, due since ' || b.deadline_at
      from (${BATCHES}) b
      where b.status = 'running' and b.deadline_at < ${LATE} and exists (select from living)
      union all
      select b.id, 'is a batch of which something is to be done, its last member ended at ' || m.last
      from (${BATCHES}) b
      cross join lateral (
        select max(x.ended_at) as last
        from unnest(b.turn_ids) as u(id)
        cross join lateral (select x.ended_at from boxcar.turns x where x.id = u.id offset 0) x
      ) m
      where b.status = 'running'
        and b.is_due
        and m.last < ${LATE}
        and exists (select from living)
      union all
      select t.id, 'waits (' || w.kind || ') until ' || w.due_at || ', which is over'
      from scope t
      join boxcar.waits w on w.turn_id = t.id
      where w.kind <> 'limit' and w.due_at < ${LATE} and exists (select from living)
      union all
      select
        t.id,
        'waits for budget ' || coalesce(w.detail->>'budget_id', 'of no name')
          || ', of which no turn is known to wait'
      from scope t
      join boxcar.waits w on w.turn_id = t.id
      where w.kind = 'budget'
        and not exists (
          select from boxcar.budgets b
          where b.id::text = w.detail->>'budget_id' and b.paused_at is not null
        )
      union all
      select
        t.id,
        'is queued since ' || t.created_at
          || '. No other turn of its agent is open, and its pool has dispatched nothing for a minute'
      from scope t
      join pools p on p.worker_target = t.worker_target
      where t.status = 'queued'
        and t.created_at < ${LATE}
        and coalesce(p.last, '-infinity') < ${LATE}
        and t.worker_target in (select target from living)
        and not exists (
          select from boxcar.turns a
          where a.agent_id = t.agent_id
            and a.id <> t.id
            and (a.status in ('dispatched', 'running', 'suspended') or (a.status = 'queued' and a.id < t.id))
        )
        and not exists (
          select from boxcar.turns d
          where d.status in ('dispatched', 'running') and d.worker_target = t.worker_target
        )
        and exists (
          select from boxcar.workers w
          where w.lease_until > now() and w.targets @> array[t.worker_target] and w.schema_version >= t.format
        )
      union all
      select
        f.row_id,
        'was given up by the sweep (' || f.kind || ') after ' || f.attempts || ' tries: ' || f.last_error
      from boxcar.sweep_failures f
      where f.is_dead
        and f.kind <> 'left_budgets'
        and (
          exists (select from boxcar.turns t where t.id = f.row_id and t.ended_at is null)
          or exists (
            select from boxcar.tool_calls k
            join boxcar.turns t on t.id = k.turn_id
            where k.id = f.row_id and k.status = 'pending' and t.ended_at is null
          )
          or exists (select from boxcar.batches b where b.id = f.row_id and b.status = 'running')
        )`,
  },
  {
    name: 'batch-counted',
    rule: 'a batch counts its members by their status, and each member that has not ended names the batch',
    when: 'always',
    broken: `
      select
        b.id,
        'counts ' || b.remaining || ' to come, ' || b.succeeded || ' succeeded and ' || b.failed
          || ' failed, its members are ' || string_agg(t.status, ', ') as what
      from (${BATCHES}) b
      left join boxcar.turns t on t.id = any (b.turn_ids)
      group by b.id, b.remaining, b.succeeded, b.failed, b.turn_ids
      having b.remaining <> count(*) filter (where t.ended_at is null)
        or b.succeeded <> count(*) filter (where t.status = 'success')
        or b.failed <> count(*) filter (where t.status in ('failed', 'timeout', 'canceled'))
        or count(t.id) <> cardinality(b.turn_ids)
        or bool_or(t.ended_at is null and not coalesce(b.id = any (t.batch_ids), false))`,
  },
  {
    name: 'batch-answered',
    rule: 'a batch whose members have all ended, or that is being closed, is due or has ended; a batch that has ended has answered its call or stores its answer, and a call waits only for its batch',
    when: 'always',
    broken: `
      select
        b.id,
        'is ' || b.status || ' with ' || b.remaining || ' to come' || coalesce(', closing for ' || b.closing, '')
          || ', and not due' as what
      from (${BATCHES}) b
      where b.status = 'running' and (b.remaining = 0 or b.closing is not null) and not b.is_due
      union all
      select
        b.id,
        'is ' || b.status || ', its call ' || coalesce(k.id::text, 'none') || ' is ' || coalesce(k.status, 'none')
          || ' and its answer is ' || case when b.answer is null then 'none' else 'there' end
      from (${BATCHES}) b
      left join boxcar.tool_calls k on k.id = b.tool_call_id
      where b.status <> 'running'
        and case
          when b.tool_call_id is null then b.answer is null
          else k.status is null or k.status = 'pending' or k.batch_id is distinct from b.id
        end
      union all
      select k.id, '(' || k.name || ') is open and waits for batch ' || k.batch_id || ', which does not answer it'
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      where k.status = 'pending'
        and k.batch_id is not null
        and not exists (
          select from boxcar.batches b
          where b.id = k.batch_id and b.status = 'running' and b.tool_call_id = k.id
        )`,
  },
  {
    name: 'epochs',
    rule: 'a queued turn was never dispatched, and a turn in a later status was; no step or call has a later epoch than its turn, and the open step belongs to the holder',
    when: 'always',
    broken: `
      select t.id, 'is ' || t.status || ' at epoch ' || t.epoch || ', attempt ' || t.attempt as what
      from scope t
      where (t.status = 'queued' and (t.epoch <> 0 or t.start_position is not null or t.attempt <> 0))
        or (t.status in ('dispatched', 'running', 'suspended') and (t.epoch < 1 or t.dispatched_at is null))
        or (t.status in ('running', 'suspended') and t.start_position is null)
      union all
      select
        t.id,
        'is at epoch ' || t.epoch || ', its step ' || s.step || ' attempt ' || s.attempt || ' at ' || s.epoch
          || ' of ' || s.holder_id
      from scope t
      join boxcar.steps s on s.turn_id = t.id
      where s.epoch > t.epoch
        or (t.status = 'running' and s.epoch = t.epoch and s.holder_id <> t.holder_id)
      union all
      select
        t.id,
        'is at epoch ' || t.epoch || ' after step ' || t.step_count || ', its call ' || k.id || ' at ' || k.epoch
          || ' of step ' || k.step
      from scope t
      join boxcar.tool_calls k on k.turn_id = t.id
      where k.epoch > t.epoch or k.step > t.step_count`,
  },
  {
    name: 'canceled-below',
    rule: 'below a canceled turn every turn has ended, and none of them started after it (10 s for transactions in progress), except turns that another caller waited for when the turn was canceled because its own waiter had ended',
    when: 'always',
    broken: `
      with recursive above as (
        select t.id, t.parent_turn_id, 0 as n, t.batch_ids
        from scope t
        union all
        select a.id, p.parent_turn_id, a.n + 1, a.batch_ids || p.batch_ids
        from above a
        join boxcar.turns p on p.id = a.parent_turn_id
        where a.n < 1000
      )
      select
        t.id,
        'is ' || t.status || ', started ' || coalesce(e.created_at::text, 'never') || ', below ' || c.id
          || ', which was canceled ' || c.ended_at as what
      from above a
      join boxcar.turns c on c.id = a.parent_turn_id and c.status = 'canceled'
      join scope t on t.id = a.id
      left join boxcar.tape_entries e on e.box_id = t.output_box_id and e.position = t.start_position
      where (t.ended_at is null or e.created_at > c.ended_at + interval '10 seconds')
        and (
          c.error->'details'->>'canceled_by' is not null
          or not exists (
            select from boxcar.batches b
            left join boxcar.turns w on w.id = b.turn_id
            where b.id = any (a.batch_ids)
              and (b.turn_id is null or w.ended_at is null or w.ended_at > c.ended_at)
          )
        )`,
  },
  {
    name: 'steps-counted',
    rule: 'a step is committed once, and each counted step was committed',
    when: 'always',
    broken: `
      select t.id, 'step ' || s.step || ' was committed ' || count(*) || ' times' as what
      from scope t
      join boxcar.steps s on s.turn_id = t.id
      where s.committed_at is not null
      group by t.id, s.step
      having count(*) > 1
      union all
      select t.id, 'counts ' || t.step_count || ' steps, committed are ' || count(s.step)
      from scope t
      left join boxcar.steps s on s.turn_id = t.id and s.committed_at is not null
      group by t.id, t.step_count
      having t.step_count <> count(s.step) or t.step_count <> coalesce(max(s.step), 0)`,
  },
  {
    name: 'one-active-turn',
    rule: 'an agent has at most one active turn',
    when: 'always',
    broken: `
      select t.agent_id as id, 'has ' || count(*) || ' active turns' as what
      from scope t
      where t.status in ('dispatched', 'running', 'suspended')
      group by t.agent_id
      having count(*) > 1`,
  },
  {
    name: 'agent-order',
    // Ids contain the clock of the machine that made them, and `created_at` is the beginning of their transaction. Both give an order only
    // where the clocks agree. Where they do not, the turn whose transaction began first may have been accepted second.
    rule: 'the turns of an agent start in the order in which they were accepted',
    when: 'always',
    broken: `
      select t.id, 'waits although the later turn ' || o.id || ' of its agent was started' as what
      from scope t
      join boxcar.turns o on o.agent_id = t.agent_id and o.id > t.id and o.created_at > t.created_at
      where t.status = 'queued'
        and o.status in ('dispatched', 'running', 'suspended')
        and ${HAS_SERVER_TIME('t')}
        and ${HAS_SERVER_TIME('o')}`,
  },
];
