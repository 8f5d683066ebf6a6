-- min_compatible: 15
-- Results of identical handoffs; see packages/store/src/handoff/cache.ts.
alter table boxcar.handoffs add column cache_key text;
alter table boxcar.handoffs add column cache_seconds integer check (cache_seconds > 0);
alter table boxcar.handoffs add column cached_from uuid;
alter table boxcar.handoffs add column is_leading boolean not null default false;
comment on column boxcar.handoffs.cache_key is 'hash of what makes handoffs identical; only of those that may be answered from the cache';
comment on column boxcar.handoffs.cache_seconds is 'how old a result may be';
comment on column boxcar.handoffs.cached_from is 'the handoff whose result it has';
comment on column boxcar.handoffs.is_leading is 'it is carried out, and identical ones wait for its result';
create unique index handoffs_leading on boxcar.handoffs (project_id, cache_key) where is_leading;
create index handoffs_cached on boxcar.handoffs (project_id, cache_key, ended_at) where cache_key is not null and cached_from is null and phase = 'completed';
create index handoffs_to_cache on boxcar.handoffs (project_id, cache_key) where cache_key is not null and ended_at is null;
