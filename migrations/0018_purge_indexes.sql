-- transaction: none
-- min_compatible: 15
-- What refers to a card.
create index concurrently if not exists boxes_listed on boxcar.boxes using gin (card_ids) with (fastupdate = off) where segments @? '$[*] ? (@.rule == "create_box")';
create index concurrently if not exists tape_entries_card on boxcar.tape_entries (card_id) where card_id is not null;
-- Answers that name what is removed, of operations without turns.
create index concurrently if not exists operations_named on boxcar.operations using gin (boxcar.names_in(response, idempotency_key)) with (fastupdate = off) where made is null or made = '{}';
