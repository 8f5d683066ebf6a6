/** Sessions of clients that hand their context on, and their entries. */
import type {
  AgentId,
  BoxId,
  ContextType,
  HandoffSessionId,
  ProjectId,
  RetentionPolicy,
  StoredSessionStatus,
} from '@boxcar/kernel';
import { sql } from 'drizzle-orm';
import { integer, primaryKey, text, unique, uuid } from 'drizzle-orm/pg-core';
import { boxcar, createdAt, time } from './columns.js';

export const handoffSessions = boxcar.table(
  'handoff_sessions',
  {
    id: uuid('id').$type<HandoffSessionId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    /** The client's name of it. */
    sessionKey: text('session_key').notNull(),
    tapeBoxId: uuid('tape_box_id').$type<BoxId>().notNull().unique(),
    /** Who has registered it: an agent, or the operator. */
    makerAgentId: uuid('maker_agent_id').$type<AgentId>().notNull(),
    /** Whose session it is, as the client says. */
    agentFrom: text('agent_from').notNull(),
    /** Whom it was handed to last. */
    agentTo: text('agent_to'),
    /** Expired is not stored. */
    status: text('status').$type<StoredSessionStatus>().notNull().default('active'),
    retentionPolicy: text('retention_policy').$type<RetentionPolicy>().notNull(),
    /** With those of the sessions that it goes on from, as the other counts. */
    messageCount: integer('message_count').notNull(),
    fileCount: integer('file_count').notNull(),
    toolCallCount: integer('tool_call_count').notNull(),
    systemCount: integer('system_count').notNull(),
    createdAt: createdAt(),
    lastWriteAt: time('last_write_at').notNull().default(sql`now()`),
    endedAt: time('ended_at'),
    /** The last position of its tape that counts, once it is completed. */
    frozenHead: integer('frozen_head'),
    /** The completed session that it goes on from. */
    continues: uuid('continues').$type<HandoffSessionId>(),
    /** That session, and those before it, oldest first. */
    lineSessions: uuid('line_sessions').$type<HandoffSessionId>().array().notNull(),
  },
  (table) => [unique().on(table.projectId, table.sessionKey)],
);

export const handoffSessionEntries = boxcar.table(
  'handoff_session_entries',
  {
    sessionId: uuid('session_id').$type<HandoffSessionId>().notNull(),
    /** Without gaps; goes on from the session before. */
    sequenceNumber: integer('sequence_number').notNull(),
    /** On the tape of the session. */
    position: integer('position').notNull(),
    type: text('type').$type<ContextType>().notNull(),
    /** Up to this entry, as the other counts. */
    messageCount: integer('message_count').notNull(),
    fileCount: integer('file_count').notNull(),
    toolCallCount: integer('tool_call_count').notNull(),
    systemCount: integer('system_count').notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.sessionId, table.sequenceNumber] }),
    unique().on(table.sessionId, table.position),
  ],
);
