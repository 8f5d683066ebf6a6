/**
 * Plans a purge: finds the finished runs that are old enough, the rows that they left, and references to these rows. Reads them in one
 * transaction into temporary tables, by a constant number of statements. Each statement reads the other tables by key. So the cost of a
 * page depends on the rows of its runs and on the runs of the same agents, and not on the size of the database.
 *
 * The plan locks nothing, and all of its statements read one snapshot. `purge-batch.ts` checks every decision again under its locks.
 */
import {
  type AgentId,
  type BoxId,
  decidePurge,
  ENTRY_KINDS,
  type KeptRun,
  type PurgeReference,
  type RunId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { readSnapshot, retryTransient, type Tx } from '../db/index.js';
import { sessionExpiry } from '../rows/index.js';

/** The units that are removed as a whole: runs, or tapes and handoffs without a run. A handoff is represented by its context box. */
export type PurgeKind = 'runs' | 'tapes' | 'handoffs';

export interface PurgeScope {
  readonly kind: PurgeKind;
  /** Runs must have ended before this time; tapes must have been left before it. */
  readonly before: Date;
  readonly projectId: string | null;
  /** Only these runs or tapes. */
  readonly ids?: readonly string[];
  /** Only those after this id, in the order of ids. */
  readonly after?: string | undefined;
  /** Excludes these, which are already decided. */
  readonly without?: readonly string[];
  readonly limit: number;
}

/** A run that may be removed, with everything that is removed with it. A tape is treated as a run of its own, which has the tape's id. */
export interface PurgeableRun extends pg.QueryResultRow {
  readonly run_id: RunId;
  readonly agent_ids: readonly AgentId[];
  readonly box_ids: readonly BoxId[];
}

export interface PurgePlan {
  /** Groups of runs that must be removed together. */
  readonly groups: readonly (readonly PurgeableRun[])[];
  readonly kept: readonly KeptRun[];
  /** The last run of the page; undefined for an empty page. */
  readonly last: string | undefined;
  readonly count: number;
  /** Runs after the page that were examined together with runs of the same agents. */
  readonly ahead: readonly string[];
}

// A generic plan would read all runs to find those of a list.
const SETTINGS = ['set local plan_cache_mode = force_custom_plan'];

const TABLES = `
  create temp table purge_runs (id uuid primary key) on commit drop;
  create temp table purge_turns (
    id uuid primary key, run_id uuid, agent_id uuid, context_box_id uuid, output_box_id uuid
  ) on commit drop;
  create temp table purge_agents (id uuid primary key, run_id uuid, tape_box_id uuid) on commit drop;
  create temp table purge_boxes (id uuid primary key, run_id uuid) on commit drop;
  create temp table purge_cards (id uuid primary key, run_id uuid, is_on_tape boolean) on commit drop;
  create temp table purge_refs (from_run uuid, to_run uuid, cause text, holder uuid) on commit drop`;

/** SQL of whether a run `r` has ended completely before `$1`. */
const isOver = (r: string): string => `
  (
    ${r}.created_at < $1
    and not exists (select from boxcar.turns t where t.run_id = ${r}.id and (t.ended_at is null or t.ended_at >= $1))
  )`;

const RUNS = `
  insert into purge_runs
  select r.id
  from boxcar.runs r
  where ($2::uuid is null or r.project_id = $2)
    and ($3::uuid[] is null or r.id = any ($3))
    and ($4::uuid is null or r.id > $4)
    and r.id <> all ($5::uuid[])
    and ${isOver('r')}
  order by r.id
  limit $6`;

/** A page may grow to this many times its number of runs, by runs of the same agents. */
const PAGES_OF_AGENTS = 10;
/**
 * Runs of the same agents are removed together or not at all, so they are examined together, on whatever page they are. Each run and each
 * agent is visited once, until `$3` runs are found.
 */
const OF_SAME_AGENTS = `
  insert into purge_runs
  with recursive near as (
    select r.id as run_id, null::uuid as agent_id
    from purge_runs r
    union
    select x.run_id, x.agent_id
    from near n
    cross join lateral (
      select null::uuid as run_id, t.agent_id
      from boxcar.turns t
      where t.run_id = n.run_id
      union all
      select t.run_id, null
      from boxcar.turns t
      where t.agent_id = n.agent_id
    ) x
  )
  select r.id
  from (select n.run_id from near n where n.run_id is not null limit $3) n
  join boxcar.runs r on r.id = n.run_id
  where ($4::uuid is null or r.id > $4) and r.id <> all ($2::uuid[]) and ${isOver('r')}
  on conflict do nothing`;

/**
 * Tapes without a writer: archived incarnations, discarded forks, imported tapes, and tapes of sessions that are over. Present tapes of
 * agents are excluded. Tapes that began as a fork which is open or merged are excluded too, because a repeated merge must give the same
 * receipt.
 */
const LEFT_TAPES = `
  insert into purge_boxes
  select b.id, b.id
  from (
    select *
    from boxcar.boxes l
    where (l.archived_at is not null or l.fork_status = 'discarded')
      and (
        l.archived_at < $1
        or (
          l.fork_status = 'discarded'
          and not exists (select from boxcar.forks f where f.id = l.id and f.ended_at >= $1)
        )
      )
      and not exists (select from boxcar.forks f where f.id = l.id and f.status <> 'discarded')
    union all
    select n.*
    from boxcar.tape_entries e
    join boxcar.boxes n on n.id = e.box_id
    where e.position = 1
      and e.meta ? 'imported'
      and n.tape_name is not null
      and n.archived_at is null
      and n.created_at < $1
    union all
    select t.*
    from boxcar.handoff_sessions s
    join boxcar.boxes t on t.id = s.tape_box_id
    where s.last_write_at < $1
      and coalesce(s.ended_at, ${sessionExpiry('s')}) < least($1, now())
      and t.archived_at is null
  ) b
  where b.kind = 'tape'
    and ($2::uuid is null or b.project_id = $2)
    and ($3::uuid[] is null or b.id = any ($3))
    and ($4::uuid is null or b.id > $4)
    and b.id <> all ($5::uuid[])
    and not exists (select from boxcar.agents a where a.id = b.owner_agent_id and a.tape_box_id = b.id)
  order by b.id
  limit $6`;
/** External handoffs that no turn has served: they were refused, or not approved in time. */
const LEFT_HANDOFFS = `
  insert into purge_boxes
  select h.context_box_id, h.context_box_id
  from boxcar.handoffs h
  where h.turn_id is null
    and h.joined_to is null
    and h.parent_turn_id is null
    and h.ended_at < $1
    and ($2::uuid is null or h.project_id = $2)
    and ($3::uuid[] is null or h.context_box_id = any ($3))
    and ($4::uuid is null or h.context_box_id > $4)
    and h.context_box_id <> all ($5::uuid[])
  order by h.context_box_id
  limit $6`;

/** A turn keeps its own tape. Entries that the turn has written to another tape may be removed before the turn. */
const WRITERS = `
  insert into purge_refs
  select null, b.run_id, 'turn', t.id
  from purge_boxes b
  cross join lateral (
    select o.id
    from boxcar.tape_entries e
    join boxcar.turns o on o.id = e.turn_id and o.output_box_id = b.id
    where e.box_id = b.id and e.turn_id is not null
    limit 1
  ) t`;

/** The rows that the runs left. A box belongs to the run whose turn has it, otherwise to a run of the agent that made it. */
const LEFT_BEHIND = [
  `
    insert into purge_turns
    select t.id, t.run_id, t.agent_id, t.context_box_id, t.output_box_id
    from purge_runs r
    cross join lateral (select * from boxcar.turns o where o.run_id = r.id offset 0) t`,
  `
    insert into purge_agents
    select a.id, t.run_id, a.tape_box_id
    from (select distinct on (agent_id) agent_id, run_id from purge_turns order by agent_id, run_id) t
    cross join lateral (select o.id, o.tape_box_id from boxcar.agents o where o.id = t.agent_id offset 0) a
    where a.tape_box_id is not null`,
  `
    insert into purge_boxes
    select distinct on (x.id) x.id, x.run_id
    from (
      select context_box_id as id, run_id, 1 as rank
      from purge_turns
      union all
      select tape_box_id, run_id, 1
      from purge_agents
      union all
      select b.id, a.run_id, 2
      from purge_agents a
      cross join lateral (select m.id from boxcar.boxes m where m.maker_agent_id = a.id offset 0) b
    ) x
    cross join lateral (select from boxcar.boxes o where o.id = x.id offset 0) b
    where not exists (select from boxcar.profiles f where f.box_id = x.id)
    order by x.id, x.rank, x.run_id`,
  // Handoffs that turns of the runs have requested, and handoffs that have the result of a handoff which these turns served.
  `
    insert into purge_boxes
    select distinct on (h.id) h.id, t.run_id
    from purge_turns t
    cross join lateral (
      select o.context_box_id as id
      from boxcar.handoffs o
      where o.parent_turn_id = t.id
      union all
      select j.context_box_id
      from boxcar.handoffs s
      join boxcar.handoffs j on j.joined_to = s.id
      where s.turn_id = t.id
    ) h
    order by h.id, t.run_id
    on conflict do nothing`,
  // Ended forks are removed with the tape from which they were made, and their own forks with them. A fork that has replaced a tape stays
  // with its agent.
  `
    insert into purge_boxes
    with recursive ended as (
      select f.id, f.box_id, f.status, p.run_id
      from purge_boxes p
      cross join lateral (select * from boxcar.forks k where k.parent_box_id = p.id offset 0) f
      where f.status <> 'open'
      union
      select f.id, f.box_id, f.status, o.run_id
      from ended o
      cross join lateral (select * from boxcar.forks k where k.parent_box_id = any (array[o.id, o.box_id]) offset 0) f
      where f.status <> 'open'
    )
    select distinct on (b.id) b.id, o.run_id
    from ended o
    join boxcar.boxes b on b.id = o.id or (b.id = o.box_id and o.status = 'discarded')
    order by b.id, o.run_id
    on conflict do nothing`,
];
/** The cards of these boxes, and the results of the calls. A card of several runs belongs to the first that has it on a tape. */
const CARDS = [
  `
    insert into purge_cards
    select distinct on (x.id) x.id, x.run_id, x.is_on_tape
    from (
      select e.card_id as id, b.run_id, true as is_on_tape
      from purge_boxes b
      cross join lateral (
        select o.card_id
        from boxcar.tape_entries o
        where o.box_id = b.id and o.card_id is not null
        offset 0
      ) e
      union all
      select u.id, p.run_id, false
      from purge_boxes p
      cross join lateral (select o.card_ids from boxcar.boxes o where o.id = p.id offset 0) b
      cross join lateral unnest(b.card_ids) as u(id)
      union all
      select k.result_card_id, t.run_id, false
      from purge_turns t
      cross join lateral (
        select o.result_card_id
        from boxcar.tool_calls o
        where o.turn_id = t.id and o.result_card_id is not null
        offset 0
      ) k
    ) x
    where not exists (select from boxcar.projects p where p.bootstrap_card_id = x.id)
      and not exists (select from boxcar.profiles f where f.card_id = x.id)
    order by x.id, x.is_on_tape desc, x.run_id`,
  'analyze purge_runs, purge_turns, purge_agents, purge_boxes, purge_cards',
];

const KINDS = `'{${ENTRY_KINDS.join(',')}}'::text[]`;

/**
 * SQL of the tapes among `ids` that have changed since `cut`, as id and cause. The times of imported entries may be older than their
 * import. The times of their cards are not, and neither is the mark of an imported event. A tape that a reset has made begins with entries
 * of the moment of the reset.
 */
export const youngTapes = (ids: string, cut: string): string => `
  select x.id, y.cause
  from (${ids}) p
  join boxcar.boxes x on x.id = p.id and x.kind = 'tape'
  cross join lateral (
    select 'entry' as cause
    where exists (
        select from boxcar.tape_entries e
        where e.box_id = x.id
          and e.kind = any (${KINDS})
          and e.created_at >= ${cut}
          and (x.previous_box_id is null or e.created_at <> x.created_at)
      )
      or (
        select coalesce(c.created_at, (e.meta->'imported'->>'at')::timestamptz)
        from boxcar.tape_entries e
        left join boxcar.cards c on c.id = e.card_id
        where e.box_id = x.id
          and (e.card_id is not null or e.meta->'imported' ? 'at')
          and (x.previous_box_id is null or c.created_at is distinct from x.created_at)
        order by e.position desc
        limit 1
      ) >= ${cut}
    union all
    select 'reset'
    where x.archived_at >= ${cut} or (x.previous_box_id is not null and x.created_at >= ${cut})
    union all
    select 'open_fork'
    where exists (
      select from boxcar.forks f
      where f.parent_box_id = x.id and f.status = 'open' and f.created_at >= ${cut}
    )
    union all
    select 'open_fork'
    where x.fork_status = 'open' and x.created_at >= ${cut}
  ) y`;

/** Tapes that are too young are kept as if a remaining row referred to them. */
const YOUNG = `
  insert into purge_refs
  select null, b.run_id, y.cause, b.id
  from (${youngTapes('select id from purge_boxes', '$1')}) y
  join purge_boxes b on b.id = y.id`;

/** References to the rows: from one of these runs, or from a row that stays (null). */
const REFERENCES = [
  `
    insert into purge_refs
    select distinct f.run_id, b.run_id, 'segment', x.id
    from purge_boxes b
    cross join lateral (
      select o.id
      from boxcar.boxes o
      where o.segments @? '$[*].source'
        and (
          jsonb_path_query_array(o.segments, '$[*].source') ? b.id::text
          or jsonb_path_query_array(o.segments, '$[*].via') ? b.id::text
        )
      offset 0
    ) x
    left join purge_boxes f on f.id = x.id
    where f.run_id is distinct from b.run_id`,
  // References to the tape from which a tape was forked. The other tapes of its line are found in the same way, because that tape was
  // forked from them.
  `
    insert into purge_refs
    select distinct f.run_id, b.run_id, 'fork', x.id
    from purge_boxes b
    cross join lateral (select o.id from boxcar.boxes o where o.parent_box_id = b.id offset 0) x
    left join purge_boxes f on f.id = x.id
    where f.run_id is distinct from b.run_id`,
  `
    insert into purge_refs
    select a.run_id, b.run_id, 'grant', g.agent_id
    from purge_boxes b
    cross join lateral (select o.agent_id, o.expires_at from boxcar.grants o where o.box_id = b.id offset 0) g
    left join purge_agents a on a.id = g.agent_id
    where a.run_id is distinct from b.run_id
      and (g.expires_at is null or g.expires_at > now())
      and not exists (select from boxcar.projects p where p.operator_agent_id = g.agent_id)
      -- a session that is over is over for those it was handed to, too
      and not exists (select from boxcar.handoff_sessions s where s.tape_box_id = b.id)`,
  `
    insert into purge_refs
    select distinct f.run_id, a.run_id, 'owner', x.id
    from purge_agents a
    cross join lateral (
      select o.id
      from boxcar.agents o
      where o.owner_agent_id = a.id
      union all
      select o.id
      from boxcar.agents o
      where o.derived_from = a.id
    ) x
    left join purge_agents f on f.id = x.id
    where f.run_id is distinct from a.run_id`,
  // A box that an agent has made, and that is removed with another run.
  `
    insert into purge_refs
    select distinct b.run_id, a.run_id, 'maker', b.id
    from purge_agents a
    cross join lateral (select o.id from boxcar.boxes o where o.maker_agent_id = a.id offset 0) x
    join purge_boxes b on b.id = x.id
    where b.run_id <> a.run_id`,
  // Forks of an earlier incarnation, and its agent or name, are found through the incarnations in between.
  `
    insert into purge_refs
    select f.run_id, b.run_id, 'incarnation', p.id
    from purge_boxes b
    cross join lateral (
      select o.previous_box_id
      from boxcar.boxes o
      where o.id = b.id and o.previous_box_id is not null
      offset 0
    ) x
    cross join lateral (select o.id from boxcar.boxes o where o.id = x.previous_box_id offset 0) p
    left join purge_boxes f on f.id = p.id
    where f.run_id is distinct from b.run_id`,
  // The row of a session has the id of the tape with which it began. It lives as long as its agent or, for an imported session, as long as
  // a tape of its name.
  `
    insert into purge_refs
    select coalesce(r.run_id, f.run_id), b.run_id, 'session', coalesce(a.id, n.id)
    from purge_boxes b
    cross join lateral (select * from boxcar.sessions o where o.id = b.id offset 0) s
    left join boxcar.agents a on a.id = s.agent_id
    left join purge_agents r on r.id = a.id
    left join boxcar.boxes n
      on s.agent_id is null
      and n.project_id = s.project_id
      and n.tape_name = s.name
      and n.archived_at is null
    left join purge_boxes f on f.id = n.id
    where coalesce(a.id, n.id) is not null and coalesce(r.run_id, f.run_id) is distinct from b.run_id`,
  // The context box of a turn is owned by its agent.
  `
    insert into purge_refs
    select p.run_id, b.run_id, 'context', t.id
    from purge_boxes b
    join boxcar.boxes x on x.id = b.id and x.kind = 'context'
    cross join lateral (
      select o.id
      from boxcar.turns o
      where o.agent_id = x.owner_agent_id and o.context_box_id = x.id
      offset 0
    ) t
    left join purge_turns p on p.id = t.id
    where b.id not in (select context_box_id from purge_turns) and p.run_id is distinct from b.run_id`,
  // A batch for which other turns wait, or have waited, records the results of its members.
  `
    insert into purge_refs
    select distinct r.id, t.run_id, 'batch', b.id
    from purge_turns t
    cross join lateral (
      select o.run_id, o.status, o.id
      from boxcar.turns m
      cross join lateral unnest(m.batch_ids) as u(id)
      join boxcar.batches o on o.id = u.id
      where m.id = t.id
      union all
      select o.run_id, o.status, o.id
      from boxcar.batches o
      where o.kind = 'collect' and o.turn_ids @> array[t.id]
    ) b
    left join purge_runs r on r.id = b.run_id
    where r.id is distinct from t.run_id and (b.run_id is not null or b.status = 'running')`,
  // A card on a tape has its place there. A card that only a sealed box lists may have its place elsewhere, and then stays without the
  // box.
  `
    insert into purge_refs
    select distinct f.run_id, c.run_id, 'card', x.id
    from purge_cards c
    cross join lateral (
      select o.id
      from boxcar.boxes o
      where o.card_ids @> array[c.id] and o.segments @? '$[*] ? (@.rule == "create_box")'
      offset 0
    ) x
    left join purge_boxes f on f.id = x.id
    where f.run_id is distinct from c.run_id and (c.is_on_tape or f.run_id is not null)`,
  `
    insert into purge_refs
    select distinct f.run_id, c.run_id, 'card', e.box_id
    from purge_cards c
    cross join lateral (select o.box_id from boxcar.tape_entries o where o.card_id = c.id offset 0) e
    left join purge_boxes f on f.id = e.box_id
    where f.run_id is distinct from c.run_id and (c.is_on_tape or f.run_id is not null)`,
];

/**
 * Turns of one agent share its tape, so neither run is removed without the other. `many_runs`: more removable runs of the agents exist
 * than were examined.
 */
const AGENTS = `
  insert into purge_refs
  select
    r.id, a.run_id,
    case when r.id is null and ${isOver('x')} then 'many_runs' else 'agent' end,
    t.run_id
  from purge_agents a
  cross join lateral (select o.run_id from boxcar.turns o where o.agent_id = a.id offset 0) t
  left join purge_runs r on r.id = t.run_id
  left join boxcar.runs x on x.id = t.run_id and r.id is null
  where t.run_id <> a.run_id
  union
  select a.run_id, t.run_id, 'agent', a.run_id
  from purge_turns t
  join purge_agents a on a.id = t.agent_id
  where t.run_id <> a.run_id`;

const BY_BOX =
  "select b.id as run_id, '{}'::uuid[] as agent_ids, array[b.id] as box_ids from purge_boxes b order by b.id";

const FOUND: Readonly<Record<PurgeKind, string>> = {
  runs: `
    select
      r.id as run_id,
      array(select a.id from purge_agents a where a.run_id = r.id order by a.id) as agent_ids,
      array(select b.id from purge_boxes b where b.run_id = r.id order by b.id) as box_ids
    from purge_runs r
    order by r.id`,
  tapes: BY_BOX,
  handoffs: BY_BOX,
};

const PAGE: Readonly<Record<PurgeKind, string>> = { runs: RUNS, tapes: LEFT_TAPES, handoffs: LEFT_HANDOFFS };

const LAST: Readonly<Record<PurgeKind, string>> = {
  runs: 'select id from purge_runs order by id desc limit 1',
  tapes: 'select id from purge_boxes order by id desc limit 1',
  handoffs: 'select id from purge_boxes order by id desc limit 1',
};

// Not prepared, because the tables are new each time.
const select = async <R extends pg.QueryResultRow>(tx: Tx, text: string): Promise<R[]> =>
  (await tx.query<R>({ text })).rows;

/** Examines the runs or tapes in scope and decides which of them may be removed. Writes only temporary tables. */
export function planPurge(pool: pg.Pool, scope: PurgeScope): Promise<PurgePlan> {
  const plan = async (tx: Tx): Promise<PurgePlan> => {
    await tx.query({ text: TABLES });
    const { kind, before, projectId, ids, after, limit, without = [] } = scope;
    const values = [before, projectId, ids ?? null, after ?? null, without, limit];
    const page = await tx.query({ text: PAGE[kind], values });
    const [end] = await select<{ id: string }>(tx, LAST[kind]);
    if (kind === 'runs' && ids === undefined)
      await tx.query({
        text: OF_SAME_AGENTS,
        values: [before, without, limit * PAGES_OF_AGENTS, after ?? null],
      });
    const left = kind === 'runs' ? LEFT_BEHIND : [WRITERS];
    for (const text of [...left, ...CARDS, ...REFERENCES]) await tx.query({ text });
    await tx.query({ text: AGENTS, values: [before] });
    await tx.query({ text: YOUNG, values: [before] });
    const found = await select<PurgeableRun>(tx, FOUND[kind]);
    const references = await select<PurgeReference & pg.QueryResultRow>(
      tx,
      `
        select distinct on (from_run, to_run) from_run as from, to_run as to, cause, holder
        from purge_refs
        order by from_run, to_run, cause, holder`,
    );
    const { groups, kept } = decidePurge(
      found.map(({ run_id }) => run_id),
      references,
    );
    const runs = new Map<string, PurgeableRun>(found.map((item) => [item.run_id, item]));
    return {
      groups: groups.map((group) => group.flatMap((id) => runs.get(id) ?? [])),
      kept,
      last: end?.id,
      count: page.rowCount ?? 0,
      ahead: found.flatMap(({ run_id }) => (end !== undefined && run_id > end.id ? [run_id] : [])),
    };
  };
  return retryTransient(() => readSnapshot(pool, plan, { settings: SETTINGS, makesTables: true }));
}

/**
 * `unfinished`: the run has turns that have not ended. `in_use`: while the purge ran, an agent of the run got a turn or made a new object,
 * or a turn of the run was joined. `purging`: another purge has taken it over.
 */
export interface KeptByPurge {
  readonly run_id: string;
  readonly cause: KeptRun['cause'] | 'unfinished' | 'in_use' | 'purging';
  /** The box, agent, turn or run that needs it, or the tape that has changed since. */
  readonly holder: string | null;
}

export interface PurgeCounts {
  readonly runs: number;
  readonly turns: number;
  readonly agents: number;
  readonly boxes: number;
  readonly cards: number;
}
