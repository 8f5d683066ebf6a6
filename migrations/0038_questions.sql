-- min_compatible: 15
-- Questions of handoffs and their replies; see packages/store/src/handoff/messages.ts.
create table boxcar.handoff_messages (
  handoff_id uuid not null references boxcar.handoffs (id) on delete cascade,
  seq integer not null check (seq > 0),
  card_id uuid not null references boxcar.cards (id),
  ask_key text,
  expires_at timestamptz,
  closed_at timestamptz,
  replies_to integer check (replies_to < seq),
  author text,
  created_at timestamptz not null default now(),
  primary key (handoff_id, seq),
  unique (handoff_id, ask_key),
  unique (handoff_id, replies_to),
  check ((replies_to is null) = (ask_key is not null and expires_at is not null)),
  check ((replies_to is null) = (author is null))
);
comment on table boxcar.handoff_messages is 'questions of handoffs and their replies';
comment on column boxcar.handoff_messages.ask_key is 'of a question: the same question of the same handoff, asked again by another attempt, has the same';
comment on column boxcar.handoff_messages.closed_at is 'of a question: it was answered, its time is over, or the attempt that asked it has ended';
comment on column boxcar.handoff_messages.author is 'who replied';
create index handoff_messages_card on boxcar.handoff_messages (card_id);
alter table boxcar.handoffs add column asking_since timestamptz;
comment on column boxcar.handoffs.asking_since is 'it waits for a reply since then, and its time does not run';
