-- min_compatible: 1
-- The tools a step offered its model: what a prompt is made of besides its messages. Schemas come from code, so nothing
-- else in the rows could tell them later. One row for each distinct list of a project; steps refer to it by hash.
-- No foreign key from steps: each commit would lock the one row that all of them share.

create table boxcar.toolsets (
  project_id uuid not null,
  -- sha256 of the RFC 8785 form of the schemas
  hash bytea not null check (length(hash) = 32),
  -- [{ name, description, parameters, source }] in the order they were offered; source: tool, primitive or profile.
  -- The hash covers the first three.
  schemas json not null check (json_typeof(schemas) = 'array'),
  created_at timestamptz not null default now(),
  primary key (project_id, hash)
);

-- null: not committed, or from before this column
alter table boxcar.steps add column toolset_hash bytea check (length(toolset_hash) = 32);
