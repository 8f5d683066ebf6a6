-- min_compatible: 15
-- Erasure takes the words of a card from wherever the kernel has repeated them.

alter table boxcar.evidence
  add column erased_at timestamptz,
  add column erased_reason text;

-- An error without words: its code.
create function boxcar.forget_error(error jsonb) returns jsonb language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (error - 'details') || '{"message": "(erased)"}'
$$;

-- The answer of a batch without the summaries of the turns in `delivered` and the errors of those in `touched`, which has all of them.
create function boxcar.forget_answer(answer json, delivered uuid[], touched uuid[]) returns json language sql immutable set search_path = pg_catalog, pg_temp as $$
  select json_object_agg(a.key, case a.key when 'results' then (
      select json_agg(case when t.id = any (touched) then (
          select json_object_agg(m.key, case when m.key = 'summary' and t.id = any (delivered) then '"(erased)"'
            when m.key = 'error' then json_build_object('code', m.value->'code', 'message', '(erased)') else m.value end order by m.n)
          from json_each(r.value) with ordinality as m(key, value, n) where m.key <> 'is_cut' or t.id <> all (delivered))
        else r.value end order by r.n)
      from json_array_elements(a.value) with ordinality as r(value, n) cross join lateral (select (r.value->>'turn_id')::uuid) as t(id))
    else a.value end order by a.n)
  from json_each(answer) with ordinality as a(key, value, n)
$$;

-- The turns that cards are of: on whose tape they wrote, whose calls they are, and whose context was packed with them. What is packed with
-- a turn was made in its transaction.
create function boxcar.turns_of_cards(ids uuid[]) returns setof uuid language sql stable set search_path = pg_catalog, pg_temp as $$
  select e.turn_id from boxcar.tape_entries e where e.card_id = any (ids) and e.turn_id is not null
  union
  select k.turn_id from boxcar.cards c join boxcar.tool_calls k on k.id = c.tool_call_id where c.id = any (ids)
  union
  select t.id from (select c.created_at, array_agg(c.id) as ids from boxcar.cards c where c.id = any (ids) group by c.created_at) m
    cross join lateral (select x.id, x.context_box_id from boxcar.turns x where x.created_at = m.created_at offset 0) t
    join boxcar.boxes b on b.id = t.context_box_id and b.card_ids && m.ids
$$;

-- As before, without the answers of commands, which erase_cards takes itself.
create or replace function boxcar.forget_words() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from boxcar.tape_words w using erased c where w.card_id = c.id and c.erased_at is not null;
  return null;
end $$;

-- As before, and: answers of batches and errors lose what they repeat. Lock order: turns, cards, projects. The row of the project is locked last: an answer
-- that repeats words is read and stored under a shared lock of that row, so it is either stored before this looks, or read after this.
create or replace function boxcar.erase_cards(ids uuid[], reason text) returns table (card_id uuid, outcome text)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  gone uuid[];
  touched uuid[];
  delivered uuid[];
begin
  if coalesce(reason !~ '\S' or length(reason) > 1000, true) then
    raise exception 'erasure needs a reason of 1 to 1000 characters' using errcode = '22023';
  end if;
  insert into boxcar.unsealed (xact, allows) values (pg_current_xact_id(), 'erase');
  -- By id, as every lock here. Turns that have not ended are left alone.
  touched := array(select boxcar.turns_of_cards(array(
    select u.id from unnest(ids) as u(id) where not exists (select from boxcar.projects p where p.bootstrap_card_id = u.id))));
  perform from boxcar.turns t where t.id = any (touched) and t.error->>'message' <> '(erased)' order by t.id for no key update;
  -- A second erasure of the same card then finds it erased.
  perform from boxcar.cards c where c.id = any (ids) order by c.id for no key update;
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
  -- Which card such an answer quotes is recorded nowhere.
  update boxcar.operations o set response = json_build_object('status', o.response->'status', 'agent_id', o.response->'agent_id',
      'output_box_id', o.response->'output_box_id', 'command', o.response->'command', 'output', '(erased)', 'result', '(erased)')
    where o.response->>'command' in ('anchors', 'search') and o.response->>'output' is distinct from '(erased)'
      and o.project_id in (select c.project_id from boxcar.cards c where c.id = any (gone));
  touched := array(select boxcar.turns_of_cards(gone));
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
end $$;

-- Evidence is no card and is sealed by nobody. Outcomes: erased, already_erased, not_found.
create function boxcar.erase_evidence(ids uuid[], reason text) returns table (evidence_id uuid, outcome text)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
end $$;
revoke execute on function boxcar.erase_evidence(uuid[], text) from public;
