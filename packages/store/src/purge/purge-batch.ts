/**
 * One batch of a purge: checks the decisions again, under the locks of all rows to be removed, and removes them.
 *
 * B1  Locks are taken in the usual order: run, agent, turn, tape, card. Each check begins after the locks that keep other transactions
 *     from changing its result.
 * B2  A batch removes all of its runs or none: the answer gives the cause.
 */
import type { AgentId, BoxId, HandoffId, RunId, TurnId } from '@boxcar/kernel';
import { KernelError } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx, transaction } from '../db/index.js';
import { moveHandoffs } from '../handoff/index.js';
import { query } from '../query/query.js';
import type { PurgeMarks } from './purge-marks.js';
import type { KeptByPurge, PurgeCounts } from './purge-plan.js';
import { type PurgeableRun, type PurgeKind, youngTapes } from './purge-plan.js';

// Must begin after the locks: a transaction that joins a turn locks the turn's row first. A batch that has ended since has its answer.
const JOINED = statement(`
  select /* purge-batch.joined */ coalesce(b.run_id, b.id) as run_id
  from boxcar.batches b
  where b.status = 'running' and b.turn_ids && $1::uuid[]
  limit 1`);
// Must begin after the locks: a transaction that reuses an agent locks its row first, and so does an agent that makes a box, a tape, a
// fork or an agent.
const USED = statement(`
  select /* purge-batch.used */ x.id
  from (
    select t.run_id as id
    from boxcar.turns t
    where t.agent_id = any ($2::uuid[]) and t.run_id not in (select unnest($1::uuid[]))
    union all
    select b.id
    from boxcar.boxes b
    where b.maker_agent_id = any ($2::uuid[])
      and b.id not in (select unnest($3::uuid[]))
      and not exists (select from boxcar.profiles f where f.box_id = b.id)
    union all
    select a.id
    from boxcar.agents a
    where a.owner_agent_id = any ($2::uuid[]) and a.id not in (select unnest($2::uuid[]))
    union all
    select a.id
    from boxcar.agents a
    where a.derived_from = any ($2::uuid[]) and a.id not in (select unnest($2::uuid[]))
  ) x
  limit 1`);

// Must begin after the tapes were locked: from then on they do not change.
const YOUNG = statement(`
  select /* purge-batch.young */ y.id, y.cause
  from (${youngTapes('select unnest($1::uuid[]) as id', '$2::timestamptz')}) y
  order by y.cause, y.id
  limit 1`);
// The last of the locks (B1): runs, agents, turns and tapes are locked before. A transaction that lists one of these cards waits for its
// lock, and then finds it gone, or had the lock first and is seen by LISTED.
const LOCK_CARDS = statement(`
  select /* purge-batch.lock_cards */ c.id
  from boxcar.cards c
  where c.id = any (array(
      select unnest(b.card_ids)
      from boxcar.boxes b
      where b.id = any ($1::uuid[])
      union
      select e.card_id
      from boxcar.tape_entries e
      where e.box_id = any ($1::uuid[])
      union
      select k.result_card_id
      from boxcar.turns t
      join boxcar.tool_calls k on k.turn_id = t.id
      where t.run_id = any ($2::uuid[])
      union
      select a.card_id
      from boxcar.turns t
      join boxcar.approvals a on a.turn_id = t.id
      where t.run_id = any ($2::uuid[])
      union
      select m.card_id
      from boxcar.turns t
      join boxcar.handoffs h on h.turn_id = t.id
      join boxcar.handoff_messages m on m.handoff_id = h.id
      where t.run_id = any ($2::uuid[])
      union
      select h.result_card_id
      from boxcar.handoffs h
      where h.context_box_id = any ($1::uuid[]) and h.result_card_id is not null
      union
      select unnest($3::uuid[])
    ))
    and not exists (select from boxcar.projects p where p.bootstrap_card_id = c.id)
    and not exists (select from boxcar.profiles f where f.card_id = c.id)
  order by c.id
  for update`);
