/**
 * Reads for people: what became of a turn, and which workers live. Ordinary drizzle, a constant number of statements
 * whatever the size of the turn, its context or its run; contents come as previews, so that a look costs little.
 */
import {
  type AgentId,
  type BoxId,
  type CardId,
  type ErrorBody,
  type JsonValue,
  KernelError,
  type ProjectId,
  type Role,
  type RunId,
  type Segment,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
  type WorkerId,
} from '@boxcar/kernel';
import { asc, count, DrizzleQueryError, eq, type SQL, sql, sum } from 'drizzle-orm';
import { drizzle, type NodePgDatabase } from 'drizzle-orm/node-postgres';
import type pg from 'pg';
import { type BudgetReport, loadBudgets } from '../budget/budgets.js';
import { checkOut, type Queryable, toDatabaseError } from '../db/index.js';
import type { CallRouteKind } from '../kinds/row-kinds.js';
import { tables } from '../schema/schema.js';
import { findTurnId } from '../submit/index.js';
import { entriesOf } from '../visible/index.js';
import type { WaitLine } from '../work/index.js';

const { agents, boxes, cards, evidence, profiles, runs, steps, toolCalls, turns, waits } = tables;

const PREVIEW_LENGTH = 200;
const LISTED_CARDS = 50;
const LISTED_CHILDREN = 100;
const LISTED_EVIDENCE = 100;

/** A turn in a list: on the way to the root, or below the one that is looked at. */
export interface TurnLine {
  readonly turn_id: TurnId;
  readonly status: TurnStatus;
  readonly agent: string;
  readonly profile: string;
  readonly primitive: string;
  readonly depth: number;
  /** The call that asked for it. */
  readonly tool_call_id: ToolCallId | null;
}

export interface Usage {
  readonly input_tokens: number;
  readonly output_tokens: number;
}

export interface StepLine {
  readonly step: number;
  readonly attempt: number;
  /** Null while the model works, or when the attempt was lost with its worker. */
  readonly committed_at: Date | null;
  readonly opened_at: Date;
  readonly model: string | null;
  readonly finish_reason: string | null;
  readonly usage: Usage | null;
  readonly model_ms: number | null;
  readonly prompt_hash: string | null;
  readonly error: ErrorBody | null;
}

export interface CallLine {
  readonly tool_call_id: ToolCallId;
  readonly step: number;
  readonly ordinal: number;
  readonly name: string;
  readonly route: CallRouteKind;
  /** Whose queue it goes to; null unless the route is `queue`. */
  readonly target: string | null;
  readonly status: 'pending' | 'success' | 'failed' | 'timeout' | 'canceled';
  /** From the commit of the call to its result; null while it is out. */
  readonly duration_ms: number | null;
  readonly deadline_at: Date;
  readonly arguments_preview: string;
  readonly error: ErrorBody | null;
}

/** What came too late to count. */
export interface EvidenceLine {
  /** By which it can be erased. */
  readonly evidence_id: string;
  /** A model's reply, or a tool's result. */
  readonly kind: 'reply' | 'result';
  readonly step: number;
  readonly attempt: number | null;
  /** Under which the work was begun. */
  readonly epoch: number;
  /** Null: a worker outside. */
  readonly holder_id: WorkerId | null;
  readonly tool_call_id: ToolCallId | null;
  readonly at: Date;
  readonly usage: Usage | null;
  readonly preview: string;
}

export interface CardLine {
  readonly card_id: CardId;
  readonly type: string;
  readonly role: Role | null;
  readonly tokens: number;
  readonly preview: string;
  /** Index in `segments`, from 0. */
  readonly segment: number;
}

