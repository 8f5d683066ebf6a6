-- min_compatible: 11
-- Builds side by side. An older build would not look at what this adds, and take turns that it cannot read.
alter table boxcar.turns
  -- the oldest build, by the newest migration it knows, that can read what only the turn's worker reads
  add column format smallint not null default 0;
alter table boxcar.workers
  -- the newest migration that its build knows
  add column schema_version smallint not null default 11;

-- The window counts the dispatched turns that a living worker can read.
drop index boxcar.turns_dispatched;
create index turns_dispatched on boxcar.turns (worker_target, dispatched_at) include (format) where status = 'dispatched';
