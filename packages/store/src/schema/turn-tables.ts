/** What is done: runs, turns, their steps and calls, joins, submissions and budgets. */
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

/** The tree below one root turn; its status is that of its root turn. */
export const runs = boxcar.table('runs', {
  id: uuid('id').$type<RunId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  rootTurnId: uuid('root_turn_id').$type<TurnId>().notNull(),
  limits: jsonb('limits').$type<JsonObject>().notNull().default({}),
  traceparent: text('traceparent'),
  createdAt: createdAt(),
  /** Turns of the run; kept by those that submit to it. */
  turnCount: integer('turn_count').notNull().default(1),
  /** A cancel of the whole run: no turn is started in it any more. */
  canceledAt: time('canceled_at'),
});

/** What a run, or the tree below one turn, may use; read and written while its run's row is locked. */
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
  /** Since when a turn waits for it to be raised. */
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
  /** The call that asked for it. */
  parentToolCallId: uuid('parent_tool_call_id').$type<ToolCallId>(),
  /** True when its end is the result of that call. */
  isAwaited: boolean('is_awaited').notNull().default(false),
  depth: integer('depth').notNull(),
  primitive: text('primitive').notNull(),
  channelId: text('channel_id').notNull().default('public'),
  status: text('status').$type<TurnStatus>().notNull(),
  /** Raised by every transition into `dispatched`; job ids and claims carry it. */
  epoch: integer('epoch').notNull(),
  holderId: uuid('holder_id').$type<WorkerId>(),
  /** Claims since the last committed step. */
  attempt: integer('attempt').notNull().default(0),
  stepCount: integer('step_count').notNull().default(0),
  maxSteps: integer('max_steps').notNull(),
  /** Replies in a row that were of no use. */
  emptyReplies: integer('empty_replies').notNull().default(0),
  /** Model calls of the current step that failed and are tried again. */
  retries: smallint('retries').notNull().default(0),
  pendingCalls: integer('pending_calls').notNull().default(0),
  contextBoxId: uuid('context_box_id').$type<BoxId>().notNull(),
  outputBoxId: uuid('output_box_id').$type<BoxId>().notNull(),
  startPosition: integer('start_position'),
  /** Where the view of its first step begins (turn-views.ts). */
  ownViewAnchor: integer('own_view_anchor'),
  ownViewPosition: integer('own_view_position'),
  /** What makes its prompts (selector-waits.ts), and the version that its first step has fixed. */
  selector: text('selector'),
  selectorVersion: text('selector_version'),
  /** The child of its batch that fills the prompt cache first; its own id: it is that child (warm-cache.ts). */
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
  /** Workers lost at the same step. */
  losses: smallint('losses').notNull().default(0),
  /** The batches that wait for its end. */
  batchIds: uuid('batch_ids').array().$type<BatchId[]>(),
  /** The nearest account; null = none. */
  budgetId: uuid('budget_id'),
  /** What its accounts have reserved for it; null = none of them limits this. */
  allottedTokens: bigint('allotted_tokens', { mode: 'number' }),
  allottedCost: bigint('allotted_cost', { mode: 'number' }),
  allottedSteps: integer('allotted_steps'),
  /** Null without an account and without a token limit in the profile. */
  spentTokens: bigint('spent_tokens', { mode: 'number' }),
  spentCost: bigint('spent_cost', { mode: 'number' }),
  /** True once what it left has gone back to its accounts; null without an account. */
  isSettled: boolean('is_settled'),
  /** The oldest build that can read it, by the newest migration it knows. */
  format: smallint('format').notNull().default(0),
  /** Its end is to be told on the tape its session was forked from; false = it was. */
  notifies: boolean('notifies'),
  /** The last entry that a forked session put on its tape meanwhile: unless it has read that far, another turn does. */
  unseenPosition: integer('unseen_position'),
  /** Started by the end of its parent turn, whose agent has not asked for it. */
  isWoken: boolean('is_woken'),
  /** The agent on whose tape the end of this turn was told: it may read what the turn wrote. */
  toldAgentId: uuid('told_agent_id').$type<AgentId>(),
});