// Must begin after the cards were locked: a transaction that lists an existing card has locked the card, or has locked the row of the
// card's tape. A card on a tape keeps the tape; another card stays without its box.
const LISTED = statement(`
  with /* purge-batch.listed */
  gone as materialized (select unnest($1::uuid[]) as id),
  listed as (
    select u.id, b.id as holder
    from boxcar.boxes b
    cross join lateral unnest(b.card_ids) as u(id)
    where b.card_ids && $2::uuid[]
      and b.segments @? '$[*] ? (@.rule == "create_box")'
      and b.id not in (select id from gone)
      and u.id in (select unnest($2::uuid[]))
    union all
    select e.card_id, e.box_id
    from boxcar.tape_entries e
    where e.card_id = any ($2::uuid[]) and e.box_id not in (select id from gone)
  )
  select
    l.id, l.holder,
    exists (
      select from boxcar.tape_entries e
      where e.card_id = l.id and e.box_id in (select id from gone)
    ) as is_on_tape
  from listed l`);

// Requests for the approval of external handoffs, to which no turn leads. A shared request stays until all of its handoffs are removed.
const TICKETS = statement(`
  select /* purge-batch.tickets */ distinct a.id, a.card_id
  from boxcar.handoffs h
  cross join lateral (
    select x.id, x.card_id
    from boxcar.approvals x
    where x.id = h.ticket_id and x.turn_id is null
    union all
    select x.id, x.card_id
    from boxcar.approvals x
    where x.metadata->>'handoff_id' = h.id::text and x.turn_id is null
  ) a
  where h.context_box_id = any ($1::uuid[])
    and not exists (select from boxcar.handoffs o where o.ticket_id = a.id and o.context_box_id <> all ($1::uuid[]))`);
const PACKAGES = statement(`
  select /* purge-batch.packages */ h.id
  from boxcar.handoff_sessions s
  join boxcar.handoffs h on h.session_id = s.id
  where s.tape_box_id = any ($1::uuid[])
    and h.ended_at is null
    and h.turn_id is null
    and h.joined_to is null
    and h.phase <> 'awaiting_approval'
  order by h.id`);
const DELETE_HANDOFFS = statement(
  'delete /* purge-batch.delete_handoffs */ from boxcar.handoffs where context_box_id = any ($1::uuid[])',
);
const DELETE_TICKETS = statement(
  'delete /* purge-batch.delete_tickets */ from boxcar.approvals where id = any ($1::uuid[])',
);

const TURNS = '(select t.id from boxcar.turns t where t.run_id = any ($1::uuid[]))';
/** The batches of the runs: those that contain their turns, those for which their calls wait, and those that have collected their turns. */
const BATCHES = `
  (
    select b.id
    from (
      select u.id
      from boxcar.turns t
      cross join lateral unnest(t.batch_ids) as u(id)
      where t.run_id = any ($1::uuid[])
      union
      select k.batch_id
      from boxcar.turns t
      join boxcar.tool_calls k on k.turn_id = t.id
      where t.run_id = any ($1::uuid[])
      union
      select c.id
      from boxcar.batches c
      where c.kind = 'collect' and c.turn_ids && array${TURNS}
    ) x
    cross join lateral (select o.id, o.run_id from boxcar.batches o where o.id = x.id offset 0) b
    where b.run_id = any ($1::uuid[]) or b.run_id is null
  )`;
/** The turns and batches of the runs, which operations may have made. */
const MADE = `
  (
    select t.id
    from boxcar.turns t
    where t.run_id = any ($1::uuid[])
    union all
    select b.id
    from ${BATCHES} b
  )`;

/**
 * Deletes of rows that refer to the runs, in order, before the runs themselves. An operation is written together with its turns, at the
 * same time, and records them. An operation of an older build without that record is found by its answer. The key of a call's operation
 * contains the id of the call.
 */
