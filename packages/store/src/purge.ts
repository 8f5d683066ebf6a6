/**
 * Removes finished runs whole: turns, steps, calls, operations, agents with their tapes, context boxes, cards, grants.
 *
 * P1  What goes is decided on rows (`purge-plan.ts`), with the boxes marked in `boxcar.purging` first: from then on nothing new can
 *     refer to them, so what the second look finds stays true. Cards are not marked: each batch locks its cards and looks whether
 *     a box or tape that stays lists them. Writers that list an existing card lock it too.
 * P2  A batch is one transaction: groups of runs that refer to each other go together. Whoever stops it in between has
 *     removed the batches before it, and no more.
 * P3  Locks are taken in the order of everything here: run, agent, turn, tape, card. An agent that was given a turn meanwhile, or a turn
 *     that is collected, stays, and its runs with it.
 */
import type { KeptRun, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { run, runRetrying, sqlStateOf, statement, transaction } from './db.js';
import { explainRight } from './erasure.js';
import { type PurgeableRun, type PurgeKind, type PurgePlan, planPurge, youngTapes } from './purge-plan.js';

export interface PurgeOptions {
  /** Runs that ended before it, and whose tapes have not changed since; tapes that were left before it. */
  readonly before: Date;
  readonly projectId?: ProjectId | undefined;
  readonly isDryRun?: boolean | undefined;
  /** Runs that are looked at together. Default 10,000. */
  readonly pageSize?: number;
  /** Runs of one transaction, unless more belong together. Default 200. */
  readonly batchSize?: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: PurgeCounts) => void;
}

export interface PurgeCounts {
  readonly runs: number;
  readonly turns: number;
  readonly agents: number;
  readonly boxes: number;
  readonly cards: number;
}

/** `unfinished`: it has turns that have not ended. `in_use`: an agent of it got a turn, or a turn of it was joined, while the purge ran. */
export interface KeptByPurge {
  readonly run_id: string;
  readonly cause: KeptRun['cause'] | 'unfinished' | 'in_use';
  /** The box, agent, turn or run that needs it; the tape that has changed since. */
  readonly holder: string | null;
}

export interface PurgeReport {
  /** What is gone; of a dry run, what would go: runs, agents and boxes. */
  readonly removed: PurgeCounts;
  readonly kept: readonly KeptByPurge[];
  /** True when it was stopped before its end. */
  readonly isStopped: boolean;
}

const PAGE_SIZE = 10_000;
const BATCH_SIZE = 200;
/** A mark outlives its purge by so much when that is killed. */
const MARK_MINUTES = 30;
/** Marks must last at least so long when a batch begins. */
const BATCH_MINUTES = 10;
const BARRIER_LOCK = 7_205_129_002;
const BARRIER_TIMEOUT_MS = 200;
const KEPT_LISTED = 1000;

// Two looks, each by an index of its own.
const UNFINISHED = statement(`
  select distinct t.run_id from (
    select o.run_id from boxcar.turns o where o.status = 'queued'
    union all select o.run_id from boxcar.turns o where o.status in ('dispatched', 'running', 'suspended')) t join boxcar.runs r on r.id = t.run_id
  where r.created_at < $1 and ($2::uuid is null or r.project_id = $2) order by t.run_id limit ${KEPT_LISTED}`);

const MARK = statement(`
  insert into boxcar.purging (box_id, until) select unnest($1::uuid[]), clock_timestamp() + interval '${MARK_MINUTES} minutes'
  on conflict (box_id) do update set until = excluded.until`);
const UNMARK = statement(
  'delete from boxcar.purging where box_id = any ($1::uuid[]) or until < clock_timestamp()',
);

const CLOCK = statement('select clock_timestamp() as now');

/** What time it is for Postgres, whose times the rows carry. */
export async function readClock(pool: pg.Pool): Promise<Date> {
  const [row] = await runRetrying<{ now: Date }>(pool, CLOCK, []);
  return row?.now ?? new Date();
}

const boxesOf = (groups: PurgePlan['groups']): string[] => groups.flat().flatMap(({ box_ids }) => box_ids);

