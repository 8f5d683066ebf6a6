/** Handoffs and their logs. */
import type {
  AgentId,
  BoxId,
  CardId,
  DeliveryId,
  DeliveryStatus,
  ErrorBody,
  HandoffId,
  HandoffMode,
  HandoffPhase,
  HandoffRequestType,
  HandoffSessionId,
  JsonObject,
  ProjectId,
  TicketId,
  ToolCallId,
  TurnId,
} from '@boxcar/kernel';
import { sql } from 'drizzle-orm';
import { bigint, boolean, integer, primaryKey, text, unique, uuid } from 'drizzle-orm/pg-core';
import { boxcar, jsonb, time } from './columns.js';

/** Tasks that are handed to an agent or to another platform. */
export const handoffs = boxcar.table('handoffs', {
  id: uuid('id').$type<HandoffId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  createdAt: time('created_at').notNull().default(sql`now()`),
  endedAt: time('ended_at'),
  /** The last recorded phase. While a turn serves the handoff, the turn has the current state. */
  phase: text('phase').$type<HandoffPhase>().notNull(),
  /** For a handoff from outside, any text of the caller. */
  sourceAgent: text('source_agent').notNull(),
  sourceAgentId: uuid('source_agent_id').$type<AgentId>().notNull(),
  targetAgent: text('target_agent').notNull(),
  platform: text('platform').notNull(),
  /** Any text of the caller. */
  runId: text('run_id'),
  parentTurnId: uuid('parent_turn_id').$type<TurnId>(),
  /** The call of a turn that asked for the handoff. */
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  isAwaited: boolean('is_awaited').notNull().default(false),
  contextBoxId: uuid('context_box_id').$type<BoxId>().notNull(),
  taskCardId: uuid('task_card_id').$type<CardId>().notNull(),
  contextCardId: uuid('context_card_id').$type<CardId>(),
  payloadCardId: uuid('payload_card_id').$type<CardId>(),
  /** The workers that may serve the handoff; null: the worker pool of the target. */
  workerTarget: text('worker_target'),
  turnId: uuid('turn_id').$type<TurnId>(),
  ticketId: uuid('ticket_id').$type<TicketId>(),
  /** The identical handoff whose result this handoff waits for or has. */
  joinedTo: uuid('joined_to').$type<HandoffId>(),
  rootHandoffId: uuid('root_handoff_id').$type<HandoffId>().notNull(),
  parentHandoffId: uuid('parent_handoff_id').$type<HandoffId>(),
  depth: integer('depth').notNull().default(0),
  /** The decision of the policy: level, rule, version and trace. */
  decision: jsonb('decision').$type<JsonObject>(),
  /** Set for an end without a turn. */
  error: jsonb('error').$type<ErrorBody>(),
  timeoutMs: bigint('timeout_ms', { mode: 'number' }).notNull(),
  /** Set when the first attempt begins. */
  deadlineAt: time('deadline_at'),
  retry: jsonb('retry').$type<JsonObject>().notNull(),
  attempts: integer('attempts').notNull().default(0),
  /** An attempt was begun, and its end is not known. */
  isAttemptOpen: boolean('is_attempt_open').notNull().default(false),
  idempotencyKey: text('idempotency_key'),
  requestHash: text('request_hash').notNull(),
  /** The public profile that another platform has called; null for handoffs without such a call. */
  publicAgent: text('public_agent'),
  /** The caller's name for tasks that belong together. */
  conversation: text('conversation'),
  /** The caller's name for the message. */
  messageId: text('message_id'),
  /** The agent of the conversation, which is made with the first turn. */
  servingAgentId: uuid('serving_agent_id').$type<AgentId>(),
  /** The task at the other platform that has asked in the open attempt. */
  remoteTask: text('remote_task'),
  eventCount: integer('event_count').notNull().default(0),
  /** A chain has hops. `compensate` undoes a hop. */
  mode: text('mode').$type<HandoffMode>().notNull().default('handoff'),
  /** The position in the chain; for a compensation, the position of its hop. */
  hop: integer('hop'),
  /** The hop that the compensation undoes. */
  compensates: uuid('compensates').$type<HandoffId>(),
  /** The hash of the values that make handoffs identical. Set only for handoffs that may be answered from the cache. */
  cacheKey: text('cache_key'),
  /** The greatest age of a cached result. */
  cacheSeconds: integer('cache_seconds'),
  /** The handoff whose result this handoff has. */
  cachedFrom: uuid('cached_from').$type<HandoffId>(),
  /** The handoff is carried out, and identical handoffs wait for its result. */
  isLeading: boolean('is_leading').notNull().default(false),
  /** The time since which the handoff waits for a reply. Its own time limit does not run meanwhile. */
  askingSince: time('asking_since'),
  /** The URL to which the end is sent; null when it is not sent. */
  callbackUrl: text('callback_url'),
  /** The agent on whose tape the end is reported; null when it is not reported. */
  toldAgentId: uuid('told_agent_id').$type<AgentId>(),
  /** True: the end must be reported to that agent. False: it was reported, or may not be. */
  notifies: boolean('notifies'),
  /** The session that is handed on. */
  sessionId: uuid('session_id').$type<HandoffSessionId>(),
  sessionRequest: text('session_request').$type<HandoffRequestType>(),
  /** The last position of the session's tape that the target reads; null while the session has not been handed on. */
  sessionHead: integer('session_head'),
  /** Set for a handoff that no turn has served. */
  resultCardId: uuid('result_card_id').$type<CardId>(),
});

