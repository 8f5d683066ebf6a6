-- min_compatible: 10
-- Budgets and the loop guard. An older build would run turns past their budget and submit children outside of it.
-- An account: what a run, or the tree below one turn, may use. Read and written only while its run's row is locked.
create table boxcar.budgets (
  -- the run, or the turn at the top of the capped subtree
  id uuid primary key,
  project_id uuid not null,
  run_id uuid not null,
  -- the account that encloses this one; what is reserved here is reserved there as well
  parent_id uuid,
  -- depth of the turn at its top: the limit `depth` counts from there
  top_depth int not null,
  -- { tokens, cost_micros, turns, steps, depth, fan_out, seconds }, each optional
  limits jsonb not null,
  deadline_at timestamptz,
  -- allotments of turns that are not settled, and what settled ones have used
  tokens_reserved bigint not null default 0 check (tokens_reserved >= 0),
  tokens_spent bigint not null default 0,
  cost_reserved bigint not null default 0 check (cost_reserved >= 0),
  cost_spent bigint not null default 0,
  turns_used int not null default 0,
  steps_reserved int not null default 0 check (steps_reserved >= 0),
  steps_spent int not null default 0,
  -- since when a turn waits for this account to be raised; null = none does
  paused_at timestamptz,
  created_at timestamptz not null default now()
) with (fillfactor = 80);
create index budgets_run on boxcar.budgets (run_id);
create index budgets_paused on boxcar.budgets (paused_at) where paused_at is not null;

alter table boxcar.turns
  -- the nearest account; null = none, and nothing below is kept
  add column budget_id uuid,
  -- what its accounts have reserved for it; null = none of them limits this
  add column allotted_tokens bigint,
  add column allotted_cost bigint,
  add column allotted_steps int,
  -- null without an account and without a token limit in the profile
  add column spent_tokens bigint,
  add column spent_cost bigint,
  -- true once what it left has gone back to its accounts; null without an account
  add column is_settled boolean,
  add constraint turns_budget_check check ((budget_id is null) = (is_settled is null));
create index turns_unsettled on boxcar.turns (run_id) where not is_settled;

-- turns that a run without an account has made: its ceiling needs no account
alter table boxcar.runs add column turn_count int not null default 1;
-- Runs that are under way go on counting from what they have; one that has ended makes no turns any more, so what this costs is
-- bounded by the work in hand.
update boxcar.runs r set turn_count = n.turns from (
  select t.run_id, count(*)::int as turns from boxcar.turns t where t.run_id in (
    select o.run_id from boxcar.turns o where o.status = 'queued'
    union select o.run_id from boxcar.turns o where o.status in ('dispatched', 'running', 'suspended')) group by t.run_id) n
where r.id = n.run_id and n.turns > 1;
-- limits.tokens of the profile
alter table boxcar.profiles add column max_tokens bigint;
-- what the call is (docs/budgets.md, "Loop guard"); null = not guarded
alter table boxcar.tool_calls add column guard_hash bytea;
