-- min_compatible: 15
-- Handoffs: tasks that an agent hands to another one, or to another platform; see packages/store/src/handoff. What serves a handoff is a turn. Turns of handoffs
-- have format 35, so that a build that does not know handoffs leaves them to others.
create table boxcar.handoffs (
  id uuid primary key,
  project_id uuid not null references boxcar.projects (id),
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  phase text not null check (phase in ('pending', 'awaiting_approval', 'queued', 'in_progress', 'waiting_input', 'completed', 'failed', 'timed_out', 'canceled', 'rejected', 'rolled_back', 'compensation_failed')),
  source_agent text not null check (source_agent <> ''),
  source_agent_id uuid not null,
  target_agent text not null check (target_agent <> ''),
  platform text not null check (platform <> ''),
  run_id text,
  parent_turn_id uuid references boxcar.turns (id),
  tool_call_id uuid,
  is_awaited boolean not null default false,
  context_box_id uuid not null references boxcar.boxes (id),
  task_card_id uuid not null references boxcar.cards (id),
  context_card_id uuid references boxcar.cards (id),
  payload_card_id uuid references boxcar.cards (id),
  worker_target text,
  turn_id uuid references boxcar.turns (id) deferrable initially deferred,
  ticket_id uuid references boxcar.approvals (id),
  joined_to uuid references boxcar.handoffs (id),
  root_handoff_id uuid not null,
  parent_handoff_id uuid,
  depth integer not null default 0 check (depth >= 0),
  decision jsonb,
  error jsonb,
  timeout_ms bigint not null check (timeout_ms > 0),
  deadline_at timestamptz,
  retry jsonb not null,
  attempts integer not null default 0,
  is_attempt_open boolean not null default false,
  idempotency_key text check (idempotency_key <> ''),
  request_hash text not null check (request_hash ~ '^[0-9a-f]{64}$'),
  event_count integer not null default 0,
  check ((ended_at is null) = (phase in ('pending', 'awaiting_approval', 'queued', 'in_progress', 'waiting_input')))
);
comment on column boxcar.handoffs.phase is 'as far as it was recorded: while a turn serves it, the turn says more';
comment on column boxcar.handoffs.source_agent is 'from outside any text of the caller';
comment on column boxcar.handoffs.run_id is 'any text of the caller';
comment on column boxcar.handoffs.tool_call_id is 'the call of a turn that asked for it';
comment on column boxcar.handoffs.worker_target is 'who may serve it; null: the target''s own worker pool';
comment on column boxcar.handoffs.joined_to is 'the identical handoff whose result it has';
comment on column boxcar.handoffs.decision is 'what the policy said: level, rule, version and trace';
comment on column boxcar.handoffs.error is 'of an end without a turn';
comment on column boxcar.handoffs.deadline_at is 'set when the first attempt begins';
comment on column boxcar.handoffs.is_attempt_open is 'an attempt was begun, and nothing is known of its end';
create unique index handoffs_key on boxcar.handoffs (project_id, idempotency_key) where idempotency_key is not null;
create index handoffs_newest on boxcar.handoffs (project_id, created_at, id);
create index handoffs_open on boxcar.handoffs (project_id, created_at, id) where ended_at is null;
create index handoffs_of_source on boxcar.handoffs (project_id, source_agent, created_at, id);
create index handoffs_of_target on boxcar.handoffs (project_id, target_agent, created_at, id);
create index handoffs_of_turn on boxcar.handoffs (turn_id) where turn_id is not null;
create index handoffs_of_parent on boxcar.handoffs (parent_turn_id) where parent_turn_id is not null;
create index handoffs_of_ticket on boxcar.handoffs (ticket_id) where ticket_id is not null;
create index handoffs_joined on boxcar.handoffs (joined_to) where joined_to is not null;
create index handoffs_of_box on boxcar.handoffs (context_box_id);
create index handoffs_of_task on boxcar.handoffs (task_card_id);
create index handoffs_of_context on boxcar.handoffs (context_card_id);
create index handoffs_of_payload on boxcar.handoffs (payload_card_id);
create index handoffs_of_root on boxcar.handoffs (root_handoff_id);

-- Tickets of handoffs from outside go with them.
create index approvals_of_handoff on boxcar.approvals ((metadata->>'handoff_id')) where turn_id is null;

create table boxcar.handoff_events (
  handoff_id uuid not null references boxcar.handoffs (id) on delete cascade,
  seq integer not null check (seq > 0),
  type text not null check (type <> ''),
  data jsonb not null default '{}',
  created_at timestamptz not null default now(),
  primary key (handoff_id, seq)
);
comment on table boxcar.handoff_events is 'what happened to a handoff, in order; no words of its task or result';

-- Version 0 is the profile of turns that adapters and functions serve: no user has applied it.
alter table boxcar.profiles drop constraint profiles_version_check;
alter table boxcar.profiles add constraint profiles_version_check check (version >= 0);
