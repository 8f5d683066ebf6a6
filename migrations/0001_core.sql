-- min_compatible: 1
-- The core: projects, cards, boxes, tapes, profiles, agents, grants, runs, turns, steps, tool calls, operations, workers.
-- Later migrations add tables and columns; nothing here needs to be rewritten for them.
-- Ids are uuidv7 minted by the writer; times are the server's; every table carries project_id.
-- Hot tables have no foreign key to rows that many writers share (projects, workers, profiles, the bootstrap card): each
-- insert would lock the shared row, and concurrent writers would queue for it. The writer has read those rows, and nothing
-- deletes them.

create schema if not exists boxcar;

create table boxcar.projects (
  id uuid primary key,
  name text not null unique check (name <> ''),
  limits jsonb not null default '{}',
  operator_agent_id uuid not null,
  -- the anchor card that every tape of the project begins with
  bootstrap_card_id uuid not null,
  created_at timestamptz not null default now()
);

create table boxcar.cards (
  id uuid primary key,
  project_id uuid not null,
  type text not null check (type <> ''),
  -- what a model sees; null = user. The only source of a message's role.
  role text check (role in ('system', 'user', 'assistant', 'tool')),
  -- json, not jsonb: the writer's key order and bytes survive. Null only after erasure.
  content json,
  -- sha256 of the RFC 8785 form of the content
  content_hash bytea not null check (length(content_hash) = 32),
  size_bytes int not null check (size_bytes >= 0),
  token_estimate int not null check (token_estimate >= 0),
  metadata jsonb not null default '{}',
  author_id text not null,
  tool_call_id uuid,
  created_at timestamptz not null default now(),
  erased_at timestamptz,
  erased_reason text,
  check ((content is null) = (erased_at is not null))
);

-- One table for both kinds, so that a grant or a segment can point to either.
create table boxcar.boxes (
  id uuid primary key,
  project_id uuid not null,
  kind text not null check (kind in ('context', 'tape')),
  -- whose context or tape it is; holds it implicitly, as the maker does
  owner_agent_id uuid,
  maker_agent_id uuid,
  created_at timestamptz not null default now(),

  -- context: sealed at insert. Own cards once, segments say what the box is made of (and are its manifest).
  card_ids uuid[],
  card_tokens int[],
  segments jsonb,
  card_count int,
  token_estimate int,

  -- tape: append-only. The row lock of the head makes positions gapless and commit order equal to position order.
  tape_name text,
  incarnation int,
  head_position int,
  last_anchor_position int,
  -- where a view must begin to read: the last anchor, or the first entry of the step that was open when it was written
  view_position int,
  parent_box_id uuid references boxcar.boxes,
  fork_position int,
  archived_at timestamptz,

  check ((kind = 'context') = (card_ids is not null and card_tokens is not null and segments is not null and card_count is not null and token_estimate is not null)),
  check ((kind = 'tape') = (incarnation is not null and head_position is not null and last_anchor_position is not null and view_position is not null)),
  check (cardinality(card_ids) = cardinality(card_tokens)),
  check ((parent_box_id is null) = (fork_position is null))
) with (fillfactor = 80);
create unique index boxes_tape_name on boxcar.boxes (project_id, tape_name) where tape_name is not null and archived_at is null;

create table boxcar.tape_entries (
  box_id uuid not null references boxcar.boxes,
  position int not null check (position > 0),
  kind text not null check (kind in ('message', 'system', 'anchor', 'tool_call', 'tool_result', 'error', 'event')),
  card_id uuid,
  -- the card's token estimate, so that packing a range needs no look at the cards
  tokens int not null default 0,
  -- events only: { name, data }
  payload json,
  anchor_name text,
  turn_id uuid,
  step int,
  author_id text not null,
  -- append, merge or import the same thing once
  dedup_key text,
  meta jsonb,
  created_at timestamptz not null default now(),
  primary key (box_id, position),
  check ((card_id is null) = (kind = 'event')),
  check ((payload is not null) = (kind = 'event')),
  check ((kind = 'anchor') = (anchor_name is not null))
);
create index tape_entries_anchor on boxcar.tape_entries (box_id, anchor_name, position) where kind = 'anchor';
create unique index tape_entries_dedup on boxcar.tape_entries (box_id, dedup_key) where dedup_key is not null;