/** The events of a handoff, in order, without words of its task or result. */
export const handoffEvents = boxcar.table(
  'handoff_events',
  {
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    seq: integer('seq').notNull(),
    type: text('type').notNull(),
    data: jsonb('data').$type<JsonObject>().notNull().default({}),
    createdAt: time('created_at').notNull().default(sql`now()`),
  },
  (table) => [primaryKey({ columns: [table.handoffId, table.seq] })],
);

/** Questions of handoffs and their replies. */
export const handoffMessages = boxcar.table(
  'handoff_messages',
  {
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    seq: integer('seq').notNull(),
    cardId: uuid('card_id').$type<CardId>().notNull(),
    /** For a question. A question that another attempt asks again has the same key. */
    askKey: text('ask_key'),
    expiresAt: time('expires_at'),
    /** For a question. The time at which it was answered, its time was over, or the attempt that asked it ended. */
    closedAt: time('closed_at'),
    repliesTo: integer('replies_to'),
    /** The author of the reply. */
    author: text('author'),
    createdAt: time('created_at').notNull().default(sql`now()`),
    /** For a reply by another platform: the same message is the same reply. */
    replyKey: text('reply_key').unique(),
  },
  (table) => [
    primaryKey({ columns: [table.handoffId, table.seq] }),
    unique().on(table.handoffId, table.askKey),
    unique().on(table.handoffId, table.repliesTo),
  ],
);

/** Events that are sent to outside receivers. A trigger creates the rows. The body is read when the event is sent. */
export const webhookDeliveries = boxcar.table(
  'webhook_deliveries',
  {
    /** The id of the event, which is the same in all attempts. */
    id: uuid('id').$type<DeliveryId>().primaryKey().default(sql`gen_random_uuid()`),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    /** The handoff whose log has the event: the handoff itself, or a handoff below it that asks. */
    eventHandoffId: uuid('event_handoff_id').$type<HandoffId>().notNull(),
    /** The number of the event in that log. */
    eventSeq: integer('event_seq').notNull(),
    /** For a push notification: the receiver's configuration. Null: the callback of the handoff. */
    pushConfig: text('push_config'),
    url: text('url').notNull(),
    /** The host of the URL, with its port. */
    host: text('host').notNull(),
    status: text('status').$type<DeliveryStatus>().notNull().default('pending'),
    attempts: integer('attempts').notNull().default(0),
    /** Failures since the delivery was created, or since a person had it sent again. */
    failures: integer('failures').notNull().default(0),
    /**
     * The time from which the event may be sent. While a process sends it: the time from which another process may, if the first one
     * reports nothing.
     */
    nextAt: time('next_at').notNull().default(sql`now()`),
    giveUpAt: time('give_up_at').notNull().default(sql`now() + interval '24 hours'`),
    /** The process that is sending the event. */
    holderId: uuid('holder_id'),
    lastStatus: integer('last_status'),
    lastError: text('last_error'),
    createdAt: time('created_at').notNull().default(sql`now()`),
    endedAt: time('ended_at'),
  },
  (table) => [unique().on(table.eventHandoffId, table.eventSeq, table.pushConfig).nullsNotDistinct()],
);

/** The receivers of notifications about the questions and the end of a task from another platform. */
export const pushConfigs = boxcar.table(
  'push_configs',
  {
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    /** The caller's name for the configuration. */
    id: text('id').notNull(),
    url: text('url').notNull(),
    /** Sent with each notification, so that the receiver can identify its origin. */
    token: text('token'),
    /** The scheme of the header authorization, used with `credentials`. */
    scheme: text('scheme'),
    credentials: text('credentials'),
    /** The version of the protocol in which the notification is written. */
    version: text('version').notNull(),
    createdAt: time('created_at').notNull().default(sql`now()`),
  },
  (table) => [primaryKey({ columns: [table.handoffId, table.id] })],
);

/** The text of a turn while it is being written. */
export const turnParts = boxcar.table(
  'turn_parts',
  {
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    seq: integer('seq').notNull(),
    /** One answer of a model, or one attempt at a platform: the epoch and the number. */
    round: text('round').notNull(),
    /** The number within the round. Number 0 voids the text of earlier rounds. */
    n: integer('n').notNull(),
    /** Null voids the text of earlier rounds; empty after erasure. */
    text: text('text'),
    createdAt: time('created_at').notNull().default(sql`now()`),
  },
  (table) => [
    primaryKey({ columns: [table.turnId, table.seq] }),
    unique().on(table.turnId, table.round, table.n),
  ],
);