export interface TurnReport {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly project_id: ProjectId;
  readonly status: TurnStatus;
  readonly error: ErrorBody | null;
  readonly primitive: string;
  readonly channel_id: string;
  readonly worker_target: string;
  readonly depth: number;
  readonly epoch: number;
  readonly holder_id: WorkerId | null;
  readonly step_count: number;
  readonly max_steps: number;
  readonly pending_calls: number;
  /** Suspended without an open call: what it waits for. */
  readonly wait: WaitLine | null;
  readonly created_at: Date;
  readonly dispatched_at: Date | null;
  readonly ended_at: Date | null;
  readonly deadline_at: Date | null;
  readonly agent: { readonly agent_id: AgentId; readonly name: string };
  readonly profile: { readonly name: string; readonly version: number };
  readonly output_box_id: BoxId;
  /** From the root of the run to this turn. */
  readonly lineage: readonly TurnLine[];
  readonly steps: readonly StepLine[];
  readonly calls: readonly CallLine[];
  /** Answers that came after the turn was in other hands, or had ended; the first ones. */
  readonly evidence: readonly EvidenceLine[];
  readonly context: {
    readonly box_id: BoxId;
    readonly card_count: number;
    readonly tokens: number;
    /** The manifest: what was packed by which rule from where, in order. */
    readonly segments: readonly Segment[];
    /** The first ones, in stored order. */
    readonly cards: readonly CardLine[];
  };
  readonly child_count: number;
  /** The first ones. */
  readonly children: readonly TurnLine[];
  readonly deliverable: { readonly card_id: CardId; readonly content: JsonValue } | null;
  readonly run: {
    readonly run_id: RunId;
    readonly root_turn_id: TurnId;
    readonly turns: number;
    /** Turns that have not ended. */
    readonly open_turns: number;
    /** Committed steps, and attempts at them. */
    readonly steps: number;
    readonly attempts: number;
    readonly usage: Usage;
    readonly cost_micros: number;
    /** Of models whose price says that they cost nothing. */
    readonly free_steps: number;
    readonly unpriced_steps: number;
  };
  /** The turn’s own, and with all below it. */
  readonly spent: TurnCost;
  readonly subtree: TurnCost & { readonly turns: number };
  /** The accounts of its run, the outermost first. */
  readonly budgets: readonly BudgetReport[];
}

/** What steps have used; those of models without a price are counted beside the cost. */
export interface TurnCost extends Usage {
  readonly cost_micros: number;
  /** Of models whose price says that they cost nothing. */
  readonly free_steps: number;
  readonly unpriced_steps: number;
}

type Reader = Parameters<Parameters<NodePgDatabase['transaction']>[0]>[0];

/** One snapshot for all statements: a report never mixes two states of a turn. */
async function read<T>(pool: pg.Pool, body: (tx: Reader, client: Queryable) => Promise<T>): Promise<T> {
  const client = await checkOut(pool);
  let hasFailed = true;
  try {
    const result = await drizzle(client).transaction((tx) => body(tx, client), {
      isolationLevel: 'repeatable read',
      accessMode: 'read only',
    });
    hasFailed = false;
    return result;
  } catch (error) {
    throw toDatabaseError(error instanceof DrizzleQueryError ? error.cause : error);
  } finally {
    // Whether the rollback came through is not worth a look: the next read gets a fresh connection.
    client.release(hasFailed);
  }
}

/** A content's own words, cut. */
const preview = (content: SQL | typeof cards.content): SQL<string> => sql<string>`
  left(coalesce(${content}->>'text', ${content}->>'uri', ${content}->>'data', ${content}->>'fields', ${content}->>'result',
    ${content}->>'error', ${content}->>'arguments', ${content}::text, '(erased)'), ${PREVIEW_LENGTH})`;

const turnLine = {
  turn_id: turns.id,
  status: turns.status,
  agent: agents.name,
  profile: profiles.name,
  primitive: turns.primitive,
  depth: turns.depth,
  tool_call_id: turns.parentToolCallId,
};

async function readLineage(tx: Reader, turnId: TurnId): Promise<TurnLine[]> {
  const up = sql`(
    with recursive up as (
      select id, parent_turn_id from ${turns} where id = ${turnId}
      union all
      select t.id, t.parent_turn_id from up join ${turns} t on t.id = up.parent_turn_id
    ) select id from up)`;
  return tx
    .select(turnLine)
    .from(turns)
    .innerJoin(agents, eq(agents.id, turns.agentId))
    .innerJoin(profiles, eq(profiles.id, turns.profileId))
    .where(sql`${turns.id} in ${up}`)
    .orderBy(asc(turns.depth));
}