/** Waits until everyone who had begun to refer to a box before the marks were there has come to its end. */
async function passBarrier(pool: pg.Pool, signal: AbortSignal | undefined): Promise<void> {
  for (;;) {
    signal?.throwIfAborted();
    try {
      // It holds the lock for no longer than it takes to get it. Others queue behind it meanwhile, so it gives way soon.
      await transaction(
        pool,
        async (tx) => {
          await tx.query({ text: `set local lock_timeout = ${BARRIER_TIMEOUT_MS}` });
          await tx.query({ text: `select pg_advisory_xact_lock(${BARRIER_LOCK})` });
        },
        { ownLimit: '55P03' },
      );
      return;
    } catch (error) {
      if (sqlStateOf(error) !== '55P03') throw error;
    }
  }
}

/** Removes the finished runs of before `options.before`. Safe beside workers, and to be stopped at any moment. */
export async function purgeRuns(pool: pg.Pool, options: PurgeOptions): Promise<PurgeReport> {
  const unfinished = await runRetrying<{ run_id: string }>(pool, UNFINISHED, [
    options.before,
    options.projectId ?? null,
  ]);
  return purge(
    pool,
    'runs',
    options,
    unfinished.map(({ run_id }) => ({ run_id, cause: 'unfinished', holder: null })),
  );
}

/** A tape that stays, with the box, agent or turn that needs it. */
export interface KeptTape {
  readonly tape_id: string;
  readonly cause: KeptByPurge['cause'];
  readonly holder: string | null;
}

export interface TapePurgeReport {
  readonly removed: { readonly tapes: number; readonly cards: number };
  readonly kept: readonly KeptTape[];
  readonly isStopped: boolean;
}

/**
 * Removes tapes that no turn has written to and that were left before `options.before`: archived incarnations, discarded forks, and
 * imported tapes that are of no agent. Each goes with its cards, or stays while something refers to it. As safe as `purgeRuns`.
 */
export async function purgeTapes(pool: pg.Pool, options: PurgeOptions): Promise<TapePurgeReport> {
  const { removed, kept, isStopped } = await purge(pool, 'tapes', options, []);
  return {
    removed: { tapes: removed.boxes, cards: removed.cards },
    kept: kept.map(({ run_id, cause, holder }) => ({ tape_id: run_id, cause, holder })),
    isStopped,
  };
}

async function purge(
  pool: pg.Pool,
  kind: PurgeKind,
  options: PurgeOptions,
  kept: KeptByPurge[],
): Promise<PurgeReport> {
  const projectId = options.projectId ?? null;
  const { before, signal } = options;
  let removed: PurgeCounts = { runs: 0, turns: 0, agents: 0, boxes: 0, cards: 0 };
  const add = (counts: PurgeCounts): void => {
    removed = {
      runs: removed.runs + counts.runs,
      turns: removed.turns + counts.turns,
      agents: removed.agents + counts.agents,
      boxes: removed.boxes + counts.boxes,
      cards: removed.cards + counts.cards,
    };
    options.onProgress?.(removed);
  };
  const limit = options.pageSize ?? PAGE_SIZE;
  for (let after: string | undefined; ; ) {
    if (signal?.aborted === true) return { removed, kept, isStopped: true };
    const plan = await planPurge(pool, { kind, before, projectId, after, limit });
    kept.push(...plan.kept);
    if (options.isDryRun === true) add(countOf(kind, plan.groups));
    else if (plan.groups.length > 0) {
      const isStopped = await purgePage(pool, plan, { ...options, kind, kept, add }).catch(explainRight);
      if (isStopped) return { removed, kept, isStopped };
    }
    after = plan.last;
    if (plan.count < limit) return { removed, kept, isStopped: false };
  }
}

const countOf = (kind: PurgeKind, groups: PurgePlan['groups']): PurgeCounts => ({
  runs: kind === 'runs' ? groups.flat().length : 0,
  turns: 0,
  agents: groups.flat().reduce((sum, { agent_ids }) => sum + agent_ids.length, 0),
  boxes: boxesOf(groups).length,
  cards: 0,
});

async function purgePage(
  pool: pg.Pool,
  first: PurgePlan,
  of: PurgeOptions & {
    readonly kind: PurgeKind;
    readonly kept: KeptByPurge[];
    readonly add: (counts: PurgeCounts) => void;
  },
): Promise<boolean> {
  const marked = boxesOf(first.groups);
  try {
    await runRetrying(pool, MARK, [marked]);
    await passBarrier(pool, of.signal);
    const ids = first.groups.flat().map(({ run_id }) => run_id);
    const plan = await planPurge(pool, {
      kind: of.kind,
      before: of.before,
      projectId: of.projectId ?? null,
      ids,
      limit: ids.length,
    });
    of.kept.push(...plan.kept);
    const batches = batchesOf(plan.groups, of.batchSize ?? BATCH_SIZE).reverse();
    for (let batch = batches.pop(); batch !== undefined; batch = batches.pop()) {
      if (of.signal?.aborted === true) return true;
      const outcome = await removeBatch(pool, batch.flat(), of);
      if (!('kept' in outcome)) of.add(outcome.removed);
      // One group of several has to stay: each by itself.
      else if (batch.length > 1) batches.push(...batch.map((group) => [group]).reverse());
      else of.kept.push(...outcome.kept);
    }
    return false;
  } catch (error) {
    if (of.signal?.aborted === true) return true;
    throw error;
  } finally {
    // Should even this fail, the marks run out.
    await runRetrying(pool, UNMARK, [marked]);
  }
}

