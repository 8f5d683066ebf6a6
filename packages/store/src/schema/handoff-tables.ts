/** Handoffs and their logs. */
import type {
  AgentId,
  BoxId,
  CardId,
  ErrorBody,
  HandoffId,
  HandoffPhase,
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
  eventCount: integer('event_count').notNull().default(0),
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