async function readChildren(
  tx: Reader,
  turnId: TurnId,
): Promise<Pick<TurnReport, 'child_count' | 'children'>> {
  const rows = await tx
    .select({ ...turnLine, total: sql<number>`(count(*) over ())::int` })
    .from(turns)
    .innerJoin(agents, eq(agents.id, turns.agentId))
    .innerJoin(profiles, eq(profiles.id, turns.profileId))
    .where(eq(turns.parentTurnId, turnId))
    .orderBy(asc(turns.id))
    .limit(LISTED_CHILDREN);
  return { child_count: rows[0]?.total ?? 0, children: rows.map(({ total: _total, ...line }) => line) };
}

function readSteps(tx: Reader, turnId: TurnId): Promise<StepLine[]> {
  return tx
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
    .orderBy(asc(steps.step), asc(steps.attempt));
}

function readCalls(tx: Reader, turnId: TurnId): Promise<CallLine[]> {
  return tx
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
    .orderBy(asc(toolCalls.step), asc(toolCalls.ordinal));
}

function readEvidence(tx: Reader, turnId: TurnId): Promise<EvidenceLine[]> {
  return tx
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
      preview: sql<string>`left(coalesce(nullif(${evidence.body}->>'text', ''), ${evidence.body}->>'result', ${evidence.body} #>> '{}'), ${PREVIEW_LENGTH})`,
    })
    .from(evidence)
    .where(eq(evidence.turnId, turnId))
    .orderBy(asc(evidence.createdAt))
    .limit(LISTED_EVIDENCE);
}

async function readContext(tx: Reader, boxId: BoxId): Promise<TurnReport['context']> {
  const [box] = await tx
    .select({ segments: boxes.segments, cardCount: boxes.cardCount, tokens: boxes.tokenEstimate })
    .from(boxes)
    .where(eq(boxes.id, boxId));
  // A segment is a range of the box's own cards, of another sealed box's, or of a tape; it never points to a segment.
  const listed = await tx.execute<{
    card_id: CardId;
    type: string;
    role: Role | null;
    tokens: number;
    preview: string;
    segment: number;
  }>(sql`
    select c.id as card_id, c.type, c.role, c.token_estimate as tokens, ${preview(sql`c.content`)} as preview, (s.ord - 1)::int as segment
    from ${boxes} b
    cross join lateral jsonb_array_elements(b.segments) with ordinality as s(value, ord)
    cross join lateral jsonb_to_record(s.value) as x(source uuid, "from" int, "to" int, skip jsonb)
    cross join lateral (
      select u.card_id, x."from" - 1 + u.n as position from ${boxes} l, unnest(l.card_ids[x."from":x."to"]) with ordinality as u(card_id, n)
      where l.id = coalesce(x.source, b.id) and not coalesce(x.skip @> to_jsonb(x."from" - 1 + u.n), false)
      union all
      select e.card_id, e.position from ${boxes} t
        cross join lateral ${sql.raw(entriesOf('t', { from: 'x."from"', to: 'x."to"', where: 'o.card_id is not null' }))} e
      where t.id = x.source and t.kind = 'tape' and not coalesce(x.skip @> to_jsonb(e.position), false)
      order by position limit ${LISTED_CARDS}
    ) leaf
    join ${cards} c on c.id = leaf.card_id
    where b.id = ${boxId}
    order by s.ord, leaf.position limit ${LISTED_CARDS}`);
  return {
    box_id: boxId,
    card_count: box?.cardCount ?? 0,
    tokens: box?.tokens ?? 0,
    segments: box?.segments ?? [],
    cards: listed.rows,
  };
}

const costs = {
  input_tokens: sql<number>`coalesce(sum((${steps.usage}->>'input_tokens')::bigint), 0)::float8`,
  output_tokens: sql<number>`coalesce(sum((${steps.usage}->>'output_tokens')::bigint), 0)::float8`,
  cost_micros: sql<number>`coalesce(sum((${steps.usage}->>'cost_micros')::bigint), 0)::float8`,
  free_steps: sql<number>`(count(*) filter (where ${steps.usage}->'free' = 'true'))::int`,
  unpriced_steps: sql<number>`(count(*) filter (where ${steps.usage} is not null and ${steps.usage}->'cost_micros' is null))::int`,
};
const NO_COST: TurnCost = {
  input_tokens: 0,
  output_tokens: 0,
  cost_micros: 0,
  free_steps: 0,
  unpriced_steps: 0,
};

