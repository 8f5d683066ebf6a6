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
  /** As far as it was recorded: while a turn serves it, the turn says more. */
  phase: text('phase').$type<HandoffPhase>().notNull(),
  /** From outside any text of the caller. */
  sourceAgent: text('source_agent').notNull(),
  sourceAgentId: uuid('source_agent_id').$type<AgentId>().notNull(),
  targetAgent: text('target_agent').notNull(),
  platform: text('platform').notNull(),
  /** Any text of the caller. */
  runId: text('run_id'),
  parentTurnId: uuid('parent_turn_id').$type<TurnId>(),
  /** The call of a turn that asked for it. */
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  isAwaited: boolean('is_awaited').notNull().default(false),
  contextBoxId: uuid('context_box_id').$type<BoxId>().notNull(),
  taskCardId: uuid('task_card_id').$type<CardId>().notNull(),
  contextCardId: uuid('context_card_id').$type<CardId>(),
  payloadCardId: uuid('payload_card_id').$type<CardId>(),
  /** Who may serve it; null: the target's own worker pool. */
  workerTarget: text('worker_target'),
  turnId: uuid('turn_id').$type<TurnId>(),
  ticketId: uuid('ticket_id').$type<TicketId>(),
  /** The identical handoff whose result it has. */
  joinedTo: uuid('joined_to').$type<HandoffId>(),
  rootHandoffId: uuid('root_handoff_id').$type<HandoffId>().notNull(),
  parentHandoffId: uuid('parent_handoff_id').$type<HandoffId>(),
  depth: integer('depth').notNull().default(0),
  /** What the policy said: level, rule, version and trace. */
  decision: jsonb('decision').$type<JsonObject>(),
  /** Of an end without a turn. */
  error: jsonb('error').$type<ErrorBody>(),
  timeoutMs: bigint('timeout_ms', { mode: 'number' }).notNull(),
  /** Set when the first attempt begins. */
  deadlineAt: time('deadline_at'),
  retry: jsonb('retry').$type<JsonObject>().notNull(),
  attempts: integer('attempts').notNull().default(0),
  /** An attempt was begun, and nothing is known of its end. */
  isAttemptOpen: boolean('is_attempt_open').notNull().default(false),
  idempotencyKey: text('idempotency_key'),
  requestHash: text('request_hash').notNull(),
  /** The public profile that another platform has called; null: it did not come this way. */
  publicAgent: text('public_agent'),
  /** By which the caller knows tasks that belong together. */
  conversation: text('conversation'),
  /** The caller's name of the message. */
  messageId: text('message_id'),
  /** The agent of the conversation, made with its first turn. */
  servingAgentId: uuid('serving_agent_id').$type<AgentId>(),
  /** The task at the other platform that has asked in the open attempt. */
  remoteTask: text('remote_task'),
  eventCount: integer('event_count').notNull().default(0),
  /** A chain has hops; compensate: undoes a hop. */
  mode: text('mode').$type<HandoffMode>().notNull().default('handoff'),
  /** Its place in its chain, and of a compensation that of the hop. */
  hop: integer('hop'),
  /** The hop that it undoes. */
  compensates: uuid('compensates').$type<HandoffId>(),
  /** Hash of what makes handoffs identical; only of those that may be answered from the cache. */
  cacheKey: text('cache_key'),
  /** How old a result may be. */
  cacheSeconds: integer('cache_seconds'),
  /** The handoff whose result it has. */
  cachedFrom: uuid('cached_from').$type<HandoffId>(),
  /** It is carried out, and identical ones wait for its result. */
  isLeading: boolean('is_leading').notNull().default(false),
  /** It waits for a reply since then, and its time does not run. */
  askingSince: time('asking_since'),
  /** Where its end is sent to; null: nowhere. */
  callbackUrl: text('callback_url'),
  /** The agent on whose tape its end is told; null: none. */
  toldAgentId: uuid('told_agent_id').$type<AgentId>(),
  /** True: its end is to be told to that agent; false: it was told, or may not be. */
  notifies: boolean('notifies'),
  /** The session that is handed on. */
  sessionId: uuid('session_id').$type<HandoffSessionId>(),
  sessionRequest: text('session_request').$type<HandoffRequestType>(),
  /** Up to where the target reads the tape of the session; null: it was not handed on yet. */
  sessionHead: integer('session_head'),
  /** Of a handoff that no turn has served. */
  resultCardId: uuid('result_card_id').$type<CardId>(),
});