const DELETES = [
  `
    delete /* purge-batch.delete_call_operations */ from boxcar.operations o
    using boxcar.turns t
    join boxcar.tool_calls k on k.turn_id = t.id
    where t.run_id = any ($1::uuid[])
      and o.project_id = t.project_id
      and o.idempotency_key = 'call:' || k.id`,
  // An operation may have made turns of several runs, and some of these runs may stay.
  `
    with /* purge-batch.delete_operations */
    gone as (
      select
        o.project_id, o.idempotency_key,
        array(select m.id from unnest(o.made) as m(id) where m.id not in ${MADE}) as made
      from (
        select t.created_at as at
        from boxcar.turns t
        where t.run_id = any ($1::uuid[])
        union
        select b.created_at
        from boxcar.batches b
        where b.id in ${BATCHES}
      ) x
      cross join lateral (select * from boxcar.operations o where o.created_at = x.at offset 0) o
      where (
        exists (select from unnest(o.made) as m(id) where m.id in ${MADE})
        or (
          o.made is null
          and (
            o.response->>'turn_id' in (select t.id::text from boxcar.turns t where t.run_id = any ($1::uuid[]))
            or o.response->'turn_ids'->>0 in (select t.id::text from boxcar.turns t where t.run_id = any ($1::uuid[]))
          )
        )
      )
    ),
    shared as (
      update boxcar.operations o
      set made = gone.made
      from gone
      where o.project_id = gone.project_id
        and o.idempotency_key = gone.idempotency_key
        and cardinality(gone.made) > 0
    )
    delete from boxcar.operations o
    using gone
    where o.project_id = gone.project_id
      and o.idempotency_key = gone.idempotency_key
      and cardinality(gone.made) = 0`,
  `
    delete /* purge-batch.delete_evidence */ from boxcar.evidence e
    using boxcar.turns t
    where t.run_id = any ($1::uuid[]) and e.turn_id = t.id`,
  `
    delete /* purge-batch.delete_approvals */ from boxcar.approvals a
    using boxcar.turns t
    where t.run_id = any ($1::uuid[]) and a.turn_id = t.id`,
  `
    delete /* purge-batch.delete_sweep_failures */ from boxcar.sweep_failures f
    where f.row_id in (
      select t.id
      from boxcar.turns t
      where t.run_id = any ($1::uuid[])
      union all
      select unnest($1::uuid[])
      union all
      select k.id
      from boxcar.turns t
      join boxcar.tool_calls k on k.turn_id = t.id
      where t.run_id = any ($1::uuid[])
    )`,
  'delete /* purge-batch.delete_budgets */ from boxcar.budgets where run_id = any ($1::uuid[])',
  // The words of instructions (`turn-words.ts`); the words of tapes are removed with their boxes.
  `
    delete /* purge-batch.delete_words */ from boxcar.tape_words w
    using boxcar.turns t
    where t.run_id = any ($1::uuid[]) and w.box_id = t.id`,
  `
    delete /* purge-batch.delete_steps */ from boxcar.steps s
    using boxcar.turns t
    where t.run_id = any ($1::uuid[]) and s.turn_id = t.id`,
  `
    delete /* purge-batch.delete_tool_calls */ from boxcar.tool_calls k
    using boxcar.turns t
    where t.run_id = any ($1::uuid[]) and k.turn_id = t.id`,
].map(statement);
const DELETE_BATCHES = statement(`
  with /* purge-batch.delete_batches */
  gone as (
    delete from boxcar.batches b
    where b.id = any (array${BATCHES})
    returning b.id
  ),
  letters as (
    delete from boxcar.sweep_failures f
    using gone
    where f.row_id = gone.id
  )
  select id
  from gone`);
/** The ids that an operation names, in the form of the index `operations_named`. */
const NAMES = `
  array_remove(
    array[
      left(response->>'agent_id', 36), left(response->>'output_box_id', 36), left(response->>'box_id', 36),
      left(response->>'boxId', 36), left(response->>'context_box_id', 36), left(response->>'turn_id', 36),
      left(response->>'run_id', 36), awaited_batch_id::text,
      case when starts_with(idempotency_key, 'agent:') then left(split_part(idempotency_key, ':', 2), 36) end
    ],
    null
  )`;
/** Answers that name removed rows: answers of commands, of a cancel, and of requests by the removed agents. */
const DELETE_ANSWERS = statement(`
  delete /* purge-batch.delete_answers */ from boxcar.operations o
  where (o.made is null or o.made = '{}') and ${NAMES} && $1::text[]`);
const PURGE_BOXES = statement('select /* purge-batch.purge_boxes */ boxcar.purge_boxes($1, $2)');

interface YoungTape extends pg.QueryResultRow {
  readonly id: string;
  readonly cause: 'entry' | 'reset' | 'open_fork';
}

/** A card to be removed that is still listed by a box or tape which stays. */
interface ListedCard extends pg.QueryResultRow {
  readonly id: string;
  readonly holder: string;
  readonly is_on_tape: boolean;
}

