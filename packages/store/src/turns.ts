/**
 * The turn's life in rows: claim, commit of a step, end.
 *
 * C1  A claim wins only on `dispatched` at its epoch, and leaves the epoch as it is.
 * C2  A commit writes only while the turn is `running` at its epoch in its holder's hands (or, for the sweep, as it saw it).
 * C3  Tape positions are taken under the lock of the tape's head row, so they are gapless.
 * C4  Turns are locked before tapes, tapes before tool calls, each class in id order, whatever the batch.
 */
import {
  type AgentId,
  type Allotment,
  type BatchId,
  type BoxId,
  type CardId,
  type EntryKind,
  type ErrorBody,
  type FinalStatus,
  isFinal,
  type JsonValue,
  type NewCard,
  type ProfileId,
  type ProjectId,
  type Ring,
  type RunId,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
  type WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { closeBatchesOf, LOWER_BATCHES } from './batches.js';
import { type Build, THIS_BUILD } from './build.js';
import {
  type Queryable,
  retryTransient,
  run,
  runRetrying,
  type Statement,
  statement,
  type Tx,
  transactAtOnce,
  transaction,
} from './db.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from './records.js';
import {
  type CallRouteKind,
  type CallSettlement,
  FIRST_LOOK,
  type SettledTurns,
  settleCalls,
} from './tool-calls.js';

export interface ClaimedTurn {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly agentId: AgentId;
  readonly profileId: ProfileId;
  readonly epoch: number;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly primitive: string;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly channelId: string;
  readonly workerTarget: string;
  readonly traceparent: string | null;
  readonly maxSteps: number;
  readonly deadlineAt: Date | null;
  /** Committed steps. */
  readonly stepCount: number;
  readonly emptyReplies: number;
  readonly pendingCalls: number;
  /** Claims since the last committed step, this one included. */
  readonly attempt: number;
  /** Model calls of the step that failed and are tried again. */
  readonly retries: number;
  /** Workers it has lost since. */
  readonly losses: number;
  /** Batches wait for it. */
  readonly isMember: boolean;
  /** Null when nothing limits what it spends. */
  readonly purse: Purse | null;
}

/** What a turn has been given by its accounts, and what it has spent. */
export interface Purse {
  /** Null: only the profile limits it. */
  readonly budgetId: string | null;
  readonly allotment: Allotment;
  readonly spentTokens: number;
  readonly spentCostMicros: number;
}

export type ClaimOutcome =
  | { readonly outcome: 'claimed'; readonly turn: ClaimedTurn }
  | { readonly outcome: 'stale' };

// Each part reads the one before it, so that no two lists of a batch are joined by going through both.
const CLAIM = statement(`
  with want as (select * from json_to_recordset($1) as w(turn_id uuid, epoch int)),
  lk as (
    select t.* from boxcar.turns t join want w on w.turn_id = t.id and w.epoch = t.epoch
    where t.id = any ($3::uuid[]) and t.status = 'dispatched' and t.format <= $4 order by t.id for update of t
  ),
  heads as (
    select lk.id as turn_id, lk.output_box_id, lk.epoch, lk.context_box_id, lk.agent_id, lk.max_steps, lk.start_position is null as is_first
    from lk join boxcar.boxes b on b.id = lk.output_box_id order by b.id for no key update of b
  ),
  hd as (
    update boxcar.boxes b set head_position = b.head_position + case when heads.is_first then 1 else 0 end from heads where b.id = heads.output_box_id
    returning heads.*, b.head_position, b.view_position
  ),
  started as (
    insert into boxcar.tape_entries (box_id, position, kind, payload, turn_id, author_id)
    select hd.output_box_id, hd.head_position, 'event', json_build_object('name', 'turn.started', 'data',
        json_strip_nulls(json_build_object('turn_id', hd.turn_id, 'context_box_id', hd.context_box_id, 'steps_left', case when hd.max_steps <= 2 then hd.max_steps end))),
      hd.turn_id, hd.agent_id::text
    from hd where hd.is_first
  ),
  cl as (
    update boxcar.turns t set status = 'running', holder_id = $2, attempt = t.attempt + 1, format = greatest(t.format, $5),
      start_position = case when hd.is_first then hd.head_position else t.start_position end
    from hd where t.id = hd.turn_id and t.status = 'dispatched' and t.epoch = hd.epoch
    returning t.*, hd.head_position, hd.view_position
  ),
  opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select cl.id, cl.step_count + 1, cl.attempt, cl.project_id, cl.epoch, $2, cl.view_position, cl.head_position
    from cl where cl.pending_calls = 0
  )
  select cl.id, cl.project_id, cl.run_id, cl.agent_id, cl.profile_id, cl.epoch, cl.parent_turn_id, cl.parent_tool_call_id, cl.is_awaited, cl.primitive,
    cl.context_box_id, cl.output_box_id, cl.channel_id, cl.worker_target, cl.traceparent, cl.max_steps, cl.deadline_at, cl.step_count,
    cl.empty_replies, cl.pending_calls, cl.attempt, cl.retries, cl.losses, cl.batch_ids is not null as is_member,
    cl.budget_id, cl.allotted_tokens::float8, cl.allotted_cost::float8, cl.allotted_steps, cl.spent_tokens::float8, cl.spent_cost::float8
  from cl`);

interface ClaimRow extends pg.QueryResultRow {
  id: TurnId;
  project_id: ProjectId;
  run_id: RunId;
  agent_id: AgentId;
  profile_id: ProfileId;
  epoch: number;
  parent_turn_id: TurnId | null;
  parent_tool_call_id: ToolCallId | null;
  is_awaited: boolean;
  primitive: string;
  context_box_id: BoxId;
  output_box_id: BoxId;
  channel_id: string;
  worker_target: string;
  traceparent: string | null;
  max_steps: number;
  deadline_at: Date | null;
  step_count: number;
  empty_replies: number;
  pending_calls: number;
  attempt: number;
  retries: number;
  losses: number;
  is_member: boolean;
  budget_id: string | null;
  allotted_tokens: number | null;
  allotted_cost: number | null;
  allotted_steps: number | null;
  spent_tokens: number | null;
  spent_cost: number | null;
}

const toPurse = (row: ClaimRow): Purse | null =>
  row.spent_tokens === null
    ? null
    : {
        budgetId: row.budget_id,
        allotment: { tokens: row.allotted_tokens, costMicros: row.allotted_cost, steps: row.allotted_steps },
        spentTokens: row.spent_tokens,
        spentCostMicros: row.spent_cost ?? 0,
      };

/**
 * Takes dispatched turns for a worker; opens the next step of those that wait for no call.
 *
 * @param build - Whose worker it is: a turn that it cannot read is `stale` for it, and what it takes is of its format from then on.
 * @returns One outcome per ring, in order. A ring whose epoch has passed is `stale`: a value, not an error.
 */
export function claim(
  pool: pg.Pool,
  rings: readonly Pick<Ring, 'turnId' | 'epoch'>[],
  holderId: WorkerId,
  build: Build = THIS_BUILD,
): Promise<readonly ClaimOutcome[]> {
  return retryTransient(() => claimOnce(pool, rings, holderId, build));
}

/** `claim` on one connection, whose loss is the caller's to deal with. */
export async function claimOnce(
  db: Queryable,
  rings: readonly Pick<Ring, 'turnId' | 'epoch'>[],
  holderId: WorkerId,
  build: Build = THIS_BUILD,
): Promise<readonly ClaimOutcome[]> {
  const wanted = [
    // By turn and epoch: an old ring must not stand in the place of the one that counts.
    ...new Map(
      rings.map(({ turnId, epoch }) => [`${turnId}-${epoch}`, { turn_id: turnId, epoch }] as const),
    ).values(),
  ];
  const rows = await run<ClaimRow>(db, CLAIM, [
    JSON.stringify(wanted),
    holderId,
    wanted.map((item) => item.turn_id),
    build.schemaVersion,
    build.turnFormat,
  ]);
  const claimed = new Map(rows.map((row) => [row.id, row]));
  return rings.map((ring) => {
    const row = claimed.get(ring.turnId);
    if (row === undefined || row.epoch !== ring.epoch) return { outcome: 'stale' };
    // A ring that came twice in one batch wins once.
    claimed.delete(ring.turnId);
    return {
      outcome: 'claimed',
      turn: {
        turnId: row.id,
        projectId: row.project_id,
        runId: row.run_id,
        agentId: row.agent_id,
        profileId: row.profile_id,
        epoch: row.epoch,
        parentTurnId: row.parent_turn_id,
        parentToolCallId: row.parent_tool_call_id,
        isAwaited: row.is_awaited,
        primitive: row.primitive,
        contextBoxId: row.context_box_id,
        outputBoxId: row.output_box_id,
        channelId: row.channel_id,
        workerTarget: row.worker_target,
        traceparent: row.traceparent,
        maxSteps: row.max_steps,
        deadlineAt: row.deadline_at,
        stepCount: row.step_count,
        emptyReplies: row.empty_replies,
        pendingCalls: row.pending_calls,
        attempt: row.attempt,
        retries: row.retries,
        losses: row.losses,
        isMember: row.is_member,
        purse: toPurse(row),
      },
    };
  });
}

export interface NewEntry {
  readonly kind: EntryKind;
  readonly cardId: CardId;
  readonly tokens: number;
}

export interface NewToolCall {
  readonly id: ToolCallId;
  readonly ordinal: number;
  readonly providerCallId: string;
  readonly name: string;
  readonly arguments: JsonValue;
  readonly route: CallRouteKind;
  /** Whose queue it goes to; null unless the route is `queue`. */
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly timeoutMs: number;
  /** What the call is, for the loop guard; absent: not guarded. */
  readonly guardHash?: string;
}

export interface TurnEnding {
  readonly status: FinalStatus;
  readonly deliverableCardId: CardId;
  readonly error: ErrorBody | null;
  /** The result of the call that awaits this turn, if one does. */
  readonly settles: {
    readonly toolCallId: ToolCallId;
    readonly turnId: TurnId;
    readonly status: CallSettlement['status'];
    readonly card: NewCard;
  } | null;
}

/** What one commit writes about one turn. */
export interface StepCommit {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly epoch: number;
  /** True when a parent turn gets to read the output box at the end. */
  readonly hasParent: boolean;
  /** True when batches were known to wait for it as it was taken; then its end takes the locks at once. */
  readonly isMember?: boolean;
  /** Who must hold it; null = the sweep, which ends turns nobody holds. */
  readonly holderId: WorkerId | null;
  /** The step this commit closes; null when it closes none (an end between steps). */
  readonly step: {
    readonly step: number;
    readonly attempt: number;
    readonly model: string;
    readonly promptHash: string;
    /** Names the row of boxcar.toolsets with the tools that were offered. */
    readonly toolsetHash: string;
    readonly manifest: JsonValue;
    readonly thoughtCardId: CardId | null;
    readonly usage: JsonValue;
    readonly finishReason: string;
    readonly modelMs: number;
    readonly error: ErrorBody | null;
  } | null;
  /** What the step used, for a turn whose row keeps it. */
  readonly spent?: { readonly tokens: number; readonly costMicros: number } | undefined;
  readonly cards: readonly NewCard[];
  readonly entries: readonly NewEntry[];
  readonly calls: readonly NewToolCall[];
  readonly emptyReplies: number;
  /** Results of this turn's own calls, recorded first. */
  readonly results: readonly CallSettlement[];
  readonly end: TurnEnding | null;
}

export type CommitOutcome =
  | {
      readonly outcome: 'committed';
      /** The head of the tape before this commit's entries. */
      readonly basePosition: number | null;
    }
  /** The turn is in other hands or has ended: nothing of this commit took effect. */
  | { readonly outcome: 'fenced' };

export interface CommitResult extends SettledTurns {
  readonly outcomes: readonly CommitOutcome[];
  /**
   * Targets where a turn ended: there may be room for queued turns now. Whoever ends a turn and whoever queues one look
   * after their own commit (`promote`), so the later of the two sees both.
   */
  readonly backlogTargets: readonly string[];
  readonly endedTurnIds: readonly TurnId[];
  /** Ended turns that a job at the queue door waits for. */
  readonly doorTurnIds: readonly TurnId[];
  /** Batches that these ends have made due: they are to be finished now (`finishBatches`), else the sweep finds them. */
  readonly dueBatchIds: readonly BatchId[];
  /** Ended turns of which something is to be told (`sessions.ts`): now, else the sweep finds them. */
  readonly noticeTurnIds: readonly TurnId[];
}

const LOCK_TURNS = statement(
  'select id, status, epoch, holder_id, batch_ids is not null as is_member from boxcar.turns where id = any ($1::uuid[]) order by id for update',
);

interface LockedTurn extends pg.QueryResultRow {
  id: TurnId;
  status: TurnStatus;
  epoch: number;
  holder_id: WorkerId | null;
  is_member: boolean;
}

/** C2, read under the lock of the turn: the same condition as in COMMIT. */
const isFenceOpen = (commit: StepCommit, turn: LockedTurn | undefined): boolean =>
  turn !== undefined &&
  !isFinal(turn.status) &&
  turn.epoch === commit.epoch &&
  turn.holder_id === commit.holderId &&
  (commit.holderId === null || turn.status === 'running');

/** Ended turns are announced here by the commit that ends them, as comma-separated ids. A hint only: the rows decide. */
export const ENDED_CHANNEL = 'boxcar_ended';
/** A NOTIFY payload must stay below 8,000 bytes, or it aborts its transaction. */
const IDS_PER_NOTICE = 200;

const CALLS_PART = `, calls as (
    insert into boxcar.tool_calls (id, project_id, turn_id, step, ordinal, provider_call_id, name, arguments, route, target, retry, epoch, status, deadline_at, look_at, guard_hash)
    select x.id, hd.project_id, hd.turn_id, hd.step, x.ordinal, x.provider_call_id, x.name, x.arguments::json, x.route, x.target, x.retry, hd.epoch, 'pending', now() + x.timeout_ms * interval '1 millisecond',
      case when x.route = 'queue' then now() + ${FIRST_LOOK} end, decode(x.guard_hash, 'hex')
    from hd cross join lateral json_to_recordset(hd.calls) as x(id uuid, ordinal int, provider_call_id text, name text, arguments text, route text, target text, retry text, timeout_ms float8, guard_hash text)
  )`;

const OPENED_PART = `, opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select up.id, up.step_count + 1, 1, up.project_id, up.epoch, up.holder_id, up.view_position, up.head_position
    from up where up.status = 'running' and up.call_count = 0
  )`;

const NOTICES_PART = `, notices as (
    select pg_notify('${ENDED_CHANNEL}', string_agg(e.id::text, ','))
    from (select up.id, row_number() over () as n from up where up.ended_at is not null) e group by e.n / ${IDS_PER_NOTICE}
  )`;

// Only who is in nobody's hands can wait.
const WAITS_PART = `, unwaited as (
    delete from boxcar.waits w using up where w.turn_id = up.id and up.ended_at is not null
  )`;

const READERS_PART = `, readers as (
    insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
    select distinct on (p.agent_id, up.output_box_id) up.project_id, p.agent_id, up.output_box_id, 'read', up.head_position, 'turn:' || up.id
    from up join boxcar.turns p on p.id = up.parent_turn_id
    where up.ended_at is not null and p.agent_id <> up.agent_id
    order by p.agent_id, up.output_box_id, up.id
    on conflict (agent_id, box_id, mode) do update set
      upto_position = case when grants.expires_at <= now() then excluded.upto_position
        when grants.upto_position is null then null else greatest(grants.upto_position, excluded.upto_position) end,
      expires_at = case when grants.expires_at <= now() then null else grants.expires_at end,
      source = case when grants.expires_at <= now() then excluded.source else grants.source end
  )`;

const ENDS_COLUMNS = `
    (select count(*) from notices) as notice_count,
    up.ended_at is not null and up.pending_calls > 0 as has_open_calls, up.ended_at is not null as is_ended,
    up.ended_at is not null and (select true from boxcar.operations o where o.awaited_turn_id = up.id and o.door_job_id is not null limit 1) is not null as has_door,
    up.ended_at is not null and (up.notifies is true or up.unseen_position is not null) as has_notice`;

interface CommitParts {
  readonly hasCalls: boolean;
  /** Some turn ends. */
  readonly hasEnds: boolean;
  /** Some turn ends below another, whose agent may read the tape then. */
  readonly hasReaders: boolean;
  /** Some turn goes on at once with its next step. */
  readonly hasNext: boolean;
  /** Some turn ends that nobody holds. */
  readonly hasUnheld: boolean;
  /** Several turns of one agent, whose ends stand on one tape, one behind the other. */
  readonly hasShared: boolean;
  /** More turns than a micro-batch has: the transaction has locked them by an earlier statement. */
  readonly isLarge: boolean;
  /**
   * Do batches wait for turns that end? `unknown`: those for which one does are left as they are. A batch that came while this
   * statement waited for the turn's lock is not in its snapshot, so it can be lowered only by a statement begun after the lock.
   */
  readonly batches: 'unknown' | 'none' | 'some';
}

const lockPart = (leavesMembers: boolean): string => `lk as (
    select t.output_box_id, d.* from boxcar.turns t join d on d.turn_id = t.id and d.epoch = t.epoch
    where t.id = any ($2::uuid[]) and t.status not in ('success', 'partial', 'failed', 'timeout', 'canceled')
      and t.holder_id is not distinct from d.holder_id and (d.holder_id is null or t.status = 'running')${leavesMembers ? ' and (d.end_status is null or t.batch_ids is null)' : ''}
    order by t.id for update of t
  )`;

// To look for each turn in a list of all took a third of the time at 1,000 turns.
const LARGE_LK_PART = `lk as materialized (
    select t.output_box_id, d.* from d cross join lateral (
      select x.output_box_id from boxcar.turns x
      where x.id = d.turn_id and x.epoch = d.epoch and x.status not in ('success', 'partial', 'failed', 'timeout', 'canceled')
        and x.holder_id is not distinct from d.holder_id and (d.holder_id is null or x.status = 'running')
      offset 0) t
    where $2::uuid[] is not null
    order by d.turn_id
  )`;

const HEADS_PART = `heads as (
    select lk.* from lk join boxcar.boxes b on b.id = lk.output_box_id order by b.id for no key update of b
  ),
  hd as (
    update boxcar.boxes b set head_position = b.head_position + heads.entry_count from heads where b.id = heads.output_box_id
    returning heads.*, b.head_position, b.head_position - heads.entry_count as base, b.view_position
  )`;

// A row is updated once by a statement, so a tape that several turns end on is moved by the sum of their entries.
const SHARED_HEADS_PART = `tapes as (
    select b.id from boxcar.boxes b where b.id in (select lk.output_box_id from lk) order by b.id for no key update of b
  ),
  heads as (
    select lk.*, (sum(lk.entry_count) over (partition by lk.output_box_id order by lk.turn_id) - lk.entry_count)::int as ahead
    from lk where (lk.output_box_id in (select id from tapes)) is true
  ),
  moved as (
    update boxcar.boxes b set head_position = b.head_position + s.n
    from (select output_box_id, sum(entry_count)::int as n from heads group by output_box_id) s where b.id = s.output_box_id
    returning b.id, b.head_position, b.head_position - s.n as start, b.view_position
  ),
  hd as (
    select heads.*, moved.head_position, moved.start + heads.ahead as base, moved.view_position from heads join moved on moved.id = heads.output_box_id
  )`;

// Each part reads the one before it, so that no two lists of a batch are joined by going through both; what belongs to one
// turn travels inside its record.
const commitText = ({
  hasCalls,
  hasEnds,
  hasReaders,
  hasNext,
  hasUnheld,
  hasShared,
  isLarge,
  batches,
}: CommitParts): string => `
  with d as (
    select * from json_to_recordset($1::json) as d(turn_id uuid, epoch int, holder_id uuid, entry_count int, call_count int, empty_replies int,
      step int, attempt int, model text, prompt_hash text, toolset_hash text, manifest jsonb, thought_card_id uuid, usage jsonb, finish_reason text, model_ms int, step_error jsonb,
      end_status text, deliverable_card_id uuid, error jsonb, agent_id uuid, project_id uuid, spent_tokens bigint, spent_cost bigint, cards json, entries json, calls json)
  ),
  ${isLarge ? LARGE_LK_PART : lockPart(hasEnds && batches === 'unknown')},
  ${hasShared ? SHARED_HEADS_PART : HEADS_PART},
  cards as (
    insert into ${CARD_TARGET} select ${CARD_VALUES} from hd cross join lateral json_to_recordset(hd.cards) as x(${CARD_COLUMNS})
  ),
  entries as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, turn_id, step, author_id)
    select hd.output_box_id, hd.base + x.n, x.kind, x.card_id, x.tokens, hd.turn_id, hd.step, hd.agent_id::text
    from hd cross join lateral json_to_recordset(hd.entries) as x(n int, kind text, card_id uuid, tokens int)
  ),
  closed as (
    update boxcar.steps s set model = hd.model, prompt_hash = decode(hd.prompt_hash, 'hex'), toolset_hash = decode(hd.toolset_hash, 'hex'), manifest = hd.manifest, thought_card_id = hd.thought_card_id,
      usage = hd.usage, finish_reason = hd.finish_reason, model_ms = hd.model_ms, error = hd.step_error, committed_at = now(),
      to_position = coalesce((hd.manifest->>'head')::int, s.to_position)
    from hd where s.turn_id = hd.turn_id and s.step = hd.step and s.attempt = hd.attempt
  ),
  up as (
    update boxcar.turns t set
      step_count = coalesce(hd.step, t.step_count), empty_replies = hd.empty_replies, pending_calls = t.pending_calls + hd.call_count,
      attempt = case when hd.step is null then t.attempt when hd.end_status is null and hd.call_count = 0 then 1 else 0 end,
      retries = case when hd.step is null then t.retries else 0 end,
      losses = case when hd.step is null then t.losses else 0 end,
      status = coalesce(hd.end_status, t.status), holder_id = case when hd.end_status is null then t.holder_id end,
      ended_at = case when hd.end_status is not null then now() end, deliverable_card_id = hd.deliverable_card_id, error = hd.error,
      spent_tokens = t.spent_tokens + coalesce(hd.spent_tokens, 0), spent_cost = t.spent_cost + coalesce(hd.spent_cost, 0)
    from hd where t.id = hd.turn_id
    returning t.id, t.project_id, t.epoch, t.holder_id, t.step_count, t.status, t.worker_target, t.ended_at, t.batch_ids, t.pending_calls,
      t.notifies, t.unseen_position, t.parent_turn_id, t.agent_id, t.output_box_id, hd.call_count, hd.base, hd.head_position, hd.view_position
  )${hasCalls ? CALLS_PART : ''}${hasNext ? OPENED_PART : ''}${hasEnds && batches === 'some' ? LOWER_BATCHES : ''}${hasReaders ? READERS_PART : ''}${hasEnds ? NOTICES_PART : ''}${hasUnheld ? WAITS_PART : ''}
  select ${hasEnds ? ENDS_COLUMNS : 'false as has_open_calls, false as is_ended, false as has_door, false as has_notice'},
    ${hasEnds && batches === 'some' ? '(select json_agg(id) from lowered where is_due)' : 'null::json'} as due_batch_ids, up.id as turn_id, up.worker_target, up.base from up`;

const commitStatements = new Map<string, Statement>();

/** One text per combination of parts: what a batch has no use for is not even opened by Postgres. */
function commitStatement(parts: CommitParts): Statement {
  const key = Object.values(parts).join(' ');
  const prepared = commitStatements.get(key) ?? statement(commitText(parts));
  commitStatements.set(key, prepared);
  return prepared;
}

interface CommitRow extends pg.QueryResultRow {
  turn_id: TurnId;
  worker_target: string;
  base: number | null;
  is_ended: boolean;
  has_door: boolean;
  has_notice: boolean;
  due_batch_ids: BatchId[] | null;
  has_open_calls: boolean;
}

/** Commits beyond a micro-batch come by `commitWithin` alone, which locks their turns before. */
const LARGE = 100;

const toCommit = (commits: readonly StepCommit[], batches: CommitParts['batches']): Statement =>
  commitStatement({
    batches,
    isLarge: commits.length > LARGE,
    hasCalls: commits.some((commit) => commit.calls.length > 0),
    hasEnds: commits.some((commit) => commit.end !== null),
    hasReaders: commits.some((commit) => commit.end !== null && commit.hasParent),
    hasNext: commits.some((commit) => commit.end === null && commit.calls.length === 0),
    hasUnheld: commits.some((commit) => commit.end !== null && commit.holderId === null),
    hasShared: new Set(commits.map((commit) => commit.agentId)).size < commits.length,
  });

function commitValues(commits: readonly StepCommit[]): unknown[] {
  const records = commits.map((commit) => ({
    turn_id: commit.turnId,
    project_id: commit.projectId,
    agent_id: commit.agentId,
    epoch: commit.epoch,
    holder_id: commit.holderId,
    entry_count: commit.entries.length,
    call_count: commit.calls.length,
    empty_replies: commit.emptyReplies,
    step: commit.step?.step ?? null,
    attempt: commit.step?.attempt ?? null,
    model: commit.step?.model ?? null,
    prompt_hash: commit.step?.promptHash ?? null,
    toolset_hash: commit.step?.toolsetHash ?? null,
    manifest: commit.step?.manifest ?? null,
    thought_card_id: commit.step?.thoughtCardId ?? null,
    usage: commit.step?.usage ?? null,
    finish_reason: commit.step?.finishReason ?? null,
    model_ms: commit.step?.modelMs ?? null,
    step_error: commit.step?.error ?? null,
    end_status: commit.end?.status ?? null,
    deliverable_card_id: commit.end?.deliverableCardId ?? null,
    error: commit.end?.error ?? null,
    ...(commit.spent === undefined
      ? {}
      : { spent_tokens: commit.spent.tokens, spent_cost: commit.spent.costMicros }),
    cards: commit.cards.map(cardRecord),
    entries: commit.entries.map((entry, index) => ({
      n: index + 1,
      kind: entry.kind,
      card_id: entry.cardId,
      tokens: entry.tokens,
    })),
    calls: commit.calls.map((call) => ({
      id: call.id,
      ordinal: call.ordinal,
      provider_call_id: call.providerCallId,
      name: call.name,
      arguments: JSON.stringify(call.arguments),
      route: call.route,
      target: call.target,
      retry: call.retry,
      timeout_ms: call.timeoutMs,
      guard_hash: call.guardHash,
    })),
  }));
  return [JSON.stringify(records), commits.map((commit) => commit.turnId)];
}

/**
 * Commits steps and ends of turns. A commit without calls and without an end opens the next step; an end settles the call
 * that awaits it, grants the parent the output box, and may resume the parent: all in one transaction and, unless something
 * must be decided between, in one round trip.
 */
export async function commitSteps(pool: pg.Pool, commits: readonly StepCommit[]): Promise<CommitResult> {
  if (mustDecide(commits)) return transaction(pool, commitWithin(commits));
  const result = await commitAtOnce(pool, commits);
  const left = commits.filter(
    (commit, index) => commit.end !== null && result.outcomes[index]?.outcome === 'fenced',
  );
  if (left.length === 0) return result;
  // In other hands, or joined since its worker took it: the locks tell.
  const rest = await transaction(pool, commitWithin(left));
  return {
    ...rest,
    outcomes: commits.map(
      (commit, index) =>
        rest.outcomes[left.indexOf(commit)] ?? result.outcomes[index] ?? { outcome: 'fenced' },
    ),
    backlogTargets: [...new Set([...result.backlogTargets, ...rest.backlogTargets])],
    endedTurnIds: [...result.endedTurnIds, ...rest.endedTurnIds],
    doorTurnIds: [...result.doorTurnIds, ...rest.doorTurnIds],
    dueBatchIds: [...new Set([...result.dueBatchIds, ...rest.dueBatchIds])],
    rings: [...result.rings, ...rest.rings],
    noticeTurnIds: [...result.noticeTurnIds, ...rest.noticeTurnIds],
  };
}

/** Something of them depends on what the rows answer: results that fall with their commit, calls that an end leaves open. */
function mustDecide(commits: readonly StepCommit[]): boolean {
  const ids = new Set(commits.map((commit) => commit.turnId));
  // A row is changed once by a statement, and a parent may be one of those that commit.
  const isOfOneFamily = ({ settles }: TurnEnding): boolean => settles !== null && ids.has(settles.turnId);
  return (
    commits.length > LARGE ||
    commits.some(
      (commit) =>
        commit.results.length > 0 ||
        (commit.end !== null && (mayBreakOff(commit, commit.end) || isOfOneFamily(commit.end))),
    )
  );
}

/** In one statement where nobody waits for the ends; else with the locks before it and the results after it, sent together. */
async function commitAtOnce(pool: pg.Pool, commits: readonly StepCommit[]): Promise<CommitResult> {
  const settlements = commits.flatMap(({ turnId, end }) =>
    end === null || end.settles === null
      ? []
      : [{ ...end.settles, ifEnded: { turnId, deliverableCardId: end.deliverableCardId } }],
  );
  const hasMembers = commits.some((commit) => commit.end !== null && commit.isMember === true);
  const commit = toCommit(commits, hasMembers ? 'some' : 'unknown');
  const values = commitValues(commits);
  if (settlements.length === 0 && !hasMembers)
    return readResult(commits, await runRetrying<CommitRow>(pool, commit, values));
  return transactAtOnce(pool, async (tx) => {
    const [, rows, settled] = await Promise.all([
      run<LockedTurn>(tx, LOCK_TURNS, [familyOf(commits)]),
      run<CommitRow>(tx, commit, values),
      settleCalls(tx, settlements),
    ]);
    return { ...readResult(commits, rows), ...settled };
  });
}

/** The turns that commits lock: children and parents together, by id, so that two ends of one family never wait in a circle. */
const familyOf = (commits: readonly StepCommit[]): TurnId[] =>
  commits.flatMap((commit) => [commit.turnId, ...(commit.end?.settles ? [commit.end.settles.turnId] : [])]);

/** The same as part of the caller's transaction. Turns that end each other's waiting calls are locked before, all at once. */
export const commitWithin =
  (commits: readonly StepCommit[]) =>
  async (tx: Tx): Promise<CommitResult> => {
    const locked = await run<LockedTurn>(tx, LOCK_TURNS, [familyOf(commits)]);
    const turns = new Map(locked.map((turn) => [turn.id, turn]));
    // Results that belong to a commit fall with it: a stale `submit_result` must not look answered to the next holder.
    const results = commits.flatMap((commit) =>
      isFenceOpen(commit, turns.get(commit.turnId)) ? commit.results : [],
    );
    if (results.length > 0) await settleCalls(tx, results);
    const hasMembers = commits.some((commit) => turns.get(commit.turnId)?.is_member === true);
    const text = toCommit(commits, hasMembers ? 'some' : 'none');
    const rows = await run<CommitRow>(tx, text, commitValues(commits));
    const result = readResult(commits, rows);
    const waiting = rows.filter((row) => row.has_open_calls).map((row) => row.turn_id);
    const closed = waiting.length === 0 ? [] : await closeBatchesOf(tx, waiting);
    return {
      ...result,
      dueBatchIds: [...new Set([...result.dueBatchIds, ...closed])],
      ...(await settleParents(tx, commits, new Set(rows.map((row) => row.turn_id)))),
    };
  };

/** Ends that come from outside the turn, which may leave calls open that wait for batches. */
const mayBreakOff = ({ step }: StepCommit, { status }: TurnEnding): boolean =>
  status !== 'success' && (status !== 'partial' || step === null);

function readResult(commits: readonly StepCommit[], rows: readonly CommitRow[]): CommitResult {
  const committed = new Map(rows.map((row) => [row.turn_id, row]));
  return {
    outcomes: commits.map((commit): CommitOutcome => {
      const row = committed.get(commit.turnId);
      return row === undefined ? { outcome: 'fenced' } : { outcome: 'committed', basePosition: row.base };
    }),
    backlogTargets: [...new Set(rows.filter((row) => row.is_ended).map((row) => row.worker_target))],
    endedTurnIds: rows.filter((row) => row.is_ended).map((row) => row.turn_id),
    doorTurnIds: rows.filter((row) => row.has_door).map((row) => row.turn_id),
    dueBatchIds: rows[0]?.due_batch_ids ?? [],
    noticeTurnIds: rows.filter((row) => row.has_notice).map((row) => row.turn_id),
    rings: [],
    duplicates: [],
  };
}

function settleParents(
  tx: Tx,
  commits: readonly StepCommit[],
  committed: ReadonlySet<TurnId>,
): Promise<SettledTurns> {
  return settleCalls(
    tx,
    commits.flatMap(({ turnId, end }) => (end?.settles && committed.has(turnId) ? [end.settles] : [])),
  );
}

const TURN_ENDS = statement(`
  select t.id as turn_id, t.status, t.agent_id, t.context_box_id, t.output_box_id, t.error, t.run_id, t.step_count, coalesce(c.content, c.placeholder) as content, t.project_id, p.name as project_name
  from boxcar.turns t join boxcar.projects p on p.id = t.project_id left join boxcar.cards c on c.id = t.deliverable_card_id
  where t.id = any ($1::uuid[])`);

export interface TurnState extends pg.QueryResultRow {
  readonly project_id: ProjectId;
  readonly project_name: string;
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly status: TurnStatus;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
  readonly step_count: number;
  readonly error: ErrorBody | null;
  /** The deliverable's content once the turn has ended. */
  readonly content: JsonValue | null;
}

/** Where turns stand, and what they delivered. */
export function loadTurnStates(db: Queryable, turnIds: readonly TurnId[]): Promise<TurnState[]> {
  return run<TurnState>(db, TURN_ENDS, [turnIds]);
}

const RELEASE = statement(`
  with lk as (
    select t.id from boxcar.turns t where t.holder_id = $1 and t.status = 'running' and ($2::uuid[] is null or t.id = any ($2)) order by t.id for update
  )
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now(), losses = t.losses + $3, format = greatest(t.format, $4)
  from lk where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

interface RingRow extends pg.QueryResultRow {
  turn_id: TurnId;
  epoch: number;
  worker_target: string;
}

export const toRing = (row: RingRow): Ring => ({
  turnId: row.turn_id,
  epoch: row.epoch,
  workerTarget: row.worker_target,
});

/**
 * Hands turns back: a worker that shuts down gives them to the others.
 *
 * @param options.isLoss - They are given up because running them failed: that counts like a worker lost.
 * @param options.format - Only builds that know this migration can read them, as it turned out.
 */
export async function releaseTurns(
  pool: pg.Pool,
  holderId: WorkerId,
  turnIds: readonly TurnId[] | null,
  options: { readonly isLoss?: boolean; readonly format?: number } = {},
): Promise<readonly Ring[]> {
  const losses = options.isLoss === true ? 1 : 0;
  const values = [holderId, turnIds, losses, options.format ?? 0];
  return (await runRetrying<RingRow>(pool, RELEASE, values)).map(toRing);
}
