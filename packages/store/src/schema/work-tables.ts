/** Who does it: workers, the sweep, and the order before providers of models. */
import type {
  CardId,
  JsonObject,
  Principal,
  ProjectId,
  TicketId,
  TicketStatus,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import { sql } from 'drizzle-orm';
import { bigint, boolean, integer, primaryKey, smallint, text, uuid } from 'drizzle-orm/pg-core';
import type { SweepKind, WaitKind, WorkerInfo } from '../kinds/row-kinds.js';
import { boxcar, json, jsonb, time } from './columns.js';

export const workers = boxcar.table('workers', {
  id: uuid('id').$type<WorkerId>().primaryKey(),
  /** Key of the session advisory lock its direct connection holds while it lives; below 2^47. */
  lockKey: bigint('lock_key', { mode: 'number' }).notNull().unique(),
  leaseUntil: time('lease_until').notNull(),
  targets: text('targets').array().notNull(),
  concurrency: integer('concurrency').notNull(),
  info: jsonb('info').$type<WorkerInfo>().notNull().default({}),
  startedAt: time('started_at').notNull().default(sql`now()`),
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
export const sweepFailures = boxcar.table(
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
    firstFailedAt: time('first_failed_at').notNull().default(sql`now()`),
  },
  (table) => [primaryKey({ columns: [table.kind, table.rowId] })],
);

/** One row: who sweeps now. */
export const sweeper = boxcar.table('sweeper', {
  isOnly: boolean('is_only').primaryKey().default(true),
  holderId: uuid('holder_id'),
  leaseUntil: time('lease_until').notNull(),
});

/** Why a suspended turn waits when no call of it is out. */
export const waits = boxcar.table('waits', {
  turnId: uuid('turn_id').$type<TurnId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  kind: text('kind').$type<WaitKind>().notNull(),
  /** When it is looked at again; null = someone else wakes it. */
  dueAt: time('due_at'),
  /** Whose room it waits for. */
  provider: text('provider'),
  detail: jsonb('detail').$type<JsonObject>().notNull().default({}),
  createdAt: time('created_at').notNull().default(sql`now()`),
});

/** Providers of models with limits, or with failures behind them. */
export const providers = boxcar.table('providers', {
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
  updatedAt: time('updated_at').notNull().default(sql`now()`),
});

/** A turn's place among the calls of a provider. */
export const providerSlots = boxcar.table('provider_slots', {
  turnId: uuid('turn_id').$type<TurnId>().primaryKey(),
  provider: text('provider').notNull(),
  epoch: integer('epoch').notNull(),
  /** By older builds: kept for a turn that was woken and has not called yet. */
  isKept: boolean('is_kept').notNull(),
  takenAt: time('taken_at').notNull().default(sql`now()`),
  /** Since when the turn has waited, while a place is kept for it and until it calls or waits again; null: it calls. */
  queuedAt: time('queued_at'),
  /** The one call that tries a failing provider. */
  isProbe: boolean('is_probe').notNull().default(false),
});

/** The text of each version of a policy by which something was decided. */
export const policies = boxcar.table('policies', {
  version: text('version').primaryKey(),
  content: text('content').notNull(),
  createdAt: time('created_at').notNull().default(sql`now()`),
});

/** Requests that wait for the decision of a person, or had it. */
export const approvals = boxcar.table('approvals', {
  id: uuid('id').$type<TicketId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** Any text of the caller; the run of the turn whose call it is. */
  runId: text('run_id').notNull(),
  turnId: uuid('turn_id').$type<TurnId>(),
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  agent: text('agent').notNull(),
  toolName: text('tool_name').notNull(),
  /** The arguments as they are shown, masked. */
  cardId: uuid('card_id').$type<CardId>().notNull(),
  /** What the approval is bound to; empty: there was none. */
  argsHash: text('args_hash').notNull(),
  contextHash: text('context_hash').notNull().default(''),
  payloadHash: text('payload_hash').notNull().default(''),
  policyVersion: text('policy_version').notNull().default(''),
  status: text('status').$type<TicketStatus>().notNull().default('pending'),
  createdAt: time('created_at').notNull().default(sql`now()`),
  expiresAt: time('expires_at').notNull(),
  resolvedAt: time('resolved_at'),
  resolvedBy: text('resolved_by'),
  /** Who decided. */
  principal: jsonb('principal').$type<Principal>(),
  decisionReason: text('decision_reason'),
  response: json('response').$type<JsonObject>(),
  /** What was approved was begun. */
  consumedAt: time('consumed_at'),
  /** It approves nothing any more: its call was answered, or the policy has changed. */
  voidedAt: time('voided_at'),
  /** Of the turn whose call was begun: the same claim may ask again after a lost answer. */
  consumedEpoch: integer('consumed_epoch'),
  /** How long its call may take once it is begun. */
  callMs: bigint('call_ms', { mode: 'number' }),
  metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
});
