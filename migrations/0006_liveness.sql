-- min_compatible: 1
-- Takeover under a second, rows that a sweep cannot handle, and the election of the one that sweeps.

alter table boxcar.turns
  -- workers lost at the same step: what is lost too often is ended
  add column losses smallint not null default 0;

alter table boxcar.workers
  -- when its owner last said that it holds its lock; null: it does not, so that a free lock says nothing about it
  add column locked_at timestamptz;

-- Waits for a lock that somebody holds, and lets go of it at the end of the statement. False: it was held all the time. Here, and
-- not in the caller, because a statement that runs into its lock_timeout is written to the log of the server.
create function boxcar.is_lock_free(lock_key bigint, wait_ms int) returns boolean language plpgsql as $$
begin
  perform set_config('lock_timeout', wait_ms || 'ms', true);
  perform pg_advisory_xact_lock_shared(lock_key);
  return true;
exception when lock_not_available then
  return false;
end $$;

-- Rows that a sweep could not handle. They are tried again later each time, and in the end left alone until somebody looks.
create table boxcar.sweep_failures (
  -- which part of the sweep: overdue_turns, overdue_calls, …
  kind text not null,
  row_id uuid not null,
  project_id uuid,
  attempts int not null check (attempts > 0),
  last_error text not null,
  next_try_at timestamptz not null,
  is_dead boolean not null default false,
  first_failed_at timestamptz not null default now(),
  primary key (kind, row_id)
);
create index sweep_failures_next on boxcar.sweep_failures (next_try_at) where not is_dead;

-- Whose turn it is to sweep: a lease, which needs no connection for as long as a sweep takes, and ends when the sweeper stops in the middle.
create table boxcar.sweeper (
  is_only boolean primary key default true check (is_only),
  holder_id uuid,
  lease_until timestamptz not null
);
insert into boxcar.sweeper (lease_until) values ('-infinity');
