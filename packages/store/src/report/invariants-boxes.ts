/** Invariants of contexts and of the prompts that were made from them (`invariants.ts`): reads of one snapshot, without locks. */
import { ASKED_COUNT } from '../box/index.js';
import { onceReadable } from '../rows/index.js';
import type { Invariant } from './invariant.js';

/** The context boxes of the turns in scope and their segments. */
const SEGMENTS = `
  from scope t
  join boxcar.boxes b on b.id = t.context_box_id
  cross join lateral jsonb_array_elements(b.segments) with ordinality s(value, ord)
  cross join lateral jsonb_to_record(s.value) as x(
    rule text, via uuid, source uuid, "from" int, "to" int, skip int[], count int, tokens int
  )`;

/**
 * Whether two conditions hold. First, box `b` is the tape of the agent from which the turn's agent was cloned, or a context that is shown
 * on the line of that tape. Second, the maker of the context box `made` is that agent or has launched it.
 */
const IS_SEEN_BY_WARD = `
  exists (
    select from boxcar.agents clone
    join boxcar.agents ward on ward.id = clone.derived_from
    where clone.id = made.turn_agent_id
      and (ward.id = made.maker_agent_id or ward.owner_agent_id = made.maker_agent_id)
      and exists (
        select from (
          select ward.id
          union all
          select part.owner_agent_id
          from boxcar.boxes tape
          cross join lateral unnest(tape.line_boxes) l(id)
          join boxcar.boxes part on part.id = l.id
          where tape.id in (ward.tape_box_id, (select s.id from boxcar.sessions s where s.agent_id = ward.id))
        ) reader(id)
        where reader.id = b.owner_agent_id
          or exists (
            select from boxcar.grants g
            where g.box_id = b.id and g.agent_id = reader.id and g.mode = 'read'
          )
      )
  )`;

/** The context boxes of the turns in scope, and the newest ones. */
const CONTEXTS = `
  select *
  from boxcar.boxes
  where kind = 'context'
    and id in (
      (select context_box_id from scope)
      union
      (select id from boxcar.boxes where kind = 'context' order by id desc limit :turns)
    )`;

