/**
 * The tables as drizzle sees them, for ordinary reads. The migrations make the schema; this file follows them, and a test
 * compares names, types, nullability, defaults and keys with the catalogue in both directions. Checks, indexes and triggers
 * stand in the migrations alone.
 */
import type {
  AgentId,
  BatchId,
  BatchKind,
  BatchStatus,
  BoxId,
  BudgetLimits,
  CardContent,
  CardId,
  Closing,
  EntryKind,
  ErrorBody,
  JsonObject,
  JsonValue,
  ProfileId,
  ProjectId,
  ProjectLimits,
  ProviderData,
  Role,
  RunId,
  Segment,
  ToolCallId,
  TurnId,
  TurnStatus,
  WorkerId,
} from '@boxcar/kernel';
import {
  bigint,
  boolean,
  customType,
  integer,
  json,
  jsonb,
  pgSchema,
  primaryKey,
  smallint,
  text,
  timestamp,
  unique,
  uuid,
} from 'drizzle-orm/pg-core';
import type { CallRouteKind, OfferedTool, SweepKind, WaitKind, WorkerInfo } from '../kinds/row-kinds.js';

const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
const xid8 = customType<{ data: string }>({ dataType: () => 'xid8' });
const time = (name: string) => timestamp(name, { withTimezone: true });
const createdAt = () => time('created_at').notNull().defaultNow();

const boxcar = pgSchema('boxcar');

const schemaVersion = boxcar.table('schema_version', {
  version: integer('version').primaryKey(),
  name: text('name').notNull(),
  /** sha256 of the migration's text, in hex. */
  checksum: text('checksum').notNull(),
  /** The oldest program, by the newest migration it knows, that may run on this schema. */
  minCompatible: integer('min_compatible').notNull(),
  appliedAt: time('applied_at').notNull().defaultNow(),
});

const projects = boxcar.table('projects', {
  id: uuid('id').$type<ProjectId>().primaryKey(),
  name: text('name').notNull().unique(),
  limits: jsonb('limits').$type<ProjectLimits>().notNull().default({}),
  operatorAgentId: uuid('operator_agent_id').$type<AgentId>().notNull(),
  /** The anchor card that every tape of the project begins with. */
  bootstrapCardId: uuid('bootstrap_card_id').$type<CardId>().notNull(),
  createdAt: createdAt(),
  /** How often cards of it were erased: who has kept what it read before reads it again. */
  erasures: integer('erasures').notNull().default(0),
  archivedAt: timestamp('archived_at', { withTimezone: true }),
});

const cards = boxcar.table('cards', {
  id: uuid('id').$type<CardId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  type: text('type').notNull(),
  /** What a model sees; null = user. */
  role: text('role').$type<Role>(),
  /** `json`, not `jsonb`: the writer's key order and bytes survive. Null only after erasure. */
  content: json('content').$type<CardContent>(),
  /** sha256 of the RFC 8785 form of the content. */
  contentHash: bytea('content_hash').notNull(),
  sizeBytes: integer('size_bytes').notNull(),
  tokenEstimate: integer('token_estimate').notNull(),
  metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
  /** An agent id, the name of a primitive, or `kernel`: for audit, never shown to a model. */
  authorId: text('author_id').notNull(),
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  createdAt: createdAt(),
  erasedAt: time('erased_at'),
  erasedReason: text('erased_reason'),
  /** What readers are shown after erasure: content of the same kind without its words. */
  placeholder: json('placeholder').$type<CardContent>(),
  /** What a provider attached to the answer: read by views alone, gone with any card of its step. `json`: its bytes survive. */
  providerData: json('provider_data').$type<ProviderData>(),
});

/** Written by the functions of erasure and purge, within one transaction each. */
const unsealed = boxcar.table('unsealed', {
  xact: xid8('xact').primaryKey(),
  allows: text('allows').$type<'erase' | 'purge'>().notNull(),
});

/** Boxes that a purge is about to remove: nothing new may refer to them. */
const purging = boxcar.table('purging', {
  boxId: uuid('box_id').$type<BoxId>().primaryKey(),
  until: time('until').notNull(),
  /** The purge that has set the mark last. */
  purgeId: uuid('purge_id'),
});

