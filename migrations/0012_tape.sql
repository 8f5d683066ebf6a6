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

-- As before, and: the words of a card go with its content, and what commands of its project have answered.
create or replace function boxcar.erase_cards(ids uuid[], reason text) returns table (card_id uuid, outcome text)
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
  delete from boxcar.tape_words w where w.card_id in (select c.id from boxcar.cards c where c.id = any (ids) and c.erased_at is not null);
  update boxcar.operations o set response = json_build_object('status', o.response->'status', 'agent_id', o.response->'agent_id',
      'output_box_id', o.response->'output_box_id', 'command', o.response->'command', 'output', '(erased)', 'result', '(erased)')
    where o.response->>'command' in ('anchors', 'search') and o.project_id in (select c.project_id from boxcar.cards c where c.id = any (ids));
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $$;

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

-- As before, and: with a box its words.
create or replace function boxcar.purge_boxes(box_ids uuid[], card_ids uuid[]) returns void
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
  -- Behind the boxes: who writes words holds the row of the box.
  delete from boxcar.tape_words w where w.box_id = any (box_ids);
  delete from boxcar.cards c where c.id = any (card_ids);
  delete from boxcar.purging p where p.box_id = any (box_ids);
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $$;
