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
-- A transfer, and `grant_box`, give as much as the giver has, whose own grant is then looked up.
create function boxcar.origin_of_grant(source text, out head int, out giver uuid) language sql stable as $$
  select case when m.ownership = 'share' then coalesce(substring(m.ref from '[?]head=([0-9]{1,9})$'), substring(m.ref from '/entry/([0-9]{1,9})$'))::int end,
    case when m.ownership is null or m.ownership = 'transfer' then substring(coalesce(m.giver, source) from '^(?:agent:)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$')::uuid end
  from (select) one left join (
    select c.content->'data'->'content'->>'ownership' as ownership, c.content->'data'->'content'->>'tape_ref' as ref, c.content->'data'->>'from' as giver
    from boxcar.cards c where c.id = substring(source from '^card:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$')::uuid) m on true
$$;

-- How far the bounded grants reach that were written in the last `since` transactions.
create function boxcar.bounds_of_grants(since int) returns table (agent_id uuid, box_id uuid, source text, upto int, now_upto int) language sql stable as $$
  with recursive chain as (
    select g.agent_id, g.box_id, g.source, o.head, o.giver, least(g.upto_position, o.head) as upto, g.upto_position as now_upto
    from boxcar.grants g cross join lateral boxcar.origin_of_grant(g.source) o
    where g.mode = 'read' and g.upto_position is not null and g.source not like 'turn:%' and age(g.xmin) <= since
    union
    select c.agent_id, c.box_id, c.source, o.head, o.giver, least(c.upto, g.upto_position, o.head), c.now_upto
    from chain c cross join lateral (
        select r.source, r.upto_position from boxcar.grants r
        where c.head is null and r.agent_id = c.giver and r.box_id = c.box_id and r.mode = 'read' and r.upto_position is not null and r.source not like 'turn:%' offset 0) g
      cross join lateral boxcar.origin_of_grant(g.source) o
  )
  select c.agent_id, c.box_id, c.source, min(c.upto), c.now_upto from chain c group by c.agent_id, c.box_id, c.source, c.now_upto
$$;

-- The whole table is looked through before the lock, which blocks writers of grants; after it only what has changed meanwhile.
do $$
declare
  started xid := pg_snapshot_xmin(pg_current_snapshot())::xid;
  agents uuid[];
  boxes uuid[];
  sources text[];
  bounds int[];
begin
  select array_agg(b.agent_id), array_agg(b.box_id), array_agg(b.source), array_agg(b.upto) into agents, boxes, sources, bounds
  from boxcar.bounds_of_grants(2147483647) b where b.upto < b.now_upto;
  lock table boxcar.grants in share row exclusive mode;
  update boxcar.grants g set upto_position = b.upto
    from (
      select w.agent_id, w.box_id, w.source, min(w.upto) as upto from (
        select * from unnest(agents, boxes, sources, bounds) as u(agent_id, box_id, source, upto)
        union all
        select c.agent_id, c.box_id, c.source, c.upto from boxcar.bounds_of_grants(age(started)) c) w
      group by w.agent_id, w.box_id, w.source) b
    where g.agent_id = b.agent_id and g.box_id = b.box_id and g.mode = 'read' and g.source = b.source and g.upto_position > b.upto;
end $$;

drop function boxcar.bounds_of_grants(int);
drop function boxcar.origin_of_grant(text);
