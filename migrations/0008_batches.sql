-- min_compatible: 5
-- Batches: turns joined into one answer, by fork_join, which makes them, or by collect, which waits for earlier ones. A build that does
-- not know them would end members without counting them.
create table boxcar.batches (
  id uuid primary key,
  project_id uuid not null,
  -- the run of its turns when fork_join made them; of the waiting turn for a collect; null for one from outside
  run_id uuid,
  -- the turn that asked for it; null from outside
  turn_id uuid,
  -- the call that its end answers; null when nobody waits, or somebody outside
  tool_call_id uuid unique,
  primitive text not null,
  kind text not null check (kind in ('fork_join', 'collect')),
  -- the members, in the order of the tasks; never rewritten
  turn_ids uuid[] not null check (cardinality(turn_ids) > 0),
  -- members that have not ended; the ends of members lower it, also after the batch's own end
  remaining int not null check (remaining >= 0),
  succeeded int not null,
  -- members that ended as failed, timeout or canceled
  failed int not null,
  min_success int,
  fail_fast boolean not null,
  status text not null check (status in ('running', 'success', 'partial', 'failed', 'timeout', 'canceled')),
  -- why its members are being ended
  closing text check (closing in ('deadline', 'fail_fast', 'min_success', 'cancel')),
  -- something is to be done: whoever made it so does it, else the sweep
  is_due boolean not null,
  deadline_at timestamptz,
  -- what it came to, where no call was answered
  answer json,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  check ((status = 'running') = (ended_at is null)),
  check (not is_due or status = 'running')
) with (fillfactor = 60);
create index batches_due on boxcar.batches (id) where status = 'running' and is_due;
create index batches_deadline on boxcar.batches (deadline_at) where status = 'running';
create index batches_of_turn on boxcar.batches (turn_id) where status = 'running';

-- the batches that wait for this turn
alter table boxcar.turns add column batch_ids uuid[];
-- where a circle of waits must pass: a turn that others wait for in the queue of an agent that is busy, or one that collects others
create index turns_awaited_queue on boxcar.turns (id) where status = 'queued' and (is_awaited or batch_ids is not null);
create index batches_collecting on boxcar.batches (id) where status = 'running' and kind = 'collect' and tool_call_id is not null;
-- the call waits for this batch, whose deadline is the one that counts
alter table boxcar.tool_calls add column batch_id uuid;
-- the batch whose end is the final answer, when the caller waits
alter table boxcar.operations add column awaited_batch_id uuid;
create index operations_batch_door on boxcar.operations (awaited_batch_id) where door_job_id is not null;
