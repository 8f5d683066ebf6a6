-- min_compatible: 4
-- The projects whose turns are counted before they begin.
create index projects_limited on boxcar.projects (id) where limits ? 'max_concurrent';

-- The two ways past the seal of cards, boxes and tape entries: erasure takes the content of a card and leaves everything else,
-- purge removes what finished runs left behind. Both are functions of the role that migrates, and nobody else may call them until
-- it says so (docs/operations.md, "Erasure" and "Purge").

-- What stands in the place of the content from then on: of the same kind, with the ids and names that hold a prompt together.
alter table boxcar.cards add column placeholder json;
-- How often cards of the project were erased: who has kept what it read before reads it again.
alter table boxcar.projects add column erasures integer not null default 0;

-- Open for the length of one call of one of the functions below, in its transaction; a setting could be made by anyone.
create table boxcar.unsealed (
  xact xid8 primary key,
  allows text not null check (allows in ('erase', 'purge'))
);
revoke all on boxcar.unsealed from public;

-- A right to write to all tables of the schema is not the right to break the seal.
create function boxcar.refuse_unsealing() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_user <> (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = tg_relid) then
    raise exception 'boxcar.unsealed is written by boxcar.erase_cards and boxcar.purge_boxes alone' using errcode = 'BX001';
  end if;
  return null;
end $$;
create trigger unsealed_guarded before insert or update or delete or truncate on boxcar.unsealed
  for each statement execute function boxcar.refuse_unsealing();

create or replace function boxcar.refuse_change() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- Erasure updates cards; purge deletes. Nothing truncates.
  if exists (select from boxcar.unsealed u where u.xact = pg_current_xact_id_if_assigned()
      and u.allows = case when tg_op = 'UPDATE' and tg_table_name = 'cards' then 'erase' when tg_op = 'DELETE' then 'purge' end) then
    return null;
  end if;
  raise exception '% on boxcar.% is refused: cards, context boxes and tape entries never change', tg_op, tg_table_name
    using errcode = 'BX001';
end $$;

-- Takes the content of cards, one answer for each id that was asked for:
--   erased, already_erased, not_found,
--   profile_in_use (agents and turns are made of it), bootstrap (every tape begins with it), open_call (its arguments are still to be used).
create function boxcar.erase_cards(ids uuid[], reason text) returns table (card_id uuid, outcome text)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(reason !~ '\S' or length(reason) > 1000, true) then
    raise exception 'erasure needs a reason of 1 to 1000 characters' using errcode = '22023';
  end if;
  insert into boxcar.unsealed (xact, allows) values (pg_current_xact_id(), 'erase');
  -- By id, as every lock here; a second erasure of the same card then finds it erased.
  perform from boxcar.cards c where c.id = any (ids) order by c.id for no key update;
  perform from boxcar.tool_calls k where k.id in (select c.tool_call_id from boxcar.cards c where c.id = any (ids) and c.type = 'tool.call') order by k.id for update;
  perform from boxcar.projects p where p.id in (select c.project_id from boxcar.cards c where c.id = any (ids)) order by p.id for no key update;
  update boxcar.projects p set erasures = p.erasures + 1 where p.id in (select c.project_id from boxcar.cards c where c.id = any (ids));
  return query
  with judged as materialized (
    select a.id, c.tool_call_id, c.content,
      case when c.id is null then 'not_found' when c.erased_at is not null then 'already_erased'
        when exists (select from boxcar.projects p where p.bootstrap_card_id = c.id) then 'bootstrap'
        when exists (select from boxcar.profiles f where f.card_id = c.id and (f.is_current
          or exists (select from boxcar.agents g where g.profile_id = f.id) or exists (select from boxcar.turns t where t.profile_id = f.id))) then 'profile_in_use'
        when c.content->>'kind' = 'tool_call' and exists (select from boxcar.tool_calls k where k.id = c.tool_call_id and k.status = 'pending') then 'open_call'
        else 'erased' end as outcome
    from (select distinct u.id from unnest(ids) as u(id)) a left join boxcar.cards c on c.id = a.id
  ),
  erased as (
    update boxcar.cards c set content = null, erased_at = now(), erased_reason = reason,
      placeholder = case j.content->>'kind'
        when 'json' then json_build_object('kind', 'json', 'data', '(erased)')
        when 'fields_schema' then json_build_object('kind', 'fields_schema', 'fields', json_build_array())
        when 'file' then json_build_object('kind', 'file', 'uri', '(erased)', 'checksum', '(erased)')
        when 'tool_call' then json_build_object('kind', 'tool_call', 'tool_call_id', j.content->'tool_call_id', 'provider_call_id', j.content->'provider_call_id',
          'name', j.content->'name', 'arguments', json_build_object())
        when 'tool_result' then case when j.content->>'status' = 'success'
          then json_build_object('kind', 'tool_result', 'tool_call_id', j.content->'tool_call_id', 'name', j.content->'name', 'status', 'success', 'result', '(erased)')
          else json_build_object('kind', 'tool_result', 'tool_call_id', j.content->'tool_call_id', 'name', j.content->'name', 'status', j.content->'status',
            'error', json_build_object('code', 'erased', 'message', '(erased)')) end
        else json_build_object('kind', 'text', 'text', '(erased)') end
    from judged j where c.id = j.id and j.outcome = 'erased'
  ),
  -- The arguments of a call stand in its row too.
  calls as (
    update boxcar.tool_calls k set arguments = '{}' from judged j
    where k.id = j.tool_call_id and j.outcome = 'erased' and j.content->>'kind' = 'tool_call'
  )
  select j.id, j.outcome from judged j order by j.id;
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $$;
revoke execute on function boxcar.erase_cards(uuid[], text) from public;