async function readCosts(tx: Reader, turnId: TurnId): Promise<Pick<TurnReport, 'spent' | 'subtree'>> {
  const [own] = await tx.select(costs).from(steps).where(eq(steps.turnId, turnId));
  const below = sql`(
    with recursive below as (
      select id from ${turns} where id = ${turnId}
      union all
      select t.id from below b cross join lateral (select id from ${turns} t where t.parent_turn_id = b.id offset 0) t
    ) select id from below)`;
  const [tree] = await tx
    .select({ ...costs, turns: sql<number>`count(distinct ${turns.id})::int` })
    .from(turns)
    .leftJoin(steps, eq(steps.turnId, turns.id))
    .where(sql`${turns.id} in ${below}`);
  return { spent: own ?? NO_COST, subtree: tree ?? { ...NO_COST, turns: 1 } };
}

async function readRun(tx: Reader, runId: RunId): Promise<TurnReport['run']> {
  const [tree] = await tx
    .select({
      rootTurnId: runs.rootTurnId,
      turns: count(turns.id),
      openTurns: sql<number>`(count(*) filter (where ${turns.endedAt} is null))::int`,
    })
    .from(runs)
    .innerJoin(turns, eq(turns.runId, runs.id))
    .where(eq(runs.id, runId))
    .groupBy(runs.id);
  const [work] = await tx
    .select({
      attempts: count(),
      steps: count(steps.committedAt),
      input: sum(sql`(${steps.usage}->>'input_tokens')::bigint`).mapWith(Number),
      output: sum(sql`(${steps.usage}->>'output_tokens')::bigint`).mapWith(Number),
      cost_micros: costs.cost_micros,
      free_steps: costs.free_steps,
      unpriced_steps: costs.unpriced_steps,
    })
    .from(steps)
    .innerJoin(turns, eq(turns.id, steps.turnId))
    .where(eq(turns.runId, runId));
  if (tree === undefined) throw new KernelError('internal_error', { message: `Run ${runId} has no turns.` });
  return {
    run_id: runId,
    root_turn_id: tree.rootTurnId,
    turns: tree.turns,
    open_turns: tree.openTurns,
    steps: work?.steps ?? 0,
    attempts: work?.attempts ?? 0,
    usage: { input_tokens: work?.input ?? 0, output_tokens: work?.output ?? 0 },
    cost_micros: work?.cost_micros ?? 0,
    free_steps: work?.free_steps ?? 0,
    unpriced_steps: work?.unpriced_steps ?? 0,
  };
}

/**
 * All that the rows say about one turn.
 *
 * @param ref - Its id, with dashes or as 32 hex digits, or a beginning of it of at least eight digits.
 * @param options.project - Id or name; a turn of another project is not found.
 * @throws KernelError `not_found`; `bad_request` when `ref` is no id, or fits several turns.
 */
export function inspectTurn(
  pool: pg.Pool,
  ref: string,
  options: { readonly project: string },
): Promise<TurnReport> {
  return read(pool, async (tx, client) => {
    const { turnId } = await findTurnId(client, ref, options.project);
    const [row] = await tx
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
      .where(eq(turns.id, turnId));
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
      lineage: await readLineage(tx, turnId),
      steps: await readSteps(tx, turnId),
      calls: await readCalls(tx, turnId),
      evidence: await readEvidence(tx, turnId),
      context: await readContext(tx, turn.contextBoxId),
      ...(await readChildren(tx, turnId)),
      deliverable:
        turn.deliverableCardId === null
          ? null
          : { card_id: turn.deliverableCardId, content: row.deliverable as JsonValue },
      run: await readRun(tx, turn.runId),
      ...(await readCosts(tx, turnId)),
      budgets: await loadBudgets(client, turn.runId),
    };
  });
}
