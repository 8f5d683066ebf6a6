-- min_compatible: 15
-- The order of turns that wait for a provider survives their waking; one call tries a failing provider; all workers' answers count.

alter table boxcar.provider_slots
  -- since when the turn has waited, while a place is kept for it and until it calls or waits again; null = it calls
  add column queued_at timestamptz,
  -- the one call that tries a failing provider
  add column is_probe boolean not null default false;

alter table boxcar.providers
  -- the first of the failures in a row
  add column failing_since timestamptz;

alter table boxcar.workers
  -- the last answer of each provider, as of `told_at`
  add column answers jsonb not null default '{}',
  -- null = a build that does not tell
  add column told_at timestamptz;
