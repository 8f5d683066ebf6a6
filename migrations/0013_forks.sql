-- min_compatible: 13
-- Forks that come back, and sessions: a fork with an agent of its own. An older build would take turns of a session's agent without
-- saying that their end is to be told.

-- A fork that is to be merged or discarded. Its entries stand in its box like those of any tape; this says what becomes of them.
create table boxcar.forks (
  -- the box it was made as
  id uuid primary key,
  project_id uuid not null,
  -- the box it is now: a reset within it has begun another one, which takes the parent's place at the merge
  box_id uuid not null,
  parent_box_id uuid not null,
  opened_by uuid not null,
  -- the turn it was opened for, whose next attempt finds it under its key and whose end discards it
  turn_id uuid,
  fork_key text not null,
  status text not null check (status in ('open', 'merged', 'discarded')),
  -- what the end of its block does
  merge_back boolean not null,
  on_error text not null check (on_error in ('merge', 'discard')),
  -- what the end came to: every later one gets the same
  receipt jsonb,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  check ((status = 'open') = (ended_at is null) and (status = 'open') = (receipt is null))
) with (fillfactor = 80);
create unique index forks_key on boxcar.forks (turn_id, parent_box_id, fork_key) where turn_id is not null;
create index forks_box on boxcar.forks (box_id);
create index forks_parent on boxcar.forks (parent_box_id);
create index forks_open on boxcar.forks (turn_id) where status = 'open';

-- The lineage of sessions: who was forked from whom, where, and with which agent.
create table boxcar.sessions (
  -- the box its tape began as
  id uuid primary key,
  project_id uuid not null,
  -- of its tape and its agent
  name text not null check (name <> ''),
  agent_id uuid not null unique,
  parent_box_id uuid not null,
  -- the parent's tape by what outlives a reset: its name, else its agent, else its box
  parent_session_id text not null,
  -- the anchor that was asked for, and the one its first views begin with
  from_anchor text,
  from_position int not null,
  -- the ends of its turns are told on the parent's tape, as long as it is active
  notifies boolean not null,
  status text not null default 'active' check (status ~ '\S' and length(status) <= 100),
  created_at timestamptz not null default now(),
  unique (project_id, name)
);
create index sessions_parent on boxcar.sessions (project_id, parent_session_id, created_at);

alter table boxcar.turns
  -- its end is to be told on the tape that its session was forked from; false = it was
  add column notifies boolean,
  -- the last entry that came to its tape from a forked session while it was under way: unless it has read that far, another turn reads it
  add column unseen_position int;
-- What is to be told is due by the end itself: nothing has to be written with it.
create index turns_notices on boxcar.turns (id) where ended_at is not null and (notifies or unseen_position is not null);
