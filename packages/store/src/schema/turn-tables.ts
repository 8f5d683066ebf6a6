/** The tables of work: runs, turns, their steps and calls, batches, submissions and budgets. */
import type {
  AgentId,
  BatchId,
  BatchKind,
  BatchStatus,
  BoxId,
  BudgetLimits,
  CardId,
  Closing,
  ErrorBody,
  JsonObject,
  JsonValue,
  ProfileId,
  ProjectId,
  RunId,
  ToolCallId,
  TurnId,
  TurnStatus,
  WorkerId,
} from '@boxcar/kernel';
import { sql } from 'drizzle-orm';
import { bigint, boolean, integer, primaryKey, smallint, text, unique, uuid } from 'drizzle-orm/pg-core';
import type { CallRouteKind, OfferedTool } from '../kinds/row-kinds.js';
import { boxcar, bytea, createdAt, json, jsonb, time } from './columns.js';

/** The tree below one root turn. The status of a run is that of its root turn. */
export const runs = boxcar.table('runs', {
  id: uuid('id').$type<RunId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  rootTurnId: uuid('root_turn_id').$type<TurnId>().notNull(),
  limits: jsonb('limits').$type<JsonObject>().notNull().default({}),
  traceparent: text('traceparent'),
  createdAt: createdAt(),
  /** The number of turns of the run; each submission to the run updates it. */
  turnCount: integer('turn_count').notNull().default(1),
  /** Set by a cancel of the whole run: no turn can start in it anymore. */
  canceledAt: time('canceled_at'),
});

/** The limits of a run, or of the tree below one turn, with their use. Read and written while the run's row is locked. */
export const budgets = boxcar.table('budgets', {
  /** The run, or the turn at the top of the capped subtree. */
  id: uuid('id').primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  runId: uuid('run_id').$type<RunId>().notNull(),
  /** The account that encloses this one. */
  parentId: uuid('parent_id'),
  topDepth: integer('top_depth').notNull(),
  limits: jsonb('limits').$type<BudgetLimits>().notNull(),
  deadlineAt: time('deadline_at'),
  tokensReserved: bigint('tokens_reserved', { mode: 'number' }).notNull().default(0),
  tokensSpent: bigint('tokens_spent', { mode: 'number' }).notNull().default(0),
  costReserved: bigint('cost_reserved', { mode: 'number' }).notNull().default(0),
  costSpent: bigint('cost_spent', { mode: 'number' }).notNull().default(0),
  turnsUsed: integer('turns_used').notNull().default(0),
  stepsReserved: integer('steps_reserved').notNull().default(0),
  stepsSpent: integer('steps_spent').notNull().default(0),
  /** The time since which a turn waits for the account to be raised. */
  pausedAt: time('paused_at'),
  createdAt: createdAt(),
});

