-- min_compatible: 15
-- A box that lists existing cards keeps them: purge looks at what is listed after it has locked the cards that it is about to remove.

-- Locks the cards that were there before this transaction, as a foreign key would. A purge that has these cards is waited for.
create function boxcar.hold_cards() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  gone uuid;
begin
  perform from boxcar.cards c where c.id = any (new.card_ids) and c.xmin <> pg_current_xact_id()::xid order by c.id for key share;
  select u.id into gone from unnest(new.card_ids) as u(id) where not exists (select from boxcar.cards c where c.id = u.id) limit 1;
  if gone is not null then
    raise exception 'card % does not exist', gone using errcode = 'BX002', detail = gone::text;
  end if;
  return null;
end $$;
-- Only this rule lists cards that exist. After the statement, which also writes the new cards of the box.
create trigger boxes_hold_cards after insert on boxcar.boxes
  for each row when (new.segments @? '$[*] ? (@.rule == "create_box")') execute function boxcar.hold_cards();

-- A box that is gone is not referred to. Its mark has gone with it, so who read the box before finds none. After the statement, whose
-- transaction holds the lock of boxcar.refuse_purging by then: what exists now is not removed before it has ended.
create function boxcar.refuse_missing() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  wanted uuid[];
  gone uuid;
begin
  if tg_table_name = 'grants' then
    wanted := array[new.box_id];
  else
    wanted := array(select distinct x.ref::uuid from jsonb_array_elements(coalesce(new.segments, '[]')) s
      cross join lateral (values (s.value->>'source'), (s.value->>'via')) x(ref) where x.ref is not null) || new.parent_box_id || new.line_boxes;
  end if;
  select w.id into gone from unnest(wanted) as w(id) where w.id is not null and not exists (select from boxcar.boxes b where b.id = w.id) limit 1;
  if gone is not null then
    raise exception 'box % does not exist', gone using errcode = 'BX002', detail = gone::text;
  end if;
  return null;
end $$;
create trigger boxes_refer_to_existing after insert on boxcar.boxes
  for each row when (new.parent_box_id is not null or new.segments @? '$[*].source') execute function boxcar.refuse_missing();
create trigger grants_refer_to_existing after insert on boxcar.grants for each row execute function boxcar.refuse_missing();