const boxes = boxcar.table('boxes', {
  id: uuid('id').$type<BoxId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  kind: text('kind').$type<'context' | 'tape'>().notNull(),
  /** Whose context or tape it is; may read it without a grant, as the maker may. */
  ownerAgentId: uuid('owner_agent_id').$type<AgentId>(),
  makerAgentId: uuid('maker_agent_id').$type<AgentId>(),
  createdAt: createdAt(),
  /** Context: the cards made for this box; the others are named by its segments. */
  cardIds: uuid('card_ids').array().$type<CardId[]>(),
  /** Context: the token estimate of each of `cardIds`. */
  cardTokens: integer('card_tokens').array(),
  /** Context: what the box is made of, in order; this is its manifest. */
  segments: jsonb('segments').$type<Segment[]>(),
  /** Context: cards in all, those of the segments included. */
  cardCount: integer('card_count'),
  /** Context: tokens in all. */
  tokenEstimate: integer('token_estimate'),
  tapeName: text('tape_name'),
  /** Tape: raised by each reset, which archives the one before. */
  incarnation: integer('incarnation'),
  /** Tape: position of the last entry. Its row lock makes positions gapless. */
  headPosition: integer('head_position'),
  lastAnchorPosition: integer('last_anchor_position'),
  /** Tape: where a view begins to read: the last anchor, or the first entry of the step that was open then. */
  viewPosition: integer('view_position'),
  /** Tape: what it was forked from, up to `forkPosition`. */
  parentBoxId: uuid('parent_box_id').$type<BoxId>(),
  forkPosition: integer('fork_position'),
  archivedAt: time('archived_at'),
  /** Tape: anchors up to the head, those of its line included; null = the one it began with alone. */
  anchorCount: integer('anchor_count'),
  /** Tape: the anchor a view begins with; null = the last one. */
  viewAnchorPosition: integer('view_anchor_position'),
  /** Fork: the boxes its line runs through before its own entries, and the last position read of each (visible/ancestry.ts). */
  lineBoxes: uuid('line_boxes').array().$type<readonly BoxId[]>(),
  lineEnds: integer('line_ends').array(),
  forkStatus: text('fork_status').$type<'open' | 'merged' | 'discarded'>(),
  /** Tape: the incarnation that a reset put this one in the place of. */
  previousBoxId: uuid('previous_box_id').$type<BoxId>(),
  /** Tape: the lines of the session graph that it was imported with. */
  sessionGraph: text('session_graph'),
});

const tapeEntries = boxcar.table(
  'tape_entries',
  {
    boxId: uuid('box_id').$type<BoxId>().notNull(),
    position: integer('position').notNull(),
    kind: text('kind').$type<EntryKind>().notNull(),
    /** Null for events alone. */
    cardId: uuid('card_id').$type<CardId>(),
    /** The card's token estimate, so that packing a range needs no look at the cards. */
    tokens: integer('tokens').notNull().default(0),
    /** Events only: `{ name, data }`. */
    payload: json('payload').$type<{ readonly name: string; readonly data: JsonValue }>(),
    anchorName: text('anchor_name'),
    turnId: uuid('turn_id').$type<TurnId>(),
    step: integer('step'),
    authorId: text('author_id').notNull(),
    /** Append, merge or import the same thing once. */
    dedupKey: text('dedup_key'),
    meta: jsonb('meta').$type<JsonObject>(),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.boxId, table.position] })],
);

const tapeWords = boxcar.table(
  'tape_words',
  {
    /** A tape; at position 0 a turn, with the words of its instruction. */
    boxId: uuid('box_id').$type<BoxId | TurnId>().notNull(),
    position: integer('position').notNull(),
    cardId: uuid('card_id').$type<CardId>(),
    /** Folded; null: erased meanwhile, or a turn without an instruction. */
    words: text('words'),
  },
  (table) => [primaryKey({ columns: [table.boxId, table.position] })],
);

const profiles = boxcar.table(
  'profiles',
  {
    id: uuid('id').$type<ProfileId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    name: text('name').notNull(),
    version: integer('version').notNull(),
    /** The sealed box with the `sys.profile` card. */
    boxId: uuid('box_id').$type<BoxId>().notNull(),
    cardId: uuid('card_id').$type<CardId>().notNull(),
    tags: text('tags').array().notNull().default([]),
    workerTarget: text('worker_target').notNull().default(''),
    maxSteps: integer('max_steps').notNull(),
    isCurrent: boolean('is_current').notNull(),
    createdAt: createdAt(),
    /** `limits.tokens`: of one turn. */
    maxTokens: bigint('max_tokens', { mode: 'number' }),
    view: text('view').$type<'full'>(),
    selector: text('selector'),
  },
  (table) => [unique().on(table.projectId, table.name, table.version)],
);

