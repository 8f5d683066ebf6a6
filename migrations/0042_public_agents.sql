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
