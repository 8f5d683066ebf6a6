-- min_compatible: 12
-- Tapes for everybody: names, forks that read what they were forked from, where a view begins, search. An older build would read a
-- fork without its line.

alter table boxcar.boxes
  -- tape: anchors up to the head, those of its line included; null = the one it began with alone
  add column anchor_count int,
  -- tape: the anchor a view begins with; null = the last one. The next anchor that is written sets it to null.
  add column view_anchor_position int,
  -- fork: the boxes its line runs through before its own entries, oldest first, and the last position read of each. Entries of
  -- line_boxes[i] are those from line_ends[i-1] + 1 to line_ends[i]; own ones begin behind fork_position.
  add column line_boxes uuid[],
  add column line_ends int[],
  add column fork_status text,
  -- the incarnation that a reset put this one in the place of
  add column previous_box_id uuid,
  -- Not looked for in rows from before: they have none of this.
  add constraint boxes_line_check check ((line_boxes is null) = (parent_box_id is null) and (line_ends is null) = (parent_box_id is null)
    and cardinality(line_boxes) = cardinality(line_ends) and coalesce(line_ends[cardinality(line_ends)], 0) = coalesce(fork_position, 0)) not valid,
  add constraint boxes_fork_status_check check (fork_status is null or (parent_box_id is not null and fork_status in ('open', 'merged', 'discarded'))) not valid;
create unique index boxes_tape_incarnation on boxcar.boxes (project_id, tape_name, incarnation) where tape_name is not null;

-- What a fork reads is part of it, and an archived tape is written to by nobody.
drop trigger boxes_sealed on boxcar.boxes;
create trigger boxes_sealed before update on boxcar.boxes
  for each row when (old.kind = 'context' or new.kind <> old.kind or new.project_id <> old.project_id or new.head_position < old.head_position
    or new.parent_box_id is distinct from old.parent_box_id or new.fork_position is distinct from old.fork_position
    or new.line_boxes is distinct from old.line_boxes or new.line_ends is distinct from old.line_ends
    or (old.archived_at is not null and new.head_position <> old.head_position))
  execute function boxcar.refuse_change();

-- Names may be longer than an index entry can be: found by their hash, and compared.
drop index boxcar.tape_entries_anchor;
create index tape_entries_anchor on boxcar.tape_entries (box_id, hashtextextended(anchor_name, 0), position) where kind = 'anchor';
create index tape_entries_kind on boxcar.tape_entries (box_id, kind, position);
create index tape_entries_date on boxcar.tape_entries (box_id, kind, created_at);

-- The words of entries, folded, for search: written by searches, from the first entry of a box on without a gap, and never on the
-- way of a turn. Not part of the tape: what is missing is written by the next search. Null words: the card was erased.
create table boxcar.tape_words (
  box_id uuid not null,
  position int not null,
  card_id uuid,
  words text,
  primary key (box_id, position)
);
create index tape_words_card on boxcar.tape_words (card_id) where card_id is not null;
-- Makes searches of long tapes quick. Without the extension they read all words of the tape, and find the same.
do $$
begin
  begin
    create extension if not exists pg_trgm with schema public;
  exception when others then
    raise notice 'pg_trgm is not to be had (%): searches of tapes do without an index', sqlerrm;
  end;
  if exists (select from pg_extension where extname = 'pg_trgm') then
    execute (select format('create index tape_words_trigrams on boxcar.tape_words using gin (words %I.gin_trgm_ops)', n.nspname)
      from pg_extension x join pg_namespace n on n.oid = x.extnamespace where x.extname = 'pg_trgm');
  end if;
end $$;

-- Answers of commands that read a tape, which say what its cards say.
create index operations_reading on boxcar.operations (project_id) where response->>'command' in ('anchors', 'search');

-- The words of a card go with its content, and what commands of its project have answered.
create function boxcar.forget_words() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from boxcar.tape_words w using erased c where w.card_id = c.id and c.erased_at is not null;
  update boxcar.operations o set response = json_build_object('status', o.response->'status', 'agent_id', o.response->'agent_id',
      'output_box_id', o.response->'output_box_id', 'command', o.response->'command', 'output', '(erased)', 'result', '(erased)')
    where o.response->>'command' in ('anchors', 'search') and o.project_id in (select c.project_id from erased c where c.erased_at is not null);
  return null;
end $$;
create trigger cards_forget_words after update on boxcar.cards referencing new table as erased
  for each statement execute function boxcar.forget_words();

-- Those of a box go behind it: who writes words holds its row.
create function boxcar.purge_words() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from boxcar.tape_words w using purged b where w.box_id = b.id;
  return null;
end $$;
create trigger boxes_purge_words after delete on boxcar.boxes referencing old table as purged
  for each statement execute function boxcar.purge_words();

-- As before, and: the boxes of a fork's line last as long as the fork.
create or replace function boxcar.refuse_purging() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
      cross join lateral (values (s.value->>'source'), (s.value->>'via')) x(ref) where x.ref is not null) || new.parent_box_id || new.line_boxes;
  end if;
  select p.box_id into found_id from boxcar.purging p where p.box_id = any (wanted) and p.until > clock_timestamp() limit 1;
  if found_id is not null then
    raise exception 'box % is being purged', found_id using errcode = 'BX002', detail = found_id::text;
  end if;
  return new;
end $$;