export const turns = boxcar.table('turns', {
  id: uuid('id').$type<TurnId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  runId: uuid('run_id').$type<RunId>().notNull(),
  agentId: uuid('agent_id').$type<AgentId>().notNull(),
  profileId: uuid('profile_id').$type<ProfileId>().notNull(),
  parentTurnId: uuid('parent_turn_id').$type<TurnId>(),
  /** The call that asked for the turn. */
  parentToolCallId: uuid('parent_tool_call_id').$type<ToolCallId>(),
  /** True when the turn's end is the result of that call. */
  isAwaited: boolean('is_awaited').notNull().default(false),
  depth: integer('depth').notNull(),
  primitive: text('primitive').notNull(),
  channelId: text('channel_id').notNull().default('public'),
  status: text('status').$type<TurnStatus>().notNull(),
  /** Raised by every transition into `dispatched`. Job ids and claims contain it. */
  epoch: integer('epoch').notNull(),
  holderId: uuid('holder_id').$type<WorkerId>(),
  /** Claims since the last committed step. */
  attempt: integer('attempt').notNull().default(0),
  stepCount: integer('step_count').notNull().default(0),
  maxSteps: integer('max_steps').notNull(),
  /** Useless replies in a row. */
  emptyReplies: integer('empty_replies').notNull().default(0),
  /** Model calls of the current step that failed and are tried again. */
  retries: smallint('retries').notNull().default(0),
  pendingCalls: integer('pending_calls').notNull().default(0),
  contextBoxId: uuid('context_box_id').$type<BoxId>().notNull(),
  outputBoxId: uuid('output_box_id').$type<BoxId>().notNull(),
  startPosition: integer('start_position'),
  /** The beginning of the view of the turn's first step (turn-views.ts). */
  ownViewAnchor: integer('own_view_anchor'),
  ownViewPosition: integer('own_view_position'),
  /** The selector that makes the turn's prompts (selector-waits.ts), and the version that the first step has fixed. */
  selector: text('selector'),
  selectorVersion: text('selector_version'),
  /** The child of the turn's batch that fills the prompt cache first. The turn's own id when the turn is that child (warm-cache.ts). */
  warmTurnId: uuid('warm_turn_id').$type<TurnId>(),
  deliverableCardId: uuid('deliverable_card_id').$type<CardId>(),
  error: jsonb('error').$type<ErrorBody>(),
  workerTarget: text('worker_target').notNull().default(''),
  priority: smallint('priority').notNull().default(0),
  deadlineAt: time('deadline_at'),
  traceparent: text('traceparent'),
  createdAt: createdAt(),
  dispatchedAt: time('dispatched_at'),
  endedAt: time('ended_at'),
  /** Workers that were lost at the same step. */
  losses: smallint('losses').notNull().default(0),
  /** The batches that wait for the turn's end. */
  batchIds: uuid('batch_ids').array().$type<BatchId[]>(),
  /** The nearest account; null without an account. */
  budgetId: uuid('budget_id'),
  /** The amounts that its accounts have reserved for the turn; null when no account limits them. */
  allottedTokens: bigint('allotted_tokens', { mode: 'number' }),
  allottedCost: bigint('allotted_cost', { mode: 'number' }),
  allottedSteps: integer('allotted_steps'),
  /** Null without an account and without a token limit in the profile. */
  spentTokens: bigint('spent_tokens', { mode: 'number' }),
  spentCost: bigint('spent_cost', { mode: 'number' }),
  /** True when the unused amounts have been returned to the accounts; null without an account. */
  isSettled: boolean('is_settled'),
  /** The oldest build that can read the turn, as the number of the newest migration that it knows. */
  format: smallint('format').notNull().default(0),
  /** True when the turn's end must be reported on the tape that its session was forked from; false when it has been reported. */
  notifies: boolean('notifies'),
  /**
   * The last entry that a forked session put on the turn's tape in the meantime. If the turn has not read that far, another turn must
   * read it.
   */
  unseenPosition: integer('unseen_position'),
  /** True for a turn that the end of its parent turn started: the parent's agent has not asked for it. */
  isWoken: boolean('is_woken'),
  /** The agent on whose tape the end of this turn was reported. It may read the entries of the turn. */
  toldAgentId: uuid('told_agent_id').$type<AgentId>(),
});

/** One row per attempt at a model call. An attempt that never committed was lost. */
export const steps = boxcar.table(
  'steps',
  {
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    step: integer('step').notNull(),
    attempt: integer('attempt').notNull(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    epoch: integer('epoch').notNull(),
    holderId: uuid('holder_id').$type<WorkerId>().notNull(),
    /** The tape range from which the view was built. Together with the turn's context box it determines the prompt. */
    fromPosition: integer('from_position').notNull(),
    toPosition: integer('to_position').notNull(),
    openedAt: time('opened_at').notNull().default(sql`now()`),
    model: text('model'),
    promptHash: bytea('prompt_hash'),
    /** Identifies the tools that were offered. Null for a step that is not committed, or that is older than the table. */
    toolsetHash: bytea('toolset_hash'),
    manifest: jsonb('manifest').$type<JsonObject>(),
    /** The card that holds the answer: the thought, the deliverable, or the first call of an answer without words. */
    thoughtCardId: uuid('thought_card_id').$type<CardId>(),
    usage: jsonb('usage').$type<{ readonly input_tokens: number; readonly output_tokens: number }>(),
    finishReason: text('finish_reason'),
    modelMs: integer('model_ms'),
    error: jsonb('error').$type<ErrorBody>(),
    committedAt: time('committed_at'),
  },
  (table) => [primaryKey({ columns: [table.turnId, table.step, table.attempt] })],
);

/** A list of tool schemas as a step offered it, stored once per project. */
export const toolsets = boxcar.table(
  'toolsets',
  {
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    hash: bytea('hash').notNull(),
    schemas: json('schemas').$type<readonly OfferedTool[]>().notNull(),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.projectId, table.hash] })],
);