-- Boxes that purge is about to remove: nothing new may refer to them. A mark runs out by itself when a purge is interrupted.
create table boxcar.purging (
  box_id uuid primary key,
  until timestamptz not null
);

-- Who refers to a box holds the lock in shared mode until its end. Purge, having written its marks, takes it alone for a moment: from
-- then on every writer either sees the marks, or has ended and is seen.
create function boxcar.refuse_purging() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  wanted uuid[];
  found_id uuid;
begin
  perform pg_advisory_xact_lock_shared(7205129002);
  if not exists (select from boxcar.purging) then return new; end if;
  if tg_table_name = 'grants' then
    wanted := array[new.box_id];
  else
    wanted := array(select x.ref::uuid from jsonb_array_elements(coalesce(new.segments, '[]')) s
      cross join lateral (values (s.value->>'source'), (s.value->>'via')) x(ref) where x.ref is not null) || new.parent_box_id;
  end if;
  select p.box_id into found_id from boxcar.purging p where p.box_id = any (wanted) and p.until > clock_timestamp() limit 1;
  if found_id is not null then
    raise exception 'box % is being purged', found_id using errcode = 'BX002', detail = found_id::text;
  end if;
  return new;
end $$;
create trigger boxes_refer_to_lasting before insert on boxcar.boxes
  for each row when (new.parent_box_id is not null or new.segments @? '$[*].source') execute function boxcar.refuse_purging();
create trigger grants_refer_to_lasting before insert on boxcar.grants for each row execute function boxcar.refuse_purging();

-- Checked by the trigger above against the one thing that removes boxes. The key itself would read all grants for each box that goes.
alter table boxcar.grants drop constraint grants_box_id_fkey;
-- So that a box or card that goes is looked for by key.
create index boxes_parent on boxcar.boxes (parent_box_id) where parent_box_id is not null;
create index profiles_box on boxcar.profiles (box_id);
create index profiles_card on boxcar.profiles (card_id);
-- Operations are written in the order of time, and are looked for by it.
create index operations_age on boxcar.operations using brin (created_at);

-- Removes boxes with their entries, and cards. The caller has marked the boxes, has seen that nothing else refers to them, and
-- removes in the same transaction the rows that do.
create function boxcar.purge_boxes(box_ids uuid[], card_ids uuid[]) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from unnest(box_ids) as b(id) where not exists (
      select from boxcar.purging p where p.box_id = b.id and p.until > clock_timestamp())) then
    raise exception 'a box that is not marked in boxcar.purging stays' using errcode = 'BX001';
  end if;
  if exists (select from boxcar.projects p where p.bootstrap_card_id = any (card_ids)) then
    raise exception 'the card that the tapes of a project begin with stays' using errcode = 'BX001';
  end if;
  insert into boxcar.unsealed (xact, allows) values (pg_current_xact_id(), 'purge');
  delete from boxcar.tape_entries e where e.box_id = any (box_ids);
  delete from boxcar.boxes b where b.id = any (box_ids);
  delete from boxcar.cards c where c.id = any (card_ids);
  delete from boxcar.purging p where p.box_id = any (box_ids);
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $$;
revoke execute on function boxcar.purge_boxes(uuid[], uuid[]) from public;
