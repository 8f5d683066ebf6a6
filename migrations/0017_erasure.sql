-- min_compatible: 15
-- Erasure takes the words of a card from wherever the kernel has repeated them.

-- The answer of a batch without the summaries of the turns in `delivered`.
create function boxcar.forget_answer(answer json, delivered uuid[]) returns json language sql immutable set search_path = pg_catalog, pg_temp as $$
  select json_object_agg(a.key, case a.key when 'results' then (
      select json_agg(case when (r.value->>'turn_id')::uuid = any (delivered) then (
          select json_object_agg(m.key, case m.key when 'summary' then '"(erased)"' else m.value end order by m.n)
          from json_each(r.value) with ordinality as m(key, value, n) where m.key <> 'is_cut')
        else r.value end order by r.n)
      from json_array_elements(a.value) with ordinality as r(value, n))
    else a.value end order by a.n)
  from json_each(answer) with ordinality as a(key, value, n)
$$;

-- As before, without the answers of commands, which erase_cards takes itself.
create or replace function boxcar.forget_words() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from boxcar.tape_words w using erased c where w.card_id = c.id and c.erased_at is not null;
  return null;
end $$;

-- As before, and: answers of batches lose what they repeat. Lock order: cards, projects. The row of the project is locked last: an answer
-- that repeats words is read and stored under a shared lock of that row, so it is either stored before this looks, or read after this.
create or replace function boxcar.erase_cards(ids uuid[], reason text) returns table (card_id uuid, outcome text)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  gone uuid[];
  delivered uuid[];
begin
  if coalesce(reason !~ '\S' or length(reason) > 1000, true) then
    raise exception 'erasure needs a reason of 1 to 1000 characters' using errcode = '22023';
  end if;
  insert into boxcar.unsealed (xact, allows) values (pg_current_xact_id(), 'erase');
  -- By id, as every lock here; a second erasure of the same card then finds it erased.
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
  delivered := array(
    select distinct t.id from boxcar.tape_entries e join boxcar.turns t on t.id = e.turn_id and t.deliverable_card_id = e.card_id where e.card_id = any (gone));
  update boxcar.batches b set answer = boxcar.forget_answer(b.answer, delivered)
  where b.answer is not null and b.turn_ids && delivered
    and exists (select from json_array_elements(b.answer->'results') r where (r.value->>'turn_id')::uuid = any (delivered) and r.value->>'summary' <> '(erased)');
  delete from boxcar.unsealed u where u.xact = pg_current_xact_id();
end $$;
