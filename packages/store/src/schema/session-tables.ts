/** Sessions of clients that hand on their context, and the entries of these sessions. */
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
    /** The client's name for the session. */
    sessionKey: text('session_key').notNull(),
    tapeBoxId: uuid('tape_box_id').$type<BoxId>().notNull().unique(),
    /** The agent that registered the session, or the operator. */
    makerAgentId: uuid('maker_agent_id').$type<AgentId>().notNull(),
    /** The agent of the session, as the client names it. */
    agentFrom: text('agent_from').notNull(),
    /** The agent to which the session was last handed. */
    agentTo: text('agent_to'),
    /** The status `expired` is not stored. */
    status: text('status').$type<StoredSessionStatus>().notNull().default('active'),
    retentionPolicy: text('retention_policy').$type<RetentionPolicy>().notNull(),
    /** This and the other counts include the sessions that this session continues. */
    messageCount: integer('message_count').notNull(),
    fileCount: integer('file_count').notNull(),
    toolCallCount: integer('tool_call_count').notNull(),
    systemCount: integer('system_count').notNull(),
    createdAt: createdAt(),
    lastWriteAt: time('last_write_at').notNull().default(sql`now()`),
    endedAt: time('ended_at'),
    /** The last valid position of the tape, once the session is completed. */
    frozenHead: integer('frozen_head'),
    /** The completed session that this session continues. */
    continues: uuid('continues').$type<HandoffSessionId>(),
    /** The continued session and the sessions before it, oldest first. */
    lineSessions: uuid('line_sessions').$type<HandoffSessionId>().array().notNull(),
  },
  (table) => [unique().on(table.projectId, table.sessionKey)],
);

export const handoffSessionEntries = boxcar.table(
  'handoff_session_entries',
  {
    sessionId: uuid('session_id').$type<HandoffSessionId>().notNull(),
    /** Without gaps; continues the numbers of the previous session. */
    sequenceNumber: integer('sequence_number').notNull(),
    /** The position on the tape of the session. */
    position: integer('position').notNull(),
    type: text('type').$type<ContextType>().notNull(),
    /** This and the other counts include all entries up to this one. */
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