type Group = PurgePlan['groups'][number];

/** Groups put together until there are enough runs; a group is never divided. */
function batchesOf(groups: readonly Group[], size: number): Group[][] {
  const batches: Group[][] = [];
  let runs = 0;
  for (const group of groups) {
    const last = batches.at(-1);
    runs += group.length;
    if (last !== undefined && runs <= size) last.push(group);
    else {
      batches.push([group]);
      runs = group.length;
    }
  }
  return batches;
}

const LOCK_RUNS = statement('select id from boxcar.runs where id = any ($1::uuid[]) order by id for update');
const LOCK_AGENTS = statement(
  'select id from boxcar.agents where id = any ($1::uuid[]) order by id for update',
);
const LOCK_TURNS = statement(
  'select id from boxcar.turns where run_id = any ($1::uuid[]) order by id for update',
);
// Begun after the locks: who joins a turn has its row first. One that has ended since has its answer.
const JOINED = statement(`
  select coalesce(b.run_id, b.id) as run_id from boxcar.batches b where b.status = 'running' and b.turn_ids && $1::uuid[] limit 1`);
// Begun after the locks: who reuses an agent has its row first.
const CAME_BACK = statement(`
  select distinct t.agent_id, t.run_id from boxcar.turns t
  where t.agent_id = any ($2::uuid[]) and not t.run_id = any ($1::uuid[])`);
const STILL_MARKED = statement(`
  select count(*)::int as n from boxcar.purging where box_id = any ($1::uuid[]) and until > clock_timestamp() + interval '${BATCH_MINUTES} minutes'`);

// Who appends to a tape or merges it has its row first.
const LOCK_TAPES = statement(
  "select id from boxcar.boxes where id = any ($1::uuid[]) and kind = 'tape' order by id for update",
);
// Begun after the tapes were locked: they do not change from then on.
const YOUNG = statement(
  `select y.id, y.cause from (${youngTapes('select unnest($1::uuid[]) as id', '$2::timestamptz')}) y order by y.cause, y.id limit 1`,
);
const LOCK_CARDS = statement(`
  select c.id from boxcar.cards c where c.id = any (array(
    select unnest(b.card_ids) from boxcar.boxes b where b.id = any ($1::uuid[])
    union select e.card_id from boxcar.tape_entries e where e.box_id = any ($1::uuid[])
    union select k.result_card_id from boxcar.turns t join boxcar.tool_calls k on k.turn_id = t.id where t.run_id = any ($2::uuid[])
  ))
    and not exists (select from boxcar.projects p where p.bootstrap_card_id = c.id) and not exists (select from boxcar.profiles f where f.card_id = c.id)
  order by c.id for update`);
// Begun after the cards were locked: who lists a card that exists has locked it, or has the row of the tape that it is on. A card that
// is on a tape keeps it; another one stays by itself.
const LISTED = statement(`
  with gone as materialized (select unnest($1::uuid[]) as id),
  listed as (
    select u.id, b.id as holder from boxcar.boxes b cross join lateral unnest(b.card_ids) as u(id)
    where b.card_ids && $2::uuid[] and b.segments @? '$[*] ? (@.rule == "create_box")' and b.id not in (select id from gone) and u.id in (select unnest($2::uuid[]))
    union all
    select e.card_id, e.box_id from boxcar.tape_entries e where e.card_id = any ($2::uuid[]) and e.box_id not in (select id from gone)
  )
  select l.id, l.holder, exists (select from boxcar.tape_entries e where e.card_id = l.id and e.box_id in (select id from gone)) as is_on_tape from listed l`);

