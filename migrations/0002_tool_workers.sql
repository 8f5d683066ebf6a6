-- min_compatible: 1
-- Calls that workers outside answer, through a queue.
alter table boxcar.tool_calls
  -- whose job it is: queue `boxcar-tools-<target>`
  add column target text,
  -- when to ask the queue again what became of the job; null = nothing more to be learnt there
  add column look_at timestamptz,
  -- when its job entered the queue; kept for calls that must not be sent twice
  add column sent_at timestamptz,
  drop constraint tool_calls_route_check,
  add constraint tool_calls_route_check check (route in ('function', 'primitive', 'queue', 'none')),
  add constraint tool_calls_target_check check ((route = 'queue') = (target is not null));
create index tool_calls_look on boxcar.tool_calls (look_at) where status = 'pending' and look_at is not null;
