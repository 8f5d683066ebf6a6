-- min_compatible: 15
-- What a provider attached to an answer: reasoning, signatures, ids of its own. It is kept with the card that holds the answer, so that it is inherited, forked and
-- purged with it. Builds that do not know it neither write nor send it.
alter table boxcar.cards add column provider_data json;

-- The cards that hold the answers of the steps that cards are of: the cards themselves, and the thoughts of their steps. Read by key, whatever the statistics say.
create function boxcar.answers_of_cards(ids uuid[]) returns setof uuid language sql stable set search_path = pg_catalog, pg_temp as $$
  select u.id from unnest(ids) as u(id)
  union
  select s.thought_card_id from (
    select e.turn_id, e.step from boxcar.tape_entries e where e.card_id = any (ids) and e.turn_id is not null and e.step is not null
    union
    select k.turn_id, k.step from boxcar.cards c join boxcar.tool_calls k on k.id = c.tool_call_id where c.id = any (ids)
  ) p cross join lateral (select x.thought_card_id from boxcar.steps x where x.turn_id = p.turn_id and x.step = p.step offset 0) s
  where s.thought_card_id is not null
$$;

-- As before, and: what a provider attached to an answer, and the model's reasoning, go with the first card of their step that goes. Lock order: turns, cards,
-- projects; a card that holds what goes with another is locked with the others, by id.
create or replace function boxcar.erase_cards(ids uuid[], reason text) returns table (card_id uuid, outcome text)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
end $$;
