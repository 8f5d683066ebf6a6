-- min_compatible: 1
-- Rows that are written together with the row they refer to, or under its lock, need no foreign key to say that it exists. Each
-- such check locked the other row and wrote that down: a quarter of what Postgres did for a turn. What they held is now an
-- invariant (docs/operations.md): `references-exist`.
alter table boxcar.turns
  drop constraint turns_run_id_fkey,
  drop constraint turns_agent_id_fkey,
  drop constraint turns_context_box_id_fkey,
  drop constraint turns_output_box_id_fkey;
alter table boxcar.tape_entries drop constraint tape_entries_box_id_fkey;
alter table boxcar.agents drop constraint agents_tape_box_id_fkey;
alter table boxcar.steps drop constraint steps_turn_id_fkey;
alter table boxcar.tool_calls
  drop constraint tool_calls_turn_id_fkey,
  drop constraint tool_calls_result_card_id_fkey;