interface Ticket extends pg.QueryResultRow {
  readonly id: string;
  readonly card_id: string;
}

type BatchOutcome = { readonly kept: readonly KeptByPurge[] } | { readonly removed: PurgeCounts };

interface BatchOptions {
  readonly kind: PurgeKind;
  readonly before: Date;
  readonly marks: PurgeMarks;
}

const lockRuns = async (tx: Tx, runIds: readonly RunId[]): Promise<readonly RunId[]> =>
  (
    await query(tx, 'purge-batch.lock_runs', ({ orm, tables: { runs }, asc, isAnyOf }) =>
      orm
        .select({ id: runs.id })
        .from(runs)
        .where(isAnyOf(runs.id, runIds))
        .orderBy(asc(runs.id))
        .for('update'),
    )
  ).map(({ id }) => id);

const lockAgents = (tx: Tx, agentIds: readonly AgentId[]): Promise<unknown> =>
  query(tx, 'purge-batch.lock_agents', ({ orm, tables: { agents }, asc, isAnyOf }) =>
    orm
      .select({ id: agents.id })
      .from(agents)
      .where(isAnyOf(agents.id, agentIds))
      .orderBy(asc(agents.id))
      .for('update'),
  );

const lockTurns = async (tx: Tx, runIds: readonly RunId[]): Promise<readonly TurnId[]> =>
  (
    await query(tx, 'purge-batch.lock_turns', ({ orm, tables: { turns }, asc, isAnyOf }) =>
      orm
        .select({ id: turns.id })
        .from(turns)
        .where(isAnyOf(turns.runId, runIds))
        .orderBy(asc(turns.id))
        .for('update'),
    )
  ).map(({ id }) => id);

/** A transaction that appends to a tape or merges it locks the tape's row first. */
const lockTapes = async (tx: Tx, boxIds: readonly BoxId[]): Promise<readonly BoxId[]> =>
  (
    await query(tx, 'purge-batch.lock_tapes', ({ orm, tables: { boxes }, and, asc, eq, inline, isAnyOf }) =>
      orm
        .select({ id: boxes.id })
        .from(boxes)
        .where(and(isAnyOf(boxes.id, boxIds), inline(eq(boxes.kind, 'tape'))))
        .orderBy(asc(boxes.id))
        .for('update'),
    )
  ).map(({ id }) => id);

const deleteTurns = (tx: Tx, runIds: readonly RunId[]): Promise<readonly unknown[]> =>
  query(tx, 'purge-batch.delete_turns', ({ orm, tables: { turns }, isAnyOf }) =>
    orm.delete(turns).where(isAnyOf(turns.runId, runIds)).returning({ id: turns.id }),
  );

const deleteGrants = (tx: Tx, agentIds: readonly AgentId[], boxIds: readonly BoxId[]): Promise<unknown> =>
  query(tx, 'purge-batch.delete_grants', ({ orm, tables: { grants }, isAnyOf, or }) =>
    orm.delete(grants).where(or(isAnyOf(grants.agentId, agentIds), isAnyOf(grants.boxId, boxIds))),
  );

const deleteSessions = (tx: Tx, agentIds: readonly AgentId[], boxIds: readonly BoxId[]): Promise<unknown> =>
  query(tx, 'purge-batch.delete_sessions', ({ orm, tables: { sessions }, isAnyOf, or }) =>
    orm.delete(sessions).where(or(isAnyOf(sessions.agentId, agentIds), isAnyOf(sessions.id, boxIds))),
  );

const deleteForks = (tx: Tx, boxIds: readonly BoxId[]): Promise<unknown> =>
  query(tx, 'purge-batch.delete_forks', ({ orm, tables: { forks }, isAnyOf, or }) =>
    orm.delete(forks).where(or(isAnyOf(forks.id, boxIds), isAnyOf(forks.parentBoxId, boxIds))),
  );

const deleteAgents = (tx: Tx, agentIds: readonly AgentId[]): Promise<unknown> =>
  query(tx, 'purge-batch.delete_agents', ({ orm, tables: { agents }, isAnyOf }) =>
    orm.delete(agents).where(isAnyOf(agents.id, agentIds)),
  );

