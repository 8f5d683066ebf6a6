-- min_compatible: 15
-- Ends of turns give no rights, whichever build writes them.

-- As before, and: builds of schema 15 write a grant with the source `turn:<id>` at an end. Their own readers use it, newer builds ignore it.
-- Such a grant does not change a grant that somebody has given. A build of schema 15 also writes it when it reports the end of a session's
-- turn to an agent: the agent is then noted in the turn, as newer builds do.
create or replace function boxcar.refuse_purging() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  wanted uuid[];
  found_id uuid;
begin
  if tg_table_name = 'grants' then
    if new.source like 'turn:%' then
      -- The transaction of the end itself reports nothing yet, so the turn has ended before.
      update boxcar.turns t set told_agent_id = new.agent_id
        where t.id = substr(new.source, 6)::uuid and t.notifies and t.ended_at < now() and t.output_box_id = new.box_id;
      if exists (select from boxcar.grants g where g.agent_id = new.agent_id and g.box_id = new.box_id and g.mode = new.mode and g.source not like 'turn:%') then
        return null;
      end if;
    end if;
  end if;
  perform pg_advisory_xact_lock_shared(7205129002);
  if not exists (select from boxcar.purging) then return new; end if;
  if tg_table_name = 'grants' then
    wanted := array[new.box_id];
  else
    wanted := array(select x.ref::uuid from jsonb_array_elements(coalesce(new.segments, '[]')) s
      cross join lateral (values (s.value->>'source'), (s.value->>'via')) x(ref) where x.ref is not null) || new.parent_box_id || new.line_boxes;
  end if;
  select p.box_id into found_id from boxcar.purging p where p.box_id = any (wanted) and p.until > clock_timestamp() limit 1;
  if found_id is not null then
    raise exception 'box % is being purged', found_id using errcode = 'BX002', detail = found_id::text;
  end if;
  return new;
end $$;

-- Ends of sessions' turns that older builds have reported. The key of the message names the turn, and the turn's agent wrote the message.
-- Only turns that have ended are changed.
update boxcar.turns t set told_agent_id = told.agent_id
from (
  select case when e.dedup_key ~ '^fork-result:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then substr(e.dedup_key, 13)::uuid end as turn_id, e.author_id, a.id as agent_id
  from boxcar.tape_entries e join boxcar.boxes b on b.id = e.box_id join boxcar.agents a on a.id = b.owner_agent_id
  where e.dedup_key like 'fork-result:%' and e.dedup_key is not null
    -- the agent's own tape, as it is or as a reset has archived it
    and (a.tape_box_id = b.id or (b.archived_at is not null and b.tape_name is null and a.tape_box_id in (
      with recursive newer as (
        select b.id
        union
        select n.id from newer join boxcar.boxes n on n.previous_box_id = newer.id
      )
      select id from newer)))
) told
where t.id = told.turn_id and t.told_agent_id is null and t.notifies is false and t.ended_at is not null and t.agent_id::text = told.author_id
  and t.agent_id in (select s.agent_id from boxcar.sessions s);

-- Ends have also widened grants that somebody gave. The message of a handoff says how far its grant reaches: up to the head of its place.
-- A transfer, and `grant_box`, give as much as the giver has. All of this is looked up before the lock, which blocks writers of grants.
do $$
declare
  agents uuid[];
  boxes uuid[];
  sources text[];
  bounds int[];
begin
  with recursive given as materialized (
    select g.agent_id, g.box_id, g.source, g.upto_position,
      case when m.ownership = 'share' then coalesce(substring(m.ref from '[?]head=([0-9]{1,9})$'), substring(m.ref from '/entry/([0-9]{1,9})$'))::int end as head,
      case when m.card_id is null then g.source when m.ownership = 'transfer' then m.giver end as giver
    from boxcar.grants g left join lateral (
      select c.id as card_id, c.content->'data'->'content'->>'ownership' as ownership, c.content->'data'->'content'->>'tape_ref' as ref, substr(c.content->'data'->>'from', 7) as giver
      from boxcar.cards c where c.id = case when g.source ~ '^card:[0-9a-f-]{36}$' then substr(g.source, 6)::uuid end offset 0) m on true
    where g.mode = 'read' and g.upto_position is not null and g.source not like 'turn:%'
  ),
  bounded as (
    select g.agent_id, g.box_id, g.source, least(g.upto_position, g.head) as upto from given g where g.head is not null
    union
    select g.agent_id, g.box_id, g.source, least(g.upto_position, b.upto) from bounded b join given g on g.box_id = b.box_id and g.giver = b.agent_id::text and g.head is null
  )
  select array_agg(b.agent_id), array_agg(b.box_id), array_agg(b.source), array_agg(b.upto) into agents, boxes, sources, bounds
  from (select b.agent_id, b.box_id, b.source, min(b.upto) as upto from bounded b group by b.agent_id, b.box_id, b.source) b;

  lock table boxcar.grants in share row exclusive mode;
  update boxcar.grants g set upto_position = b.upto
    from unnest(agents, boxes, sources, bounds) as b(agent_id, box_id, source, upto)
    where g.agent_id = b.agent_id and g.box_id = b.box_id and g.mode = 'read' and g.source = b.source and g.upto_position > b.upto;
end $$;
