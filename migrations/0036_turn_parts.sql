-- min_compatible: 15
-- The text of a turn while it is written, for readers of a handoff; see packages/store/src/handoff/turn-parts.ts. Only turns of handoffs have parts.
create table boxcar.turn_parts (
  turn_id uuid not null references boxcar.turns (id) on delete cascade,
  seq integer not null check (seq > 0),
  round text not null check (round <> ''),
  n integer not null check (n >= 0),
  text text,
  created_at timestamptz not null default now(),
  primary key (turn_id, seq),
  unique (turn_id, round, n)
);
comment on table boxcar.turn_parts is 'the text of a turn while it is written';
comment on column boxcar.turn_parts.round is 'one answer of a model or one attempt at a platform: its epoch and its number';
comment on column boxcar.turn_parts.n is 'within the round; number 0 voids what rounds before have said';
comment on column boxcar.turn_parts.text is 'null: what rounds before have said is void; empty after erasure';

-- The words of a card that is erased go from here too.
create function boxcar.forget_parts() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update boxcar.turn_parts p set text = ''
  where p.text <> '' and p.turn_id in (select f.turn_id from boxcar.turns_by_card(array(select c.id from erased c where c.erased_at is not null)) f);
  return null;
end $$;
create trigger cards_forget_parts after update on boxcar.cards referencing new table as erased
  for each statement execute function boxcar.forget_parts();