/** Ends the packages of removed sessions, because they can no longer be fetched. */
async function endPackages(tx: Tx, boxIds: readonly BoxId[]): Promise<void> {
  const ids = (await idsOf(tx, PACKAGES, [boxIds])) as HandoffId[];
  if (ids.length === 0) return;
  const error = new KernelError('canceled', { message: 'The session was purged.', next: '' });
  await moveHandoffs(tx, ids, {
    phase: 'canceled',
    error: error.toJSON(),
    events: [{ type: 'handoff.failed', data: { status: 'failed', phase: 'canceled', code: error.code } }],
  });
}

const deleteRuns = (tx: Tx, runIds: readonly RunId[]): Promise<unknown> =>
  query(tx, 'purge-batch.delete_runs', ({ orm, tables: { runs }, isAnyOf }) =>
    orm.delete(runs).where(isAnyOf(runs.id, runIds)),
  );

/**
 * Removes the runs or tapes of a batch in one transaction. `kept`: all of them stay; `kept` leaves out those that another transaction has
 * removed.
 */
export function removeBatch(
  pool: pg.Pool,
  batch: readonly PurgeableRun[],
  { kind, before, marks }: BatchOptions,
): Promise<BatchOutcome> {
  const ids = batch.map(({ run_id }) => run_id);
  const runIds = kind === 'runs' ? ids : [];
  const agentIds = batch.flatMap(({ agent_ids }) => agent_ids);
  const boxIds = batch.flatMap(({ box_ids }) => box_ids);
  return transaction(pool, async (tx): Promise<BatchOutcome> => {
    const runs = await lockRuns(tx, runIds);
    await lockAgents(tx, agentIds);
    const turnIds = await lockTurns(tx, runIds);
    const tapes = await lockTapes(tx, boxIds);
    const stays = (cause: KeptByPurge['cause'], holder: string | null): BatchOutcome => ({
      kept: { runs, tapes, handoffs: boxIds }[kind].map((run_id) => ({ run_id, cause, holder })),
    });
    if (!(await marks.hold(tx, boxIds)) || runs.length !== runIds.length) return stays('purging', null);
    const [joined] = await run<{ run_id: string }>(tx, JOINED, [turnIds]);
    if (joined !== undefined) return stays('in_use', joined.run_id);
    const [young] = await run<YoungTape>(tx, YOUNG, [boxIds, before]);
    if (young !== undefined) return stays(young.cause, young.id);
    const [used] = await idsOf(tx, USED, [runIds, agentIds, boxIds]);
    if (used !== undefined) return stays('in_use', used);
    const tickets = await run<Ticket>(tx, TICKETS, [boxIds]);
    const locked = await idsOf(tx, LOCK_CARDS, [boxIds, runIds, tickets.map(({ card_id }) => card_id)]);
    const listed = await run<ListedCard>(tx, LISTED, [boxIds, locked]);
    const needed = listed.find(({ is_on_tape }) => is_on_tape);
    if (needed !== undefined) return stays('card', needed.holder);
    const kept = new Set(listed.map(({ id }) => id));
    const cardIds = locked.filter((id) => !kept.has(id));
    await endPackages(tx, boxIds);
    await run(tx, DELETE_HANDOFFS, [boxIds]);
    await run(tx, DELETE_TICKETS, [tickets.map(({ id }) => id)]);
    for (const sql of DELETES) await run(tx, sql, [runIds]);
    const batchIds = await idsOf(tx, DELETE_BATCHES, [runIds]);
    await run(tx, DELETE_ANSWERS, [[...runIds, ...agentIds, ...turnIds, ...boxIds, ...batchIds]]);
    const turns = await deleteTurns(tx, runIds);
    await deleteGrants(tx, agentIds, boxIds);
    await deleteSessions(tx, agentIds, boxIds);
    await deleteForks(tx, boxIds);
    await deleteAgents(tx, agentIds);
    await run(tx, PURGE_BOXES, [boxIds, cardIds]);
    await deleteRuns(tx, runIds);
    marks.checkTime();
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

const idsOf = async (tx: Tx, text: ReturnType<typeof statement>, values: unknown[]): Promise<string[]> =>
  (await run<{ id: string }>(tx, text, values)).map(({ id }) => id);
