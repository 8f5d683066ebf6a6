-- min_compatible: 15
-- Chains of handoffs; see packages/kernel/src/handoff/chain.ts. The handoff of a chain has its hops below it.
alter table boxcar.handoffs add column mode text not null default 'handoff' check (mode in ('handoff', 'chain', 'compensate'));
alter table boxcar.handoffs add column hop integer check (hop > 0);
alter table boxcar.handoffs add column compensates uuid;
comment on column boxcar.handoffs.mode is 'a chain has hops; compensate: undoes a hop';
comment on column boxcar.handoffs.hop is 'its place in its chain, and of a compensation that of the hop';
comment on column boxcar.handoffs.compensates is 'the hop that it undoes';
create index handoffs_of_parent_handoff on boxcar.handoffs (parent_handoff_id) where parent_handoff_id is not null;
