/** Invariants of handoffs, their approvals and their logs (`invariants.ts`): reads of one snapshot, without locks. */
import type { Invariant } from './invariant.js';

/** The newest handoffs, and those that have not ended. */
const HANDOFFS = `
  select *
  from boxcar.handoffs
  where id in (
    (select id from boxcar.handoffs order by id desc limit :turns)
    union
    (select id from boxcar.handoffs where ended_at is null order by id limit :turns)
  )`;

export const HANDOFF_INVARIANTS: readonly Invariant[] = [
  {
    name: 'handoff-approved',
    rule: 'a handoff that needs an approval has no turn before its ticket is consumed, a ticket begins one handoff, and a rejected handoff has no turn',
    when: 'always',
    broken: `
      select
        h.id,
        'is ' || h.phase || ' with turn ' || h.turn_id
          || ', the policy said ' || coalesce(h.decision->>'level', 'nothing')
          || ', its ticket ' || coalesce(h.ticket_id::text, 'none') || ' is ' || coalesce(a.status, 'none')
          || ', consumed at ' || coalesce(a.consumed_at::text, 'no time') as what
      from (${HANDOFFS}) h
      left join boxcar.approvals a on a.id = h.ticket_id
      where h.turn_id is not null
        and (
          h.phase = 'rejected'
          or (h.ticket_id is not null and (a.consumed_at is null or a.status <> 'approved'))
          or (h.ticket_id is null and h.decision->>'level' in ('require_approval', 'never'))
        )
      union all
      select h.id, 'and handoff ' || o.id || ' have both begun after ticket ' || h.ticket_id
      from (${HANDOFFS}) h
      join boxcar.handoffs o on o.ticket_id = h.ticket_id and o.id <> h.id
      where h.turn_id is not null and o.turn_id is not null`,
  },
  {
    name: 'handoff-ended',
    rule: 'a turn serves one handoff at most, and a handoff ends with its turn: neither before the end of the turn nor after the report of that end',
    when: 'always',
    broken: `
      select
        h.id,
        'is ' || h.phase || ', its turn ' || t.id || ' is ' || t.status
          || case when t.notifies then ', untold' else '' end as what
      from (${HANDOFFS}) h
      left join boxcar.handoffs j on j.id = h.joined_to
      join boxcar.turns t on t.id = coalesce(h.turn_id, j.turn_id)
      where (h.ended_at is null and t.ended_at is not null and t.notifies is not true)
        or (h.ended_at is not null and t.ended_at is null)
      union all
      select h.id, 'and handoff ' || o.id || ' are both served by turn ' || h.turn_id
      from (${HANDOFFS}) h
      join boxcar.handoffs o on o.turn_id = h.turn_id and o.id <> h.id`,
  },
  {
    name: 'handoff-log',
    rule: 'the log of a handoff is numbered without gaps, records its end once, and has a line for each attempt',
    when: 'always',
    broken: `
      select
        h.id,
        'counts ' || h.event_count || ' events and ' || h.attempts || ' attempts, its log has ' || e.n
          || ' up to ' || e.last || ', ' || e.started || ' of attempts and ' || e.ends || ' of its end' as what
      from (${HANDOFFS}) h
      cross join lateral (
        select
          count(*) as n, coalesce(max(e.seq), 0) as last,
          count(*) filter (where e.type = 'handoff.started') as started,
          count(*) filter (where e.type in ('handoff.completed', 'handoff.failed', 'handoff.rejected')) as ends
        from boxcar.handoff_events e
        where e.handoff_id = h.id
      ) e
      where e.n <> h.event_count
        or e.last <> h.event_count
        or e.started <> h.attempts
        or e.ends <> case when h.ended_at is null then 0 else 1 end`,
  },
  {
    name: 'handoff-callback',
    rule: 'a handoff with a callback has one delivery once it has ended, of the event of its end, and none before; other handoffs have none',
    when: 'always',
    broken: `
      select
        h.id,
        'is ' || h.phase || case when h.callback_url is null then ' without' else ' with' end
          || ' a callback, and has ' || d.n || ' deliveries, ' || d.of_end
          || ' of its end' as what
      from (${HANDOFFS}) h
      cross join lateral (
        select
          count(*) as n,
          count(*) filter (
            where d.url = h.callback_url
              and e.type in ('handoff.completed', 'handoff.failed', 'handoff.rejected')
          ) as of_end
        from boxcar.webhook_deliveries d
        left join boxcar.handoff_events e on e.handoff_id = d.event_handoff_id and e.seq = d.event_seq
        where d.handoff_id = h.id and d.push_config is null
      ) d
      where d.n <> d.of_end
        or d.n <> case when h.callback_url is not null and h.ended_at is not null then 1 else 0 end`,
  },
  {
    name: 'handoff-pushed',
    rule: 'every receiver of a task’s notifications has one delivery of the task’s end',
    when: 'always',
    broken: `
      select h.id, 'has ended, and ' || p.id || ' is not notified' as what
      from (${HANDOFFS}) h
      join boxcar.push_configs p on p.handoff_id = h.id
      where h.ended_at is not null
        and not exists (
          select from boxcar.webhook_deliveries d
          where d.event_handoff_id = h.id and d.event_seq = h.event_count and d.push_config = p.id
        )`,
  },
  {
    name: 'handoff-told',
    rule: 'the end of a handoff has been reported to the requesting agent if a report was requested',
    when: 'settled',
    broken: `
      select h.id, 'has ended without a report' as what
      from (${HANDOFFS}) h
      where h.ended_at is not null and h.notifies`,
  },
  {
    name: 'handoff-parts',
    rule: 'the parts of a turn are numbered without gaps, and the parts of a round are together and in order',
    when: 'always',
    broken: `
      select
        h.turn_id as id,
        'has ' || p.n || ' parts up to ' || p.last || ' in ' || p.rounds || ' rounds, ' || p.begun
          || ' of them begun' as what
      from (${HANDOFFS}) h
      cross join lateral (
        select
          count(*) as n, max(o.seq) as last, count(distinct o.round) as rounds,
          count(*) filter (where o.round is distinct from o.before) as begun,
          count(*) filter (where o.round = o.before and o.n <> o.n_before + 1) as unordered
        from (
          select p.seq, p.round, p.n, lag(p.round) over w as before, lag(p.n) over w as n_before
          from boxcar.turn_parts p
          where p.turn_id = h.turn_id
          window w as (order by p.seq)
        ) o
      ) p
      where p.n <> coalesce(p.last, 0) or p.rounds <> p.begun or p.unordered > 0`,
  },
  {
    name: 'handoff-messages',
    rule: 'messages of a handoff are numbered without gaps, a reply closes its question, and a handoff waits as long as one of its questions is open',
    when: 'always',
    broken: `
      select
        h.id,
        'has ' || m.n || ' messages up to ' || m.last || ', ' || m.unclosed
          || ' answered questions are open, ' || m.open
          || ' open ones since ' || coalesce(h.asking_since::text, 'no time') as what
      from (${HANDOFFS}) h
      cross join lateral (
        select
          count(*) as n, coalesce(max(m.seq), 0) as last,
          count(*) filter (where m.replies_to is null and m.closed_at is null) as open,
          count(*) filter (
            where m.replies_to is null
              and m.closed_at is null
              and exists (select from boxcar.handoff_messages a where a.handoff_id = h.id and a.replies_to = m.seq)
          ) as unclosed
        from boxcar.handoff_messages m
        where m.handoff_id = h.id
      ) m
      where m.n <> m.last or m.unclosed > 0 or (m.open > 0) <> (h.asking_since is not null)`,
  },
  {
    name: 'handoff-chain',
    rule: 'a hop of a chain is handed off once, after the previous hop has completed, and is undone only if it has completed and the chain has not',
    when: 'always',
    broken: `
      select
        h.id,
        case
          when n.same > 1
            then 'is one of ' || n.same || ' handoffs of hop ' || h.hop || ' of chain ' || h.parent_handoff_id
          when h.mode = 'handoff' then 'is hop ' || h.hop || ', and the previous hop has not completed'
          else 'undoes hop ' || h.hop || ': that one completed ' || n.done || ' times, later ones failed ' || n.failed
            || ' times'
        end as what
      from (${HANDOFFS}) h
      cross join lateral (
        select
          count(*) filter (where o.hop = h.hop and h.mode = 'handoff') as same,
          count(*) filter (where o.hop = h.hop - 1 and o.is_done) as before,
          count(*) filter (where o.hop = h.hop and o.is_done) as done,
          count(*) filter (where o.hop > h.hop and not o.is_done) as failed
        from (
          select
            s.hop,
            (s.ended_at is not null and s.phase = 'completed') or t.status in ('success', 'partial') as is_done
          from boxcar.handoffs s
          left join boxcar.handoffs j on j.id = s.joined_to
          left join boxcar.turns t on t.id = coalesce(s.turn_id, j.turn_id)
          where s.parent_handoff_id = h.parent_handoff_id and s.mode = 'handoff' and s.hop is not null
        ) o
      ) n
      where h.hop is not null
        and (
          n.same > 1
          or (h.mode = 'handoff' and h.hop > 1 and n.before = 0)
          or (
            h.mode = 'compensate'
            and (
              n.done = 0
              or (
                n.failed = 0
                and not exists (
                  select from boxcar.handoffs c
                  join boxcar.turns t on t.id = c.turn_id
                  where c.id = h.parent_handoff_id and t.status in ('failed', 'timeout', 'canceled')
                )
              )
            )
          )
        )`,
  },
];
