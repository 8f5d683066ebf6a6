-- min_compatible: 12
-- Entries of a kind within dates: those alone are read, however many others lie within the same dates.
drop index boxcar.tape_entries_date;
create index tape_entries_date on boxcar.tape_entries (box_id, kind, created_at);
