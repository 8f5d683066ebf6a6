/** Invariants of the sessions of clients (`invariants.ts`): reads of one snapshot, without locks. */
import type { Invariant } from './invariant.js';

const SESSIONS = `
  select *
  from boxcar.handoff_sessions
  where id in (select id from boxcar.handoff_sessions order by id desc limit :turns)`;

const TYPES = ['message', 'file', 'tool_call', 'system'] as const;
const total = (row: string): string => `(${TYPES.map((type) => `${row}.${type}_count`).join(' + ')})`;

/** True when an entry says another number of entries of a type than there are up to it. */
const hasOtherCount = (type: string): string =>
  `e.${type}_count <> coalesce(q.${type}_count, 0) + count(*) filter (where e.type = '${type}') over w`;

export const SESSION_INVARIANTS: readonly Invariant[] = [
  {
    name: 'session-counts',
    rule: 'a session counts its context entries by type, beginning with the entries of the session that it continues, and numbers them without a gap; a completed session is frozen at its last entry',
    when: 'always',
    broken: `
      with own as (
        select
          s.id, ${total('s')} as counted, coalesce(${total('q')}, 0) as base, s.frozen_head, e.n, e.first, e.last,
          e.head,
          ${TYPES.map((type) => `s.${type}_count - coalesce(q.${type}_count, 0) <> e.${type}`).join(' or ')} as is_off
        from (${SESSIONS}) s
        left join boxcar.handoff_sessions q on q.id = s.continues
        cross join lateral (
          select
            count(*)::int as n, min(e.sequence_number) as first, max(e.sequence_number) as last,
            max(e.position) as head,
            ${TYPES.map((type) => `(count(*) filter (where e.type = '${type}'))::int as ${type}`).join(', ')}
          from boxcar.handoff_session_entries e
          where e.session_id = s.id
        ) e
      )
      select
        id,
        'counts ' || counted || ' entries behind ' || base || ', has ' || n
          || ' from ' || coalesce(first::text, 'none') || ' to ' || coalesce(last::text, 'none')
          || ', frozen at ' || coalesce(frozen_head::text, 'none') as what
      from own
      where is_off
        or n <> counted - base
        or first <> base + 1
        or last <> counted
        or n = 0
        or frozen_head <> head`,
  },
  {
    name: 'session-entries',
    rule: 'each context entry is on the tape of its session, in the order of its numbers, and records the number of entries of each type up to itself',
    when: 'always',
    broken: `
      with entries as (
        select
          s.id, e.sequence_number, e.position, t.position is null as is_missing,
          lag(e.position) over w >= e.position as is_back,
          ${TYPES.map(hasOtherCount).join(' or ')} as is_off
        from (${SESSIONS}) s
        left join boxcar.handoff_sessions q on q.id = s.continues
        join boxcar.handoff_session_entries e on e.session_id = s.id
        left join boxcar.tape_entries t on t.box_id = s.tape_box_id and t.position = e.position
        window w as (partition by s.id order by e.sequence_number)
      )
      select
        id,
        'has entry ' || sequence_number || ' at position ' || position
          || case
            when is_missing then ', where its tape has none'
            when is_back then ', before its predecessor'
            else ', with other counts'
          end as what
      from entries
      where is_missing or is_back or is_off`,
  },
  {
    name: 'session-handoffs',
    rule: 'a session that was handed on has an anchor for the handoff, its target may read it up to that anchor, and a full handoff has completed it; a handoff that waits for an approval or was refused has changed nothing',
    when: 'always',
    broken: `
      with handed as (
        select
          h.id, h.phase, h.joined_to, h.session_head, h.session_request, s.status, s.tape_box_id,
          coalesce(
            t.agent_id, case when h.phase in ('in_progress', 'completed') then h.serving_agent_id end
          ) as agent_id,
          exists (
            select from boxcar.tape_entries e
            join boxcar.cards c on c.id = e.card_id
            where e.box_id = s.tape_box_id
              and e.kind = 'anchor'
              and (c.content is null or c.content->'data'->>'handoff_id' = h.id::text)
              and e.position < h.session_head
              and e.anchor_name = 'handoff/' || h.target_agent
          ) as is_told
        from (${SESSIONS}) s
        join boxcar.handoffs h on h.session_id = s.id
        left join boxcar.turns t on t.id = h.turn_id
      )
      select
        id,
        'is ' || phase || ', handed on up to ' || coalesce(session_head::text, 'nowhere')
          || case when is_told then '' else ' without an anchor' end
          || ', the session is ' || status as what
      from handed h
      where (
          h.session_head is null
          and h.joined_to is null
          and h.phase not in ('awaiting_approval', 'rejected', 'failed', 'canceled')
        )
        or (h.session_head is not null and h.phase = 'awaiting_approval')
        or (
          h.session_head is not null
          and (not h.is_told or (h.session_request = 'full_handoff' and h.status <> 'completed'))
        )
        or (
          h.session_head is not null
          and h.agent_id is not null
          and not exists (
            select from boxcar.grants g
            where g.box_id = h.tape_box_id
              and g.agent_id = h.agent_id
              and g.mode = 'read'
              and coalesce(g.upto_position >= h.session_head, true)
          )
          and not exists (
            select from boxcar.projects p
            join boxcar.boxes b on b.project_id = p.id
            where b.id = h.tape_box_id and p.operator_agent_id = h.agent_id
          )
          and not exists (
            select from boxcar.boxes b
            where b.id = h.tape_box_id and h.agent_id in (b.owner_agent_id, b.maker_agent_id)
          )
        )`,
  },
];
