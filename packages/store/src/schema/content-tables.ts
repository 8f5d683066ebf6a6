/** The tables of contents and their readers: projects, cards, boxes and tapes, profiles, agents and rights. */
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
  /** The oldest program that may run on this schema, as the number of the newest migration that it knows. */
  minCompatible: integer('min_compatible').notNull(),
  appliedAt: time('applied_at').notNull().default(sql`now()`),
});

export const projects = boxcar.table('projects', {
  id: uuid('id').$type<ProjectId>().primaryKey(),
  name: text('name').notNull().unique(),
  limits: jsonb('limits').$type<ProjectLimits>().notNull().default({}),
  operatorAgentId: uuid('operator_agent_id').$type<AgentId>().notNull(),
  /** The anchor card at the beginning of every tape of the project. */
  bootstrapCardId: uuid('bootstrap_card_id').$type<CardId>().notNull(),
  createdAt: createdAt(),
  /** The number of erasures of cards in the project. A process with cached reads reads again after the number has changed. */
  erasures: integer('erasures').notNull().default(0),
  archivedAt: time('archived_at'),
});

export const cards = boxcar.table('cards', {
  id: uuid('id').$type<CardId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  type: text('type').notNull(),
  /** The role that a model sees; null = user. */
  role: text('role').$type<Role>(),
  /** `json`, not `jsonb`: the writer's key order and bytes are preserved. Null only after erasure. */
  content: json('content').$type<CardContent>(),
  /** sha256 of the RFC 8785 form of the content. */
  contentHash: bytea('content_hash').notNull(),
  sizeBytes: integer('size_bytes').notNull(),
  tokenEstimate: integer('token_estimate').notNull(),
  metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
  /** An agent id, the name of a primitive, or `kernel`. For audit; never shown to a model. */
  authorId: text('author_id').notNull(),
  toolCallId: uuid('tool_call_id').$type<ToolCallId>(),
  createdAt: createdAt(),
  erasedAt: time('erased_at'),
  erasedReason: text('erased_reason'),
  /** The content that readers see after erasure: content of the same kind without its words. */
  placeholder: json('placeholder').$type<CardContent>(),
  /**
   * Data that a provider attached to the answer. Only views read them. They are removed with any card of the step. `json`: the bytes
   * are preserved.
   */
  providerData: json('provider_data').$type<ProviderData>(),
});

/** Written only by the functions of erasure and purge, each within one transaction. */
export const unsealed = boxcar.table('unsealed', {
  xact: xid8('xact').primaryKey(),
  allows: text('allows').$type<'erase' | 'purge'>().notNull(),
});

/** Boxes that a purge is about to remove. New rows must not refer to them. */
export const purging = boxcar.table('purging', {
  boxId: uuid('box_id').$type<BoxId>().primaryKey(),
  until: time('until').notNull(),
  /** The purge that set the mark last. */
  purgeId: uuid('purge_id'),
});

export const boxes = boxcar.table('boxes', {
  id: uuid('id').$type<BoxId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  kind: text('kind').$type<'context' | 'tape'>().notNull(),
  /** The agent that owns the context or tape. Owner and maker may read it without a grant. */
  ownerAgentId: uuid('owner_agent_id').$type<AgentId>(),
  makerAgentId: uuid('maker_agent_id').$type<AgentId>(),
  createdAt: createdAt(),
  /** Context: the cards made for this box; the segments name the other cards. */
  cardIds: uuid('card_ids').array().$type<CardId[]>(),
  /** Context: the token estimate of each of `cardIds`. */
  cardTokens: integer('card_tokens').array(),
  /** Context: the parts of the box, in order; this is its manifest. */
  segments: jsonb('segments').$type<Segment[]>(),
  /** Context: the number of all cards, including those of the segments. */
  cardCount: integer('card_count'),
  /** Context: the number of all tokens. */
  tokenEstimate: integer('token_estimate'),
  tapeName: text('tape_name'),
  /** Tape: raised by each reset, which archives the previous incarnation. */
  incarnation: integer('incarnation'),
  /** Tape: the position of the last entry. The lock of this row makes positions gapless. */
  headPosition: integer('head_position'),
  lastAnchorPosition: integer('last_anchor_position'),
  /** Tape: the position at which a view begins to read: the last anchor, or the first entry of the step that was open at that time. */
  viewPosition: integer('view_position'),
  /** Tape: the box that this tape was forked from, up to `forkPosition`. */
  parentBoxId: uuid('parent_box_id').$type<BoxId>(),
  forkPosition: integer('fork_position'),
  archivedAt: time('archived_at'),
  /** Tape: the number of anchors up to the head, including those of its line; null = only the first anchor. */
  anchorCount: integer('anchor_count'),
  /** Tape: the anchor that a view begins with; null = the last anchor. */
  viewAnchorPosition: integer('view_anchor_position'),
  /** Fork: the boxes of its line, which are read before its own entries, and the last position to read in each (visible/ancestry.ts). */
  lineBoxes: uuid('line_boxes').array().$type<readonly BoxId[]>(),
  lineEnds: integer('line_ends').array(),
  forkStatus: text('fork_status').$type<'open' | 'merged' | 'discarded'>(),
  /** Tape: the incarnation that a reset replaced by this one. */
  previousBoxId: uuid('previous_box_id').$type<BoxId>(),
  /** Tape: the lines of the session graph with which it was imported. */
  sessionGraph: text('session_graph'),
});

