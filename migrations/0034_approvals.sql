-- min_compatible: 15
-- Approvals: requests that wait for the decision of a person; see packages/store/src/approval. A build that does not know them asks for none, so a policy that
-- needs them is used only once all workers are of this version.
create table boxcar.policies (
  version text primary key check (version ~ '^[0-9a-f]{64}$'),
  content text not null,
  created_at timestamptz not null default now()
);
comment on table boxcar.policies is 'the text of each version of a policy that a decision was made by';

create table boxcar.approvals (
  id uuid primary key,
  project_id uuid not null references boxcar.projects (id),
  run_id text not null check (run_id <> ''),
  turn_id uuid references boxcar.turns (id),
  tool_call_id uuid,
  agent text not null check (agent <> ''),
  tool_name text not null check (tool_name <> ''),
  card_id uuid not null references boxcar.cards (id),
  args_hash text not null check (args_hash ~ '^[0-9a-f]{64}$'),
  context_hash text not null default '',
  payload_hash text not null default '',
  policy_version text not null default '',
  status text not null default 'pending' check (status in ('pending', 'approved', 'denied', 'expired')),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  resolved_at timestamptz check ((resolved_at is null) = (status = 'pending')),
  resolved_by text check ((resolved_by is null) = (status = 'pending')),
  principal jsonb,
  decision_reason text,
  response json,
  consumed_at timestamptz check (consumed_at is null or status = 'approved'),
  voided_at timestamptz,
  call_ms bigint,
  consumed_epoch integer check ((consumed_epoch is null) or (consumed_at is not null)),
  metadata jsonb not null default '{}'
);
comment on column boxcar.approvals.run_id is 'any text of the caller; the run of the turn whose call it is';
comment on column boxcar.approvals.card_id is 'the arguments as they are shown, masked';
comment on column boxcar.approvals.consumed_at is 'what was approved was begun';
comment on column boxcar.approvals.voided_at is 'it approves nothing any more: its call was answered, or the policy has changed';
comment on column boxcar.approvals.consumed_epoch is 'of the turn whose call was begun: the same claim may ask again after a lost answer';
comment on column boxcar.approvals.call_ms is 'how long its call may take once it is begun';
-- Requests that ask for the same share a ticket while it waits.
create unique index approvals_joined on boxcar.approvals (project_id, run_id, tool_name, args_hash, context_hash, payload_hash, policy_version) where status = 'pending';
create index approvals_due on boxcar.approvals (expires_at) where status = 'pending';
create index approvals_newest on boxcar.approvals (project_id, created_at, id);
create index approvals_of_turn on boxcar.approvals (turn_id) where turn_id is not null;
-- A purge of cards looks for what refers to them.
create index approvals_card on boxcar.approvals (card_id);
-- The calls that wait for a decision, or had it and were not begun since.
create index approvals_waiting on boxcar.approvals (tool_call_id) where tool_call_id is not null and consumed_at is null and voided_at is null;