create table boxcar.profiles (
  id uuid primary key,
  project_id uuid not null references boxcar.projects,
  name text not null check (name <> ''),
  version int not null check (version > 0),
  -- sealed box with the sys.profile card
  box_id uuid not null references boxcar.boxes,
  card_id uuid not null references boxcar.cards,
  tags text[] not null default '{}',
  worker_target text not null default '',
  max_steps int not null check (max_steps > 0),
  is_current boolean not null,
  created_at timestamptz not null default now(),
  unique (project_id, name, version)
);
create unique index profiles_current on boxcar.profiles (project_id, name) where is_current;

create table boxcar.agents (
  id uuid primary key,
  project_id uuid not null,
  name text not null,
  -- null for the operator alone: it acts for callers that are no agent and has no model
  profile_id uuid,
  owner_agent_id uuid,
  -- the agent whose view a clone began with
  derived_from uuid,
  tape_box_id uuid references boxcar.boxes,
  metadata jsonb not null default '{}',
  created_at timestamptz not null default now(),
  unique (project_id, name),
  check ((profile_id is null) = (tape_box_id is null))
);

create table boxcar.grants (
  project_id uuid not null,
  agent_id uuid not null references boxcar.agents,
  box_id uuid not null references boxcar.boxes,
  mode text not null check (mode in ('read', 'append')),
  -- the last readable position of a tape; null = all, also what comes later
  upto_position int,
  -- who gave it: an agent id, or `turn:<id>` when a child's end did
  source text not null,
  expires_at timestamptz,
  created_at timestamptz not null default now(),
  primary key (agent_id, box_id, mode)
);

-- The tree below one root turn. Budgets, deadlines and cancel hang here; its status is that of its root turn.
create table boxcar.runs (
  id uuid primary key,
  project_id uuid not null,
  root_turn_id uuid not null,
  limits jsonb not null default '{}',
  traceparent text,
  created_at timestamptz not null default now()
) with (fillfactor = 80);

create table boxcar.turns (
  id uuid primary key,
  project_id uuid not null,
  run_id uuid not null references boxcar.runs,
  agent_id uuid not null references boxcar.agents,
  profile_id uuid not null,
  parent_turn_id uuid,
  -- the call that asked for it
  parent_tool_call_id uuid,
  -- true when its end is the result of that call
  is_awaited boolean not null default false,
  depth int not null check (depth >= 0),
  primitive text not null,
  channel_id text not null default 'public',
  status text not null check (status in ('queued', 'dispatched', 'running', 'suspended', 'success', 'partial', 'failed', 'timeout', 'canceled')),
  -- raised by every transition into dispatched; job ids and claims carry it
  epoch int not null check (epoch >= 0),
  holder_id uuid,
  -- claims since the last committed step: a turn that loses its worker too often is ended
  attempt int not null default 0,
  step_count int not null default 0,
  max_steps int not null,
  -- replies in a row that were of no use
  empty_replies int not null default 0,
  pending_calls int not null default 0 check (pending_calls >= 0),
  context_box_id uuid not null references boxcar.boxes,
  output_box_id uuid not null references boxcar.boxes,
  start_position int,
  deliverable_card_id uuid,
  error jsonb,
  worker_target text not null default '',
  priority smallint not null default 0,
  deadline_at timestamptz,
  traceparent text,
  created_at timestamptz not null default now(),
  dispatched_at timestamptz,
  ended_at timestamptz,
  check ((status = 'running') = (holder_id is not null)),
  check ((status in ('success', 'partial', 'failed', 'timeout', 'canceled')) = (ended_at is not null)),
  check ((ended_at is null) = (deliverable_card_id is null)),
  check ((status = 'dispatched') <= (dispatched_at is not null)),
  check (is_awaited <= (parent_tool_call_id is not null))
) with (fillfactor = 60);
create unique index turns_one_active on boxcar.turns (agent_id) where status in ('dispatched', 'running', 'suspended');
create index turns_agent_queue on boxcar.turns (agent_id, id) where status = 'queued';
create index turns_queue on boxcar.turns (worker_target, project_id, priority desc, id) where status = 'queued';
create index turns_dispatched on boxcar.turns (worker_target, dispatched_at) where status = 'dispatched';
create index turns_held on boxcar.turns (holder_id) where status = 'running';
create index turns_tree on boxcar.turns (run_id, id);
create index turns_children on boxcar.turns (parent_turn_id) where parent_turn_id is not null;
create index turns_awaited on boxcar.turns (parent_tool_call_id) where is_awaited;
create index turns_deadline on boxcar.turns (deadline_at) where deadline_at is not null and ended_at is null;