const TURNS = '(select t.id from boxcar.turns t where t.run_id = any ($1::uuid[]))';
/** The batches of the runs: those that their turns are in, those that their calls wait for, and those that have collected their turns. */
const BATCHES = `(select b.id from (
    select u.id from boxcar.turns t cross join lateral unnest(t.batch_ids) as u(id) where t.run_id = any ($1::uuid[])
    union select k.batch_id from boxcar.turns t join boxcar.tool_calls k on k.turn_id = t.id where t.run_id = any ($1::uuid[])
    union select c.id from boxcar.batches c where c.kind = 'collect' and c.turn_ids && array${TURNS}
  ) x cross join lateral (select o.id, o.run_id from boxcar.batches o where o.id = x.id offset 0) b where b.run_id = any ($1::uuid[]) or b.run_id is null)`;
/** The turns and batches of the runs, which operations may have made. */
const MADE = `(select t.id from boxcar.turns t where t.run_id = any ($1::uuid[]) union all select b.id from ${BATCHES} b)`;

/**
 * Rows that refer to the runs are deleted before them. An operation is written together with its turns, at the same time, and records
 * them; an operation of an older build without that record is found by its answer. The operation of a call has the call's id in its
 * key.
 */
const DELETES = [
  `delete from boxcar.operations o using boxcar.turns t join boxcar.tool_calls k on k.turn_id = t.id
    where t.run_id = any ($1::uuid[]) and o.project_id = t.project_id and o.idempotency_key = 'call:' || k.id`,
  // An operation may have made turns of several runs, and some of these runs may stay.
  `with gone as (
      select o.project_id, o.idempotency_key, array(select m.id from unnest(o.made) as m(id) where m.id not in ${MADE}) as made
      from boxcar.operations o
      where o.created_at >= (select min(t.created_at) from boxcar.turns t where t.run_id = any ($1::uuid[]))
        and o.created_at <= (select max(t.created_at) from boxcar.turns t where t.run_id = any ($1::uuid[]))
        and (exists (select from unnest(o.made) as m(id) where m.id in ${MADE})
          or (o.made is null and (o.response->>'turn_id' in (select t.id::text from boxcar.turns t where t.run_id = any ($1::uuid[]))
            or o.response->'turn_ids'->>0 in (select t.id::text from boxcar.turns t where t.run_id = any ($1::uuid[])))))
    ),
    shared as (update boxcar.operations o set made = gone.made from gone
      where o.project_id = gone.project_id and o.idempotency_key = gone.idempotency_key and cardinality(gone.made) > 0)
    delete from boxcar.operations o using gone
    where o.project_id = gone.project_id and o.idempotency_key = gone.idempotency_key and cardinality(gone.made) = 0`,
  'delete from boxcar.evidence e using boxcar.turns t where t.run_id = any ($1::uuid[]) and e.turn_id = t.id',
  `delete from boxcar.sweep_failures f where f.row_id in (
      select t.id from boxcar.turns t where t.run_id = any ($1::uuid[])
      union all select unnest($1::uuid[])
      union all select k.id from boxcar.turns t join boxcar.tool_calls k on k.turn_id = t.id where t.run_id = any ($1::uuid[]))`,
  'delete from boxcar.budgets where run_id = any ($1::uuid[])',
  'delete from boxcar.steps s using boxcar.turns t where t.run_id = any ($1::uuid[]) and s.turn_id = t.id',
  'delete from boxcar.tool_calls k using boxcar.turns t where t.run_id = any ($1::uuid[]) and k.turn_id = t.id',
].map(statement);
const DELETE_BATCHES = statement(`
  with gone as (delete from boxcar.batches b where b.id = any (array${BATCHES}) returning b.id),
  letters as (delete from boxcar.sweep_failures f using gone where f.row_id = gone.id)
  select id from gone`);
/** What an operation names, as the index `operations_named` has it. */
const NAMES = `array_remove(array[left(response->>'agent_id', 36), left(response->>'output_box_id', 36), left(response->>'box_id', 36), left(response->>'boxId', 36), left(response->>'context_box_id', 36), left(response->>'turn_id', 36), left(response->>'run_id', 36),
    awaited_batch_id::text, case when starts_with(idempotency_key, 'agent:') then left(split_part(idempotency_key, ':', 2), 36) end], null)`;
/** Answers that name what goes: of commands, of a cancel, and what its agents have asked for themselves. */
const DELETE_ANSWERS = statement(`
  delete from boxcar.operations o where (o.made is null or o.made = '{}') and ${NAMES} && $1::text[]`);
