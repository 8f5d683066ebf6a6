/** The tables of workers, the sweep, and the order of calls to providers of models. */
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
  /** The key of the session advisory lock that the worker's direct connection holds while it lives; below 2^47. */
  lockKey: bigint('lock_key', { mode: 'number' }).notNull().unique(),
  leaseUntil: time('lease_until').notNull(),
  targets: text('targets').array().notNull(),
  concurrency: integer('concurrency').notNull(),
  info: jsonb('info').$type<WorkerInfo>().notNull().default({}),
  startedAt: time('started_at').notNull().default(sql`now()`),
  /** The time at which the worker last confirmed that it holds its lock; null when it does not hold it. */
  lockedAt: time('locked_at'),
  /** The newest migration that the worker's build knows. */
  schemaVersion: smallint('schema_version').notNull().default(11),
  /** The last answer of each provider, as of `toldAt`. */
  answers: jsonb('answers').$type<Readonly<Record<string, string>>>().notNull().default({}),
  /** Null for a build that does not report answers. */
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
    /** True: the row is left alone until `boxcar doctor --retry-dead`. */
    isDead: boolean('is_dead').notNull().default(false),
    firstFailedAt: time('first_failed_at').notNull().default(sql`now()`),
  },
  (table) => [primaryKey({ columns: [table.kind, table.rowId] })],
);

/** One row, which names the process that sweeps now. */
export const sweeper = boxcar.table('sweeper', {
  isOnly: boolean('is_only').primaryKey().default(true),
  holderId: uuid('holder_id'),
  leaseUntil: time('lease_until').notNull(),
});

/** The reason why a suspended turn waits when none of its calls is out. */
export const waits = boxcar.table('waits', {
  turnId: uuid('turn_id').$type<TurnId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  kind: text('kind').$type<WaitKind>().notNull(),
  /** The time of the next look; null when something else wakes the turn. */
  dueAt: time('due_at'),
  /** The provider whose room the turn waits for. */
  provider: text('provider'),
  detail: jsonb('detail').$type<JsonObject>().notNull().default({}),
  createdAt: time('created_at').notNull().default(sql`now()`),
});

/** Providers of models with limits, or with recorded failures. */
export const providers = boxcar.table('providers', {
  name: text('name').primaryKey(),
  maxConcurrent: integer('max_concurrent'),
  requestsPerMinute: integer('requests_per_minute'),
  /** The number of failures in a row after which calls wait; 0 = never; null = the default. */
  breakerAfter: integer('breaker_after'),
  /** The clock of the rate limit: the time at which all begun calls are paid for. */
  pacedUntil: time('paced_until'),
  failures: integer('failures').notNull().default(0),
  openings: integer('openings').notNull().default(0),
  /** No call may begin before this time. After it, a single call may try. */
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
  /** Set by older builds: the place is kept for a turn that was woken and has not called yet. */
  isKept: boolean('is_kept').notNull(),
  takenAt: time('taken_at').notNull().default(sql`now()`),
  /**
   * The time since which the turn has waited. Set while a place is kept for the turn, until it calls or waits again; null when it
   * calls.
   */
  queuedAt: time('queued_at'),
  /** True for the single call that tries a failing provider. */
  isProbe: boolean('is_probe').notNull().default(false),
});

/** The text of each policy version that has decided something. */
export const policies = boxcar.table('policies', {
  version: text('version').primaryKey(),
  content: text('content').notNull(),
  createdAt: time('created_at').notNull().default(sql`now()`),
});

/** Requests that wait for a person's decision, or have got it. */
export const approvals = boxcar.table('approvals', {
  id: uuid('id').$type<TicketId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** Any text of the caller; for a call, the run of its turn. */
  runId: text('run_id').notNull(),
  turnId: uuid('turn_id').$type<TurnId>(),
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  agent: text('agent').notNull(),
  toolName: text('tool_name').notNull(),
  /** The arguments as they are shown, masked. */
  cardId: uuid('card_id').$type<CardId>().notNull(),
  /** This and the next two hashes are the values that the approval is bound to; empty when there was no such value. */
  argsHash: text('args_hash').notNull(),
  contextHash: text('context_hash').notNull().default(''),
  payloadHash: text('payload_hash').notNull().default(''),
  policyVersion: text('policy_version').notNull().default(''),
  status: text('status').$type<TicketStatus>().notNull().default('pending'),
  createdAt: time('created_at').notNull().default(sql`now()`),
  expiresAt: time('expires_at').notNull(),
  resolvedAt: time('resolved_at'),
  resolvedBy: text('resolved_by'),
  /** The identity that decided. */
  principal: jsonb('principal').$type<Principal>(),
  decisionReason: text('decision_reason'),
  response: json('response').$type<JsonObject>(),
  /** The time at which the approved action was begun. */
  consumedAt: time('consumed_at'),
  /** The time since which the ticket approves nothing: its call was answered, or the policy has changed. */
  voidedAt: time('voided_at'),
  /** The epoch of the turn whose call was begun. The same claim may ask again after a lost answer. */
  consumedEpoch: integer('consumed_epoch'),
  /** The longest time for the call once it is begun. */
  callMs: bigint('call_ms', { mode: 'number' }),
  metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
});