export const toolCalls = boxcar.table(
  'tool_calls',
  {
    id: uuid('id').$type<ToolCallId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    step: integer('step').notNull(),
    ordinal: integer('ordinal').notNull(),
    /** The provider's own id, which may repeat. */
    providerCallId: text('provider_call_id').notNull(),
    name: text('name').notNull(),
    arguments: json('arguments').$type<JsonValue>().notNull(),
    route: text('route').$type<CallRouteKind>().notNull(),
    /** Whether a takeover may repeat an interrupted call. */
    retry: text('retry').$type<'safe' | 'never'>().notNull(),
    /** The epoch that committed the call. A holder with another epoch that finds the call pending knows that it was interrupted. */
    epoch: integer('epoch').notNull(),
    status: text('status').$type<'pending' | 'success' | 'failed' | 'timeout' | 'canceled'>().notNull(),
    deadlineAt: time('deadline_at').notNull(),
    resultCardId: uuid('result_card_id').$type<CardId>(),
    createdAt: createdAt(),
    endedAt: time('ended_at'),
    /** For the route `queue`: the target whose queue has the job, `boxcar-tools-<target>`. */
    target: text('target'),
    /** The time of the next look at the job in the queue; null when the queue has nothing more to tell. */
    lookAt: time('look_at'),
    /** The time at which the call's job entered the queue. Kept only for calls that must not be sent twice. */
    sentAt: time('sent_at'),
    /** The batch that the call waits for. The batch's deadline is the valid one. */
    batchId: uuid('batch_id').$type<BatchId>(),
    /** Identifies the call for the loop guard; null = not guarded. */
    guardHash: bytea('guard_hash'),
  },
  (table) => [unique().on(table.turnId, table.step, table.ordinal)],
);

/** Turns whose ends are joined into one answer: by `fork_join`, which makes the turns, or by `collect`, which waits for existing turns. */
export const batches = boxcar.table('batches', {
  id: uuid('id').$type<BatchId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** The run of the members for a `fork_join`; the run of the waiting turn for a `collect`; null for a batch from outside. */
  runId: uuid('run_id').$type<RunId>(),
  /** The turn that asked for the batch; null for a batch from outside. */
  turnId: uuid('turn_id').$type<TurnId>(),
  /** The call that the batch's end answers; null when no call waits for it. */
  toolCallId: uuid('tool_call_id').$type<ToolCallId>().unique(),
  primitive: text('primitive').notNull(),
  kind: text('kind').$type<BatchKind>().notNull(),
  /** The members, in the order of the tasks. */
  turnIds: uuid('turn_ids').array().$type<TurnId[]>().notNull(),
  /** Members that have not ended. Their ends lower the number, also after the end of the batch. */
  remaining: integer('remaining').notNull(),
  succeeded: integer('succeeded').notNull(),
  failed: integer('failed').notNull(),
  minSuccess: integer('min_success'),
  failFast: boolean('fail_fast').notNull(),
  status: text('status').$type<BatchStatus>().notNull(),
  /** The reason why the members are being ended. */
  closing: text('closing').$type<Closing>(),
  /** True when the batch has work to do. The process that set it does the work, or else the sweep does. */
  isDue: boolean('is_due').notNull(),
  deadlineAt: time('deadline_at'),
  /** The result of the batch when no call waited for it. */
  answer: json('answer').$type<JsonValue>(),
  createdAt: createdAt(),
  endedAt: time('ended_at'),
});

/** The idempotency record of every accepted submission, with the first answer. */
export const operations = boxcar.table(
  'operations',
  {
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    idempotencyKey: text('idempotency_key').notNull(),
    primitive: text('primitive').notNull(),
    requestHash: bytea('request_hash').notNull(),
    response: json('response').$type<JsonValue>().notNull(),
    /** The turn whose end is the final answer, when the caller waits for it. */
    awaitedTurnId: uuid('awaited_turn_id').$type<TurnId>(),
    /** The job of the queue door that waits for that answer. */
    doorJobId: text('door_job_id'),
    createdAt: createdAt(),
    /** The batch whose end is the final answer, when the caller waits for it. */
    awaitedBatchId: uuid('awaited_batch_id').$type<BatchId>(),
    /** New batches of new turns, and new turns outside of these batches. Null for a row of a build without this column. */
    made: uuid('made').array().$type<(TurnId | BatchId)[]>(),
  },
  (table) => [primaryKey({ columns: [table.projectId, table.idempotencyKey] })],
);

/** Answers that came too late to count. They are stored with their cost, and never applied. */
export const evidence = boxcar.table(
  'evidence',
  {
    id: uuid('id').primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    kind: text('kind').$type<'reply' | 'result'>().notNull(),
    step: integer('step').notNull(),
    /** Null for an outside worker, which does not know attempts. */
    attempt: integer('attempt'),
    /** The epoch under which the work was begun. */
    epoch: integer('epoch').notNull(),
    holderId: uuid('holder_id').$type<WorkerId>(),
    toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
    body: json('body').$type<JsonValue>().notNull(),
    usage: jsonb('usage').$type<{ readonly input_tokens: number; readonly output_tokens: number }>(),
    createdAt: createdAt(),
    erasedAt: time('erased_at'),
    erasedReason: text('erased_reason'),
  },
  (table) => [
    unique().on(table.turnId, table.epoch, table.step, table.attempt, table.toolCallId).nullsNotDistinct(),
  ],
);
