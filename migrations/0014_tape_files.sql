-- min_compatible: 12
-- Tapes from files: the lines they came from stand with their entries, and go with the cards that were made of them.

alter table boxcar.boxes
  -- tape: the lines of the session graph that it was imported with
  add column session_graph text;

-- A session of an imported tape has no agent here, and its parent stands in the session graph alone.
alter table boxcar.sessions alter column agent_id drop not null, alter column parent_box_id drop not null;

-- Finds the lines of which a card is part. Entries from elsewhere are not in it.
create index tape_entries_imported on boxcar.tape_entries (card_id) where meta ? 'imported' and card_id is not null;

-- As before, and: erasure takes lines from entries.
create or replace function boxcar.refuse_change() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- Erasure updates cards and what entries hold of them; purge deletes. Nothing truncates.
  if exists (select from boxcar.unsealed u where u.xact = pg_current_xact_id_if_assigned()
      and u.allows = case when tg_op = 'UPDATE' and tg_table_name in ('cards', 'tape_entries') then 'erase' when tg_op = 'DELETE' then 'purge' end) then
    return null;
  end if;
  raise exception '% on boxcar.% is refused: cards, context boxes and tape entries never change', tg_op, tg_table_name
    using errcode = 'BX001';
end $$;

-- The line that a card was made of goes with its content, whole: what its other cards say stays with them. So does the line of the
-- event behind an anchor, which says the anchor's state again.
create function boxcar.forget_lines() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not exists (select from erased c join boxcar.tape_entries p on p.card_id = c.id and p.meta ? 'imported' where c.erased_at is not null) then return null; end if;
  update boxcar.tape_entries e set meta = nullif(e.meta - 'imported', '{}')
  from (
    select distinct p.box_id, p.position - coalesce((p.meta->'imported'->>'part')::int, 0) + n.offs as position, n.offs
    from erased c join boxcar.tape_entries p on p.card_id = c.id and p.meta ? 'imported'
      cross join (values (0), (1)) as n(offs)
    where c.erased_at is not null and (n.offs = 0 or p.kind = 'anchor')
  ) line
  where e.box_id = line.box_id and e.position = line.position and e.meta ? 'imported'
    and (line.offs = 0 or (e.kind = 'event' and e.payload->>'name' = 'handoff' and e.payload->'data'->'state' is null));
  return null;
end $$;
create trigger cards_forget_lines after update on boxcar.cards referencing new table as erased
  for each statement execute function boxcar.forget_lines();