/** What happened to a handoff, in order; no words of its task or result. */
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
    /** Of a question: the same one, asked again by another attempt, has the same. */
    askKey: text('ask_key'),
    expiresAt: time('expires_at'),
    /** Of a question: it was answered, its time is over, or the attempt that asked it has ended. */
    closedAt: time('closed_at'),
    repliesTo: integer('replies_to'),
    /** Who replied. */
    author: text('author'),
    createdAt: time('created_at').notNull().default(sql`now()`),
    /** Of a reply by another platform: the same message is the same reply. */
    replyKey: text('reply_key').unique(),
  },
  (table) => [
    primaryKey({ columns: [table.handoffId, table.seq] }),
    unique().on(table.handoffId, table.askKey),
    unique().on(table.handoffId, table.repliesTo),
  ],
);

/** Events that are sent to receivers outside; the body is read when it is sent. A trigger makes them. */
export const webhookDeliveries = boxcar.table(
  'webhook_deliveries',
  {
    /** The id of the event, the same in all attempts. */
    id: uuid('id').$type<DeliveryId>().primaryKey().default(sql`gen_random_uuid()`),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    /** Whose log has the event: the handoff, or one below it that asks. */
    eventHandoffId: uuid('event_handoff_id').$type<HandoffId>().notNull(),
    /** The event in that log. */
    eventSeq: integer('event_seq').notNull(),
    /** Of a push notification: who is notified. Null: the callback of the handoff. */
    pushConfig: text('push_config'),
    url: text('url').notNull(),
    /** Of the url, with its port. */
    host: text('host').notNull(),
    status: text('status').$type<DeliveryStatus>().notNull().default('pending'),
    attempts: integer('attempts').notNull().default(0),
    /** Since it was made, or since a person has had it sent again. */
    failures: integer('failures').notNull().default(0),
    /** When it may be sent next; while it is sent, when others may send it if nothing is heard of it. */
    nextAt: time('next_at').notNull().default(sql`now()`),
    giveUpAt: time('give_up_at').notNull().default(sql`now() + interval '24 hours'`),
    /** The process that sends it now. */
    holderId: uuid('holder_id'),
    lastStatus: integer('last_status'),
    lastError: text('last_error'),
    createdAt: time('created_at').notNull().default(sql`now()`),
    endedAt: time('ended_at'),
  },
  (table) => [unique().on(table.eventHandoffId, table.eventSeq, table.pushConfig).nullsNotDistinct()],
);

/** Who is notified of the questions and the end of a task that another platform has given. */
export const pushConfigs = boxcar.table(
  'push_configs',
  {
    handoffId: uuid('handoff_id').$type<HandoffId>().notNull(),
    /** The caller's name of it. */
    id: text('id').notNull(),
    url: text('url').notNull(),
    /** Sent along, so that the receiver knows whose notification it is. */
    token: text('token'),
    /** Of the header authorization, with `credentials`. */
    scheme: text('scheme'),
    credentials: text('credentials'),
    /** Of the protocol in which the notification is written. */
    version: text('version').notNull(),
    createdAt: time('created_at').notNull().default(sql`now()`),
  },
  (table) => [primaryKey({ columns: [table.handoffId, table.id] })],
);

/** The text of a turn while it is written. */
export const turnParts = boxcar.table(
  'turn_parts',
  {
    turnId: uuid('turn_id').$type<TurnId>().notNull(),
    seq: integer('seq').notNull(),
    /** One answer of a model or one attempt at a platform: its epoch and its number. */
    round: text('round').notNull(),
    /** Within the round; number 0 voids what rounds before have said. */
    n: integer('n').notNull(),
    /** Null: what rounds before have said is void; empty after erasure. */
    text: text('text'),
    createdAt: time('created_at').notNull().default(sql`now()`),
  },
  (table) => [
    primaryKey({ columns: [table.turnId, table.seq] }),
    unique().on(table.turnId, table.round, table.n),
  ],
);
