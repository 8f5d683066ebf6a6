-- transaction: none
-- min_compatible: 15
-- Lists of runs, turns, agents and boxes, newest first, page by page; see packages/store/src/lists.ts. A status change of a turn writes to each index of turns,
-- so there are few: of all turns, of those that went wrong, of those of a channel of their own, of a profile. That of an agent had no order before.
create index concurrently if not exists turns_newest on boxcar.turns (project_id, created_at, id);
create index concurrently if not exists turns_unwell on boxcar.turns (project_id, status, created_at, id) where status in ('partial', 'failed', 'timeout', 'canceled');
create index concurrently if not exists turns_channel on boxcar.turns (project_id, channel_id, created_at, id) where channel_id <> 'public';
create index concurrently if not exists turns_profile on boxcar.turns (profile_id, created_at, id);
create index concurrently if not exists turns_of_agent on boxcar.turns (agent_id, created_at, id);
create index concurrently if not exists runs_newest on boxcar.runs (project_id, created_at, id);
create index concurrently if not exists agents_newest on boxcar.agents (project_id, created_at, id);
create index concurrently if not exists agents_profile on boxcar.agents (profile_id, created_at, id) where profile_id is not null;
create index concurrently if not exists boxes_newest on boxcar.boxes (project_id, created_at, id);
create index concurrently if not exists boxes_owner on boxcar.boxes (owner_agent_id, created_at, id) where owner_agent_id is not null;
drop index concurrently if exists boxcar.turns_agent;
