-- min_compatible: 15
-- Keys of the HTTP frame; see packages/store/src/key. The text of a key is nowhere: its sha256 is.
create table boxcar.api_keys (
  id uuid primary key,
  project_id uuid not null references boxcar.projects (id),
  agent_id uuid references boxcar.agents (id) on delete cascade,
  name text not null check (name <> ''),
  key_sha256 bytea not null unique check (octet_length(key_sha256) = 32),
  hint text not null,
  scopes text[] not null check (cardinality(scopes) > 0),
  is_local boolean not null default false,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  rotated_from uuid unique references boxcar.api_keys (id) on delete set null
);
comment on table boxcar.api_keys is 'keys of the HTTP frame';
comment on column boxcar.api_keys.agent_id is 'whose key it is; null: of the project';
comment on column boxcar.api_keys.hint is 'the last characters of its text, by which people know it';
comment on column boxcar.api_keys.is_local is 'of a machine, whose servers made it for themselves; valid on loopback addresses alone';
comment on column boxcar.api_keys.last_used_at is 'written at most once a minute';
comment on column boxcar.api_keys.revoked_at is 'from when it is refused; after a rotation this may be later';
comment on column boxcar.api_keys.rotated_from is 'the key in whose place it was made, which has one successor';
create index api_keys_newest on boxcar.api_keys (project_id, created_at, id);
create index api_keys_agent on boxcar.api_keys (agent_id);
