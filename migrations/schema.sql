-- Written by `pnpm db:dump` from a database with every migration applied. Do not edit.

create schema boxcar;

-- Extensions

create extension if not exists pg_trgm with schema public;

-- Functions

set check_function_bodies = off;

CREATE OR REPLACE FUNCTION boxcar.answers_of_cards(ids uuid[])
 RETURNS SETOF uuid
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select u.id from unnest(ids) as u(id)
  union
  select s.thought_card_id from (
    select e.turn_id, e.step from boxcar.tape_entries e where e.card_id = any (ids) and e.turn_id is not null and e.step is not null
    union
    select k.turn_id, k.step from boxcar.cards c join boxcar.tool_calls k on k.id = c.tool_call_id where c.id = any (ids)
  ) p cross join lateral (select x.thought_card_id from boxcar.steps x where x.turn_id = p.turn_id and x.step = p.step offset 0) s
  where s.thought_card_id is not null
$function$;

CREATE OR REPLACE FUNCTION boxcar.call_back()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  insert into boxcar.webhook_deliveries (project_id, handoff_id, event_handoff_id, event_seq, url, host)
  values (new.project_id, new.id, new.id, new.event_count, new.callback_url, substring(new.callback_url from '^[a-z]+://([^/?#]+)'));
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.erase_cards(ids uuid[], reason text)
 RETURNS TABLE(card_id uuid, outcome text)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  gone uuid[];
  -- Each card with a turn, at the same position of both.
  card_of uuid[];
  turn_of uuid[];
  touched uuid[];
  delivered uuid[];
  answers uuid[];