-- One row per attempt at a model call; opened before it, committed after it. An attempt that never committed was lost.
create table boxcar.steps (
  turn_id uuid not null references boxcar.turns,
  step int not null check (step > 0),
  attempt int not null check (attempt > 0),
  project_id uuid not null,
  epoch int not null,
  holder_id uuid not null,
  -- the tape range the view was built from; with the turn's context box it determines the prompt
  from_position int not null,
  to_position int not null,
  opened_at timestamptz not null default now(),
  model text,
  prompt_hash bytea,
  manifest jsonb,
  thought_card_id uuid,
  usage jsonb,
  finish_reason text,
  model_ms int,
  error jsonb,
  committed_at timestamptz,
  primary key (turn_id, step, attempt)
);

create table boxcar.tool_calls (
  id uuid primary key,
  project_id uuid not null,
  turn_id uuid not null references boxcar.turns,
  step int not null,
  ordinal int not null,
  -- the provider's own id, which may repeat
  provider_call_id text not null,
  name text not null,
  arguments json not null,
  route text not null check (route in ('function', 'primitive', 'none')),
  -- what a takeover may do with a call that was interrupted
  retry text not null check (retry in ('safe', 'never')),
  -- the epoch that committed it; another epoch meeting it pending knows it was interrupted
  epoch int not null,
  status text not null check (status in ('pending', 'success', 'failed', 'timeout', 'canceled')),
  deadline_at timestamptz not null,
  result_card_id uuid references boxcar.cards,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  unique (turn_id, step, ordinal),
  check ((status = 'pending') = (result_card_id is null)),
  check ((status = 'pending') = (ended_at is null))
);
create index tool_calls_deadline on boxcar.tool_calls (deadline_at) where status = 'pending';

-- The idempotency record of every accepted submission, with the first answer.
create table boxcar.operations (
  project_id uuid not null,
  idempotency_key text not null,
  primitive text not null,
  request_hash bytea not null,
  response json not null,
  -- the turn whose end is the final answer, when the caller waits
  awaited_turn_id uuid,
  -- the job of the queue door that waits for that answer
  door_job_id text,
  created_at timestamptz not null default now(),
  primary key (project_id, idempotency_key)
);
create index operations_door on boxcar.operations (awaited_turn_id) where door_job_id is not null;

create table boxcar.workers (
  id uuid primary key,
  -- key of the session advisory lock its direct connection holds while it lives
  lock_key bigint not null unique,
  lease_until timestamptz not null,
  targets text[] not null,
  concurrency int not null check (concurrency > 0),
  info jsonb not null default '{}',
  started_at timestamptz not null default now()
) with (fillfactor = 60);

-- Cards, context boxes and tape entries never change, whoever asks.
create function boxcar.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% on boxcar.% is refused: cards, context boxes and tape entries never change', tg_op, tg_table_name
    using errcode = 'BX001';
end $$;
create trigger cards_immutable before update or delete or truncate on boxcar.cards
  for each statement execute function boxcar.refuse_change();
create trigger tape_entries_immutable before update or delete or truncate on boxcar.tape_entries
  for each statement execute function boxcar.refuse_change();
create trigger boxes_sealed before update on boxcar.boxes
  for each row when (old.kind = 'context' or new.kind <> old.kind or new.project_id <> old.project_id or new.head_position < old.head_position)
  execute function boxcar.refuse_change();
create trigger boxes_kept before delete or truncate on boxcar.boxes
  for each statement execute function boxcar.refuse_change();

insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values
  ('00000000-0000-7000-8000-000000000001', 'default', '00000000-0000-7000-8000-000000000002', '00000000-0000-7000-8000-000000000003');
insert into boxcar.agents (id, project_id, name) values
  ('00000000-0000-7000-8000-000000000002', '00000000-0000-7000-8000-000000000001', 'operator');
insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id) values
  ('00000000-0000-7000-8000-000000000003', '00000000-0000-7000-8000-000000000001', 'tape.anchor', 'assistant',
   '{"kind":"json","data":{"owner":"human"}}',
   sha256(convert_to('{"data":{"owner":"human"},"kind":"json"}', 'UTF8')), 40, 10, 'operator');
