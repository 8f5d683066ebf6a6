-- transaction: none
-- min_compatible: 15
-- Where the words of a card are repeated; entries are found by `tape_entries_card`.
create index concurrently if not exists batches_answered on boxcar.batches using gin (turn_ids) where answer is not null;
-- The answers of commands that still have words; before, all of them.
create index concurrently if not exists operations_repeating on boxcar.operations (project_id)
  where response->>'command' in ('anchors', 'search') and response->>'output' is distinct from '(erased)';
drop index concurrently if exists boxcar.operations_reading;
-- Turns by the transaction that made them.
create index concurrently if not exists turns_age on boxcar.turns using brin (created_at) with (pages_per_range = 32);
