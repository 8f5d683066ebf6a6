-- min_compatible: 15
-- Tasks that other platforms give to public agents: handoffs, with what their protocol knows them by. And tasks that other platforms are
-- given, as far as they ask.
alter table boxcar.handoffs add column public_agent text check (public_agent <> '');
alter table boxcar.handoffs add column conversation text check (conversation <> '');
alter table boxcar.handoffs add column message_id text check (message_id <> '');
alter table boxcar.handoffs add column serving_agent_id uuid;
alter table boxcar.handoffs add column remote_task text check (remote_task <> '');
comment on column boxcar.handoffs.public_agent is 'the public profile that another platform has called; null: it did not come this way';
comment on column boxcar.handoffs.conversation is 'by which the caller knows tasks that belong together';
comment on column boxcar.handoffs.message_id is 'the caller''s name of the message';
comment on column boxcar.handoffs.serving_agent_id is 'the agent of the conversation, made with its first turn';
comment on column boxcar.handoffs.remote_task is 'the task at the other platform that has asked in the open attempt: another attempt goes on with it';
alter table boxcar.handoff_messages add column reply_key text unique check (reply_key <> '');
comment on column boxcar.handoff_messages.reply_key is 'of a reply by another platform: the same message is the same reply';
create index handoffs_public on boxcar.handoffs (project_id, public_agent, source_agent, created_at, id) where public_agent is not null;

create table boxcar.push_configs (
  handoff_id uuid not null references boxcar.handoffs (id) on delete cascade,
  id text not null check (id <> ''),
  url text not null check (url <> ''),
  token text,
  scheme text,
  credentials text,
  version text not null check (version <> ''),
  created_at timestamptz not null default now(),
  primary key (handoff_id, id)
);
comment on table boxcar.push_configs is 'who is notified of the questions and the end of a task that another platform has given';
comment on column boxcar.push_configs.id is 'the caller''s name of it';
comment on column boxcar.push_configs.token is 'sent along, so that the receiver knows whose notification it is';
comment on column boxcar.push_configs.scheme is 'of the header authorization, with credentials';
comment on column boxcar.push_configs.version is 'of the protocol in which the notification is written';

-- An event and its notifications are written by the same statement, as callbacks are. What has happened before somebody asks to be notified is
-- sent at once; and once more to another address, or where no receiver has answered before it was asked for again.
create function boxcar.push_event(task uuid, event_handoff uuid, event integer) returns void language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into boxcar.webhook_deliveries as d (project_id, handoff_id, event_handoff_id, event_seq, push_config, url, host)
  select h.project_id, h.id, event_handoff, event, p.id, p.url, substring(p.url from '^[a-z]+://([^/?#]+)')
  from boxcar.push_configs p join boxcar.handoffs h on h.id = p.handoff_id where p.handoff_id = task order by p.id
  on conflict (event_handoff_id, event_seq, push_config) do update set url = excluded.url, host = excluded.host, status = 'pending', failures = 0,
    next_at = now(), give_up_at = now() + interval '24 hours', holder_id = null, last_status = null, last_error = null, ended_at = null
  where d.url <> excluded.url or (d.status = 'failed' and d.last_status is null)
$$;
create function boxcar.push_end() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform boxcar.push_event(new.id, new.id, new.event_count);
  return null;
end $$;
create trigger handoffs_push_end after update of ended_at on boxcar.handoffs
  for each row when (old.ended_at is null and new.ended_at is not null and new.public_agent is not null) execute function boxcar.push_end();

-- Of several open questions the task asks the oldest: the others have their turn when it is closed. A question that is asked again is another event.
-- Whoever asks to be notified at the same moment, or asks another question, waits for the row of the task: the second one sees the first.
create function boxcar.push_asked(task uuid) returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  asked record;
begin
  perform from boxcar.handoffs r where r.id = task and r.public_agent is not null and r.ended_at is null for no key update;
  if not found then
    return;
  end if;
  select e.handoff_id, e.seq into asked from boxcar.handoffs h join boxcar.handoff_messages m on m.handoff_id = h.id left join boxcar.turns t on t.id = h.turn_id
    cross join lateral (
      select v.handoff_id, v.seq from boxcar.handoff_events v where v.handoff_id = m.handoff_id and v.type = 'handoff.question' and v.data->>'question' = m.seq::text
      order by v.seq desc limit 1) e
  where h.root_handoff_id = task and h.asking_since is not null and h.ended_at is null and t.ended_at is null
    and m.replies_to is null and m.closed_at is null and m.expires_at > now()
  order by m.created_at, m.handoff_id, m.seq limit 1;
  if found then
    perform boxcar.push_event(task, asked.handoff_id, asked.seq);
  end if;
end $$;
create function boxcar.push_question() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform boxcar.push_asked(h.root_handoff_id) from boxcar.handoffs h where h.id = new.handoff_id;
  return null;
end $$;
create trigger handoff_messages_push after insert on boxcar.handoff_messages
  for each row when (new.replies_to is null) execute function boxcar.push_question();
create trigger handoff_messages_push_next after update of closed_at on boxcar.handoff_messages
  for each row when (new.replies_to is null and new.closed_at is distinct from old.closed_at) execute function boxcar.push_question();

create function boxcar.push_at_once() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform boxcar.push_event(h.id, h.id, h.event_count) from boxcar.handoffs h where h.id = new.handoff_id and h.ended_at is not null;
  if not found then
    perform boxcar.push_asked(new.handoff_id);
  end if;
  return null;
end $$;
create trigger push_configs_at_once after insert or update on boxcar.push_configs for each row execute function boxcar.push_at_once();
revoke execute on function boxcar.push_event(uuid, uuid, integer), boxcar.push_asked(uuid) from public;