export const tapeEntries = boxcar.table(
  'tape_entries',
  {
    boxId: uuid('box_id').$type<BoxId>().notNull(),
    position: integer('position').notNull(),
    kind: text('kind').$type<EntryKind>().notNull(),
    /** Null only for events. */
    cardId: uuid('card_id').$type<CardId>(),
    /** The card's token estimate, so that packing a range need not read the cards. */
    tokens: integer('tokens').notNull().default(0),
    /** Events only: `{ name, data }`. */
    payload: json('payload').$type<{ readonly name: string; readonly data: JsonValue }>(),
    anchorName: text('anchor_name'),
    turnId: uuid('turn_id').$type<TurnId>(),
    step: integer('step'),
    authorId: text('author_id').notNull(),
    /** Makes an append, merge or import of the same item happen only once. */
    dedupKey: text('dedup_key'),
    meta: jsonb('meta').$type<JsonObject>(),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.boxId, table.position] })],
);

export const tapeWords = boxcar.table(
  'tape_words',
  {
    /** A tape. At position 0 a turn, with the words of its instruction. */
    boxId: uuid('box_id').$type<BoxId | TurnId>().notNull(),
    position: integer('position').notNull(),
    cardId: uuid('card_id').$type<CardId>(),
    /** Case-folded. Null for text that was erased in the meantime, and for a turn without an instruction. */
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
    /** `limits.tokens`, the limit of one turn. */
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
    /** Null only for the operator: it acts for callers that are not agents, and has no model. */
    profileId: uuid('profile_id').$type<ProfileId>(),
    ownerAgentId: uuid('owner_agent_id').$type<AgentId>(),
    /** The agent whose view the clone began with. */
    derivedFrom: uuid('derived_from').$type<AgentId>(),
    tapeBoxId: uuid('tape_box_id').$type<BoxId>(),
    metadata: jsonb('metadata').$type<JsonObject>().notNull().default({}),
    createdAt: createdAt(),
    /** True when any agent whose policy reaches the agent's profile may give it turns. */
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
    /** The last readable position of a tape. Null: all positions, including later ones. */
    uptoPosition: integer('upto_position'),
    /** The source of the grant: an agent id, `turn:<id>` for the end of a child, or `card:<id>` of a handoff. */
    source: text('source').notNull(),
    expiresAt: time('expires_at'),
    createdAt: createdAt(),
  },
  (table) => [primaryKey({ columns: [table.agentId, table.boxId, table.mode] })],
);

/** Forks that will be merged or discarded. The fork of a session is not stored here. */
export const forks = boxcar.table('forks', {
  /** The box as which the fork was made. */
  id: uuid('id').$type<BoxId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** The current box of the fork. It changes when the tape is reset. */
  boxId: uuid('box_id').$type<BoxId>().notNull(),
  parentBoxId: uuid('parent_box_id').$type<BoxId>().notNull(),
  openedBy: uuid('opened_by').$type<AgentId>().notNull(),
  /** The turn for which the fork was opened. The fork ends with this turn. */
  turnId: uuid('turn_id').$type<TurnId>(),
  forkKey: text('fork_key').notNull(),
  status: text('status').$type<'open' | 'merged' | 'discarded'>().notNull(),
  mergeBack: boolean('merge_back').notNull(),
  onError: text('on_error').$type<'merge' | 'discard'>().notNull(),
  receipt: jsonb('receipt').$type<JsonValue>(),
  createdAt: createdAt(),
  endedAt: time('ended_at'),
});

/** Forks with their own agent, and imported tapes without an agent, with their lineage. */
export const sessions = boxcar.table(
  'sessions',
  {
    /** The box as which the session's tape began. */
    id: uuid('id').$type<BoxId>().primaryKey(),
    projectId: uuid('project_id').$type<ProjectId>().notNull(),
    name: text('name').notNull(),
    /** Null for an imported tape. */
    agentId: uuid('agent_id').$type<AgentId>().unique(),
    parentBoxId: uuid('parent_box_id').$type<BoxId>(),
    /** The parent's tape: its name, otherwise its agent, otherwise its box. */
    parentSessionId: text('parent_session_id').notNull(),
    fromAnchor: text('from_anchor'),
    fromPosition: integer('from_position').notNull(),
    notifies: boolean('notifies').notNull(),
    status: text('status').notNull().default('active'),
    createdAt: createdAt(),
  },
  (table) => [unique().on(table.projectId, table.name)],
);
