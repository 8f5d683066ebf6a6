-- transaction: none
-- min_compatible: 15
-- What refers to a card.
create index concurrently if not exists boxes_listed on boxcar.boxes using gin (card_ids) with (fastupdate = off) where segments @? '$[*] ? (@.rule == "create_box")';
create index concurrently if not exists tape_entries_card on boxcar.tape_entries (card_id) where card_id is not null;
-- Answers and keys that name what is removed, of operations without turns: an agent, a tape or box, a turn, a run, a batch. Cut, since an answer may say anything. An expression and
-- not a function of ours, which a role that writes operations would need a right for.
create index concurrently if not exists operations_named on boxcar.operations using gin ((array_remove(array[left(response->>'agent_id', 36), left(response->>'output_box_id', 36), left(response->>'box_id', 36), left(response->>'boxId', 36), left(response->>'context_box_id', 36), left(response->>'turn_id', 36), left(response->>'run_id', 36),
    awaited_batch_id::text, case when starts_with(idempotency_key, 'agent:') then left(split_part(idempotency_key, ':', 2), 36) end], null))) with (fastupdate = off) where made is null or made = '{}';
-- What refers to a box, and who made it.
create index concurrently if not exists boxes_sources on boxcar.boxes using gin (jsonb_path_query_array(segments, '$[*].source'), jsonb_path_query_array(segments, '$[*].via')) with (fastupdate = off) where segments @? '$[*].source';
create index concurrently if not exists boxes_maker on boxcar.boxes (maker_agent_id) where maker_agent_id is not null;
create index concurrently if not exists grants_box on boxcar.grants (box_id);
-- What refers to an agent.
create index concurrently if not exists turns_agent on boxcar.turns (agent_id);
create index concurrently if not exists agents_owner on boxcar.agents (owner_agent_id) where owner_agent_id is not null;
create index concurrently if not exists agents_derived on boxcar.agents (derived_from) where derived_from is not null;
-- Turns that had ended when they were collected do not know the batch.
create index concurrently if not exists batches_collected on boxcar.batches using gin (turn_ids) with (fastupdate = off) where kind = 'collect';
-- Runs are written in the order of time, and are looked for by it.
create index concurrently if not exists runs_age on boxcar.runs using brin (created_at) with (autosummarize = on, pages_per_range = 8);
-- Tapes that may be removed by themselves.
create index concurrently if not exists boxes_left on boxcar.boxes (id) where archived_at is not null or fork_status = 'discarded';