export const BOX_INVARIANTS: readonly Invariant[] = [
  {
    name: 'segments-add-up',
    rule: 'a context box has the cards and tokens that its segments state, and each segment is inside the box or tape to which it refers',
    when: 'always',
    broken: `
      select distinct
        b.id,
        'segment ' || s.ord || ' (' || x.rule || ') says ' || x.count || ' cards of ' || x."from" || ' to ' || x."to"
          || ', source ' || coalesce(x.source::text, 'own cards') as what
      ${SEGMENTS}
      left join boxcar.boxes l on l.id = x.source
      where x."from" < 1
        or x.count < 0
        or x.count > x."to" - x."from" + 1
        or (x.source is not null and l.id is null)
        or x."to" > case
          when x.source is null then cardinality(b.card_ids)
          when l.kind = 'tape' then l.head_position
          else cardinality(l.card_ids)
        end
        or (
          x.count <> x."to" - x."from" + 1 - coalesce(cardinality(x.skip), 0)
          and (x.source is null or l.kind = 'context')
        )
      union all
      select
        b.id,
        'has ' || b.card_count || ' cards of ' || b.token_estimate || ' tokens, its segments ' || sum(x.count)
          || ' of ' || sum(x.tokens) as what
      ${SEGMENTS}
      group by b.id, b.card_count, b.token_estimate, t.id
      having sum(x.count) <> b.card_count or sum(x.tokens) <> b.token_estimate`,
  },
  {
    name: 'box-has-cards',
    rule: 'the own cards of a context box exist and are of its project',
    when: 'always',
    broken: `
      select distinct
        b.id,
        'names the card ' || u.card_id
          || ', which ' || case when c.id is null then 'does not exist' else 'is of another project' end as what
      from (${CONTEXTS}) b
      cross join lateral unnest(b.card_ids) as u(card_id)
      left join boxcar.cards c on c.id = u.card_id
      where c.id is null or c.project_id <> b.project_id`,
  },
  {
    name: 'readable-by-grant',
    rule: 'each position that was inherited or cloned from a box could be read by the maker; only a packing with access `trusted` is exempt',
    when: 'always',
    // A grant may have expired since. Boxes from before migration 16 may have been packed with grants that the migration has removed.
    broken: `
      with made as (
        select
          b.id, b.project_id, b.maker_agent_id, t.agent_id as turn_agent_id, x.rule,
          coalesce(x.via, x.source) as box_id, x."from", x."to",
          case
            when x.via is null
              then int4multirange(int4range(x."from", greatest(x."from", x."to" + 1)))
                - coalesce((select range_agg(int4range(v, v, '[]')) from unnest(x.skip) v), '{}')
            else '{[1,2)}'
          end as positions
        ${SEGMENTS}
        where x.rule in ('inherit', 'snapshot')
          and b.created_at > coalesce((
            select v.applied_at
            from boxcar.schema_version v
            where v.version = 16
          ), '-infinity')
      )
      select distinct
        made.id,
        made.rule || 's ' || made."from" || ' to ' || made."to" || ' of ' || b.id
          || ', which ' || coalesce(made.maker_agent_id::text, 'nobody') || ' may not read' as what
      from made
      join boxcar.boxes b on b.id = made.box_id
      join boxcar.projects p on p.id = made.project_id
      where b.project_id <> made.project_id
        or not (
          made.positions <@ (${onceReadable('made.maker_agent_id')})
          or (made.rule = 'snapshot' and ${IS_SEEN_BY_WARD})
        )`,
  },
  {
    name: 'prompt-has-manifest',
    rule: 'a committed step names the card and the box of each message of its prompt: every message once and in order, from the context boxes of its tape and from its tape up to the position that was read',
    when: 'always',
    broken: `
      with lines as (
        select
          t.id, t.project_id, t.context_box_id, t.output_box_id, s.step, s.to_position, m.ord, x.*,
          coalesce(
            sum(x.count) over (
              partition by s.turn_id, s.step, s.attempt
              order by m.ord rows between unbounded preceding and 1 preceding
            ),
            0
          ) as before
        from scope t
        join boxcar.steps s on s.turn_id = t.id
        cross join lateral jsonb_array_elements(
          case when jsonb_typeof(s.manifest->'messages') = 'array' then s.manifest->'messages' else '[]' end
        ) with ordinality m(value, ord)
        cross join lateral jsonb_to_record(m.value) as x(
          kind text, "boxId" uuid, "from" int, "to" int, first int, count int
        )
        where s.committed_at is not null
      )
      select t.id, 'step ' || s.step || ' was committed without a manifest' as what
      from scope t
      join boxcar.steps s on s.turn_id = t.id
      where s.committed_at is not null and (s.manifest is null or s.prompt_hash is null)
      union all
      select
        n.id,
        'step ' || n.step || ': line ' || n.ord || ' of its manifest (' || n.kind || ') says messages ' || n.first
          || ' to ' || n.first + n.count - 1 || ' from ' || coalesce(n."from"::text, '-')
          || ' to ' || coalesce(n."to"::text, '-') || coalesce(' of ' || n."boxId", '')
      from lines n
      left join boxcar.boxes b on b.id = n."boxId"
      where n.first <> n.before
        or n.count < 1
        or n."from" > n."to"
        or (n.kind in ('tape', 'earlier') and n."to" > n.to_position)
        or (
          n.kind = 'context'
          and (
            b.id is null
            or b.project_id <> n.project_id
            or case when n."to" > b.card_count then n."to" > b.card_count + ${ASKED_COUNT} end
            or not (
              b.id = n.context_box_id
              or (n.output_box_id, b.id) in (select o.output_box_id, o.context_box_id from boxcar.turns o)
              or exists (
                select from boxcar.boxes f
                cross join lateral unnest(f.line_boxes) as l(id)
                where f.id = n.output_box_id
                  and (l.id, b.id) in (select o.output_box_id, o.context_box_id from boxcar.turns o)
              )
            )
          )
        )`,
  },
];
