-- min_compatible: 1
-- Why a suspended turn waits when no call of it is out, until when, and what providers of models allow.
create table boxcar.waits (
  turn_id uuid primary key,
  project_id uuid not null,
  kind text not null check (kind in ('retry', 'limit', 'budget', 'approval')),
  -- when it is looked at again; null = someone else wakes it
  due_at timestamptz,
  -- whose room it waits for
  provider text check ((kind = 'limit') = (provider is not null)),
  detail jsonb not null default '{}',
  created_at timestamptz not null default clock_timestamp()
);
create index waits_due on boxcar.waits (due_at) where due_at is not null;
create index waits_provider on boxcar.waits (provider, created_at, turn_id) where provider is not null;

alter table boxcar.turns
  -- model calls of the current step that failed and are tried again
  add column retries smallint not null default 0;

-- Providers of models, by the part of a model's name before ':'; of the whole installation, as their keys are. One without limits
-- that never failed has no row.
create table boxcar.providers (
  name text primary key check (name <> ''),
  -- calls at once
  max_concurrent int check (max_concurrent > 0),
  -- calls begun in any minute
  requests_per_minute int check (requests_per_minute > 0),
  -- failures in a row after which its calls wait; 0 = never; null = the default
  breaker_after int check (breaker_after >= 0),
  -- the rate's clock: when all that was begun is paid for
  paced_until timestamptz,
  failures int not null default 0,
  -- how often in a row it was closed off
  openings int not null default 0,
  -- no call before; one that has passed lets a single call try
  open_until timestamptz,
  updated_at timestamptz not null default now()
) with (fillfactor = 60);

-- A turn's place among the calls of a provider: taken, or kept for it while it wakes. It counts while its worker's lease lives.
create table boxcar.provider_slots (
  turn_id uuid primary key,
  provider text not null,
  epoch int not null,
  -- kept for a turn that was woken and has not called yet
  is_kept boolean not null,
  taken_at timestamptz not null default clock_timestamp()
) with (fillfactor = 60);
create index provider_slots_provider on boxcar.provider_slots (provider);
