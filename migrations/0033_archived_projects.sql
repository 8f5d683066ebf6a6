-- min_compatible: 15
-- An archived project takes no new submissions; what runs in it goes on to its end. See packages/store/src/projects.ts. A build that does not know this
-- accepts them.
alter table boxcar.projects add column archived_at timestamptz;
