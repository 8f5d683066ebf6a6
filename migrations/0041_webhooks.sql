-- min_compatible: 15
-- Callbacks of handoffs, and the source agent that is told of an end; see packages/store/src/webhook and packages/store/src/tape/handoff-notices.ts.
alter table boxcar.handoffs
  add column callback_url text check (callback_url <> ''),
  add column told_agent_id uuid,
  add column notifies boolean;
comment on column boxcar.handoffs.callback_url is 'where its end is sent to; null: nowhere';
comment on column boxcar.handoffs.told_agent_id is 'the agent on whose tape its end is told; null: none';
comment on column boxcar.handoffs.notifies is 'true: its end is to be told to that agent; false: it was told, or may not be';
create index handoffs_to_tell on boxcar.handoffs (id) where ended_at is not null and notifies;

create table boxcar.webhook_deliveries (
  id uuid primary key default gen_random_uuid(),
  project_id uuid not null references boxcar.projects (id),
  handoff_id uuid not null references boxcar.handoffs (id) on delete cascade,
  event_handoff_id uuid not null references boxcar.handoffs (id) on delete cascade,
  event_seq integer not null check (event_seq > 0),
  push_config text,
  url text not null check (url <> ''),
  host text not null check (host <> ''),
  status text not null default 'pending' check (status in ('pending', 'delivered', 'failed')),
  attempts integer not null default 0 check (attempts >= 0),
  failures integer not null default 0 check (failures >= 0),
  next_at timestamptz not null default now(),
  give_up_at timestamptz not null default now() + interval '24 hours',
  holder_id uuid,
  last_status integer,
  last_error text,
  created_at timestamptz not null default now(),
  ended_at timestamptz,
  unique nulls not distinct (event_handoff_id, event_seq, push_config),
  check ((status = 'pending') = (ended_at is null)),
  check (holder_id is null or status = 'pending')
);
comment on table boxcar.webhook_deliveries is 'events that are sent to receivers outside; the body is read when it is sent';
comment on column boxcar.webhook_deliveries.id is 'the id of the event, the same in all attempts';
comment on column boxcar.webhook_deliveries.event_handoff_id is 'whose log has the event: the handoff, or one below it that asks';
comment on column boxcar.webhook_deliveries.event_seq is 'the event in that log';
comment on column boxcar.webhook_deliveries.push_config is 'of a push notification: who is notified (push_configs); null: the callback of the handoff';
comment on column boxcar.webhook_deliveries.host is 'of the url, with its port';
comment on column boxcar.webhook_deliveries.failures is 'since it was made, or since a person has had it sent again';
comment on column boxcar.webhook_deliveries.next_at is 'when it may be sent next; while it is sent, when others may send it if nothing is heard of it';
comment on column boxcar.webhook_deliveries.holder_id is 'the process that sends it now';
create index webhook_deliveries_due on boxcar.webhook_deliveries (next_at) where status = 'pending';
create index webhook_deliveries_due_of_host on boxcar.webhook_deliveries (host, next_at) where status = 'pending';
create index webhook_deliveries_of_handoff on boxcar.webhook_deliveries (handoff_id);
create index webhook_deliveries_newest on boxcar.webhook_deliveries (project_id, created_at, id);
create index webhook_deliveries_failed on boxcar.webhook_deliveries (project_id, created_at, id) where status = 'failed';

-- Whatever ends a handoff makes its delivery in the same statement, also in builds that do not know callbacks. The last event is that of the end.
create function boxcar.call_back() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into boxcar.webhook_deliveries (project_id, handoff_id, event_handoff_id, event_seq, url, host)
  values (new.project_id, new.id, new.id, new.event_count, new.callback_url, substring(new.callback_url from '^[a-z]+://([^/?#]+)'));
  return null;
end $$;
create trigger handoffs_call_back after update of ended_at on boxcar.handoffs
  for each row when (old.ended_at is null and new.ended_at is not null and new.callback_url is not null) execute function boxcar.call_back();
create trigger handoffs_call_back_at_once after insert on boxcar.handoffs
  for each row when (new.ended_at is not null and new.callback_url is not null) execute function boxcar.call_back();
