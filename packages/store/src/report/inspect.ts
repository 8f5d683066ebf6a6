/**
 * Reads for people: the state of a turn, and the live workers. The number of statements is constant for any size of the turn, its context
 * or its run. Contents are shortened to previews, so that a look costs little.
 */
import {
  type BoxId,
  type ErrorBody,
  type JsonValue,
  KernelError,
  type RunId,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { loadBudgets } from '../budget/index.js';
import { type Queryable, readSnapshot, run, statement } from '../db/index.js';
import { type Builder, query } from '../query/query.js';
import { findTurnId } from '../submit/index.js';
import { entriesOf } from '../visible/index.js';
import type {
  CallLine,
  CardLine,
  EvidenceLine,
  StepLine,
  TurnCost,
  TurnLine,
  TurnReport,
} from './turn-report.js';

const PREVIEW_LENGTH = 200;
const LISTED_CARDS = 50;
const LISTED_CHILDREN = 100;
const LISTED_EVIDENCE = 100;

/** SQL of the text of a card, shortened. */
const PREVIEW = `
  left(coalesce(
    c.content->>'text', c.content->>'uri', c.content->>'data', c.content->>'fields', c.content->>'result',
    c.content->>'error', c.content->>'arguments', c.content::text, '(erased)'
  ), ${PREVIEW_LENGTH})`;

const turnLine = ({ tables: { agents, profiles, turns } }: Builder) => ({
  turn_id: turns.id,
  status: turns.status,
  agent: agents.name,
  profile: profiles.name,
  primitive: turns.primitive,
  depth: turns.depth,
  tool_call_id: turns.parentToolCallId,
});

const readLineage = (db: Queryable, turnId: TurnId): Promise<TurnLine[]> =>
  query(db, 'inspect.read_lineage', (builder) => {
    const { orm, tables, asc, eq, sql } = builder;
    const { agents, profiles, turns } = tables;
    const up = sql`
      (
        with recursive up as (
          select id, parent_turn_id
          from ${turns}
          where id = ${turnId}
          union all
          select t.id, t.parent_turn_id
          from up
          join ${turns} t on t.id = up.parent_turn_id
        )
        select id
        from up
      )`;
    return orm
      .select(turnLine(builder))
      .from(turns)
      .innerJoin(agents, eq(agents.id, turns.agentId))
      .innerJoin(profiles, eq(profiles.id, turns.profileId))
      .where(sql`${turns.id} in ${up}`)
      .orderBy(asc(turns.depth));
  });

async function readChildren(
  db: Queryable,
  turnId: TurnId,
): Promise<Pick<TurnReport, 'child_count' | 'children'>> {
  const rows = await query(db, 'inspect.read_children', (builder) => {
    const { orm, tables, asc, eq, sql } = builder;
    const { agents, profiles, turns } = tables;
    return orm
      .select({ ...turnLine(builder), total: sql<number>`(count(*) over ())::int` })
      .from(turns)
      .innerJoin(agents, eq(agents.id, turns.agentId))
      .innerJoin(profiles, eq(profiles.id, turns.profileId))
      .where(eq(turns.parentTurnId, turnId))
      .orderBy(asc(turns.id))
      .limit(LISTED_CHILDREN);
  });
  return { child_count: rows[0]?.total ?? 0, children: rows.map(({ total: _total, ...line }) => line) };
}

const readSteps = (db: Queryable, turnId: TurnId): Promise<StepLine[]> =>
  query(db, 'inspect.read_steps', ({ orm, tables: { steps }, asc, eq, sql }) =>
    orm
      .select({
        step: steps.step,
        attempt: steps.attempt,
        committed_at: steps.committedAt,
        opened_at: steps.openedAt,
        model: steps.model,
        finish_reason: steps.finishReason,
        usage: steps.usage,
        model_ms: steps.modelMs,
        prompt_hash: sql<string | null>`encode(${steps.promptHash}, 'hex')`,
        error: steps.error,
      })
      .from(steps)
      .where(eq(steps.turnId, turnId))
      .orderBy(asc(steps.step), asc(steps.attempt)),
  );

const readCalls = (db: Queryable, turnId: TurnId): Promise<CallLine[]> =>
  query(db, 'inspect.read_calls', ({ orm, tables: { cards, toolCalls }, asc, eq, sql }) =>
    orm
      .select({
        tool_call_id: toolCalls.id,
        step: toolCalls.step,
        ordinal: toolCalls.ordinal,
        name: toolCalls.name,
        route: toolCalls.route,
        target: toolCalls.target,
        status: toolCalls.status,
        duration_ms: sql<
          number | null
        >`(extract(epoch from ${toolCalls.endedAt} - ${toolCalls.createdAt}) * 1000)::int`,
        deadline_at: toolCalls.deadlineAt,
        arguments_preview: sql<string>`left(${toolCalls.arguments}::text, ${PREVIEW_LENGTH})`,
        error: sql<ErrorBody | null>`${cards.content}->'error'`,
      })
      .from(toolCalls)
      .leftJoin(cards, eq(cards.id, toolCalls.resultCardId))
      .where(eq(toolCalls.turnId, turnId))
      .orderBy(asc(toolCalls.step), asc(toolCalls.ordinal)),
  );

const readEvidence = (db: Queryable, turnId: TurnId): Promise<EvidenceLine[]> =>
  query(db, 'inspect.read_evidence', ({ orm, tables: { evidence }, asc, eq, sql }) =>
    orm
      .select({
        evidence_id: evidence.id,
        kind: evidence.kind,
        step: evidence.step,
        attempt: evidence.attempt,
        epoch: evidence.epoch,
        holder_id: evidence.holderId,
        tool_call_id: evidence.toolCallId,
        at: evidence.createdAt,
        usage: evidence.usage,
        preview: sql<string>`
          left(coalesce(
            nullif(${evidence.body}->>'text', ''), ${evidence.body}->>'result', ${evidence.body} #>> '{}'
          ), ${PREVIEW_LENGTH})`,
      })
      .from(evidence)
      .where(eq(evidence.turnId, turnId))
      .orderBy(asc(evidence.createdAt))
      .limit(LISTED_EVIDENCE),
  );

const CONTEXT_CARDS = statement(`
  select /* inspect.context_cards */ c.id as card_id, c.type, c.role, c.token_estimate as tokens,
    ${PREVIEW} as preview, (s.ord - 1)::int as segment
  from boxcar.boxes b
  cross join lateral jsonb_array_elements(b.segments) with ordinality as s(value, ord)
  cross join lateral jsonb_to_record(s.value) as x(source uuid, "from" int, "to" int, skip jsonb)
  cross join lateral (
    select u.card_id, x."from" - 1 + u.n as position
    from boxcar.boxes l, unnest(l.card_ids[x."from":x."to"]) with ordinality as u(card_id, n)
    where l.id = coalesce(x.source, b.id) and not coalesce(x.skip @> to_jsonb(x."from" - 1 + u.n), false)
    union all
    select e.card_id, e.position
    from boxcar.boxes t
    cross join lateral ${entriesOf('t', { from: 'x."from"', to: 'x."to"', where: 'o.card_id is not null' })} e
    where t.id = x.source and t.kind = 'tape' and not coalesce(x.skip @> to_jsonb(e.position), false)
    order by position
    limit ${LISTED_CARDS}
  ) leaf
  join boxcar.cards c on c.id = leaf.card_id
  where b.id = $1
  order by s.ord, leaf.position
  limit ${LISTED_CARDS}`);

async function readContext(db: Queryable, boxId: BoxId): Promise<TurnReport['context']> {
  const [box] = await query(db, 'inspect.read_context', ({ orm, tables: { boxes }, eq }) =>
    orm
      .select({ segments: boxes.segments, cardCount: boxes.cardCount, tokens: boxes.tokenEstimate })
      .from(boxes)
      .where(eq(boxes.id, boxId)),
  );
  // A segment is a range of the box's own cards, of another sealed box's cards, or of a tape; it never points to a segment.
  const cards = await run<CardLine & pg.QueryResultRow>(db, CONTEXT_CARDS, [boxId]);
  return {
    box_id: boxId,
    card_count: box?.cardCount ?? 0,
    tokens: box?.tokens ?? 0,
    segments: box?.segments ?? [],
    cards,
  };
}

const costsOf = ({ sql, tables: { steps } }: Builder) => ({
  input_tokens: sql<number>`coalesce(sum((${steps.usage}->>'input_tokens')::bigint), 0)::float8`,
  output_tokens: sql<number>`coalesce(sum((${steps.usage}->>'output_tokens')::bigint), 0)::float8`,
  cost_micros: sql<number>`coalesce(sum((${steps.usage}->>'cost_micros')::bigint), 0)::float8`,
  free_steps: sql<number>`(count(*) filter (where ${steps.usage}->'free' = 'true'))::int`,
  unpriced_steps: sql<number>`
    (count(*) filter (where ${steps.usage} is not null and ${steps.usage}->'cost_micros' is null))::int`,
});
const NO_COST: TurnCost = {
  input_tokens: 0,
  output_tokens: 0,
  cost_micros: 0,
  free_steps: 0,
  unpriced_steps: 0,
};

async function readCosts(db: Queryable, turnId: TurnId): Promise<Pick<TurnReport, 'spent' | 'subtree'>> {
  const [own] = await query(db, 'inspect.read_own_costs', (builder) => {
    const { steps } = builder.tables;
    return builder.orm.select(costsOf(builder)).from(steps).where(builder.eq(steps.turnId, turnId));
  });
  const [tree] = await query(db, 'inspect.read_tree_costs', (builder) => {
    const { orm, tables, eq, sql } = builder;
    const { steps, turns } = tables;
    const below = sql`
      (
        with recursive below as (
          select id
          from ${turns}
          where id = ${turnId}
          union all
          select t.id
          from below b
          cross join lateral (select id from ${turns} t where t.parent_turn_id = b.id offset 0) t
        )
        select id
        from below
      )`;
    return orm
      .select({ ...costsOf(builder), turns: sql<number>`count(distinct ${turns.id})::int` })
      .from(turns)
      .leftJoin(steps, eq(steps.turnId, turns.id))
      .where(sql`${turns.id} in ${below}`);
  });
  return { spent: own ?? NO_COST, subtree: tree ?? { ...NO_COST, turns: 1 } };
}

async function readRun(db: Queryable, runId: RunId): Promise<TurnReport['run']> {
  const [tree] = await query(db, 'inspect.read_run', ({ orm, tables: { runs, turns }, count, eq, sql }) =>
    orm
      .select({
        rootTurnId: runs.rootTurnId,
        turns: count(turns.id),
        openTurns: sql<number>`(count(*) filter (where ${turns.endedAt} is null))::int`,
      })
      .from(runs)
      .innerJoin(turns, eq(turns.runId, runs.id))
      .where(eq(runs.id, runId))
      .groupBy(runs.id),
  );
  const [work] = await query(db, 'inspect.read_work', (builder) => {
    const { orm, tables, count, eq } = builder;
    const { steps, turns } = tables;
    return orm
      .select({ attempts: count(), steps: count(steps.committedAt), ...costsOf(builder) })
      .from(steps)
      .innerJoin(turns, eq(turns.id, steps.turnId))
      .where(eq(turns.runId, runId));
  });
  if (tree === undefined) throw new KernelError('internal_error', { message: `Run ${runId} has no turns.` });
  return {
    run_id: runId,
    root_turn_id: tree.rootTurnId,
    turns: tree.turns,
    open_turns: tree.openTurns,
    steps: work?.steps ?? 0,
    attempts: work?.attempts ?? 0,
    usage: { input_tokens: work?.input_tokens ?? 0, output_tokens: work?.output_tokens ?? 0 },
    cost_micros: work?.cost_micros ?? 0,
    free_steps: work?.free_steps ?? 0,
    unpriced_steps: work?.unpriced_steps ?? 0,
  };
}

/**
 * The full report on one turn.
 *
 * @param ref - Its id, with dashes or as 32 hex digits, or a beginning of it of at least eight digits.
 * @param options.project - Id or name; a turn of another project is not found.
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id, or fits several turns.
 */
export function inspectTurn(
  pool: pg.Pool,
  ref: string,
  options: { readonly project: string },
): Promise<TurnReport> {
  return readSnapshot(pool, async (db) => {
    const { turnId } = await findTurnId(db, ref, options.project);
    const [row] = await query(
      db,
      'inspect.inspect_turn',
      ({ orm, tables: { agents, cards, profiles, turns, waits }, eq }) =>
        orm
          .select({
            turn: turns,
            agent: { agent_id: agents.id, name: agents.name },
            profile: { name: profiles.name, version: profiles.version },
            deliverable: cards.content,
            wait: { kind: waits.kind, due_at: waits.dueAt, provider: waits.provider, detail: waits.detail },
          })
          .from(turns)
          .innerJoin(agents, eq(agents.id, turns.agentId))
          .innerJoin(profiles, eq(profiles.id, turns.profileId))
          .leftJoin(cards, eq(cards.id, turns.deliverableCardId))
          .leftJoin(waits, eq(waits.turnId, turns.id))
          .where(eq(turns.id, turnId)),
    );
    if (row === undefined)
      throw new KernelError('internal_error', { message: `Turn ${turnId} has no agent.` });
    const { turn } = row;
    return {
      turn_id: turn.id,
      run_id: turn.runId,
      project_id: turn.projectId,
      status: turn.status,
      error: turn.error,
      primitive: turn.primitive,
      channel_id: turn.channelId,
      worker_target: turn.workerTarget,
      depth: turn.depth,
      epoch: turn.epoch,
      holder_id: turn.holderId,
      step_count: turn.stepCount,
      max_steps: turn.maxSteps,
      pending_calls: turn.pendingCalls,
      wait: row.wait === null ? null : { ...row.wait, due_at: row.wait.due_at?.toISOString() ?? null },
      created_at: turn.createdAt,
      dispatched_at: turn.dispatchedAt,
      ended_at: turn.endedAt,
      deadline_at: turn.deadlineAt,
      agent: row.agent,
      profile: row.profile,
      output_box_id: turn.outputBoxId,
      lineage: await readLineage(db, turnId),
      steps: await readSteps(db, turnId),
      calls: await readCalls(db, turnId),
      evidence: await readEvidence(db, turnId),
      context: await readContext(db, turn.contextBoxId),
      ...(await readChildren(db, turnId)),
      deliverable:
        turn.deliverableCardId === null
          ? null
          : { card_id: turn.deliverableCardId, content: row.deliverable as JsonValue },
      run: await readRun(db, turn.runId),
      ...(await readCosts(db, turnId)),
      budgets: await loadBudgets(db, turn.runId),
    };
  });
}
