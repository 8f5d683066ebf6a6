-- min_compatible: 1
-- What came too late: answers of models and tools whose turn was in other hands by then, or had ended. Kept, with what they
-- cost, and never applied.

create table boxcar.evidence (
  id uuid primary key,
  project_id uuid not null,
  turn_id uuid not null,
  -- reply: a model's answer; result: a tool's
  kind text not null check (kind in ('reply', 'result')),
  step int not null,
  -- null: from a worker outside, who knows of no attempt
  attempt int,
  -- under which the work was begun
  epoch int not null,
  holder_id uuid,
  tool_call_id uuid,
  body json not null,
  usage jsonb,
  created_at timestamptz not null default now(),
  -- the same answer that comes twice is one
  unique nulls not distinct (turn_id, epoch, step, attempt, tool_call_id),
  check ((kind = 'result') = (tool_call_id is not null))
);
