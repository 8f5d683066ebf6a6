-- min_compatible: 15
-- Who may do what inside a project. Older builds can go on working: what they write without these columns means what it meant.

alter table boxcar.runs
  -- a cancel of the whole run: no turn is started in it any more
  add column canceled_at timestamptz;

alter table boxcar.turns
  -- started by the end of its parent turn, whose agent has not asked for it
  add column is_woken boolean,
  -- the agent on whose tape the end of this turn was told: it may read what the turn wrote
  add column told_agent_id uuid;

alter table boxcar.agents
  -- anyone whose policy reaches its profile may give it turns
  add column is_shared boolean;

-- What ends of turns have granted. What a parent may read of its children's turns follows from the rows of the turns.
delete from boxcar.grants where source like 'turn:%';

-- Who wrote to a tape for somebody: the turns that have a parent, or whose end was told to an agent.
create index turns_outputs on boxcar.turns (output_box_id) where parent_turn_id is not null or told_agent_id is not null;
create index turns_told on boxcar.turns (told_agent_id) where told_agent_id is not null;
