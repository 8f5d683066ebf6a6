-- min_compatible: 15
-- The first child of a fork_join whose other children share its prompt cache: it names itself, and they name it. They stay queued until its first model call
-- has come to something, or ten seconds have passed; see packages/store/src/warm-cache.ts. A build that does not know this lets them in at once.
alter table boxcar.turns add column warm_turn_id uuid;
