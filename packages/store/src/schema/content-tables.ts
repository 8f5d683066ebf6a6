/** What is said and to whom: projects, cards, boxes and tapes, profiles, agents and rights. */
import type {
  AgentId,
  BoxId,
  CardContent,
  CardId,
  EntryKind,
  JsonObject,
  JsonValue,
  ProfileId,
  ProjectId,
  ProjectLimits,
  ProviderData,
  Role,
  Segment,
  ToolCallId,
  TurnId,
} from '@boxcar/kernel';
import { sql } from 'drizzle-orm';
import { bigint, boolean, integer, primaryKey, text, unique, uuid } from 'drizzle-orm/pg-core';
import { boxcar, bytea, createdAt, json, jsonb, time, xid8 } from './columns.js';

export const schemaVersion = boxcar.table('schema_version', {
  version: integer('version').primaryKey(),
  name: text('name').notNull(),
  /** sha256 of the migration's text, in hex. */
  checksum: text('checksum').notNull(),
  /** The oldest program, by the newest migration it knows, that may run on this schema. */
  minCompatible: integer('min_compatible').notNull(),
  appliedAt: time('applied_at').notNull().default(sql`now()`),
});

export const projects = boxcar.table('projects', {
  id: uuid('id').$type<ProjectId>().primaryKey(),
  name: text('name').notNull().unique(),
  limits: jsonb('limits').$type<ProjectLimits>().notNull().default({}),
  operatorAgentId: uuid('operator_agent_id').$type<AgentId>().notNull(),
  /** The anchor card that every tape of the project begins with. */
  bootstrapCardId: uuid('bootstrap_card_id').$type<CardId>().notNull(),
  createdAt: createdAt(),
  /** How often cards of it were erased: who has kept what it read before reads it again. */
  erasures: integer('erasures').notNull().default(0),
  archivedAt: time('archived_at'),
});

export const cards = boxcar.table('cards', {
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
export const unsealed = boxcar.table('unsealed', {
  xact: xid8('xact').primaryKey(),
  allows: text('allows').$type<'erase' | 'purge'>().notNull(),
});

/** Boxes that a purge is about to remove: nothing new may refer to them. */
export const purging = boxcar.table('purging', {
  boxId: uuid('box_id').$type<BoxId>().primaryKey(),
  until: time('until').notNull(),
  /** The purge that has set the mark last. */
  purgeId: uuid('purge_id'),
});

export const boxes = boxcar.table('boxes', {
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

export const tapeEntries = boxcar.table(
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

export const tapeWords = boxcar.table(
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

export const profiles = boxcar.table(
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

export const agents = boxcar.table(
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

export const grants = boxcar.table(
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

/** Forks that are to be merged or discarded; a session's fork is none of these. */
export const forks = boxcar.table('forks', {
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
export const sessions = boxcar.table(
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