begin
  if coalesce(reason !~ '\S' or length(reason) > 1000, true) then
    raise exception 'erasure needs a reason of 1 to 1000 characters' using errcode = '22023';
  end if;
  insert into boxcar.unsealed (xact, allows) values (pg_current_xact_id(), 'erase');
  -- A card has its turns from the transaction that makes it; an entry that is merged keeps its turn.
  select array_agg(f.card_id), array_agg(f.turn_id) into card_of, turn_of from boxcar.turns_by_card(array(
    select u.id from unnest(ids) as u(id) where not exists (select from boxcar.projects p where p.bootstrap_card_id = u.id))) f;
  -- By id, as every lock here. Turns that have not ended are left alone.
  perform from boxcar.turns t where t.id = any (turn_of) and t.error->>'message' <> '(erased)' order by t.id for no key update;
  -- The cards that hold what providers attached to the answers of these cards' steps. They were written with their steps, before any other card of them.
  answers := array(select boxcar.answers_of_cards(ids));
  -- A second erasure of the same card then finds it erased.
  perform from boxcar.cards c where c.id = any (ids || answers) order by c.id for no key update;
  perform from boxcar.projects p where p.id in (select c.project_id from boxcar.cards c where c.id = any (ids)) order by p.id for no key update;
  return query
  with judged as materialized (
    select a.id, c.tool_call_id, c.content,
      case when c.id is null then 'not_found' when c.erased_at is not null then 'already_erased'
        when exists (select from boxcar.projects p where p.bootstrap_card_id = c.id) then 'bootstrap'
        when exists (select from boxcar.profiles f where f.card_id = c.id and (f.is_current
          or exists (select from boxcar.agents g where g.profile_id = f.id) or exists (select from boxcar.turns t where t.profile_id = f.id))) then 'profile_in_use'
        -- A call that is settled stays settled.
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
  update boxcar.projects p set erasures = p.erasures + 1 where p.id in (select c.project_id from boxcar.cards c where c.id = any (ids) and c.erased_at = now());
  -- Each of the following statements sees what was committed before the locks above were granted, and changes only rows that have words to
  -- lose. Cards that were erased before count too: what has repeated them since loses them now.
  gone := array(select c.id from boxcar.cards c where c.id = any (ids) and c.erased_at is not null);
  -- Which card such an answer quotes is recorded nowhere. Answers of a program's own primitives stay, whatever their fields are.
  update boxcar.operations o set response = json_build_object('status', o.response->'status', 'agent_id', o.response->'agent_id',
      'output_box_id', o.response->'output_box_id', 'command', o.response->'command', 'output', '(erased)', 'result', '(erased)')
    where o.primitive = 'delegate_async' and o.response->>'command' in ('anchors', 'search') and o.response->>'output' is distinct from '(erased)'
      and o.project_id in (select c.project_id from boxcar.cards c where c.id = any (gone));
  update boxcar.cards c set provider_data = null, metadata = c.metadata - 'reasoning' - 'reasoning_cut'
    where c.id = any (array(select boxcar.answers_of_cards(gone))) and (c.provider_data is not null or c.metadata ? 'reasoning');
  touched := array(select distinct u.turn_id from unnest(card_of, turn_of) as u(card_id, turn_id) join unnest(gone) as g(id) on g.id = u.card_id);
  delivered := array(select t.id from boxcar.turns t where t.id = any (touched) and t.deliverable_card_id = any (gone));
  update boxcar.turns t set error = boxcar.forget_error(t.error) where t.id = any (touched) and t.error->>'message' <> '(erased)';
  update boxcar.steps s set error = boxcar.forget_error(s.error) where s.turn_id = any (touched) and s.error->>'message' <> '(erased)';
  -- A call of a model that is to be made again: why the one before it failed.
  update boxcar.waits w set detail = w.detail || '{"message": "(erased)"}' where w.turn_id = any (touched) and w.detail->>'message' <> '(erased)';
  update boxcar.batches b set answer = boxcar.forget_answer(b.answer, delivered, touched)
  where b.answer is not null and b.turn_ids && touched and exists (
    select from json_array_elements(b.answer->'results') r where (r.value->>'turn_id')::uuid = any (touched)
      and (r.value->'error'->>'message' <> '(erased)' or ((r.value->>'turn_id')::uuid = any (delivered) and r.value->>'summary' <> '(erased)')));
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $function$;

CREATE OR REPLACE FUNCTION boxcar.erase_evidence(ids uuid[], reason text)
 RETURNS TABLE(evidence_id uuid, outcome text)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  if coalesce(reason !~ '\S' or length(reason) > 1000, true) then
    raise exception 'erasure needs a reason of 1 to 1000 characters' using errcode = '22023';
  end if;
  perform from boxcar.evidence v where v.id = any (ids) order by v.id for no key update;
  return query
  with judged as materialized (
    select a.id, case when v.id is null then 'not_found' when v.erased_at is not null then 'already_erased' else 'erased' end as outcome
    from (select distinct u.id from unnest(ids) as u(id)) a left join boxcar.evidence v on v.id = a.id
  ),
  erased as (
    update boxcar.evidence v set body = '"(erased)"', erased_at = now(), erased_reason = reason from judged j where v.id = j.id and j.outcome = 'erased'
  )
  select j.id, j.outcome from judged j order by j.id;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.forget_answer(answer json, delivered uuid[], touched uuid[])
 RETURNS json
 LANGUAGE sql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select json_object_agg(a.key, case a.key when 'results' then (
      select json_agg(case when t.id = any (touched) then (
          select json_object_agg(m.key, case when m.key = 'summary' and t.id = any (delivered) then '"(erased)"'
            when m.key = 'error' then json_build_object('code', m.value->'code', 'message', '(erased)') else m.value end order by m.n)
          from json_each(r.value) with ordinality as m(key, value, n) where m.key <> 'is_cut' or t.id <> all (delivered))
        else r.value end order by r.n)
      from json_array_elements(a.value) with ordinality as r(value, n) cross join lateral (select (r.value->>'turn_id')::uuid) as t(id))
    else a.value end order by a.n)
  from json_each(answer) with ordinality as a(key, value, n)
$function$;

CREATE OR REPLACE FUNCTION boxcar.forget_error(error jsonb)
 RETURNS jsonb
 LANGUAGE sql
 IMMUTABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select (error - 'details') || '{"message": "(erased)"}'
$function$;

CREATE OR REPLACE FUNCTION boxcar.forget_lines()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION boxcar.forget_parts()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  update boxcar.turn_parts p set text = ''
  where p.text <> '' and p.turn_id in (select f.turn_id from boxcar.turns_by_card(array(select c.id from erased c where c.erased_at is not null)) f);
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.forget_words()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  delete from boxcar.tape_words w using erased c where w.card_id = c.id and c.erased_at is not null;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.hold_agents()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  wanted uuid[];
  gone uuid;
begin
  if tg_op = 'UPDATE' then
    wanted := array(select new.maker_agent_id from boxcar.projects p where p.id = new.project_id and p.operator_agent_id <> new.maker_agent_id);
  elsif tg_table_name = 'boxes' then
    wanted := array(select distinct m.maker_agent_id from made m join boxcar.projects p on p.id = m.project_id where m.maker_agent_id <> p.operator_agent_id);
  else
    wanted := array(select distinct x.id from made m join boxcar.projects p on p.id = m.project_id
      cross join lateral (values (m.owner_agent_id), (m.derived_from)) x(id) where x.id <> p.operator_agent_id);
  end if;
  if cardinality(wanted) = 0 then return null; end if;
  perform from boxcar.agents a where a.id = any (wanted) and a.xmin <> pg_current_xact_id()::xid order by a.id for key share;
  select w.id into gone from unnest(wanted) as w(id) where not exists (select from boxcar.agents a where a.id = w.id) limit 1;
  if gone is not null then
    raise exception 'agent % does not exist', gone using errcode = 'BX002', detail = gone::text;
  end if;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.hold_cards()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  gone uuid;
begin
  perform from boxcar.cards c where c.id = any (new.card_ids) and c.xmin <> pg_current_xact_id()::xid order by c.id for key share;
  select u.id into gone from unnest(new.card_ids) as u(id) where not exists (select from boxcar.cards c where c.id = u.id) limit 1;
  if gone is not null then
    raise exception 'card % does not exist', gone using errcode = 'BX002', detail = gone::text;
  end if;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.is_lock_free(lock_key bigint, wait_ms integer)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform set_config('lock_timeout', wait_ms || 'ms', true);
  perform pg_advisory_xact_lock_shared(lock_key);
  return true;
exception when lock_not_available then
  return false;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.purge_boxes(box_ids uuid[], card_ids uuid[])
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION boxcar.purge_words()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  delete from boxcar.tape_words w using purged b where w.box_id = b.id;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.push_asked(task uuid)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  asked record;
begin
  perform from boxcar.handoffs r where r.id = task and r.public_agent is not null and r.ended_at is null for no key update;
  if not found then
    return;
  end if;
  select e.handoff_id, e.seq into asked from boxcar.handoffs h join boxcar.handoff_messages m on m.handoff_id = h.id left join boxcar.turns t on t.id = h.turn_id
    cross join lateral (
      select v.handoff_id, v.seq from boxcar.handoff_events v where v.handoff_id = m.handoff_id and v.type = 'handoff.question' and v.data->>'question' = m.seq::text
      order by v.seq desc limit 1) e
  where h.root_handoff_id = task and h.asking_since is not null and h.ended_at is null and t.ended_at is null
    and m.replies_to is null and m.closed_at is null and m.expires_at > now()
  order by m.created_at, m.handoff_id, m.seq limit 1;
  if found then
    perform boxcar.push_event(task, asked.handoff_id, asked.seq);
  end if;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.push_at_once()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  perform boxcar.push_event(h.id, h.id, h.event_count) from boxcar.handoffs h where h.id = new.handoff_id and h.ended_at is not null;
  if not found then
    perform boxcar.push_asked(new.handoff_id);
  end if;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.push_end()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  perform boxcar.push_event(new.id, new.id, new.event_count);
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.push_event(task uuid, event_handoff uuid, event integer)
 RETURNS void
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  insert into boxcar.webhook_deliveries as d (project_id, handoff_id, event_handoff_id, event_seq, push_config, url, host)
  select h.project_id, h.id, event_handoff, event, p.id, p.url, substring(p.url from '^[a-z]+://([^/?#]+)')
  from boxcar.push_configs p join boxcar.handoffs h on h.id = p.handoff_id where p.handoff_id = task order by p.id
  on conflict (event_handoff_id, event_seq, push_config) do update set url = excluded.url, host = excluded.host, status = 'pending', failures = 0,
    next_at = now(), give_up_at = now() + interval '24 hours', holder_id = null, last_status = null, last_error = null, ended_at = null
  where d.url <> excluded.url or (d.status = 'failed' and d.last_status is null)
$function$;

CREATE OR REPLACE FUNCTION boxcar.push_question()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  perform boxcar.push_asked(h.root_handoff_id) from boxcar.handoffs h where h.id = new.handoff_id;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.refuse_change()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  -- Erasure updates cards and what entries hold of them; purge deletes. Nothing truncates.
  if exists (select from boxcar.unsealed u where u.xact = pg_current_xact_id_if_assigned()
      and u.allows = case when tg_op = 'UPDATE' and tg_table_name in ('cards', 'tape_entries') then 'erase' when tg_op = 'DELETE' then 'purge' end) then
    return null;
  end if;
  raise exception '% on boxcar.% is refused: cards, context boxes and tape entries never change', tg_op, tg_table_name
    using errcode = 'BX001';
end $function$;

CREATE OR REPLACE FUNCTION boxcar.refuse_missing()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION boxcar.refuse_purging()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION boxcar.refuse_unsealing()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
begin
  if current_user <> (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = tg_relid) then
    raise exception 'boxcar.unsealed is written by boxcar.erase_cards and boxcar.purge_boxes alone' using errcode = 'BX001';
  end if;
  return null;
end $function$;

CREATE OR REPLACE FUNCTION boxcar.turns_by_card(ids uuid[])
 RETURNS TABLE(card_id uuid, turn_id uuid)
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select e.card_id, e.turn_id from boxcar.tape_entries e where e.card_id = any (ids) and e.turn_id is not null
  union
  select c.id, k.turn_id from boxcar.cards c join boxcar.tool_calls k on k.id = c.tool_call_id where c.id = any (ids)
  union
  select u.id, t.id from (select c.created_at, array_agg(c.id) as ids from boxcar.cards c where c.id = any (ids) group by c.created_at) m
    cross join lateral (select x.id, x.context_box_id from boxcar.turns x where x.created_at = m.created_at offset 0) t
    cross join lateral (select x.card_ids from boxcar.boxes x where x.id = t.context_box_id offset 0) b
    cross join lateral unnest(b.card_ids) as u(id)
  where u.id = any (m.ids)
$function$;

CREATE OR REPLACE FUNCTION boxcar.turns_of_cards(ids uuid[])
 RETURNS SETOF uuid
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  select e.turn_id from boxcar.tape_entries e where e.card_id = any (ids) and e.turn_id is not null
  union
  select k.turn_id from boxcar.cards c join boxcar.tool_calls k on k.id = c.tool_call_id where c.id = any (ids)
  union
  select t.id from (select c.created_at, array_agg(c.id) as ids from boxcar.cards c where c.id = any (ids) group by c.created_at) m
    cross join lateral (select x.id, x.context_box_id from boxcar.turns x where x.created_at = m.created_at offset 0) t
    join boxcar.boxes b on b.id = t.context_box_id and b.card_ids && m.ids
$function$;

-- Tables

create table boxcar.agents (
  id uuid not null,
  project_id uuid not null,
  name text not null,
  profile_id uuid,
  owner_agent_id uuid,
  derived_from uuid,
  tape_box_id uuid,
  metadata jsonb default '{}'::jsonb not null,
  created_at timestamp with time zone default now() not null,
  is_shared boolean
);

create table boxcar.api_keys (
  id uuid not null,
  project_id uuid not null,
  agent_id uuid,
  name text not null,
  key_sha256 bytea not null,
  hint text not null,
  scopes text[] not null,
  is_local boolean default false not null,
  created_at timestamp with time zone default now() not null,
  expires_at timestamp with time zone,
  last_used_at timestamp with time zone,
  revoked_at timestamp with time zone,
  rotated_from uuid
);

create table boxcar.approvals (
  id uuid not null,
  project_id uuid not null,
  run_id text not null,
  turn_id uuid,
  tool_call_id uuid,
  agent text not null,
  tool_name text not null,
  card_id uuid not null,
  args_hash text not null,
  context_hash text default ''::text not null,
  payload_hash text default ''::text not null,
  policy_version text default ''::text not null,
  status text default 'pending'::text not null,
  created_at timestamp with time zone default now() not null,
  expires_at timestamp with time zone not null,
  resolved_at timestamp with time zone,
  resolved_by text,
  principal jsonb,
  decision_reason text,
  response json,
  consumed_at timestamp with time zone,
  voided_at timestamp with time zone,
  call_ms bigint,
  consumed_epoch integer,
  metadata jsonb default '{}'::jsonb not null
);

create table boxcar.batches (
  id uuid not null,
  project_id uuid not null,
  run_id uuid,
  turn_id uuid,
  tool_call_id uuid,
  primitive text not null,
  kind text not null,
  turn_ids uuid[] not null,
  remaining integer not null,
  succeeded integer not null,
  failed integer not null,
  min_success integer,
  fail_fast boolean not null,
  status text not null,
  closing text,
  is_due boolean not null,
  deadline_at timestamp with time zone,
  answer json,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone
) with (fillfactor=60);

create table boxcar.boxes (
  id uuid not null,
  project_id uuid not null,
  kind text not null,
  owner_agent_id uuid,
  maker_agent_id uuid,
  created_at timestamp with time zone default now() not null,
  card_ids uuid[],
  card_tokens integer[],
  segments jsonb,
  card_count integer,
  token_estimate integer,
  tape_name text,
  incarnation integer,
  head_position integer,
  last_anchor_position integer,
  view_position integer,
  parent_box_id uuid,
  fork_position integer,
  archived_at timestamp with time zone,
  anchor_count integer,
  view_anchor_position integer,
  line_boxes uuid[],
  line_ends integer[],
  fork_status text,
  previous_box_id uuid,
  session_graph text
) with (fillfactor=80);

create table boxcar.budgets (
  id uuid not null,
  project_id uuid not null,
  run_id uuid not null,
  parent_id uuid,
  top_depth integer not null,
  limits jsonb not null,
  deadline_at timestamp with time zone,
  tokens_reserved bigint default 0 not null,
  tokens_spent bigint default 0 not null,
  cost_reserved bigint default 0 not null,
  cost_spent bigint default 0 not null,
  turns_used integer default 0 not null,
  steps_reserved integer default 0 not null,
  steps_spent integer default 0 not null,
  paused_at timestamp with time zone,
  created_at timestamp with time zone default now() not null
) with (fillfactor=80);

create table boxcar.cards (
  id uuid not null,
  project_id uuid not null,
  type text not null,
  role text,
  content json,
  content_hash bytea not null,
  size_bytes integer not null,
  token_estimate integer not null,
  metadata jsonb default '{}'::jsonb not null,
  author_id text not null,
  tool_call_id uuid,
  created_at timestamp with time zone default now() not null,
  erased_at timestamp with time zone,
  erased_reason text,
  placeholder json,
  provider_data json
);

create table boxcar.evidence (
  id uuid not null,
  project_id uuid not null,
  turn_id uuid not null,
  kind text not null,
  step integer not null,
  attempt integer,
  epoch integer not null,
  holder_id uuid,
  tool_call_id uuid,
  body json not null,
  usage jsonb,
  created_at timestamp with time zone default now() not null,
  erased_at timestamp with time zone,
  erased_reason text
);

create table boxcar.forks (
  id uuid not null,
  project_id uuid not null,
  box_id uuid not null,
  parent_box_id uuid not null,
  opened_by uuid not null,
  turn_id uuid,
  fork_key text not null,
  status text not null,
  merge_back boolean not null,
  on_error text not null,
  receipt jsonb,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone
) with (fillfactor=80);

create table boxcar.grants (
  project_id uuid not null,
  agent_id uuid not null,
  box_id uuid not null,
  mode text not null,
  upto_position integer,
  source text not null,
  expires_at timestamp with time zone,
  created_at timestamp with time zone default now() not null
);

create table boxcar.handoff_events (
  handoff_id uuid not null,
  seq integer not null,
  type text not null,
  data jsonb default '{}'::jsonb not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.handoff_messages (
  handoff_id uuid not null,
  seq integer not null,
  card_id uuid not null,
  ask_key text,
  expires_at timestamp with time zone,
  closed_at timestamp with time zone,
  replies_to integer,
  author text,
  created_at timestamp with time zone default now() not null,
  reply_key text
);

create table boxcar.handoff_session_entries (
  session_id uuid not null,
  sequence_number integer not null,
  "position" integer not null,
  type text not null,
  message_count integer not null,
  file_count integer not null,
  tool_call_count integer not null,
  system_count integer not null
);

create table boxcar.handoff_sessions (
  id uuid not null,
  project_id uuid not null,
  session_key text not null,
  tape_box_id uuid not null,
  maker_agent_id uuid not null,
  agent_from text not null,
  agent_to text,
  status text default 'active'::text not null,
  retention_policy text not null,
  message_count integer not null,
  file_count integer not null,
  tool_call_count integer not null,
  system_count integer not null,
  created_at timestamp with time zone default now() not null,
  last_write_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone,
  frozen_head integer,
  continues uuid,
  line_sessions uuid[] not null
);

create table boxcar.handoffs (
  id uuid not null,
  project_id uuid not null,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone,
  phase text not null,
  source_agent text not null,
  source_agent_id uuid not null,
  target_agent text not null,
  platform text not null,
  run_id text,
  parent_turn_id uuid,
  tool_call_id uuid,
  is_awaited boolean default false not null,
  context_box_id uuid not null,
  task_card_id uuid not null,
  context_card_id uuid,
  payload_card_id uuid,
  worker_target text,
  turn_id uuid,
  ticket_id uuid,
  joined_to uuid,
  root_handoff_id uuid not null,
  parent_handoff_id uuid,
  depth integer default 0 not null,
  decision jsonb,
  error jsonb,
  timeout_ms bigint not null,
  deadline_at timestamp with time zone,
  retry jsonb not null,
  attempts integer default 0 not null,
  is_attempt_open boolean default false not null,
  idempotency_key text,
  request_hash text not null,
  event_count integer default 0 not null,
  mode text default 'handoff'::text not null,
  hop integer,
  compensates uuid,
  asking_since timestamp with time zone,
  cache_key text,
  cache_seconds integer,
  cached_from uuid,
  is_leading boolean default false not null,
  callback_url text,
  told_agent_id uuid,
  notifies boolean,
  public_agent text,
  conversation text,
  message_id text,
  serving_agent_id uuid,
  remote_task text,
  session_id uuid,
  session_request text,
  session_head integer,
  result_card_id uuid
);

create table boxcar.operations (
  project_id uuid not null,
  idempotency_key text not null,
  primitive text not null,
  request_hash bytea not null,
  response json not null,
  awaited_turn_id uuid,
  door_job_id text,
  created_at timestamp with time zone default now() not null,
  awaited_batch_id uuid,
  made uuid[]
);

create table boxcar.policies (
  version text not null,
  content text not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.profiles (
  id uuid not null,
  project_id uuid not null,
  name text not null,
  version integer not null,
  box_id uuid not null,
  card_id uuid not null,
  tags text[] default '{}'::text[] not null,
  worker_target text default ''::text not null,
  max_steps integer not null,
  is_current boolean not null,
  created_at timestamp with time zone default now() not null,
  max_tokens bigint,
  view text,
  selector text
);

create table boxcar.projects (
  id uuid not null,
  name text not null,
  limits jsonb default '{}'::jsonb not null,
  operator_agent_id uuid not null,
  bootstrap_card_id uuid not null,
  created_at timestamp with time zone default now() not null,
  erasures integer default 0 not null,
  archived_at timestamp with time zone
);

create table boxcar.provider_slots (
  turn_id uuid not null,
  provider text not null,
  epoch integer not null,
  is_kept boolean not null,
  taken_at timestamp with time zone default clock_timestamp() not null,
  queued_at timestamp with time zone,
  is_probe boolean default false not null
) with (fillfactor=60);

create table boxcar.providers (
  name text not null,
  max_concurrent integer,
  requests_per_minute integer,
  breaker_after integer,
  paced_until timestamp with time zone,
  failures integer default 0 not null,
  openings integer default 0 not null,
  open_until timestamp with time zone,
  updated_at timestamp with time zone default now() not null,
  failing_since timestamp with time zone
) with (fillfactor=60);

create table boxcar.purging (
  box_id uuid not null,
  until timestamp with time zone not null,
  purge_id uuid
);

create table boxcar.push_configs (
  handoff_id uuid not null,
  id text not null,
  url text not null,
  token text,
  scheme text,
  credentials text,
  version text not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.runs (
  id uuid not null,
  project_id uuid not null,
  root_turn_id uuid not null,
  limits jsonb default '{}'::jsonb not null,
  traceparent text,
  created_at timestamp with time zone default now() not null,
  turn_count integer default 1 not null,
  canceled_at timestamp with time zone
) with (fillfactor=80);

create table boxcar.schema_version (
  version integer not null,
  name text not null,
  checksum text not null,
  min_compatible integer not null,
  applied_at timestamp with time zone default now() not null
);

create table boxcar.sessions (
  id uuid not null,
  project_id uuid not null,
  name text not null,
  agent_id uuid,
  parent_box_id uuid,
  parent_session_id text not null,
  from_anchor text,
  from_position integer not null,
  notifies boolean not null,
  status text default 'active'::text not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.steps (
  turn_id uuid not null,
  step integer not null,
  attempt integer not null,
  project_id uuid not null,
  epoch integer not null,
  holder_id uuid not null,
  from_position integer not null,
  to_position integer not null,
  opened_at timestamp with time zone default now() not null,
  model text,
  prompt_hash bytea,
  manifest jsonb,
  thought_card_id uuid,
  usage jsonb,
  finish_reason text,
  model_ms integer,
  error jsonb,
  committed_at timestamp with time zone,
  toolset_hash bytea
);

create table boxcar.sweep_failures (
  kind text not null,
  row_id uuid not null,
  project_id uuid,
  attempts integer not null,
  last_error text not null,
  next_try_at timestamp with time zone not null,
  is_dead boolean default false not null,
  first_failed_at timestamp with time zone default now() not null
);

create table boxcar.sweeper (
  is_only boolean default true not null,
  holder_id uuid,
  lease_until timestamp with time zone not null
);

create table boxcar.tape_entries (
  box_id uuid not null,
  "position" integer not null,
  kind text not null,
  card_id uuid,
  tokens integer default 0 not null,
  payload json,
  anchor_name text,
  turn_id uuid,
  step integer,
  author_id text not null,
  dedup_key text,
  meta jsonb,
  created_at timestamp with time zone default now() not null
);

create table boxcar.tape_words (
  box_id uuid not null,
  "position" integer not null,
  card_id uuid,
  words text
);

create table boxcar.tool_calls (
  id uuid not null,
  project_id uuid not null,
  turn_id uuid not null,
  step integer not null,
  ordinal integer not null,
  provider_call_id text not null,
  name text not null,
  arguments json not null,
  route text not null,
  retry text not null,
  epoch integer not null,
  status text not null,
  deadline_at timestamp with time zone not null,
  result_card_id uuid,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone,
  target text,
  look_at timestamp with time zone,
  sent_at timestamp with time zone,
  batch_id uuid,
  guard_hash bytea
);

create table boxcar.toolsets (
  project_id uuid not null,
  hash bytea not null,
  schemas json not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.turn_parts (
  turn_id uuid not null,
  seq integer not null,
  round text not null,
  n integer not null,
  text text,
  created_at timestamp with time zone default now() not null
);

create table boxcar.turns (
  id uuid not null,
  project_id uuid not null,
  run_id uuid not null,
  agent_id uuid not null,
  profile_id uuid not null,
  parent_turn_id uuid,
  parent_tool_call_id uuid,
  is_awaited boolean default false not null,
  depth integer not null,
  primitive text not null,
  channel_id text default 'public'::text not null,
  status text not null,
  epoch integer not null,
  holder_id uuid,
  attempt integer default 0 not null,
  step_count integer default 0 not null,
  max_steps integer not null,
  empty_replies integer default 0 not null,
  pending_calls integer default 0 not null,
  context_box_id uuid not null,
  output_box_id uuid not null,
  start_position integer,
  deliverable_card_id uuid,
  error jsonb,
  worker_target text default ''::text not null,
  priority smallint default 0 not null,
  deadline_at timestamp with time zone,
  traceparent text,
  created_at timestamp with time zone default now() not null,
  dispatched_at timestamp with time zone,
  ended_at timestamp with time zone,
  retries smallint default 0 not null,
  losses smallint default 0 not null,
  batch_ids uuid[],
  budget_id uuid,
  allotted_tokens bigint,
  allotted_cost bigint,
  allotted_steps integer,
  spent_tokens bigint,
  spent_cost bigint,
  is_settled boolean,
  format smallint default 0 not null,
  notifies boolean,
  unseen_position integer,
  is_woken boolean,
  told_agent_id uuid,
  own_view_anchor integer,
  own_view_position integer,
  selector text,
  selector_version text,
  warm_turn_id uuid
) with (fillfactor=60);

create table boxcar.unsealed (
  xact xid8 not null,
  allows text not null
);

create table boxcar.waits (
  turn_id uuid not null,
  project_id uuid not null,
  kind text not null,
  due_at timestamp with time zone,
  provider text,
  detail jsonb default '{}'::jsonb not null,
  created_at timestamp with time zone default clock_timestamp() not null
);

create table boxcar.webhook_deliveries (
  id uuid default gen_random_uuid() not null,
  project_id uuid not null,
  handoff_id uuid not null,
  event_handoff_id uuid not null,
  event_seq integer not null,
  push_config text,
  url text not null,
  host text not null,
  status text default 'pending'::text not null,
  attempts integer default 0 not null,
  failures integer default 0 not null,
  next_at timestamp with time zone default now() not null,
  give_up_at timestamp with time zone default (now() + '24:00:00'::interval) not null,
  holder_id uuid,
  last_status integer,
  last_error text,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone
);

create table boxcar.workers (
  id uuid not null,
  lock_key bigint not null,
  lease_until timestamp with time zone not null,
  targets text[] not null,
  concurrency integer not null,
  info jsonb default '{}'::jsonb not null,
  started_at timestamp with time zone default now() not null,
  locked_at timestamp with time zone,
  schema_version smallint default 11 not null,
  answers jsonb default '{}'::jsonb not null,
  told_at timestamp with time zone
) with (fillfactor=60);

-- Constraints

alter table only boxcar.agents add constraint agents_check CHECK (((profile_id IS NULL) = (tape_box_id IS NULL)));

alter table only boxcar.agents add constraint agents_pkey PRIMARY KEY (id);

alter table only boxcar.agents add constraint agents_project_id_name_key UNIQUE (project_id, name);

alter table only boxcar.api_keys add constraint api_keys_key_sha256_check CHECK ((octet_length(key_sha256) = 32));

alter table only boxcar.api_keys add constraint api_keys_name_check CHECK ((name <> ''::text));

alter table only boxcar.api_keys add constraint api_keys_scopes_check CHECK ((cardinality(scopes) > 0));

alter table only boxcar.api_keys add constraint api_keys_pkey PRIMARY KEY (id);

alter table only boxcar.api_keys add constraint api_keys_key_sha256_key UNIQUE (key_sha256);

alter table only boxcar.api_keys add constraint api_keys_rotated_from_key UNIQUE (rotated_from);

alter table only boxcar.approvals add constraint approvals_agent_check CHECK ((agent <> ''::text));

alter table only boxcar.approvals add constraint approvals_args_hash_check CHECK ((args_hash ~ '^[0-9a-f]{64}$'::text));

alter table only boxcar.approvals add constraint approvals_check CHECK (((resolved_at IS NULL) = (status = 'pending'::text)));

alter table only boxcar.approvals add constraint approvals_check1 CHECK (((resolved_by IS NULL) = (status = 'pending'::text)));

alter table only boxcar.approvals add constraint approvals_check2 CHECK (((consumed_at IS NULL) OR (status = 'approved'::text)));

alter table only boxcar.approvals add constraint approvals_check3 CHECK (((consumed_epoch IS NULL) OR (consumed_at IS NOT NULL)));

alter table only boxcar.approvals add constraint approvals_run_id_check CHECK ((run_id <> ''::text));

alter table only boxcar.approvals add constraint approvals_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'approved'::text, 'denied'::text, 'expired'::text])));

alter table only boxcar.approvals add constraint approvals_tool_name_check CHECK ((tool_name <> ''::text));

alter table only boxcar.approvals add constraint approvals_pkey PRIMARY KEY (id);

alter table only boxcar.batches add constraint batches_check CHECK (((status = 'running'::text) = (ended_at IS NULL)));

alter table only boxcar.batches add constraint batches_check1 CHECK (((NOT is_due) OR (status = 'running'::text)));

alter table only boxcar.batches add constraint batches_closing_check CHECK ((closing = ANY (ARRAY['deadline'::text, 'fail_fast'::text, 'min_success'::text, 'cancel'::text])));

alter table only boxcar.batches add constraint batches_kind_check CHECK ((kind = ANY (ARRAY['fork_join'::text, 'collect'::text])));

alter table only boxcar.batches add constraint batches_remaining_check CHECK ((remaining >= 0));

alter table only boxcar.batches add constraint batches_status_check CHECK ((status = ANY (ARRAY['running'::text, 'success'::text, 'partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])));

alter table only boxcar.batches add constraint batches_turn_ids_check CHECK ((cardinality(turn_ids) > 0));

alter table only boxcar.batches add constraint batches_pkey PRIMARY KEY (id);

alter table only boxcar.batches add constraint batches_tool_call_id_key UNIQUE (tool_call_id);

alter table only boxcar.boxes add constraint boxes_check CHECK (((kind = 'context'::text) = ((card_ids IS NOT NULL) AND (card_tokens IS NOT NULL) AND (segments IS NOT NULL) AND (card_count IS NOT NULL) AND (token_estimate IS NOT NULL))));

alter table only boxcar.boxes add constraint boxes_check1 CHECK (((kind = 'tape'::text) = ((incarnation IS NOT NULL) AND (head_position IS NOT NULL) AND (last_anchor_position IS NOT NULL) AND (view_position IS NOT NULL))));

alter table only boxcar.boxes add constraint boxes_check2 CHECK ((cardinality(card_ids) = cardinality(card_tokens)));

alter table only boxcar.boxes add constraint boxes_check3 CHECK (((parent_box_id IS NULL) = (fork_position IS NULL)));

alter table only boxcar.boxes add constraint boxes_fork_status_check CHECK (((fork_status IS NULL) OR ((parent_box_id IS NOT NULL) AND (fork_status = ANY (ARRAY['open'::text, 'merged'::text, 'discarded'::text]))))) NOT VALID;

alter table only boxcar.boxes add constraint boxes_kind_check CHECK ((kind = ANY (ARRAY['context'::text, 'tape'::text])));

alter table only boxcar.boxes add constraint boxes_line_check CHECK ((((line_boxes IS NULL) = (parent_box_id IS NULL)) AND ((line_ends IS NULL) = (parent_box_id IS NULL)) AND (cardinality(line_boxes) = cardinality(line_ends)) AND (COALESCE(line_ends[cardinality(line_ends)], 0) = COALESCE(fork_position, 0)))) NOT VALID;

alter table only boxcar.boxes add constraint boxes_pkey PRIMARY KEY (id);

alter table only boxcar.budgets add constraint budgets_cost_reserved_check CHECK ((cost_reserved >= 0));

alter table only boxcar.budgets add constraint budgets_steps_reserved_check CHECK ((steps_reserved >= 0));

alter table only boxcar.budgets add constraint budgets_tokens_reserved_check CHECK ((tokens_reserved >= 0));

alter table only boxcar.budgets add constraint budgets_pkey PRIMARY KEY (id);

alter table only boxcar.cards add constraint cards_check CHECK (((content IS NULL) = (erased_at IS NOT NULL)));

alter table only boxcar.cards add constraint cards_content_hash_check CHECK ((length(content_hash) = 32));

alter table only boxcar.cards add constraint cards_role_check CHECK ((role = ANY (ARRAY['system'::text, 'user'::text, 'assistant'::text, 'tool'::text])));

alter table only boxcar.cards add constraint cards_size_bytes_check CHECK ((size_bytes >= 0));

alter table only boxcar.cards add constraint cards_token_estimate_check CHECK ((token_estimate >= 0));

alter table only boxcar.cards add constraint cards_type_check CHECK ((type <> ''::text));

alter table only boxcar.cards add constraint cards_pkey PRIMARY KEY (id);

alter table only boxcar.evidence add constraint evidence_check CHECK (((kind = 'result'::text) = (tool_call_id IS NOT NULL)));

alter table only boxcar.evidence add constraint evidence_kind_check CHECK ((kind = ANY (ARRAY['reply'::text, 'result'::text])));

alter table only boxcar.evidence add constraint evidence_pkey PRIMARY KEY (id);

alter table only boxcar.evidence add constraint evidence_turn_id_epoch_step_attempt_tool_call_id_key UNIQUE NULLS NOT DISTINCT (turn_id, epoch, step, attempt, tool_call_id);

alter table only boxcar.forks add constraint forks_check CHECK ((((status = 'open'::text) = (ended_at IS NULL)) AND ((status = 'open'::text) = (receipt IS NULL))));

alter table only boxcar.forks add constraint forks_on_error_check CHECK ((on_error = ANY (ARRAY['merge'::text, 'discard'::text])));

alter table only boxcar.forks add constraint forks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'merged'::text, 'discarded'::text])));

alter table only boxcar.forks add constraint forks_pkey PRIMARY KEY (id);

alter table only boxcar.grants add constraint grants_mode_check CHECK ((mode = ANY (ARRAY['read'::text, 'append'::text])));

alter table only boxcar.grants add constraint grants_pkey PRIMARY KEY (agent_id, box_id, mode);

alter table only boxcar.handoff_events add constraint handoff_events_seq_check CHECK ((seq > 0));

alter table only boxcar.handoff_events add constraint handoff_events_type_check CHECK ((type <> ''::text));

alter table only boxcar.handoff_events add constraint handoff_events_pkey PRIMARY KEY (handoff_id, seq);

alter table only boxcar.handoff_messages add constraint handoff_messages_check CHECK ((replies_to < seq));

alter table only boxcar.handoff_messages add constraint handoff_messages_check1 CHECK (((replies_to IS NULL) = ((ask_key IS NOT NULL) AND (expires_at IS NOT NULL))));

alter table only boxcar.handoff_messages add constraint handoff_messages_check2 CHECK (((replies_to IS NULL) = (author IS NULL)));

alter table only boxcar.handoff_messages add constraint handoff_messages_reply_key_check CHECK ((reply_key <> ''::text));

alter table only boxcar.handoff_messages add constraint handoff_messages_seq_check CHECK ((seq > 0));

alter table only boxcar.handoff_messages add constraint handoff_messages_pkey PRIMARY KEY (handoff_id, seq);

alter table only boxcar.handoff_messages add constraint handoff_messages_handoff_id_ask_key_key UNIQUE (handoff_id, ask_key);

alter table only boxcar.handoff_messages add constraint handoff_messages_handoff_id_replies_to_key UNIQUE (handoff_id, replies_to);

alter table only boxcar.handoff_messages add constraint handoff_messages_reply_key_key UNIQUE (reply_key);

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_check CHECK ((sequence_number = (((message_count + file_count) + tool_call_count) + system_count)));

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_position_check CHECK (("position" > 0));

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_type_check CHECK ((type = ANY (ARRAY['message'::text, 'file'::text, 'tool_call'::text, 'system'::text])));

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_pkey PRIMARY KEY (session_id, sequence_number);

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_session_id_position_key UNIQUE (session_id, "position");

alter table only boxcar.handoff_sessions add constraint handoff_sessions_agent_from_check CHECK ((agent_from <> ''::text));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_agent_to_check CHECK ((agent_to <> ''::text));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_check CHECK (((ended_at IS NULL) = (status = 'active'::text)));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_check1 CHECK (((frozen_head IS NOT NULL) = (status = 'completed'::text)));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_check2 CHECK (((continues IS NULL) = (cardinality(line_sessions) = 0)));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_file_count_check CHECK ((file_count >= 0));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_message_count_check CHECK ((message_count >= 0));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_retention_policy_check CHECK ((retention_policy = ANY (ARRAY['standard'::text, 'extended'::text, 'short'::text])));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_session_key_check CHECK ((session_key <> ''::text));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_status_check CHECK ((status = ANY (ARRAY['active'::text, 'completed'::text, 'cancelled'::text])));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_system_count_check CHECK ((system_count >= 0));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_tool_call_count_check CHECK ((tool_call_count >= 0));

alter table only boxcar.handoff_sessions add constraint handoff_sessions_pkey PRIMARY KEY (id);

alter table only boxcar.handoff_sessions add constraint handoff_sessions_project_id_session_key_key UNIQUE (project_id, session_key);

alter table only boxcar.handoff_sessions add constraint handoff_sessions_tape_box_id_key UNIQUE (tape_box_id);

alter table only boxcar.handoffs add constraint handoffs_cache_seconds_check CHECK ((cache_seconds > 0));

alter table only boxcar.handoffs add constraint handoffs_callback_url_check CHECK ((callback_url <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_check CHECK (((ended_at IS NULL) = (phase = ANY (ARRAY['pending'::text, 'awaiting_approval'::text, 'queued'::text, 'in_progress'::text, 'waiting_input'::text]))));

alter table only boxcar.handoffs add constraint handoffs_conversation_check CHECK ((conversation <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_depth_check CHECK ((depth >= 0));

alter table only boxcar.handoffs add constraint handoffs_hop_check CHECK ((hop > 0));

alter table only boxcar.handoffs add constraint handoffs_idempotency_key_check CHECK ((idempotency_key <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_message_id_check CHECK ((message_id <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_mode_check CHECK ((mode = ANY (ARRAY['handoff'::text, 'chain'::text, 'compensate'::text])));

alter table only boxcar.handoffs add constraint handoffs_phase_check CHECK ((phase = ANY (ARRAY['pending'::text, 'awaiting_approval'::text, 'queued'::text, 'in_progress'::text, 'waiting_input'::text, 'completed'::text, 'failed'::text, 'timed_out'::text, 'canceled'::text, 'rejected'::text, 'rolled_back'::text, 'compensation_failed'::text])));

alter table only boxcar.handoffs add constraint handoffs_platform_check CHECK ((platform <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_public_agent_check CHECK ((public_agent <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_remote_task_check CHECK ((remote_task <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_request_hash_check CHECK ((request_hash ~ '^[0-9a-f]{64}$'::text));

alter table only boxcar.handoffs add constraint handoffs_session_head_check CHECK ((session_head > 0));

alter table only boxcar.handoffs add constraint handoffs_session_request_check CHECK ((session_request = ANY (ARRAY['context_transfer'::text, 'full_handoff'::text, 'collaboration'::text])));

alter table only boxcar.handoffs add constraint handoffs_source_agent_check CHECK ((source_agent <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_target_agent_check CHECK ((target_agent <> ''::text));

alter table only boxcar.handoffs add constraint handoffs_timeout_ms_check CHECK ((timeout_ms > 0));

alter table only boxcar.handoffs add constraint handoffs_pkey PRIMARY KEY (id);

alter table only boxcar.operations add constraint operations_pkey PRIMARY KEY (project_id, idempotency_key);

alter table only boxcar.policies add constraint policies_version_check CHECK ((version ~ '^[0-9a-f]{64}$'::text));

alter table only boxcar.policies add constraint policies_pkey PRIMARY KEY (version);

alter table only boxcar.profiles add constraint profiles_max_steps_check CHECK ((max_steps > 0));

alter table only boxcar.profiles add constraint profiles_name_check CHECK ((name <> ''::text));

alter table only boxcar.profiles add constraint profiles_version_check CHECK ((version >= 0));

alter table only boxcar.profiles add constraint profiles_view_check CHECK ((view = 'full'::text));

alter table only boxcar.profiles add constraint profiles_pkey PRIMARY KEY (id);

alter table only boxcar.profiles add constraint profiles_project_id_name_version_key UNIQUE (project_id, name, version);

alter table only boxcar.projects add constraint projects_name_check CHECK ((name <> ''::text));

alter table only boxcar.projects add constraint projects_pkey PRIMARY KEY (id);

alter table only boxcar.projects add constraint projects_name_key UNIQUE (name);

alter table only boxcar.provider_slots add constraint provider_slots_pkey PRIMARY KEY (turn_id);

alter table only boxcar.providers add constraint providers_breaker_after_check CHECK ((breaker_after >= 0));

alter table only boxcar.providers add constraint providers_max_concurrent_check CHECK ((max_concurrent > 0));

alter table only boxcar.providers add constraint providers_name_check CHECK ((name <> ''::text));

alter table only boxcar.providers add constraint providers_requests_per_minute_check CHECK ((requests_per_minute > 0));

alter table only boxcar.providers add constraint providers_pkey PRIMARY KEY (name);

alter table only boxcar.purging add constraint purging_pkey PRIMARY KEY (box_id);

alter table only boxcar.push_configs add constraint push_configs_id_check CHECK ((id <> ''::text));

alter table only boxcar.push_configs add constraint push_configs_url_check CHECK ((url <> ''::text));

alter table only boxcar.push_configs add constraint push_configs_version_check CHECK ((version <> ''::text));

alter table only boxcar.push_configs add constraint push_configs_pkey PRIMARY KEY (handoff_id, id);

alter table only boxcar.runs add constraint runs_pkey PRIMARY KEY (id);

alter table only boxcar.schema_version add constraint schema_version_check CHECK (((min_compatible >= 1) AND (min_compatible <= version)));

alter table only boxcar.schema_version add constraint schema_version_version_check CHECK ((version > 0));

alter table only boxcar.schema_version add constraint schema_version_pkey PRIMARY KEY (version);

alter table only boxcar.sessions add constraint sessions_name_check CHECK ((name <> ''::text));

alter table only boxcar.sessions add constraint sessions_status_check CHECK (((status ~ '\S'::text) AND (length(status) <= 100)));

alter table only boxcar.sessions add constraint sessions_pkey PRIMARY KEY (id);

alter table only boxcar.sessions add constraint sessions_agent_id_key UNIQUE (agent_id);

alter table only boxcar.sessions add constraint sessions_project_id_name_key UNIQUE (project_id, name);

alter table only boxcar.steps add constraint steps_attempt_check CHECK ((attempt > 0));

alter table only boxcar.steps add constraint steps_step_check CHECK ((step > 0));

alter table only boxcar.steps add constraint steps_toolset_hash_check CHECK ((length(toolset_hash) = 32));

alter table only boxcar.steps add constraint steps_pkey PRIMARY KEY (turn_id, step, attempt);

alter table only boxcar.sweep_failures add constraint sweep_failures_attempts_check CHECK ((attempts > 0));

alter table only boxcar.sweep_failures add constraint sweep_failures_pkey PRIMARY KEY (kind, row_id);

alter table only boxcar.sweeper add constraint sweeper_is_only_check CHECK (is_only);

alter table only boxcar.sweeper add constraint sweeper_pkey PRIMARY KEY (is_only);

alter table only boxcar.tape_entries add constraint tape_entries_check CHECK (((card_id IS NULL) = (kind = 'event'::text)));

alter table only boxcar.tape_entries add constraint tape_entries_check1 CHECK (((payload IS NOT NULL) = (kind = 'event'::text)));

alter table only boxcar.tape_entries add constraint tape_entries_check2 CHECK (((kind = 'anchor'::text) = (anchor_name IS NOT NULL)));

alter table only boxcar.tape_entries add constraint tape_entries_kind_check CHECK ((kind = ANY (ARRAY['message'::text, 'system'::text, 'anchor'::text, 'tool_call'::text, 'tool_result'::text, 'error'::text, 'event'::text])));

alter table only boxcar.tape_entries add constraint tape_entries_position_check CHECK (("position" > 0));

alter table only boxcar.tape_entries add constraint tape_entries_pkey PRIMARY KEY (box_id, "position");

alter table only boxcar.tape_words add constraint tape_words_pkey PRIMARY KEY (box_id, "position");

alter table only boxcar.tool_calls add constraint tool_calls_check CHECK (((status = 'pending'::text) = (result_card_id IS NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_check1 CHECK (((status = 'pending'::text) = (ended_at IS NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_retry_check CHECK ((retry = ANY (ARRAY['safe'::text, 'never'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_route_check CHECK ((route = ANY (ARRAY['function'::text, 'primitive'::text, 'queue'::text, 'none'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'success'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_target_check CHECK (((route = 'queue'::text) = (target IS NOT NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_pkey PRIMARY KEY (id);

alter table only boxcar.tool_calls add constraint tool_calls_turn_id_step_ordinal_key UNIQUE (turn_id, step, ordinal);

alter table only boxcar.toolsets add constraint toolsets_hash_check CHECK ((length(hash) = 32));

alter table only boxcar.toolsets add constraint toolsets_schemas_check CHECK ((json_typeof(schemas) = 'array'::text));

alter table only boxcar.toolsets add constraint toolsets_pkey PRIMARY KEY (project_id, hash);

alter table only boxcar.turn_parts add constraint turn_parts_n_check CHECK ((n >= 0));

alter table only boxcar.turn_parts add constraint turn_parts_round_check CHECK ((round <> ''::text));

alter table only boxcar.turn_parts add constraint turn_parts_seq_check CHECK ((seq > 0));

alter table only boxcar.turn_parts add constraint turn_parts_pkey PRIMARY KEY (turn_id, seq);

alter table only boxcar.turn_parts add constraint turn_parts_turn_id_round_n_key UNIQUE (turn_id, round, n);

alter table only boxcar.turns add constraint turns_budget_check CHECK (((budget_id IS NULL) = (is_settled IS NULL)));

alter table only boxcar.turns add constraint turns_check CHECK (((status = 'running'::text) = (holder_id IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check1 CHECK (((status = ANY (ARRAY['success'::text, 'partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])) = (ended_at IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check2 CHECK (((ended_at IS NULL) = (deliverable_card_id IS NULL)));

alter table only boxcar.turns add constraint turns_check3 CHECK (((status = 'dispatched'::text) <= (dispatched_at IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check4 CHECK ((is_awaited <= (parent_tool_call_id IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check5 CHECK (((own_view_anchor IS NULL) = (own_view_position IS NULL))) NOT VALID;

alter table only boxcar.turns add constraint turns_check6 CHECK (((selector_version IS NULL) OR (selector IS NOT NULL))) NOT VALID;

alter table only boxcar.turns add constraint turns_depth_check CHECK ((depth >= 0));

alter table only boxcar.turns add constraint turns_epoch_check CHECK ((epoch >= 0));

alter table only boxcar.turns add constraint turns_pending_calls_check CHECK ((pending_calls >= 0));

alter table only boxcar.turns add constraint turns_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'dispatched'::text, 'running'::text, 'suspended'::text, 'success'::text, 'partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])));

alter table only boxcar.turns add constraint turns_pkey PRIMARY KEY (id);

alter table only boxcar.unsealed add constraint unsealed_allows_check CHECK ((allows = ANY (ARRAY['erase'::text, 'purge'::text])));

alter table only boxcar.unsealed add constraint unsealed_pkey PRIMARY KEY (xact);

alter table only boxcar.waits add constraint waits_check CHECK (((kind = 'limit'::text) = (provider IS NOT NULL)));

alter table only boxcar.waits add constraint waits_kind_check CHECK ((kind = ANY (ARRAY['retry'::text, 'limit'::text, 'budget'::text, 'approval'::text, 'selector'::text]))) NOT VALID;

alter table only boxcar.waits add constraint waits_pkey PRIMARY KEY (turn_id);

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_attempts_check CHECK ((attempts >= 0));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_check CHECK (((status = 'pending'::text) = (ended_at IS NULL)));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_check1 CHECK (((holder_id IS NULL) OR (status = 'pending'::text)));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_event_seq_check CHECK ((event_seq > 0));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_failures_check CHECK ((failures >= 0));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_host_check CHECK ((host <> ''::text));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_url_check CHECK ((url <> ''::text));

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_pkey PRIMARY KEY (id);

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_event_handoff_id_event_seq_push_config_key UNIQUE NULLS NOT DISTINCT (event_handoff_id, event_seq, push_config);

alter table only boxcar.workers add constraint workers_concurrency_check CHECK ((concurrency > 0));

alter table only boxcar.workers add constraint workers_pkey PRIMARY KEY (id);

alter table only boxcar.workers add constraint workers_lock_key_key UNIQUE (lock_key);

-- Foreign keys

alter table only boxcar.api_keys add constraint api_keys_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES boxcar.agents(id) ON DELETE CASCADE;

alter table only boxcar.api_keys add constraint api_keys_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

alter table only boxcar.api_keys add constraint api_keys_rotated_from_fkey FOREIGN KEY (rotated_from) REFERENCES boxcar.api_keys(id) ON DELETE SET NULL;

alter table only boxcar.approvals add constraint approvals_card_id_fkey FOREIGN KEY (card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.approvals add constraint approvals_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

alter table only boxcar.approvals add constraint approvals_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES boxcar.turns(id);

alter table only boxcar.boxes add constraint boxes_parent_box_id_fkey FOREIGN KEY (parent_box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.grants add constraint grants_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES boxcar.agents(id);

alter table only boxcar.handoff_events add constraint handoff_events_handoff_id_fkey FOREIGN KEY (handoff_id) REFERENCES boxcar.handoffs(id) ON DELETE CASCADE;

alter table only boxcar.handoff_messages add constraint handoff_messages_card_id_fkey FOREIGN KEY (card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.handoff_messages add constraint handoff_messages_handoff_id_fkey FOREIGN KEY (handoff_id) REFERENCES boxcar.handoffs(id) ON DELETE CASCADE;

alter table only boxcar.handoff_session_entries add constraint handoff_session_entries_session_id_fkey FOREIGN KEY (session_id) REFERENCES boxcar.handoff_sessions(id) ON DELETE CASCADE;

alter table only boxcar.handoff_sessions add constraint handoff_sessions_continues_fkey FOREIGN KEY (continues) REFERENCES boxcar.handoff_sessions(id);

alter table only boxcar.handoff_sessions add constraint handoff_sessions_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

alter table only boxcar.handoff_sessions add constraint handoff_sessions_tape_box_id_fkey FOREIGN KEY (tape_box_id) REFERENCES boxcar.boxes(id) ON DELETE CASCADE;

alter table only boxcar.handoffs add constraint handoffs_context_box_id_fkey FOREIGN KEY (context_box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.handoffs add constraint handoffs_context_card_id_fkey FOREIGN KEY (context_card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.handoffs add constraint handoffs_joined_to_fkey FOREIGN KEY (joined_to) REFERENCES boxcar.handoffs(id);

alter table only boxcar.handoffs add constraint handoffs_parent_turn_id_fkey FOREIGN KEY (parent_turn_id) REFERENCES boxcar.turns(id);

alter table only boxcar.handoffs add constraint handoffs_payload_card_id_fkey FOREIGN KEY (payload_card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.handoffs add constraint handoffs_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

alter table only boxcar.handoffs add constraint handoffs_session_id_fkey FOREIGN KEY (session_id) REFERENCES boxcar.handoff_sessions(id) ON DELETE SET NULL;

alter table only boxcar.handoffs add constraint handoffs_task_card_id_fkey FOREIGN KEY (task_card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.handoffs add constraint handoffs_ticket_id_fkey FOREIGN KEY (ticket_id) REFERENCES boxcar.approvals(id);

alter table only boxcar.handoffs add constraint handoffs_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES boxcar.turns(id) DEFERRABLE INITIALLY DEFERRED;

alter table only boxcar.profiles add constraint profiles_box_id_fkey FOREIGN KEY (box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.profiles add constraint profiles_card_id_fkey FOREIGN KEY (card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.profiles add constraint profiles_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

alter table only boxcar.push_configs add constraint push_configs_handoff_id_fkey FOREIGN KEY (handoff_id) REFERENCES boxcar.handoffs(id) ON DELETE CASCADE;

alter table only boxcar.turn_parts add constraint turn_parts_turn_id_fkey FOREIGN KEY (turn_id) REFERENCES boxcar.turns(id) ON DELETE CASCADE;

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_event_handoff_id_fkey FOREIGN KEY (event_handoff_id) REFERENCES boxcar.handoffs(id) ON DELETE CASCADE;

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_handoff_id_fkey FOREIGN KEY (handoff_id) REFERENCES boxcar.handoffs(id) ON DELETE CASCADE;

alter table only boxcar.webhook_deliveries add constraint webhook_deliveries_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

-- Indexes

CREATE INDEX agents_derived ON boxcar.agents USING btree (derived_from) WHERE (derived_from IS NOT NULL);

CREATE INDEX agents_newest ON boxcar.agents USING btree (project_id, created_at, id);

CREATE INDEX agents_owner ON boxcar.agents USING btree (owner_agent_id) WHERE (owner_agent_id IS NOT NULL);

CREATE INDEX agents_profile ON boxcar.agents USING btree (profile_id, created_at, id) WHERE (profile_id IS NOT NULL);

CREATE INDEX api_keys_agent ON boxcar.api_keys USING btree (agent_id);

CREATE INDEX api_keys_newest ON boxcar.api_keys USING btree (project_id, created_at, id);

CREATE INDEX approvals_card ON boxcar.approvals USING btree (card_id);

CREATE INDEX approvals_due ON boxcar.approvals USING btree (expires_at) WHERE (status = 'pending'::text);

CREATE UNIQUE INDEX approvals_joined ON boxcar.approvals USING btree (project_id, run_id, tool_name, args_hash, context_hash, payload_hash, policy_version) WHERE (status = 'pending'::text);

CREATE INDEX approvals_newest ON boxcar.approvals USING btree (project_id, created_at, id);

CREATE INDEX approvals_of_handoff ON boxcar.approvals USING btree (((metadata ->> 'handoff_id'::text))) WHERE (turn_id IS NULL);

CREATE INDEX approvals_of_turn ON boxcar.approvals USING btree (turn_id) WHERE (turn_id IS NOT NULL);

CREATE INDEX approvals_waiting ON boxcar.approvals USING btree (tool_call_id) WHERE ((tool_call_id IS NOT NULL) AND (consumed_at IS NULL) AND (voided_at IS NULL));

CREATE INDEX batches_answered ON boxcar.batches USING gin (turn_ids) WHERE (answer IS NOT NULL);

CREATE INDEX batches_collected ON boxcar.batches USING gin (turn_ids) WITH (fastupdate=off) WHERE (kind = 'collect'::text);

CREATE INDEX batches_collecting ON boxcar.batches USING btree (id) WHERE ((status = 'running'::text) AND (kind = 'collect'::text) AND (tool_call_id IS NOT NULL));

CREATE INDEX batches_deadline ON boxcar.batches USING btree (deadline_at) WHERE (status = 'running'::text);

CREATE INDEX batches_due ON boxcar.batches USING btree (id) WHERE ((status = 'running'::text) AND is_due);

CREATE INDEX batches_of_turn ON boxcar.batches USING btree (turn_id) WHERE (status = 'running'::text);

CREATE INDEX boxes_left ON boxcar.boxes USING btree (id) WHERE ((archived_at IS NOT NULL) OR (fork_status = 'discarded'::text));

CREATE INDEX boxes_listed ON boxcar.boxes USING gin (card_ids) WITH (fastupdate=off) WHERE (segments @? '$[*]?(@."rule" == "create_box")'::jsonpath);

CREATE INDEX boxes_maker ON boxcar.boxes USING btree (maker_agent_id) WHERE (maker_agent_id IS NOT NULL);

CREATE INDEX boxes_newest ON boxcar.boxes USING btree (project_id, created_at, id);

CREATE INDEX boxes_owner ON boxcar.boxes USING btree (owner_agent_id, created_at, id) WHERE (owner_agent_id IS NOT NULL);

CREATE INDEX boxes_parent ON boxcar.boxes USING btree (parent_box_id) WHERE (parent_box_id IS NOT NULL);

CREATE INDEX boxes_sources ON boxcar.boxes USING gin (jsonb_path_query_array(segments, '$[*]."source"'::jsonpath), jsonb_path_query_array(segments, '$[*]."via"'::jsonpath)) WITH (fastupdate=off) WHERE (segments @? '$[*]."source"'::jsonpath);

CREATE UNIQUE INDEX boxes_tape_incarnation ON boxcar.boxes USING btree (project_id, tape_name, incarnation) WHERE (tape_name IS NOT NULL);

CREATE UNIQUE INDEX boxes_tape_name ON boxcar.boxes USING btree (project_id, tape_name) WHERE ((tape_name IS NOT NULL) AND (archived_at IS NULL));

CREATE INDEX budgets_paused ON boxcar.budgets USING btree (paused_at) WHERE (paused_at IS NOT NULL);

CREATE INDEX budgets_run ON boxcar.budgets USING btree (run_id);

CREATE INDEX forks_box ON boxcar.forks USING btree (box_id);

CREATE UNIQUE INDEX forks_key ON boxcar.forks USING btree (turn_id, parent_box_id, fork_key) WHERE (turn_id IS NOT NULL);

CREATE INDEX forks_open ON boxcar.forks USING btree (turn_id) WHERE (status = 'open'::text);

CREATE INDEX forks_parent ON boxcar.forks USING btree (parent_box_id);

CREATE INDEX grants_box ON boxcar.grants USING btree (box_id);

CREATE INDEX handoff_messages_card ON boxcar.handoff_messages USING btree (card_id);

CREATE INDEX handoff_session_entries_types ON boxcar.handoff_session_entries USING btree (session_id, type, sequence_number);

CREATE INDEX handoff_sessions_continues ON boxcar.handoff_sessions USING btree (continues) WHERE (continues IS NOT NULL);

CREATE INDEX handoff_sessions_from ON boxcar.handoff_sessions USING btree (project_id, agent_from, created_at, id);

CREATE INDEX handoff_sessions_maker ON boxcar.handoff_sessions USING btree (maker_agent_id);

CREATE INDEX handoff_sessions_newest ON boxcar.handoff_sessions USING btree (project_id, created_at, id);

CREATE INDEX handoff_sessions_to ON boxcar.handoff_sessions USING btree (project_id, agent_to, created_at, id) WHERE (agent_to IS NOT NULL);

CREATE INDEX handoff_sessions_written ON boxcar.handoff_sessions USING btree (last_write_at);

CREATE INDEX handoffs_cached ON boxcar.handoffs USING btree (project_id, cache_key, ended_at) WHERE ((cache_key IS NOT NULL) AND (cached_from IS NULL) AND (phase = 'completed'::text));

CREATE INDEX handoffs_joined ON boxcar.handoffs USING btree (joined_to) WHERE (joined_to IS NOT NULL);

CREATE UNIQUE INDEX handoffs_key ON boxcar.handoffs USING btree (project_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE UNIQUE INDEX handoffs_leading ON boxcar.handoffs USING btree (project_id, cache_key) WHERE is_leading;

CREATE INDEX handoffs_newest ON boxcar.handoffs USING btree (project_id, created_at, id);

CREATE INDEX handoffs_of_box ON boxcar.handoffs USING btree (context_box_id);

CREATE INDEX handoffs_of_context ON boxcar.handoffs USING btree (context_card_id);

CREATE INDEX handoffs_of_parent ON boxcar.handoffs USING btree (parent_turn_id) WHERE (parent_turn_id IS NOT NULL);

CREATE INDEX handoffs_of_parent_handoff ON boxcar.handoffs USING btree (parent_handoff_id) WHERE (parent_handoff_id IS NOT NULL);

CREATE INDEX handoffs_of_payload ON boxcar.handoffs USING btree (payload_card_id);

CREATE INDEX handoffs_of_root ON boxcar.handoffs USING btree (root_handoff_id);

CREATE INDEX handoffs_of_source ON boxcar.handoffs USING btree (project_id, source_agent, created_at, id);

CREATE INDEX handoffs_of_target ON boxcar.handoffs USING btree (project_id, target_agent, created_at, id);

CREATE INDEX handoffs_of_task ON boxcar.handoffs USING btree (task_card_id);

CREATE INDEX handoffs_of_ticket ON boxcar.handoffs USING btree (ticket_id) WHERE (ticket_id IS NOT NULL);

CREATE INDEX handoffs_of_turn ON boxcar.handoffs USING btree (turn_id) WHERE (turn_id IS NOT NULL);

CREATE INDEX handoffs_open ON boxcar.handoffs USING btree (project_id, created_at, id) WHERE (ended_at IS NULL);

CREATE INDEX handoffs_public ON boxcar.handoffs USING btree (project_id, public_agent, source_agent, created_at, id) WHERE (public_agent IS NOT NULL);

CREATE INDEX handoffs_result ON boxcar.handoffs USING btree (result_card_id);

CREATE INDEX handoffs_session ON boxcar.handoffs USING btree (session_id, created_at, id) WHERE (session_id IS NOT NULL);

CREATE INDEX handoffs_to_cache ON boxcar.handoffs USING btree (project_id, cache_key) WHERE ((cache_key IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX handoffs_to_tell ON boxcar.handoffs USING btree (id) WHERE ((ended_at IS NOT NULL) AND notifies);

CREATE INDEX operations_batch_door ON boxcar.operations USING btree (awaited_batch_id) WHERE (door_job_id IS NOT NULL);

CREATE INDEX operations_door ON boxcar.operations USING btree (awaited_turn_id) WHERE (door_job_id IS NOT NULL);

CREATE INDEX operations_named ON boxcar.operations USING gin (array_remove(ARRAY["left"((response ->> 'agent_id'::text), 36), "left"((response ->> 'output_box_id'::text), 36), "left"((response ->> 'box_id'::text), 36), "left"((response ->> 'boxId'::text), 36), "left"((response ->> 'context_box_id'::text), 36), "left"((response ->> 'turn_id'::text), 36), "left"((response ->> 'run_id'::text), 36), (awaited_batch_id)::text,
CASE
    WHEN starts_with(idempotency_key, 'agent:'::text) THEN "left"(split_part(idempotency_key, ':'::text, 2), 36)
    ELSE NULL::text
END], NULL::text)) WITH (fastupdate=off) WHERE ((made IS NULL) OR (made = '{}'::uuid[]));

CREATE INDEX operations_quoting ON boxcar.operations USING btree (project_id) WHERE ((primitive = 'delegate_async'::text) AND ((response ->> 'command'::text) = ANY (ARRAY['anchors'::text, 'search'::text])) AND ((response ->> 'output'::text) IS DISTINCT FROM '(erased)'::text));

CREATE INDEX operations_time ON boxcar.operations USING btree (created_at);

CREATE INDEX profiles_box ON boxcar.profiles USING btree (box_id);

CREATE INDEX profiles_card ON boxcar.profiles USING btree (card_id);

CREATE UNIQUE INDEX profiles_current ON boxcar.profiles USING btree (project_id, name) WHERE is_current;

CREATE INDEX projects_limited ON boxcar.projects USING btree (id) WHERE (limits ? 'max_concurrent'::text);

CREATE INDEX provider_slots_provider ON boxcar.provider_slots USING btree (provider);

CREATE INDEX runs_age ON boxcar.runs USING brin (created_at) WITH (autosummarize='on', pages_per_range='8');

CREATE INDEX runs_newest ON boxcar.runs USING btree (project_id, created_at, id);

CREATE INDEX sessions_parent ON boxcar.sessions USING btree (project_id, parent_session_id, created_at);

CREATE INDEX sweep_failures_next ON boxcar.sweep_failures USING btree (next_try_at) WHERE (NOT is_dead);

CREATE INDEX tape_entries_anchor ON boxcar.tape_entries USING btree (box_id, hashtextextended(anchor_name, (0)::bigint), "position") WHERE (kind = 'anchor'::text);

CREATE INDEX tape_entries_begun_by_import ON boxcar.tape_entries USING btree (box_id) WHERE (("position" = 1) AND (meta ? 'imported'::text));

CREATE INDEX tape_entries_card ON boxcar.tape_entries USING btree (card_id) WHERE (card_id IS NOT NULL);

CREATE INDEX tape_entries_date ON boxcar.tape_entries USING btree (box_id, kind, created_at);

CREATE UNIQUE INDEX tape_entries_dedup ON boxcar.tape_entries USING btree (box_id, dedup_key) WHERE (dedup_key IS NOT NULL);

CREATE INDEX tape_entries_imported ON boxcar.tape_entries USING btree (card_id) WHERE ((meta ? 'imported'::text) AND (card_id IS NOT NULL));

CREATE INDEX tape_entries_kind ON boxcar.tape_entries USING btree (box_id, kind, "position");

CREATE INDEX tape_words_card ON boxcar.tape_words USING btree (card_id) WHERE (card_id IS NOT NULL);

CREATE INDEX tape_words_trigrams ON boxcar.tape_words USING gin (words public.gin_trgm_ops);

CREATE INDEX tool_calls_deadline ON boxcar.tool_calls USING btree (deadline_at) WHERE (status = 'pending'::text);

CREATE INDEX tool_calls_look ON boxcar.tool_calls USING btree (look_at) WHERE ((status = 'pending'::text) AND (look_at IS NOT NULL));

CREATE INDEX turns_agent_queue ON boxcar.turns USING btree (agent_id, id) WHERE (status = 'queued'::text);

CREATE INDEX turns_awaited ON boxcar.turns USING btree (parent_tool_call_id) WHERE is_awaited;

CREATE INDEX turns_awaited_queue ON boxcar.turns USING btree (id) WHERE ((status = 'queued'::text) AND (is_awaited OR (batch_ids IS NOT NULL)));

CREATE INDEX turns_channel ON boxcar.turns USING btree (project_id, channel_id, created_at, id) WHERE (channel_id <> 'public'::text);

CREATE INDEX turns_children ON boxcar.turns USING btree (parent_turn_id) WHERE (parent_turn_id IS NOT NULL);

CREATE INDEX turns_deadline ON boxcar.turns USING btree (deadline_at) WHERE ((deadline_at IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX turns_dispatched ON boxcar.turns USING btree (worker_target, dispatched_at) INCLUDE (format) WHERE (status = 'dispatched'::text);

CREATE INDEX turns_held ON boxcar.turns USING btree (holder_id) WHERE (status = 'running'::text);

CREATE INDEX turns_made ON boxcar.turns USING btree (created_at);

CREATE INDEX turns_newest ON boxcar.turns USING btree (project_id, created_at, id);

CREATE INDEX turns_notices ON boxcar.turns USING btree (id) WHERE ((ended_at IS NOT NULL) AND (notifies OR (unseen_position IS NOT NULL)));

CREATE INDEX turns_of_agent ON boxcar.turns USING btree (agent_id, created_at, id);

CREATE UNIQUE INDEX turns_one_active ON boxcar.turns USING btree (agent_id) WHERE (status = ANY (ARRAY['dispatched'::text, 'running'::text, 'suspended'::text]));

CREATE INDEX turns_outputs ON boxcar.turns USING btree (output_box_id) WHERE ((parent_turn_id IS NOT NULL) OR (told_agent_id IS NOT NULL));

CREATE INDEX turns_profile ON boxcar.turns USING btree (profile_id, created_at, id);

CREATE INDEX turns_queue ON boxcar.turns USING btree (worker_target, project_id, priority DESC, id) WHERE (status = 'queued'::text);

CREATE INDEX turns_told ON boxcar.turns USING btree (told_agent_id) WHERE (told_agent_id IS NOT NULL);

CREATE INDEX turns_tree ON boxcar.turns USING btree (run_id, id);

CREATE INDEX turns_unsettled_ends ON boxcar.turns USING btree (run_id) WHERE ((NOT is_settled) AND (ended_at IS NOT NULL));

CREATE INDEX turns_unwell ON boxcar.turns USING btree (project_id, status, created_at, id) WHERE (status = ANY (ARRAY['partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text]));

CREATE INDEX waits_due ON boxcar.waits USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX waits_provider ON boxcar.waits USING btree (provider, created_at, turn_id) WHERE (provider IS NOT NULL);

CREATE INDEX waits_selectors ON boxcar.waits USING btree (created_at) WHERE (kind = 'selector'::text);

CREATE INDEX webhook_deliveries_due ON boxcar.webhook_deliveries USING btree (next_at) WHERE (status = 'pending'::text);

CREATE INDEX webhook_deliveries_due_of_host ON boxcar.webhook_deliveries USING btree (host, next_at) WHERE (status = 'pending'::text);

CREATE INDEX webhook_deliveries_failed ON boxcar.webhook_deliveries USING btree (project_id, created_at, id) WHERE (status = 'failed'::text);

CREATE INDEX webhook_deliveries_newest ON boxcar.webhook_deliveries USING btree (project_id, created_at, id);

CREATE INDEX webhook_deliveries_of_handoff ON boxcar.webhook_deliveries USING btree (handoff_id);

-- Triggers

CREATE TRIGGER agents_hold_owners AFTER INSERT ON boxcar.agents REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION boxcar.hold_agents();

CREATE TRIGGER boxes_fixed BEFORE UPDATE OF kind, project_id, parent_box_id, fork_position, line_boxes, line_ends ON boxcar.boxes FOR EACH ROW WHEN (((new.kind <> old.kind) OR (new.project_id <> old.project_id) OR (new.parent_box_id IS DISTINCT FROM old.parent_box_id) OR (new.fork_position IS DISTINCT FROM old.fork_position) OR (new.line_boxes IS DISTINCT FROM old.line_boxes) OR (new.line_ends IS DISTINCT FROM old.line_ends))) EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER boxes_hold_cards AFTER INSERT ON boxcar.boxes FOR EACH ROW WHEN ((new.segments @? '$[*]?(@."rule" == "create_box")'::jsonpath)) EXECUTE FUNCTION boxcar.hold_cards();

CREATE TRIGGER boxes_hold_makers AFTER INSERT ON boxcar.boxes REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION boxcar.hold_agents();

CREATE TRIGGER boxes_hold_next_maker AFTER UPDATE OF maker_agent_id ON boxcar.boxes FOR EACH ROW WHEN ((new.maker_agent_id IS DISTINCT FROM old.maker_agent_id)) EXECUTE FUNCTION boxcar.hold_agents();

CREATE TRIGGER boxes_kept BEFORE DELETE OR TRUNCATE ON boxcar.boxes FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER boxes_purge_words AFTER DELETE ON boxcar.boxes REFERENCING OLD TABLE AS purged FOR EACH STATEMENT EXECUTE FUNCTION boxcar.purge_words();

CREATE TRIGGER boxes_refer_to_existing AFTER INSERT ON boxcar.boxes FOR EACH ROW WHEN (((new.parent_box_id IS NOT NULL) OR (new.segments @? '$[*]."source"'::jsonpath))) EXECUTE FUNCTION boxcar.refuse_missing();

CREATE TRIGGER boxes_refer_to_lasting BEFORE INSERT ON boxcar.boxes FOR EACH ROW WHEN (((new.parent_box_id IS NOT NULL) OR (new.segments @? '$[*]."source"'::jsonpath))) EXECUTE FUNCTION boxcar.refuse_purging();

CREATE TRIGGER boxes_sealed BEFORE UPDATE ON boxcar.boxes FOR EACH ROW WHEN (((old.kind = 'context'::text) OR (new.head_position < old.head_position) OR ((old.archived_at IS NOT NULL) AND (new.head_position <> old.head_position)))) EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER cards_forget_lines AFTER UPDATE ON boxcar.cards REFERENCING NEW TABLE AS erased FOR EACH STATEMENT EXECUTE FUNCTION boxcar.forget_lines();

CREATE TRIGGER cards_forget_parts AFTER UPDATE ON boxcar.cards REFERENCING NEW TABLE AS erased FOR EACH STATEMENT EXECUTE FUNCTION boxcar.forget_parts();

CREATE TRIGGER cards_forget_words AFTER UPDATE ON boxcar.cards REFERENCING NEW TABLE AS erased FOR EACH STATEMENT EXECUTE FUNCTION boxcar.forget_words();

CREATE TRIGGER cards_immutable BEFORE DELETE OR UPDATE OR TRUNCATE ON boxcar.cards FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER grants_refer_to_existing AFTER INSERT ON boxcar.grants FOR EACH ROW EXECUTE FUNCTION boxcar.refuse_missing();

CREATE TRIGGER grants_refer_to_lasting BEFORE INSERT ON boxcar.grants FOR EACH ROW EXECUTE FUNCTION boxcar.refuse_purging();

CREATE TRIGGER handoff_messages_push AFTER INSERT ON boxcar.handoff_messages FOR EACH ROW WHEN ((new.replies_to IS NULL)) EXECUTE FUNCTION boxcar.push_question();

CREATE TRIGGER handoff_messages_push_next AFTER UPDATE OF closed_at ON boxcar.handoff_messages FOR EACH ROW WHEN (((new.replies_to IS NULL) AND (new.closed_at IS DISTINCT FROM old.closed_at))) EXECUTE FUNCTION boxcar.push_question();

CREATE TRIGGER handoffs_call_back AFTER UPDATE OF ended_at ON boxcar.handoffs FOR EACH ROW WHEN (((old.ended_at IS NULL) AND (new.ended_at IS NOT NULL) AND (new.callback_url IS NOT NULL))) EXECUTE FUNCTION boxcar.call_back();

CREATE TRIGGER handoffs_call_back_at_once AFTER INSERT ON boxcar.handoffs FOR EACH ROW WHEN (((new.ended_at IS NOT NULL) AND (new.callback_url IS NOT NULL))) EXECUTE FUNCTION boxcar.call_back();

CREATE TRIGGER handoffs_push_end AFTER UPDATE OF ended_at ON boxcar.handoffs FOR EACH ROW WHEN (((old.ended_at IS NULL) AND (new.ended_at IS NOT NULL) AND (new.public_agent IS NOT NULL))) EXECUTE FUNCTION boxcar.push_end();

CREATE TRIGGER push_configs_at_once AFTER INSERT OR UPDATE ON boxcar.push_configs FOR EACH ROW EXECUTE FUNCTION boxcar.push_at_once();

CREATE TRIGGER tape_entries_immutable BEFORE DELETE OR UPDATE OR TRUNCATE ON boxcar.tape_entries FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER unsealed_guarded BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON boxcar.unsealed FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_unsealing();

-- Comments

comment on table boxcar.api_keys is 'keys of the HTTP frame';

comment on column boxcar.api_keys.agent_id is 'whose key it is; null: of the project';

comment on column boxcar.api_keys.hint is 'the last characters of its text, by which people know it';

comment on column boxcar.api_keys.is_local is 'of a machine, whose servers made it for themselves; valid on loopback addresses alone';

comment on column boxcar.api_keys.last_used_at is 'written at most once a minute';

comment on column boxcar.api_keys.revoked_at is 'from when it is refused; after a rotation this may be later';

comment on column boxcar.api_keys.rotated_from is 'the key in whose place it was made, which has one successor';

comment on column boxcar.approvals.call_ms is 'how long its call may take once it is begun';

comment on column boxcar.approvals.card_id is 'the arguments as they are shown, masked';

comment on column boxcar.approvals.consumed_at is 'what was approved was begun';

comment on column boxcar.approvals.consumed_epoch is 'of the turn whose call was begun: the same claim may ask again after a lost answer';

comment on column boxcar.approvals.run_id is 'any text of the caller; the run of the turn whose call it is';

comment on column boxcar.approvals.voided_at is 'it approves nothing any more: its call was answered, or the policy has changed';

comment on table boxcar.handoff_events is 'what happened to a handoff, in order; no words of its task or result';

comment on table boxcar.handoff_messages is 'questions of handoffs and their replies';

comment on column boxcar.handoff_messages.ask_key is 'of a question: the same question of the same handoff, asked again by another attempt, has the same';

comment on column boxcar.handoff_messages.author is 'who replied';

comment on column boxcar.handoff_messages.closed_at is 'of a question: it was answered, its time is over, or the attempt that asked it has ended';

comment on column boxcar.handoff_messages.reply_key is 'of a reply by another platform: the same message is the same reply';

comment on table boxcar.handoff_session_entries is 'the context entries of sessions, in the order of their tapes';

comment on column boxcar.handoff_session_entries."position" is 'on the tape of the session';

comment on column boxcar.handoff_session_entries.message_count is 'up to this entry, as the other counts: what a reader up to here counts is one row';

comment on column boxcar.handoff_session_entries.sequence_number is 'without gaps; goes on from the session before';

comment on table boxcar.handoff_sessions is 'sessions of clients that hand their context on';

comment on column boxcar.handoff_sessions.agent_from is 'whose session it is, as the client says; a name of no agent here will do';

comment on column boxcar.handoff_sessions.agent_to is 'whom it was handed to last';

comment on column boxcar.handoff_sessions.continues is 'the completed session that it goes on from: its tape is forked at the frozen head';

comment on column boxcar.handoff_sessions.frozen_head is 'the last position of its tape that counts, once it is completed';

comment on column boxcar.handoff_sessions.line_sessions is 'that session, and those before it, oldest first';

comment on column boxcar.handoff_sessions.maker_agent_id is 'who has registered it: an agent, or the operator';

comment on column boxcar.handoff_sessions.message_count is 'with those of the sessions that it goes on from, as the other counts; their sum is the sequence number of the last entry';

comment on column boxcar.handoff_sessions.session_key is 'the client''s name of it';

comment on column boxcar.handoff_sessions.status is 'expired is not stored: it follows from last_write_at, the policy and the time of the question';

comment on column boxcar.handoffs.asking_since is 'it waits for a reply since then, and its time does not run';

comment on column boxcar.handoffs.cache_key is 'hash of what makes handoffs identical; only of those that may be answered from the cache';

comment on column boxcar.handoffs.cache_seconds is 'how old a result may be';

comment on column boxcar.handoffs.cached_from is 'the handoff whose result it has';

comment on column boxcar.handoffs.callback_url is 'where its end is sent to; null: nowhere';

comment on column boxcar.handoffs.compensates is 'the hop that it undoes';

comment on column boxcar.handoffs.conversation is 'by which the caller knows tasks that belong together';

comment on column boxcar.handoffs.deadline_at is 'set when the first attempt begins';

comment on column boxcar.handoffs.decision is 'what the policy said: level, rule, version and trace';

comment on column boxcar.handoffs.error is 'of an end without a turn';

comment on column boxcar.handoffs.hop is 'its place in its chain, and of a compensation that of the hop';

comment on column boxcar.handoffs.is_attempt_open is 'an attempt was begun, and nothing is known of its end';

comment on column boxcar.handoffs.is_leading is 'it is carried out, and identical ones wait for its result';

comment on column boxcar.handoffs.joined_to is 'the identical handoff whose result it has';

comment on column boxcar.handoffs.message_id is 'the caller''s name of the message';

comment on column boxcar.handoffs.mode is 'a chain has hops; compensate: undoes a hop';

comment on column boxcar.handoffs.notifies is 'true: its end is to be told to that agent; false: it was told, or may not be';

comment on column boxcar.handoffs.phase is 'as far as it was recorded: while a turn serves it, the turn says more';

comment on column boxcar.handoffs.public_agent is 'the public profile that another platform has called; null: it did not come this way';

comment on column boxcar.handoffs.remote_task is 'the task at the other platform that has asked in the open attempt: another attempt goes on with it';

comment on column boxcar.handoffs.result_card_id is 'of a handoff that no turn has served';

comment on column boxcar.handoffs.run_id is 'any text of the caller';

comment on column boxcar.handoffs.serving_agent_id is 'the agent of the conversation, made with its first turn';

comment on column boxcar.handoffs.session_head is 'up to where the target reads the tape of the session; null: it has not been handed on, or was not yet';

comment on column boxcar.handoffs.session_id is 'the session that is handed on; null: none, or it has been purged';

comment on column boxcar.handoffs.source_agent is 'from outside any text of the caller';

comment on column boxcar.handoffs.told_agent_id is 'the agent on whose tape its end is told; null: none';

comment on column boxcar.handoffs.tool_call_id is 'the call of a turn that asked for it';

comment on column boxcar.handoffs.worker_target is 'who may serve it; null: the target''s own worker pool';

comment on table boxcar.policies is 'the text of each version of a policy that a decision was made by';

comment on table boxcar.push_configs is 'who is notified of the questions and the end of a task that another platform has given';

comment on column boxcar.push_configs.id is 'the caller''s name of it';

comment on column boxcar.push_configs.scheme is 'of the header authorization, with credentials';

comment on column boxcar.push_configs.token is 'sent along, so that the receiver knows whose notification it is';

comment on column boxcar.push_configs.version is 'of the protocol in which the notification is written';

comment on table boxcar.turn_parts is 'the text of a turn while it is written';

comment on column boxcar.turn_parts.n is 'within the round; number 0 voids what rounds before have said';

comment on column boxcar.turn_parts.round is 'one answer of a model or one attempt at a platform: its epoch and its number';

comment on column boxcar.turn_parts.text is 'null: what rounds before have said is void; empty after erasure';

comment on table boxcar.webhook_deliveries is 'events that are sent to receivers outside; the body is read when it is sent';

comment on column boxcar.webhook_deliveries.event_handoff_id is 'whose log has the event: the handoff, or one below it that asks';

comment on column boxcar.webhook_deliveries.event_seq is 'the event in that log';

comment on column boxcar.webhook_deliveries.failures is 'since it was made, or since a person has had it sent again';

comment on column boxcar.webhook_deliveries.holder_id is 'the process that sends it now';

comment on column boxcar.webhook_deliveries.host is 'of the url, with its port';

comment on column boxcar.webhook_deliveries.id is 'the id of the event, the same in all attempts';

comment on column boxcar.webhook_deliveries.next_at is 'when it may be sent next; while it is sent, when others may send it if nothing is heard of it';

comment on column boxcar.webhook_deliveries.push_config is 'of a push notification: who is notified (push_configs); null: the callback of the handoff';
