-- Written by `pnpm db:dump` from a database with every migration applied. Do not edit.

create schema boxcar;

-- Functions

set check_function_bodies = off;

CREATE OR REPLACE FUNCTION boxcar.refuse_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
  raise exception '% on boxcar.% is refused: cards, context boxes and tape entries never change', tg_op, tg_table_name
    using errcode = 'BX001';
end $function$;

-- Tables

create table boxcar.agents (
  id uuid not null,
  project_id uuid not null,
  name text not null,
  profile_id uuid,
  owner_agent_id uuid,
  derived_from uuid,
  tape_box_id uuid,
  metadata jsonb default '{}'::jsonb not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.boxes (
  id uuid not null,
  project_id uuid not null,
  kind text not null,
  owner_agent_id uuid,
  maker_agent_id uuid,
  created_at timestamp with time zone default now() not null,
  card_ids uuid[],
  card_tokens integer[],
  segments jsonb,
  card_count integer,
  token_estimate integer,
  tape_name text,
  incarnation integer,
  head_position integer,
  last_anchor_position integer,
  view_position integer,
  parent_box_id uuid,
  fork_position integer,
  archived_at timestamp with time zone
) with (fillfactor=80);

create table boxcar.cards (
  id uuid not null,
  project_id uuid not null,
  type text not null,
  role text,
  content json,
  content_hash bytea not null,
  size_bytes integer not null,
  token_estimate integer not null,
  metadata jsonb default '{}'::jsonb not null,
  author_id text not null,
  tool_call_id uuid,
  created_at timestamp with time zone default now() not null,
  erased_at timestamp with time zone,
  erased_reason text
);

create table boxcar.grants (
  project_id uuid not null,
  agent_id uuid not null,
  box_id uuid not null,
  mode text not null,
  upto_position integer,
  source text not null,
  expires_at timestamp with time zone,
  created_at timestamp with time zone default now() not null
);

create table boxcar.operations (
  project_id uuid not null,
  idempotency_key text not null,
  primitive text not null,
  request_hash bytea not null,
  response json not null,
  awaited_turn_id uuid,
  door_job_id text,
  created_at timestamp with time zone default now() not null
);

create table boxcar.profiles (
  id uuid not null,
  project_id uuid not null,
  name text not null,
  version integer not null,
  box_id uuid not null,
  card_id uuid not null,
  tags text[] default '{}'::text[] not null,
  worker_target text default ''::text not null,
  max_steps integer not null,
  is_current boolean not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.projects (
  id uuid not null,
  name text not null,
  limits jsonb default '{}'::jsonb not null,
  operator_agent_id uuid not null,
  bootstrap_card_id uuid not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.runs (
  id uuid not null,
  project_id uuid not null,
  root_turn_id uuid not null,
  limits jsonb default '{}'::jsonb not null,
  traceparent text,
  created_at timestamp with time zone default now() not null
) with (fillfactor=80);

create table boxcar.schema_version (
  version integer not null,
  name text not null,
  checksum text not null,
  min_compatible integer not null,
  applied_at timestamp with time zone default now() not null
);

create table boxcar.steps (
  turn_id uuid not null,
  step integer not null,
  attempt integer not null,
  project_id uuid not null,
  epoch integer not null,
  holder_id uuid not null,
  from_position integer not null,
  to_position integer not null,
  opened_at timestamp with time zone default now() not null,
  model text,
  prompt_hash bytea,
  manifest jsonb,
  thought_card_id uuid,
  usage jsonb,
  finish_reason text,
  model_ms integer,
  error jsonb,
  committed_at timestamp with time zone,
  toolset_hash bytea
);

create table boxcar.tape_entries (
  box_id uuid not null,
  "position" integer not null,
  kind text not null,
  card_id uuid,
  tokens integer default 0 not null,
  payload json,
  anchor_name text,
  turn_id uuid,
  step integer,
  author_id text not null,
  dedup_key text,
  meta jsonb,
  created_at timestamp with time zone default now() not null
);

create table boxcar.tool_calls (
  id uuid not null,
  project_id uuid not null,
  turn_id uuid not null,
  step integer not null,
  ordinal integer not null,
  provider_call_id text not null,
  name text not null,
  arguments json not null,
  route text not null,
  retry text not null,
  epoch integer not null,
  status text not null,
  deadline_at timestamp with time zone not null,
  result_card_id uuid,
  created_at timestamp with time zone default now() not null,
  ended_at timestamp with time zone,
  target text,
  look_at timestamp with time zone,
  sent_at timestamp with time zone
);

create table boxcar.toolsets (
  project_id uuid not null,
  hash bytea not null,
  schemas json not null,
  created_at timestamp with time zone default now() not null
);

create table boxcar.turns (
  id uuid not null,
  project_id uuid not null,
  run_id uuid not null,
  agent_id uuid not null,
  profile_id uuid not null,
  parent_turn_id uuid,
  parent_tool_call_id uuid,
  is_awaited boolean default false not null,
  depth integer not null,
  primitive text not null,
  channel_id text default 'public'::text not null,
  status text not null,
  epoch integer not null,
  holder_id uuid,
  attempt integer default 0 not null,
  step_count integer default 0 not null,
  max_steps integer not null,
  empty_replies integer default 0 not null,
  pending_calls integer default 0 not null,
  context_box_id uuid not null,
  output_box_id uuid not null,
  start_position integer,
  deliverable_card_id uuid,
  error jsonb,
  worker_target text default ''::text not null,
  priority smallint default 0 not null,
  deadline_at timestamp with time zone,
  traceparent text,
  created_at timestamp with time zone default now() not null,
  dispatched_at timestamp with time zone,
  ended_at timestamp with time zone
) with (fillfactor=60);

create table boxcar.workers (
  id uuid not null,
  lock_key bigint not null,
  lease_until timestamp with time zone not null,
  targets text[] not null,
  concurrency integer not null,
  info jsonb default '{}'::jsonb not null,
  started_at timestamp with time zone default now() not null
) with (fillfactor=60);

-- Constraints

alter table only boxcar.agents add constraint agents_check CHECK (((profile_id IS NULL) = (tape_box_id IS NULL)));

alter table only boxcar.agents add constraint agents_pkey PRIMARY KEY (id);

alter table only boxcar.agents add constraint agents_project_id_name_key UNIQUE (project_id, name);

alter table only boxcar.boxes add constraint boxes_check CHECK (((kind = 'context'::text) = ((card_ids IS NOT NULL) AND (card_tokens IS NOT NULL) AND (segments IS NOT NULL) AND (card_count IS NOT NULL) AND (token_estimate IS NOT NULL))));

alter table only boxcar.boxes add constraint boxes_check1 CHECK (((kind = 'tape'::text) = ((incarnation IS NOT NULL) AND (head_position IS NOT NULL) AND (last_anchor_position IS NOT NULL) AND (view_position IS NOT NULL))));

alter table only boxcar.boxes add constraint boxes_check2 CHECK ((cardinality(card_ids) = cardinality(card_tokens)));

alter table only boxcar.boxes add constraint boxes_check3 CHECK (((parent_box_id IS NULL) = (fork_position IS NULL)));

alter table only boxcar.boxes add constraint boxes_kind_check CHECK ((kind = ANY (ARRAY['context'::text, 'tape'::text])));

alter table only boxcar.boxes add constraint boxes_pkey PRIMARY KEY (id);

alter table only boxcar.cards add constraint cards_check CHECK (((content IS NULL) = (erased_at IS NOT NULL)));

alter table only boxcar.cards add constraint cards_content_hash_check CHECK ((length(content_hash) = 32));

alter table only boxcar.cards add constraint cards_role_check CHECK ((role = ANY (ARRAY['system'::text, 'user'::text, 'assistant'::text, 'tool'::text])));

alter table only boxcar.cards add constraint cards_size_bytes_check CHECK ((size_bytes >= 0));

alter table only boxcar.cards add constraint cards_token_estimate_check CHECK ((token_estimate >= 0));

alter table only boxcar.cards add constraint cards_type_check CHECK ((type <> ''::text));

alter table only boxcar.cards add constraint cards_pkey PRIMARY KEY (id);

alter table only boxcar.grants add constraint grants_mode_check CHECK ((mode = ANY (ARRAY['read'::text, 'append'::text])));

alter table only boxcar.grants add constraint grants_pkey PRIMARY KEY (agent_id, box_id, mode);

alter table only boxcar.operations add constraint operations_pkey PRIMARY KEY (project_id, idempotency_key);

alter table only boxcar.profiles add constraint profiles_max_steps_check CHECK ((max_steps > 0));

alter table only boxcar.profiles add constraint profiles_name_check CHECK ((name <> ''::text));

alter table only boxcar.profiles add constraint profiles_version_check CHECK ((version > 0));

alter table only boxcar.profiles add constraint profiles_pkey PRIMARY KEY (id);

alter table only boxcar.profiles add constraint profiles_project_id_name_version_key UNIQUE (project_id, name, version);

alter table only boxcar.projects add constraint projects_name_check CHECK ((name <> ''::text));

alter table only boxcar.projects add constraint projects_pkey PRIMARY KEY (id);

alter table only boxcar.projects add constraint projects_name_key UNIQUE (name);

alter table only boxcar.runs add constraint runs_pkey PRIMARY KEY (id);

alter table only boxcar.schema_version add constraint schema_version_check CHECK (((min_compatible >= 1) AND (min_compatible <= version)));

alter table only boxcar.schema_version add constraint schema_version_version_check CHECK ((version > 0));

alter table only boxcar.schema_version add constraint schema_version_pkey PRIMARY KEY (version);

alter table only boxcar.steps add constraint steps_attempt_check CHECK ((attempt > 0));

alter table only boxcar.steps add constraint steps_step_check CHECK ((step > 0));

alter table only boxcar.steps add constraint steps_toolset_hash_check CHECK ((length(toolset_hash) = 32));

alter table only boxcar.steps add constraint steps_pkey PRIMARY KEY (turn_id, step, attempt);

alter table only boxcar.tape_entries add constraint tape_entries_check CHECK (((card_id IS NULL) = (kind = 'event'::text)));

alter table only boxcar.tape_entries add constraint tape_entries_check1 CHECK (((payload IS NOT NULL) = (kind = 'event'::text)));

alter table only boxcar.tape_entries add constraint tape_entries_check2 CHECK (((kind = 'anchor'::text) = (anchor_name IS NOT NULL)));

alter table only boxcar.tape_entries add constraint tape_entries_kind_check CHECK ((kind = ANY (ARRAY['message'::text, 'system'::text, 'anchor'::text, 'tool_call'::text, 'tool_result'::text, 'error'::text, 'event'::text])));

alter table only boxcar.tape_entries add constraint tape_entries_position_check CHECK (("position" > 0));

alter table only boxcar.tape_entries add constraint tape_entries_pkey PRIMARY KEY (box_id, "position");

alter table only boxcar.tool_calls add constraint tool_calls_check CHECK (((status = 'pending'::text) = (result_card_id IS NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_check1 CHECK (((status = 'pending'::text) = (ended_at IS NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_retry_check CHECK ((retry = ANY (ARRAY['safe'::text, 'never'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_route_check CHECK ((route = ANY (ARRAY['function'::text, 'primitive'::text, 'queue'::text, 'none'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'success'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])));

alter table only boxcar.tool_calls add constraint tool_calls_target_check CHECK (((route = 'queue'::text) = (target IS NOT NULL)));

alter table only boxcar.tool_calls add constraint tool_calls_pkey PRIMARY KEY (id);

alter table only boxcar.tool_calls add constraint tool_calls_turn_id_step_ordinal_key UNIQUE (turn_id, step, ordinal);

alter table only boxcar.toolsets add constraint toolsets_hash_check CHECK ((length(hash) = 32));

alter table only boxcar.toolsets add constraint toolsets_schemas_check CHECK ((json_typeof(schemas) = 'array'::text));

alter table only boxcar.toolsets add constraint toolsets_pkey PRIMARY KEY (project_id, hash);

alter table only boxcar.turns add constraint turns_check CHECK (((status = 'running'::text) = (holder_id IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check1 CHECK (((status = ANY (ARRAY['success'::text, 'partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])) = (ended_at IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check2 CHECK (((ended_at IS NULL) = (deliverable_card_id IS NULL)));

alter table only boxcar.turns add constraint turns_check3 CHECK (((status = 'dispatched'::text) <= (dispatched_at IS NOT NULL)));

alter table only boxcar.turns add constraint turns_check4 CHECK ((is_awaited <= (parent_tool_call_id IS NOT NULL)));

alter table only boxcar.turns add constraint turns_depth_check CHECK ((depth >= 0));

alter table only boxcar.turns add constraint turns_epoch_check CHECK ((epoch >= 0));

alter table only boxcar.turns add constraint turns_pending_calls_check CHECK ((pending_calls >= 0));

alter table only boxcar.turns add constraint turns_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'dispatched'::text, 'running'::text, 'suspended'::text, 'success'::text, 'partial'::text, 'failed'::text, 'timeout'::text, 'canceled'::text])));

alter table only boxcar.turns add constraint turns_pkey PRIMARY KEY (id);

alter table only boxcar.workers add constraint workers_concurrency_check CHECK ((concurrency > 0));

alter table only boxcar.workers add constraint workers_pkey PRIMARY KEY (id);

alter table only boxcar.workers add constraint workers_lock_key_key UNIQUE (lock_key);

-- Foreign keys

alter table only boxcar.boxes add constraint boxes_parent_box_id_fkey FOREIGN KEY (parent_box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.grants add constraint grants_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES boxcar.agents(id);

alter table only boxcar.grants add constraint grants_box_id_fkey FOREIGN KEY (box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.profiles add constraint profiles_box_id_fkey FOREIGN KEY (box_id) REFERENCES boxcar.boxes(id);

alter table only boxcar.profiles add constraint profiles_card_id_fkey FOREIGN KEY (card_id) REFERENCES boxcar.cards(id);

alter table only boxcar.profiles add constraint profiles_project_id_fkey FOREIGN KEY (project_id) REFERENCES boxcar.projects(id);

-- Indexes

CREATE UNIQUE INDEX boxes_tape_name ON boxcar.boxes USING btree (project_id, tape_name) WHERE ((tape_name IS NOT NULL) AND (archived_at IS NULL));

CREATE INDEX operations_door ON boxcar.operations USING btree (awaited_turn_id) WHERE (door_job_id IS NOT NULL);

CREATE UNIQUE INDEX profiles_current ON boxcar.profiles USING btree (project_id, name) WHERE is_current;

CREATE INDEX tape_entries_anchor ON boxcar.tape_entries USING btree (box_id, anchor_name, "position") WHERE (kind = 'anchor'::text);

CREATE UNIQUE INDEX tape_entries_dedup ON boxcar.tape_entries USING btree (box_id, dedup_key) WHERE (dedup_key IS NOT NULL);

CREATE INDEX tool_calls_deadline ON boxcar.tool_calls USING btree (deadline_at) WHERE (status = 'pending'::text);

CREATE INDEX tool_calls_look ON boxcar.tool_calls USING btree (look_at) WHERE ((status = 'pending'::text) AND (look_at IS NOT NULL));

CREATE INDEX turns_agent_queue ON boxcar.turns USING btree (agent_id, id) WHERE (status = 'queued'::text);

CREATE INDEX turns_awaited ON boxcar.turns USING btree (parent_tool_call_id) WHERE is_awaited;

CREATE INDEX turns_children ON boxcar.turns USING btree (parent_turn_id) WHERE (parent_turn_id IS NOT NULL);

CREATE INDEX turns_deadline ON boxcar.turns USING btree (deadline_at) WHERE ((deadline_at IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX turns_dispatched ON boxcar.turns USING btree (worker_target, dispatched_at) WHERE (status = 'dispatched'::text);

CREATE INDEX turns_held ON boxcar.turns USING btree (holder_id) WHERE (status = 'running'::text);

CREATE UNIQUE INDEX turns_one_active ON boxcar.turns USING btree (agent_id) WHERE (status = ANY (ARRAY['dispatched'::text, 'running'::text, 'suspended'::text]));

CREATE INDEX turns_queue ON boxcar.turns USING btree (worker_target, project_id, priority DESC, id) WHERE (status = 'queued'::text);

CREATE INDEX turns_tree ON boxcar.turns USING btree (run_id, id);

-- Triggers

CREATE TRIGGER boxes_kept BEFORE DELETE OR TRUNCATE ON boxcar.boxes FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER boxes_sealed BEFORE UPDATE ON boxcar.boxes FOR EACH ROW WHEN (((old.kind = 'context'::text) OR (new.kind <> old.kind) OR (new.project_id <> old.project_id) OR (new.head_position < old.head_position))) EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER cards_immutable BEFORE DELETE OR UPDATE OR TRUNCATE ON boxcar.cards FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();

CREATE TRIGGER tape_entries_immutable BEFORE DELETE OR UPDATE OR TRUNCATE ON boxcar.tape_entries FOR EACH STATEMENT EXECUTE FUNCTION boxcar.refuse_change();
