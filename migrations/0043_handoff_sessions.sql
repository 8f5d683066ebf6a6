-- min_compatible: 15
-- Sessions of clients that hand their context on; see packages/store/src/handoff-session. Each is a tape of its own. The words of users are
-- in the cards of its entries alone.
create table boxcar.handoff_sessions (
  id uuid primary key,
  project_id uuid not null references boxcar.projects (id),
  session_key text not null check (session_key <> ''),
  tape_box_id uuid not null unique references boxcar.boxes (id) on delete cascade,
  maker_agent_id uuid not null,
  agent_from text not null check (agent_from <> ''),
  agent_to text check (agent_to <> ''),
  status text not null default 'active' check (status in ('active', 'completed', 'cancelled')),
  retention_policy text not null check (retention_policy in ('standard', 'extended', 'short')),
  message_count integer not null check (message_count >= 0),
  file_count integer not null check (file_count >= 0),
  tool_call_count integer not null check (tool_call_count >= 0),
  system_count integer not null check (system_count >= 0),
  created_at timestamptz not null default now(),
  last_write_at timestamptz not null default now(),
  ended_at timestamptz check ((ended_at is null) = (status = 'active')),
  frozen_head integer check ((frozen_head is not null) = (status = 'completed')),
  continues uuid references boxcar.handoff_sessions (id),
  line_sessions uuid[] not null,
  unique (project_id, session_key),
  check ((continues is null) = (cardinality(line_sessions) = 0))
);
comment on table boxcar.handoff_sessions is 'sessions of clients that hand their context on';
comment on column boxcar.handoff_sessions.session_key is 'the client''s name of it';
comment on column boxcar.handoff_sessions.maker_agent_id is 'who has registered it: an agent, or the operator';
comment on column boxcar.handoff_sessions.agent_from is 'whose session it is, as the client says; a name of no agent here will do';
comment on column boxcar.handoff_sessions.agent_to is 'whom it was handed to last';
comment on column boxcar.handoff_sessions.status is 'expired is not stored: it follows from last_write_at, the policy and the time of the question';
comment on column boxcar.handoff_sessions.message_count is 'with those of the sessions that it goes on from, as the other counts; their sum is the sequence number of the last entry';
comment on column boxcar.handoff_sessions.frozen_head is 'the last position of its tape that counts, once it is completed';
comment on column boxcar.handoff_sessions.continues is 'the completed session that it goes on from: its tape is forked at the frozen head';
comment on column boxcar.handoff_sessions.line_sessions is 'that session, and those before it, oldest first';
create index handoff_sessions_newest on boxcar.handoff_sessions (project_id, created_at, id);
create index handoff_sessions_from on boxcar.handoff_sessions (project_id, agent_from, created_at, id);
create index handoff_sessions_to on boxcar.handoff_sessions (project_id, agent_to, created_at, id) where agent_to is not null;
create index handoff_sessions_maker on boxcar.handoff_sessions (maker_agent_id);
create index handoff_sessions_continues on boxcar.handoff_sessions (continues) where continues is not null;
create index handoff_sessions_written on boxcar.handoff_sessions (last_write_at);

create table boxcar.handoff_session_entries (
  session_id uuid not null references boxcar.handoff_sessions (id) on delete cascade,
  sequence_number integer not null,
  position integer not null check (position > 0),
  type text not null check (type in ('message', 'file', 'tool_call', 'system')),
  message_count integer not null,
  file_count integer not null,
  tool_call_count integer not null,
  system_count integer not null,
  primary key (session_id, sequence_number),
  unique (session_id, position),
  check (sequence_number = message_count + file_count + tool_call_count + system_count)
);
comment on table boxcar.handoff_session_entries is 'the context entries of sessions, in the order of their tapes';
comment on column boxcar.handoff_session_entries.sequence_number is 'without gaps; goes on from the session before';
comment on column boxcar.handoff_session_entries.position is 'on the tape of the session';
comment on column boxcar.handoff_session_entries.message_count is 'up to this entry, as the other counts: what a reader up to here counts is one row';
create index handoff_session_entries_types on boxcar.handoff_session_entries (session_id, type, sequence_number);

-- A session that is handed on is a handoff. One whose target is no agent of this installation waits for somebody to fetch it: no turn serves it.
alter table boxcar.handoffs add column session_id uuid references boxcar.handoff_sessions (id) on delete set null;
alter table boxcar.handoffs add column session_request text check (session_request in ('context_transfer', 'full_handoff', 'collaboration'));
alter table boxcar.handoffs add column session_head integer check (session_head > 0);
alter table boxcar.handoffs add column result_card_id uuid;
comment on column boxcar.handoffs.session_id is 'the session that is handed on; null: none, or it has been purged';
comment on column boxcar.handoffs.session_head is 'up to where the target reads the tape of the session; null: it has not been handed on, or was not yet';
comment on column boxcar.handoffs.result_card_id is 'of a handoff that no turn has served';
create index handoffs_session on boxcar.handoffs (session_id, created_at, id) where session_id is not null;
create index handoffs_result on boxcar.handoffs (result_card_id);
