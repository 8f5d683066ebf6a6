-- transaction: none
-- min_compatible: 15
-- Ended turns that are not settled, without those that are open: each spawn below an account looks for them.
create index concurrently if not exists turns_unsettled_ends on boxcar.turns (run_id) where not is_settled and ended_at is not null;
drop index concurrently if exists boxcar.turns_unsettled;
