-- transaction: none
-- min_compatible: 15
-- Turns by the transaction that made them. An index of block ranges read 32 pages for each card, and all pages that were not yet summarized.
create index concurrently if not exists turns_made on boxcar.turns (created_at);
-- The answers of the kernel's own reading commands that still have words; before, answers of any primitive with such a field.
create index concurrently if not exists operations_quoting on boxcar.operations (project_id)
  where primitive = 'delegate_async' and response->>'command' in ('anchors', 'search') and response->>'output' is distinct from '(erased)';
drop index concurrently if exists boxcar.turns_age;
drop index concurrently if exists boxcar.operations_repeating;