const agents = boxcar.table(
  'agents',
  {
    id: uuid('id').$type<AgentId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    name: text('name').notNull(),
    /** Null for the operator alone: it acts for callers that are no agent and has no model. */
    profileId: uuid('profile_id').$type<ProfileId>(),
    ownerAgentId: uuid('owner_agent_id').$type<AgentId>(),
    /** The agent whose view a clone began with. */
    derivedFrom: uuid('derived_from').$type<AgentId>(),
    tapeBoxId: uuid('tape_box_id').$type<BoxId>(),
    metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
    createdAt: createdAt(),
    /** Anyone whose policy reaches its profile may give it turns. */
    isShared: boolean('is_shared'),
  },
  (table) => [unique().on(table.projectId, table.name)],
);

const grants = boxcar.table(
  'grants',
  {
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    agentId: uuid('agent_id').$type<AgentId>().notNull(),
    boxId: uuid('box_id').$type<BoxId>().notNull(),
    mode: text('mode').$type<'read' | 'append'>().notNull(),
    /** The last readable position of a tape; null = all, also what comes later. */
    uptoPosition: integer('upto_position'),
    /** Who gave it: an agent id, `turn:<id>` when a child's end did, or `card:<id>` of a handoff. */
    source: text('source').notNull(),
    expiresAt: time('expires_at'),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.agentId, table.boxId, table.mode] })],
);

/** The tree below one root turn; its status is that of its root turn. */
const runs = boxcar.table('runs', {
  id: uuid('id').$type<RunId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  rootTurnId: uuid('root_turn_id').$type<TurnId>().notNull(),
  limits: jsonb('limits').$type<JsonObject>().notNull().default({}),
  traceparent: text('traceparent'),
  createdAt: createdAt(),
  /** Turns of the run; kept by those that submit to it. */
  turnCount: integer('turn_count').notNull().default(1),
  /** A cancel of the whole run: no turn is started in it any more. */
  canceledAt: timestamp('canceled_at', { withTimezone: true }),
});

