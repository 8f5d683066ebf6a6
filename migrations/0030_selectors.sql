-- min_compatible: 15
-- Selectors make the prompts of turns. A build that does not know this would show such a turn another prompt: these turns have the format of this
-- migration.
alter table boxcar.turns
  -- the selector that makes its prompts; null = none
  add column selector text,
  -- the version that its first step has fixed
  add column selector_version text,
  add check (selector_version is null or selector is not null) not valid;

alter table boxcar.profiles
  -- of its turns, unless a submission has a view of its own
  add column selector text;

alter table boxcar.waits
  drop constraint waits_kind_check,
  add constraint waits_kind_check check (kind in ('retry', 'limit', 'budget', 'approval', 'selector')) not valid;

-- Turns that wait for a worker with their selector: workers look for theirs with every sweep.
create index waits_selectors on boxcar.waits (created_at) where kind = 'selector';
