/** Invariants of tapes, forks and sessions (`invariants.ts`): reads of one snapshot, without locks. */

import { entriesOf, entryAt } from '../visible/index.js';
import type { Invariant } from './invariant.js';

/** The tapes of the turns in scope, and the newest ones. */
const TAPES = `
  select *
  from boxcar.boxes
  where kind = 'tape'
    and id in (
      (select output_box_id from scope)
      union
      (select id from boxcar.boxes where kind = 'tape' order by id desc limit :turns)
    )`;

/** The boxes of the line of a tape p, itself included: `box_id`, `behind`, `upto`, `n`. */
const PARTS = `
  select l.box_id, coalesce(p.line_ends[l.n - 1], 0) as behind, l.upto, l.n
  from unnest(p.line_boxes, p.line_ends) with ordinality as l(box_id, upto, n)
  union all
  select p.id, coalesce(p.fork_position, 0), p.head_position, coalesce(cardinality(p.line_boxes), 0) + 1`;

/** The newest forks, and those that are open. */
const FORKS = `
  select *
  from boxcar.forks
  where id in (
    (select id from boxcar.forks order by id desc limit :turns)
    union
    (select id from boxcar.forks where status = 'open' order by id limit $1)
  )`;

export const TAPE_INVARIANTS: readonly Invariant[] = [
  {
    name: 'tape-gapless',
    rule: 'a tape’s own entries run to its head without a gap, and a fork’s begin after its fork point; its last anchor is at the recorded position, and it counts its anchors; the tape that a reset replaced is archived and is the previous incarnation',
    when: 'always',
    broken: `
      with tapes as (${TAPES}),
      found as (
        select b.id, count(e.position) as entries, min(e.position) as first, max(e.position) as last, b.head_position,
          coalesce(b.fork_position, 0) as behind
        from tapes b
        left join boxcar.tape_entries e on e.box_id = b.id
        group by b.id, b.head_position, b.fork_position
      ),
      anchors as (
        select
          b.id, count(e.position) as anchors, max(e.position) as last, b.last_anchor_position, b.anchor_count,
          coalesce(bool_or(e.position = b.view_anchor_position), false)
          or b.view_anchor_position is null
          or b.view_anchor_position = 0 as has_view
        from tapes b
        left join lateral ${entriesOf('b', { from: '1', to: 'b.head_position', where: "o.kind = 'anchor'" })} e
          on true
        group by b.id, b.last_anchor_position, b.anchor_count, b.view_anchor_position
      )
      select
        id,
        'has ' || entries || ' entries from ' || coalesce(first::text, 'none')
          || ' to ' || coalesce(last::text, 'none') || ', head ' || head_position || ', forked at ' || behind as what
      from found
      where entries <> head_position - behind
        or coalesce(last, behind) <> head_position
        or coalesce(first, behind + 1) <> behind + 1
      union all
      select
        id,
        'has ' || anchors || ' anchors to ' || coalesce(last::text, 'none') || ', says ' || coalesce(anchor_count, 1)
          || ' to ' || last_anchor_position
          || case when has_view then '' else ', and begins its view where none is' end
      from anchors
      where coalesce(last, 0) <> last_anchor_position
        or anchors <> coalesce(anchor_count, 1)
        or not has_view
      union all
      select
        b.id,
        'is incarnation ' || b.incarnation || ' in the place of ' || o.id || ', which is ' || o.incarnation
          || case when o.archived_at is null then ' and not archived' else '' end
      from tapes b
      join boxcar.boxes o on o.id = b.previous_box_id
      where o.archived_at is null or b.incarnation <> o.incarnation + 1`,
  },
  {
    name: 'entry-has-card',
    rule: 'every entry that needs a card has one, and the card belongs to the project of the tape or is the first card of all tapes',
    when: 'always',
    broken: `
      select distinct
        e.box_id as id,
        'names the card ' || e.card_id || ' at ' || e.position
          || ', which ' || case when c.id is null then 'does not exist' else 'is of another project' end as what
      from (${TAPES}) b
      join boxcar.tape_entries e on e.box_id = b.id and e.card_id is not null
      left join boxcar.cards c on c.id = e.card_id
      where c.id is null
        or (
          c.project_id <> b.project_id
          and not exists (select from boxcar.projects p where p.bootstrap_card_id = c.id)
        )`,
  },
  {
    name: 'fork-line',
    rule: "a fork's line equals the line of its parent up to the fork point, and each part of it has the entries that the fork reads",
    when: 'always',
    broken: `
      with forks as (select * from (${TAPES}) t where parent_box_id is not null),
      expected as (
        select
          f.id, f.line_boxes, f.line_ends, f.fork_position, p.id as parent_id, p.head_position as parent_head,
          coalesce(array_agg(l.box_id order by l.n) filter (where l.box_id is not null), '{}') as boxes,
          coalesce(array_agg(l.upto order by l.n) filter (where l.box_id is not null), '{}') as ends
        from forks f
        left join boxcar.boxes p on p.id = f.parent_box_id
        left join lateral (
          select s.box_id, least(s.upto, f.fork_position) as upto, s.n
          from (${PARTS}) s
          where s.behind < f.fork_position
        ) l on true
        group by f.id, f.line_boxes, f.line_ends, f.fork_position, p.id, p.head_position
      )
      select
        id,
        'was forked at ' || fork_position || ' from ' || coalesce(parent_id::text, 'a tape that does not exist')
          || ' with head ' || coalesce(parent_head::text, 'none') as what
      from expected
      where parent_id is null or fork_position > parent_head
      union all
      select
        id,
        'reads ' || line_boxes::text || ' up to ' || line_ends::text || ', its parent says ' || boxes::text
          || ' up to ' || ends::text
      from expected
      where line_boxes <> boxes or line_ends <> ends`,
  },
  {
    name: 'view-begins',
    rule: 'a view begins with its anchor, or before the anchor with the step that was open then, or at the position that a compaction recorded',
    when: 'always',
    broken: `
      select
        b.id,
        'begins its view at ' || b.view_position || ' of ' || b.head_position
          || ', its anchor is at ' || v.anchor as what
      from (${TAPES}) b
      cross join lateral (select coalesce(b.view_anchor_position, b.last_anchor_position) as anchor) v
      where b.view_position > b.head_position
        or b.view_position > greatest(v.anchor, 1)
        or (
          b.view_position < v.anchor
          and not exists (select from ${entryAt('b.id', 'b.view_position')} e where e.step is not null)
          and not exists (
            select from ${entryAt('b.id', 'v.anchor')} e
            join boxcar.cards c on c.id = e.card_id
            where c.metadata->'compaction'->>'keep_from' = b.view_position::text
          )
        )`,
  },
  {
    name: 'archived-is-left',
    rule: 'an archived tape is not the current tape of an agent, not the tape of a turn that has not ended, and not the box of an open fork; the tape of an agent is its own',
    when: 'always',
    broken: `
      select
        a.id,
        'has the tape ' || b.id
          || case when b.archived_at is null then ', which is not its own' else ', which is archived' end as what
      from (${TAPES}) b
      join boxcar.agents a on a.tape_box_id = b.id
      where b.archived_at is not null or b.owner_agent_id is distinct from a.id
      union all
      select t.id, 'is ' || t.status || ' and writes to ' || b.id || ', which is archived'
      from scope t
      join boxcar.boxes b on b.id = t.output_box_id
      where t.ended_at is null and b.archived_at is not null
      union all
      select f.id, 'is an open fork, and its box ' || f.box_id || ' is archived'
      from (${FORKS}) f
      join boxcar.boxes b on b.id = f.box_id
      where f.status = 'open' and b.archived_at is not null`,
  },
  {
    name: 'fork-ended',
    rule: 'a fork and its box record the same end, and a merged fork is on its parent once: its entries, one after the other, then its receipt',
    when: 'always',
    broken: `
      with forks as (select * from (${FORKS}) f)
      select f.id, 'is ' || f.status || ', its box is ' || coalesce(b.fork_status, 'gone') as what
      from forks f
      left join boxcar.boxes b on b.id = f.id
      where b.fork_status is distinct from f.status
      union all
      select
        f.id,
        'was merged as ' || f.receipt::text || ', its parent has ' || m.entries
          || ' entries from ' || coalesce(m.first::text, 'none') || ' to ' || coalesce(m.last::text, 'none')
          || ' and ' || m.receipts || ' receipts'
      from forks f
      join boxcar.boxes p on p.id = (f.receipt->>'parent')::uuid
      cross join lateral (
        select
          count(*) filter (where e.dedup_key like 'fork:' || f.id || ':%') as entries,
          min(e.position) filter (where e.dedup_key like 'fork:' || f.id || ':%') as first,
          max(e.position) filter (where e.dedup_key like 'fork:' || f.id || ':%') as last,
          count(*) filter (
            where e.dedup_key = 'fork/merge:' || f.id and e.position = (f.receipt->>'event')::int
          ) as receipts
        from boxcar.tape_entries e
        where e.box_id = p.id and e.dedup_key is not null
      ) m
      where f.status = 'merged'
        and (
          m.receipts <> 1
          or (
            (f.receipt->>'replaced') = 'false'
            and (
              m.entries <> (f.receipt->>'merged')::int
              or m.first is distinct from (f.receipt->>'first')::int
              or m.last is distinct from (f.receipt->>'last')::int
            )
          )
        )
      union all
      select
        f.id,
        'has merged ' || e.position || ' from ' || e.dedup_key || ', where it has ' || coalesce(o.kind, 'nothing')
          || coalesce(' ' || o.card_id, '')
      from forks f
      join boxcar.tape_entries e
        on e.box_id = (f.receipt->>'parent')::uuid and e.dedup_key like 'fork:' || f.id || ':%'
      left join boxcar.tape_entries o on o.box_id = f.id and o.position = split_part(e.dedup_key, ':', 3)::int
      where f.status = 'merged'
        and (o.kind is distinct from e.kind or o.card_id is distinct from e.card_id)`,
  },
  {
    name: 'told',
    rule: 'the ends of turns that notify their parent have been reported, and the reports on a tape have been read',
    when: 'settled',
    broken: `
      select
        id,
        case
          when notifies then 'has ended without a report'
          else 'has left position ' || unseen_position || ' unread'
        end as what
      from scope
      where ended_at is not null and (notifies or unseen_position is not null)`,
  },
  {
    name: 'session-whole',
    rule: 'a session has its first tape, and unless it was imported it has an agent with its name and the tape from which it was forked',
    when: 'wide',
    broken: `
      select
        s.id,
        'has ' || case
            when a.id is null then 'no agent'
            when a.name is distinct from s.name then 'an agent of another name'
            when b.id is null then 'no tape'
            else 'no parent'
          end as what
      from boxcar.sessions s
      left join boxcar.agents a on a.id = s.agent_id
      left join boxcar.boxes b on b.id = s.id
      left join boxcar.boxes p on p.id = s.parent_box_id
      where b.id is null
        or (a.id is null or a.name is distinct from s.name or p.id is null)
          and (s.agent_id is not null or s.parent_box_id is not null)`,
  },
  {
    name: 'words-of-entries',
    rule: 'words for the search belong to an entry or turn that exists, and none are left of erased content',
    when: 'wide',
    broken: `
      select
        w.box_id as id,
        'has words for ' || w.position
          || case
            when e.box_id is null then ', where nothing is'
            when e.card_id is distinct from w.card_id then ' of another card'
            else ', which was erased'
          end as what
      from boxcar.tape_words w
      left join boxcar.tape_entries e on e.box_id = w.box_id and e.position = w.position
      left join boxcar.cards c on c.id = w.card_id
      where w.position > 0
        and (
          e.box_id is null
          or e.card_id is distinct from w.card_id
          or (w.words is not null and c.erased_at is not null)
        )
      union all
      select
        w.box_id,
        'has words of its instruction' || case
            when t.id is null then ', and is not a turn'
            when c.erased_at is not null then ', which was erased'
            else ' of a card that is not in its context'
          end
      from boxcar.tape_words w
      left join boxcar.turns t on t.id = w.box_id
      left join boxcar.cards c on c.id = w.card_id
      where w.position = 0
        and (
          t.id is null
          or (
            w.words is not null
            and (
              c.id is null
              or c.erased_at is not null
              or not exists (
                select from boxcar.boxes b
                where b.id = t.context_box_id and b.card_ids @> array[w.card_id]
              )
            )
          )
        )`,
  },
  {
    // `turn:` is written by builds before schema 16, and gives no right to read (`rights.ts`).
    name: 'grant-fits',
    rule: 'a right is held by an agent of the project of its box, ends within it, and records its giver',
    when: 'wide',
    broken: `
      select
        g.box_id as id,
        'is granted (' || g.mode || ') to ' || g.agent_id
          || case
            when a.id is null then ', who does not exist'
            when a.project_id <> b.project_id or g.project_id <> b.project_id then ' of another project'
            when g.upto_position > b.head_position
              then ' up to ' || g.upto_position || ', beyond its head ' || b.head_position
            else ' by ' || g.source
          end as what
      from boxcar.grants g
      join boxcar.boxes b on b.id = g.box_id
      left join boxcar.agents a on a.id = g.agent_id
      where a.id is null
        or a.project_id <> b.project_id
        or g.project_id <> b.project_id
        or (b.kind = 'tape' and g.upto_position > b.head_position)
        or g.source !~ '^(card:|turn:)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'`,
  },
];