/** What a run, or the tree below one turn, may use; read and written while its run's row is locked. */
const budgets = boxcar.table('budgets', {
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

const turns = boxcar.table('turns', {
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
const steps = boxcar.table(
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
    openedAt: time('opened_at').notNull().defaultNow(),
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
const toolsets = boxcar.table(
  'toolsets',
  {
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    hash: bytea('hash').notNull(),
    schemas: json('schemas').$type<readonly OfferedTool[]>().notNull(),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.projectId, table.hash] })],
);

const toolCalls = boxcar.table(
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
const batches = boxcar.table('batches', {
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
const operations = boxcar.table(
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

const workers = boxcar.table('workers', {
  id: uuid('id').$type<WorkerId>().primaryKey(),
  /** Key of the session advisory lock its direct connection holds while it lives; below 2^47. */
  lockKey: bigint('lock_key', { mode: 'number' }).notNull().unique(),
  leaseUntil: time('lease_until').notNull(),
  targets: text('targets').array().notNull(),
  concurrency: integer('concurrency').notNull(),
  info: jsonb('info').$type<WorkerInfo>().notNull().default({}),
  startedAt: time('started_at').notNull().defaultNow(),
  /** When its owner last said that it holds its lock; null: it does not. */
  lockedAt: time('locked_at'),
  /** The newest migration that its build knows. */
  schemaVersion: smallint('schema_version').notNull().default(11),
  /** The last answer of each provider, as of `toldAt`. */
  answers: jsonb('answers').$type<Readonly<Record<string, string>>>().notNull().default({}),
  /** Null: a build that does not tell. */
  toldAt: time('told_at'),
});

/** Rows that a sweep could not handle. */
const sweepFailures = boxcar.table(
  'sweep_failures',
  {
    kind: text('kind').$type<SweepKind>().notNull(),
    rowId: uuid('row_id').notNull(),
    projectId: uuid('project_id').$type<ProjectId>(),
    attempts: integer('attempts').notNull(),
    lastError: text('last_error').notNull(),
    nextTryAt: time('next_try_at').notNull(),
    /** Left alone until `boxcar doctor --retry-dead`. */
    isDead: boolean('is_dead').notNull().default(false),
    firstFailedAt: time('first_failed_at').notNull().defaultNow(),
  },
  (table) => [primaryKey({ columns: [table.kind, table.rowId] })],
);

/** One row: who sweeps now. */
const sweeper = boxcar.table('sweeper', {
  isOnly: boolean('is_only').primaryKey().default(true),
  holderId: uuid('holder_id'),
  leaseUntil: time('lease_until').notNull(),
});

/** Why a suspended turn waits when no call of it is out. */
const waits = boxcar.table('waits', {
  turnId: uuid('turn_id').$type<TurnId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  kind: text('kind').$type<WaitKind>().notNull(),
  /** When it is looked at again; null = someone else wakes it. */
  dueAt: time('due_at'),
  /** Whose room it waits for. */
  provider: text('provider'),
  detail: jsonb('detail').$type<JsonObject>().notNull().default({}),
  createdAt: time('created_at').notNull().defaultNow(),
});

/** Providers of models with limits, or with failures behind them. */
const providers = boxcar.table('providers', {
  name: text('name').primaryKey(),
  maxConcurrent: integer('max_concurrent'),
  requestsPerMinute: integer('requests_per_minute'),
  /** Failures in a row after which its calls wait; 0 = never; null = the default. */
  breakerAfter: integer('breaker_after'),
  /** The rate's clock: when all that was begun is paid for. */
  pacedUntil: time('paced_until'),
  failures: integer('failures').notNull().default(0),
  openings: integer('openings').notNull().default(0),
  /** No call before; one that has passed lets a single call try. */
  openUntil: time('open_until'),
  /** The first of the failures in a row. */
  failingSince: time('failing_since'),
  updatedAt: time('updated_at').notNull().defaultNow(),
});

/** A turn's place among the calls of a provider. */
const providerSlots = boxcar.table('provider_slots', {
  turnId: uuid('turn_id').$type<TurnId>().primaryKey(),
  provider: text('provider').notNull(),
  epoch: integer('epoch').notNull(),
  /** By older builds: kept for a turn that was woken and has not called yet. */
  isKept: boolean('is_kept').notNull(),
  takenAt: time('taken_at').notNull().defaultNow(),
  /** Since when the turn has waited, while a place is kept for it and until it calls or waits again; null: it calls. */
  queuedAt: time('queued_at'),
  /** The one call that tries a failing provider. */
  isProbe: boolean('is_probe').notNull().default(false),
});

/** What came too late to count: kept with its cost, never applied. */
const evidence = boxcar.table(
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

/** Forks that are to be merged or discarded; a session's fork is none of these. */
const forks = boxcar.table('forks', {
  /** The box it was made as. */
  id: uuid('id').$type<BoxId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** The box it is now: another one after a reset within it. */
  boxId: uuid('box_id').$type<BoxId>().notNull(),
  parentBoxId: uuid('parent_box_id').$type<BoxId>().notNull(),
  openedBy: uuid('opened_by').$type<AgentId>().notNull(),
  /** The turn it was opened for; it lives no longer than that. */
  turnId: uuid('turn_id').$type<TurnId>(),
  forkKey: text('fork_key').notNull(),
  status: text('status').$type<'open' | 'merged' | 'discarded'>().notNull(),
  mergeBack: boolean('merge_back').notNull(),
  onError: text('on_error').$type<'merge' | 'discard'>().notNull(),
  receipt: jsonb('receipt').$type<JsonValue>(),
  createdAt: createdAt(),
  endedAt: time('ended_at'),
});

/** Forks with an agent of their own, and imported ones without; their lineage. */
const sessions = boxcar.table(
  'sessions',
  {
    /** The box its tape began as. */
    id: uuid('id').$type<BoxId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    name: text('name').notNull(),
    /** Null: of an imported tape. */
    agentId: uuid('agent_id').$type<AgentId>().unique(),
    parentBoxId: uuid('parent_box_id').$type<BoxId>(),
    /** The parent's tape: its name, else its agent, else its box. */
    parentSessionId: text('parent_session_id').notNull(),
    fromAnchor: text('from_anchor'),
    fromPosition: integer('from_position').notNull(),
    notifies: boolean('notifies').notNull(),
    status: text('status').notNull().default('active'),
    createdAt: createdAt(),
  },
  (table) => [unique().on(table.projectId, table.name)],
);

/**
 * Every table of the schema, for reads with drizzle. Writes go through the functions of this package.
 *
 * @internal Not exported by the package: drizzle's types do not compile in a strict project that checks its libraries.
 */
export const tables = {
  schemaVersion,
  projects,
  cards,
  boxes,
  tapeEntries,
  tapeWords,
  profiles,
  agents,
  grants,
  runs,
  budgets,
  turns,
  steps,
  toolsets,
  toolCalls,
  batches,
  operations,
  workers,
  waits,
  providers,
  providerSlots,
  sweepFailures,
  sweeper,
  evidence,
  forks,
  sessions,
  unsealed,
  purging,
} as const;
