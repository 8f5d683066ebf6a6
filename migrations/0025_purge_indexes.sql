-- transaction: none
-- min_compatible: 15
-- Tapes that begin with an imported entry: a purge of tapes looks for these, and not at all that have a name.
create index concurrently if not exists tape_entries_begun_by_import on boxcar.tape_entries (box_id) where position = 1 and meta ? 'imported';
-- Operations by the transaction that made them: exact, where the ranges of the index before had the operations of all others in between.
create index concurrently if not exists operations_time on boxcar.operations (created_at);
drop index concurrently if exists boxcar.operations_age;