/** One row per attempt at a model call; an attempt that never committed was lost. */
export const steps = boxcar.table(
  'steps',
  {
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    step: integer('step').notNull(),
    attempt: integer('attempt').notNull(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    epoch: integer('epoch').notNull(),
    holderId: uuid('holder_id').$type<WorkerId>().notNull(),
    /** The tape range the view was built from; with the turn's context box it determines the prompt. */
    fromPosition: integer('from_position').notNull(),
    toPosition: integer('to_position').notNull(),
    openedAt: time('opened_at').notNull().default(sql`now()`),
    model: text('model'),
    promptHash: bytea('prompt_hash'),
    /** Names the tools that were offered; null when the step is not committed, or older than the table. */
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

/** A list of tool schemas as a step offered it, kept once per project. */
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
    /** What a takeover may do with a call that was interrupted. */
    retry: text('retry').$type<'safe' | 'never'>().notNull(),
    /** The epoch that committed it; another epoch meeting it pending knows it was interrupted. */
    epoch: integer('epoch').notNull(),
    status: text('status').$type<'pending' | 'success' | 'failed' | 'timeout' | 'canceled'>().notNull(),
    deadlineAt: time('deadline_at').notNull(),
    resultCardId: uuid('result_card_id').$type<CardId>(),
    createdAt: createdAt(),
    endedAt: time('ended_at'),
    /** Whose job it is, for the route `queue`: `boxcar-tools-<target>`. */
    target: text('target'),
    /** When to ask the queue again what became of the job; null = nothing more to be learnt there. */
    lookAt: time('look_at'),
    /** When its job entered the queue; kept for calls that must not be sent twice. */
    sentAt: time('sent_at'),
    /** The batch it waits for; its deadline is the one that counts. */
    batchId: uuid('batch_id').$type<BatchId>(),
    /** What the call is, for the loop guard; null = not guarded. */
    guardHash: bytea('guard_hash'),
  },
  (table) => [unique().on(table.turnId, table.step, table.ordinal)],
);

/** Turns joined into one answer: by fork_join, which makes them, or by collect, which waits for earlier ones. */
export const batches = boxcar.table('batches', {
  id: uuid('id').$type<BatchId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** Of its turns when fork_join made them, of the waiting turn for a collect; null for one from outside. */
  runId: uuid('run_id').$type<RunId>(),
  /** The turn that asked for it; null from outside. */
  turnId: uuid('turn_id').$type<TurnId>(),
  /** The call that its end answers; null when nobody waits, or somebody outside. */
  toolCallId: uuid('tool_call_id').$type<ToolCallId>().unique(),
  primitive: text('primitive').notNull(),
  kind: text('kind').$type<BatchKind>().notNull(),
  /** The members, in the order of the tasks. */
  turnIds: uuid('turn_ids').array().$type<TurnId[]>().notNull(),
  /** Members that have not ended; their ends lower it, also after the batch's own. */
  remaining: integer('remaining').notNull(),
  succeeded: integer('succeeded').notNull(),
  failed: integer('failed').notNull(),
  minSuccess: integer('min_success'),
  failFast: boolean('fail_fast').notNull(),
  status: text('status').$type<BatchStatus>().notNull(),
  /** Why its members are being ended. */
  closing: text('closing').$type<Closing>(),
  /** Something is to be done: whoever made it so does it, else the sweep. */
  isDue: boolean('is_due').notNull(),
  deadlineAt: time('deadline_at'),
  /** What it came to, where no call was answered. */
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
    /** The turn whose end is the final answer, when the caller waits. */
    awaitedTurnId: uuid('awaited_turn_id').$type<TurnId>(),
    /** The job of the queue door that waits for that answer. */
    doorJobId: text('door_job_id'),
    createdAt: createdAt(),
    /** The batch whose end is the final answer, when the caller waits. */
    awaitedBatchId: uuid('awaited_batch_id').$type<BatchId>(),
    /** New batches of new turns, and new turns outside of these batches. Null: written by a build without this column. */
    made: uuid('made').array().$type<(TurnId | BatchId)[]>(),
  },
  (table) => [primaryKey({ columns: [table.projectId, table.idempotencyKey] })],
);

/** What came too late to count: kept with its cost, never applied. */
export const evidence = boxcar.table(
  'evidence',
  {
    id: uuid('id').primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    kind: text('kind').$type<'reply' | 'result'>().notNull(),
    step: integer('step').notNull(),
    /** Null: from a worker outside, who knows of no attempt. */
    attempt: integer('attempt'),
    /** Under which the work was begun. */
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