const DELETE_TURNS = statement('delete from boxcar.turns where run_id = any ($1::uuid[]) returning id');
const DELETE_GRANTS = statement(
  'delete from boxcar.grants where agent_id = any ($1::uuid[]) or box_id = any ($2::uuid[])',
);
const DELETE_SESSIONS = statement(
  'delete from boxcar.sessions where agent_id = any ($1::uuid[]) or id = any ($2::uuid[])',
);
const DELETE_FORKS = statement(
  'delete from boxcar.forks where id = any ($1::uuid[]) or parent_box_id = any ($1::uuid[])',
);
const DELETE_AGENTS = statement('delete from boxcar.agents where id = any ($1::uuid[])');
const DELETE_RUNS = statement('delete from boxcar.runs where id = any ($1::uuid[])');
const PURGE_BOXES = statement('select boxcar.purge_boxes($1, $2)');

interface YoungTape extends pg.QueryResultRow {
  readonly id: string;
  readonly cause: 'entry' | 'reset' | 'open_fork';
}

/** A card that is about to go, with a box or tape that stays and lists it. */
interface ListedCard extends pg.QueryResultRow {
  readonly id: string;
  readonly holder: string;
  readonly is_on_tape: boolean;
}

type BatchOutcome = { readonly kept: readonly KeptByPurge[] } | { readonly removed: PurgeCounts };

function removeBatch(
  pool: pg.Pool,
  batch: readonly PurgeableRun[],
  { kind, before }: { readonly kind: PurgeKind; readonly before: Date },
): Promise<BatchOutcome> {
  const ids = batch.map(({ run_id }) => run_id);
  const runIds = kind === 'runs' ? ids : [];
  const agentIds = batch.flatMap(({ agent_ids }) => agent_ids);
  const boxIds = batch.flatMap(({ box_ids }) => box_ids);
  return transaction(pool, async (tx): Promise<BatchOutcome> => {
    const runs = await run(tx, LOCK_RUNS, [runIds]);
    await run(tx, LOCK_AGENTS, [agentIds]);
    const turnIds = (await run<{ id: string }>(tx, LOCK_TURNS, [runIds])).map(({ id }) => id);
    await run(tx, LOCK_TAPES, [boxIds]);
    const joined = await run<{ run_id: string }>(tx, JOINED, [turnIds]);
    const back = await run<{ agent_id: string; run_id: string }>(tx, CAME_BACK, [runIds, agentIds]);
    const [marks] = await run<{ n: number }>(tx, STILL_MARKED, [boxIds]);
    const users = [...back, ...joined];
    if (users.length > 0 || marks?.n !== boxIds.length || runs.length !== runIds.length)
      return {
        kept: ids.map((run_id) => ({ run_id, cause: 'in_use', holder: users[0]?.run_id ?? null })),
      };
    const [young] = await run<YoungTape>(tx, YOUNG, [boxIds, before]);
    if (young !== undefined)
      return { kept: ids.map((run_id) => ({ run_id, cause: young.cause, holder: young.id })) };
    const locked = (await run<{ id: string }>(tx, LOCK_CARDS, [boxIds, runIds])).map(({ id }) => id);
    const listed = await run<ListedCard>(tx, LISTED, [boxIds, locked]);
    const needed = listed.find(({ is_on_tape }) => is_on_tape);
    if (needed !== undefined)
      return { kept: ids.map((run_id) => ({ run_id, cause: 'card', holder: needed.holder })) };
    const kept = new Set(listed.map(({ id }) => id));
    const cardIds = locked.filter((id) => !kept.has(id));
    for (const sql of DELETES) await run(tx, sql, [runIds]);
    const batchIds = (await run<{ id: string }>(tx, DELETE_BATCHES, [runIds])).map(({ id }) => id);
    await run(tx, DELETE_ANSWERS, [[...runIds, ...agentIds, ...turnIds, ...boxIds, ...batchIds]]);
    const turns = await run(tx, DELETE_TURNS, [runIds]);
    await run(tx, DELETE_GRANTS, [agentIds, boxIds]);
    await run(tx, DELETE_SESSIONS, [agentIds, boxIds]);
    await run(tx, DELETE_FORKS, [boxIds]);
    await run(tx, DELETE_AGENTS, [agentIds]);
    await run(tx, PURGE_BOXES, [boxIds, cardIds]);
    await run(tx, DELETE_RUNS, [runIds]);
    return {
      removed: {
        runs: runs.length,
        turns: turns.length,
        agents: agentIds.length,
        boxes: boxIds.length,
        cards: cardIds.length,
      },
    };
  });
}
