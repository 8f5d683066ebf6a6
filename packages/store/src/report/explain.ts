/**
 * The rows behind the prompts of a turn: what the view was built from, and where each of its cards came from. Reads for
 * people, in one snapshot, in a constant number of statements whatever the size of the turn, its contexts or their history.
 */
import type {
  AgentId,
  BoxId,
  Card,
  CardId,
  ErrorBody,
  JsonValue,
  Profile,
  ProfileId,
  ProjectId,
  RunId,
  Segment,
  StoredManifest,
  TapeEntry,
  TurnId,
  TurnStatus,
} from '@boxcar/kernel';
import { CARD_TYPES, parentOf } from '@boxcar/kernel';
import type pg from 'pg';
import {
  inShownPlace,
  SHOWN_LEAVES,
  SHOWN_SEGMENTS,
  type ShownAs,
  type ShownColumns,
  toShownAs,
} from '../box/index.js';
import { beginOn, checkOut, type Queryable, run, statement, toDatabaseError } from '../db/index.js';
import type { OfferedTool } from '../kinds/row-kinds.js';
import { type CardRow, PACKED_CARD_READ, readCard, VIEWED_CARD_READ, wroteFor } from '../rows/index.js';
import { findTurnId, loadAgentNames } from '../submit/index.js';
import { loadToolsets } from '../turn/index.js';
import { edgeEntriesOf, entriesOf, entryAt, lastAnchorOf } from '../visible/index.js';

/** A card with its bookkeeping. */
export interface StoredCard {
  readonly card: Card;
  readonly hash: string;
  readonly tokens: number;
  readonly createdAt: Date;
  readonly isErased: boolean;
}

export interface ExplainedTurn {
  readonly turnId: TurnId;
  readonly runId: RunId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly agentName: string;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly status: TurnStatus;
  readonly stepCount: number;
  readonly maxSteps: number;
  readonly deliverableCardId: CardId | null;
  /** What makes its prompts; the version is null until its first step. */
  readonly selector: { readonly name: string; readonly version: string | null } | null;
  readonly profile: {
    readonly profileId: ProfileId;
    readonly name: string;
    readonly version: number;
    readonly boxId: BoxId;
    readonly content: Profile;
    readonly card: StoredCard;
  };
}

export interface StepRow {
  readonly step: number;
  readonly attempt: number;
  readonly fromPosition: number;
  readonly toPosition: number;
  /** The last anchor at or before `toPosition`; 0 on a tape without one. */
  readonly anchorPosition: number;
  readonly openedAt: Date;
  readonly committedAt: Date | null;
  readonly model: string | null;
  readonly promptHash: string | null;
  readonly toolsetHash: string | null;
  readonly manifest: StoredManifest | null;
  readonly usage: JsonValue;
  readonly error: ErrorBody | null;
}

/** Where an entry stands besides what a view reads of it. */
export interface StoredEntry {
  readonly entry: TapeEntry;
  readonly stored: StoredCard | null;
}

/** A card of a context box, and the entry of the tape it was taken from when it was. */
export interface SourcedCard {
  readonly stored: StoredCard;
  readonly rule: Segment['rule'];
  readonly shownAs: ShownAs;
  /** Index in the box's segments, from 0. */
  readonly segment: number;
  /** In the leaf: the box that holds the card itself. */
  readonly position: number;
  readonly entry: {
    readonly kind: TapeEntry['kind'];
    readonly turnId: TurnId | null;
    readonly step: number | null;
  } | null;
}

/** A card that a token budget kept out of a context box. */
export interface CutCard extends SourcedCard {
  readonly strategy: string;
  readonly reason: string;
}

/** A box on the way of a card. */
export interface BoxRow {
  readonly boxId: BoxId;
  readonly kind: 'context' | 'tape';
  readonly ownerAgentId: AgentId | null;
  readonly makerAgentId: AgentId | null;
  readonly segments: readonly Segment[];
}

/** By what right an agent may read a box, as the rows stand now. */
export interface BoxRight {
  readonly isOperator: boolean;
  readonly isOwner: boolean;
  readonly isMaker: boolean;
  /** It is the box of the agent's own profile. */
  readonly isProfile: boolean;
  /** The agent launched the one whose box it is. */
  readonly isLauncher: boolean;
  /** Turns of the agent have asked for ended turns that wrote to it, or it was told of their ends. */
  readonly isParent: boolean;
  readonly grant: {
    readonly source: string;
    readonly uptoPosition: number | null;
    readonly expiresAt: Date | null;
    readonly createdAt: Date;
  } | null;
}

export interface TurnRows {
  readonly turn: ExplainedTurn;
  readonly steps: readonly StepRow[];
  /** From the first position that a wanted step reads; with the turn's own entries behind the last of them. */
  readonly entries: readonly StoredEntry[];
  readonly contexts: ReadonlyMap<BoxId, readonly SourcedCard[]>;
  /** What budgets kept out of the contexts, by context. */
  readonly cuts: ReadonlyMap<BoxId, readonly CutCard[]>;
  /** The contexts, the boxes their callers named, and the boxes that hold the cards. */
  readonly boxes: ReadonlyMap<BoxId, BoxRow>;
  /** By {@link rightKey}. */
  readonly rights: ReadonlyMap<string, BoxRight>;
  readonly agentNames: ReadonlyMap<string, string>;
  readonly toolsets: ReadonlyMap<string, readonly OfferedTool[]>;
}

/** Which steps are looked at: from the rows of all of them, those that count. */
export type ChooseSteps = (turn: ExplainedTurn, steps: readonly StepRow[]) => readonly StepRow[];

const CARD_BOOKKEEPING =
  "encode(c.content_hash, 'hex') as card_hash, c.token_estimate as card_tokens, c.created_at as card_created_at, c.erased_at is not null as card_is_erased";

interface StoredCardRow extends CardRow, pg.QueryResultRow {
  card_hash: string;
  card_tokens: number;
  card_created_at: Date;
  card_is_erased: boolean;
}

function readStored(row: StoredCardRow): StoredCard | null {
  const card = readCard(row);
  if (card === null) return null;
  return {
    card,
    hash: row.card_hash,
    tokens: row.card_tokens,
    createdAt: row.card_created_at,
    isErased: row.card_is_erased,
  };
}

const TURN = statement(`
  select t.id as turn_id, t.run_id, t.project_id, t.agent_id, a.name as agent_name, t.context_box_id, t.output_box_id, t.status, t.step_count, t.max_steps,
    t.deliverable_card_id, t.selector, t.selector_version, t.profile_id, f.name as profile_name, f.version as profile_version, f.box_id as profile_box_id,
    c.content->'data' as profile, ${VIEWED_CARD_READ}, ${CARD_BOOKKEEPING}
  from boxcar.turns t join boxcar.agents a on a.id = t.agent_id join boxcar.profiles f on f.id = t.profile_id join boxcar.cards c on c.id = f.card_id
  where t.id = $1`);

interface TurnDbRow extends StoredCardRow {
  turn_id: TurnId;
  run_id: RunId;
  project_id: ProjectId;
  agent_id: AgentId;
  agent_name: string;
  context_box_id: BoxId;
  output_box_id: BoxId;
  status: TurnStatus;
  step_count: number;
  max_steps: number;
  deliverable_card_id: CardId | null;
  selector: string | null;
  selector_version: string | null;
  profile_id: ProfileId;
  profile_name: string;
  profile_version: number;
  profile_box_id: BoxId;
  profile: Profile;
}

async function loadTurn(db: Queryable, turnId: TurnId): Promise<ExplainedTurn> {
  const [row] = await run<TurnDbRow>(db, TURN, [turnId]);
  const card = row === undefined ? null : readStored(row);
  if (row === undefined || card === null) throw new Error(`turn ${turnId} lacks its agent or profile`);
  return {
    turnId: row.turn_id,
    runId: row.run_id,
    projectId: row.project_id,
    agentId: row.agent_id,
    agentName: row.agent_name,
    contextBoxId: row.context_box_id,
    outputBoxId: row.output_box_id,
    status: row.status,
    stepCount: row.step_count,
    maxSteps: row.max_steps,
    deliverableCardId: row.deliverable_card_id,
    selector: row.selector === null ? null : { name: row.selector, version: row.selector_version },
    profile: {
      profileId: row.profile_id,
      name: row.profile_name,
      version: row.profile_version,
      boxId: row.profile_box_id,
      content: row.profile,
      card,
    },
  };
}

// The anchor of an attempt that was not committed follows from where its view began: before its fork point that of a session begins with the anchor it
// was made from, which intention and own anchors do not tell.
const STEPS = statement(`
  select s.step, s.attempt, s.from_position, s.to_position, s.opened_at, s.committed_at, s.model,
    encode(s.prompt_hash, 'hex') as prompt_hash, encode(s.toolset_hash, 'hex') as toolset_hash, s.manifest, s.usage, s.error,
    coalesce((s.manifest->>'anchor')::int,
      case when t.own_view_anchor > 0 and coalesce(${lastAnchorOf('b', 's.to_position')}, 0) < t.start_position then t.own_view_anchor end,
      case when b.view_anchor_position <= s.to_position and t.own_view_anchor is distinct from 0 then b.view_anchor_position end,
      (select n.from_position from boxcar.sessions n where n.id = b.id and s.from_position <= b.fork_position and t.own_view_anchor is distinct from 0),
      (select max(e.position) from ${edgeEntriesOf('b', { from: '1', to: 's.to_position', where: "o.kind = 'anchor'" }, { order: 'o.position desc', limit: '1' })} e), 0) as anchor_position
  from boxcar.steps s join boxcar.boxes b on b.id = $2 join boxcar.turns t on t.id = s.turn_id where s.turn_id = $1
  order by s.step, s.attempt`);

interface StepDbRow extends pg.QueryResultRow {
  step: number;
  attempt: number;
  from_position: number;
  to_position: number;
  anchor_position: number;
  opened_at: Date;
  committed_at: Date | null;
  model: string | null;
  prompt_hash: string | null;
  toolset_hash: string | null;
  manifest: StoredManifest | null;
  usage: JsonValue;
  error: ErrorBody | null;
}

const toStep = (row: StepDbRow): StepRow => ({
  step: row.step,
  attempt: row.attempt,
  fromPosition: row.from_position,
  toPosition: row.to_position,
  anchorPosition: row.anchor_position,
  openedAt: row.opened_at,
  committedAt: row.committed_at,
  model: row.model,
  promptHash: row.prompt_hash,
  toolsetHash: row.toolset_hash,
  manifest: row.manifest,
  usage: row.usage,
  error: row.error,
});

const ENTRIES = statement(`
  select e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step, ${VIEWED_CARD_READ}, ${CARD_BOOKKEEPING}
  from boxcar.boxes b cross join lateral ${entriesOf('b', { from: '$2::int', to: 'b.head_position', where: '(o.position <= $3 or o.turn_id = $4)' })} e
    left join boxcar.cards c on c.id = e.card_id
  where b.id = $1
  order by e.position`);

interface EntryDbRow extends StoredCardRow {
  position: number;
  kind: TapeEntry['kind'];
  payload: JsonValue | null;
  anchor_name: string | null;
  entry_turn_id: TurnId | null;
  step: number | null;
}

async function loadEntries(
  db: Queryable,
  turn: ExplainedTurn,
  steps: readonly StepRow[],
): Promise<readonly StoredEntry[]> {
  const from = Math.min(...steps.map((step) => step.fromPosition));
  const to = Math.max(...steps.map((step) => step.toPosition));
  const rows = await run<EntryDbRow>(db, ENTRIES, [turn.outputBoxId, from, to, turn.turnId]);
  return rows.map((row) => {
    const stored = readStored(row);
    return {
      stored,
      entry: {
        position: row.position,
        kind: row.kind,
        card: stored?.card ?? null,
        payload: row.payload,
        anchorName: row.anchor_name,
        turnId: row.entry_turn_id,
        step: row.step,
      },
    };
  });
}

const CONTEXTS = statement(`
  with want_boxes as (select * from boxcar.boxes where id = any ($1::uuid[]) and kind = 'context'),
  seg as (${SHOWN_SEGMENTS}),
  leaf as (${SHOWN_LEAVES})
  select l.box_id, l.rule, l."native", l.is_reference, l.is_summary, l.is_repeat, l.part, l.ord::int, l.position::int, te.kind as entry_kind, te.turn_id as entry_turn_id, te.step as entry_step,
    ${PACKED_CARD_READ}, ${CARD_BOOKKEEPING}
  from leaf l cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c
    left join lateral ${entryAt('l.source', 'l.position')} te on true
  order by l.box_id, l.ord, l.position, l.part`);

interface ContextDbRow extends StoredCardRow, ShownColumns {
  box_id: BoxId;
  rule: Segment['rule'];
  ord: number;
  position: number;
  entry_kind: TapeEntry['kind'] | null;
  entry_turn_id: TurnId | null;
  entry_step: number | null;
}

async function loadContexts(
  db: Queryable,
  boxIds: readonly BoxId[],
): Promise<ReadonlyMap<BoxId, readonly SourcedCard[]>> {
  const contexts = new Map<BoxId, SourcedCard[]>(boxIds.map((id) => [id, []]));
  for (const row of inShownPlace(await run<ContextDbRow>(db, CONTEXTS, [boxIds]))) {
    const sourced = toSourced(row);
    if (sourced !== null) contexts.get(row.box_id)?.push(sourced);
  }
  return contexts;
}

function toSourced(row: ContextDbRow): SourcedCard | null {
  const stored = readStored(row);
  if (stored === null) return null;
  const { entry_kind: kind } = row;
  return {
    stored,
    rule: row.rule,
    shownAs: toShownAs(row),
    segment: row.ord - 1,
    position: row.position,
    entry: kind === null ? null : { kind, turnId: row.entry_turn_id, step: row.entry_step },
  };
}

/** The cards at the positions that the manifest of a box says a budget left out. */
const CUTS = statement(`
  with cut as (
    select b.id as box_id, s.ordinality as ord, x.rule, x.source, x."native", s.value->'cut'->>'strategy' as strategy, p.value->>'reason' as reason,
      (r.value->>0)::int as "from", (r.value->>1)::int as "to"
    from boxcar.boxes b cross join lateral jsonb_array_elements(b.segments) with ordinality s
      cross join lateral jsonb_to_record(s.value) as x(rule text, source uuid, "native" boolean)
      cross join lateral jsonb_array_elements(s.value->'cut'->'parts') p
      cross join lateral jsonb_array_elements(p.value->'ranges') r
    where b.id = any ($1::uuid[]) and b.kind = 'context'
  ),
  leaf as (
    select g.*, g."from" - 1 + u.n as position, u.card_id
    from cut g cross join lateral (select b.card_ids from boxcar.boxes b where b.id = coalesce(g.source, g.box_id) and b.kind = 'context' offset 0) l,
      unnest(l.card_ids[g."from":g."to"]) with ordinality as u(card_id, n)
    union all
    select g.*, e.position, e.card_id
    from cut g cross join lateral (select x.id, x.line_boxes, x.line_ends from boxcar.boxes x where x.id = g.source and x.kind = 'tape' offset 0) t
      cross join lateral ${entriesOf('t', { from: 'g."from"', to: 'g."to"', where: 'o.card_id is not null' })} e
  )
  select l.box_id, l.rule, l."native", null::boolean as is_reference, null::boolean as is_summary, null::boolean as is_repeat, 0 as part, l.ord::int, l.position::int, l.strategy, l.reason,
    te.kind as entry_kind, te.turn_id as entry_turn_id, te.step as entry_step, ${PACKED_CARD_READ}, ${CARD_BOOKKEEPING}
  from leaf l cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c
    left join lateral ${entryAt('l.source', 'l.position')} te on true
  order by l.box_id, l.ord, l.position`);

/** A range may span cards that are in the box by another rule; those were not left out. */
async function loadCuts(
  db: Queryable,
  contexts: ReadonlyMap<BoxId, readonly SourcedCard[]>,
): Promise<ReadonlyMap<BoxId, readonly CutCard[]>> {
  const cuts = new Map<BoxId, CutCard[]>();
  const kept = new Map(
    [...contexts].map(([boxId, cards]) => [boxId, new Set(cards.map(({ stored }) => stored.card.id))]),
  );
  const rows = await run<ContextDbRow & { strategy: string; reason: string }>(db, CUTS, [
    [...contexts.keys()],
  ]);
  for (const row of rows) {
    const sourced = toSourced(row);
    if (sourced === null || kept.get(row.box_id)?.has(sourced.stored.card.id) === true) continue;
    const { strategy, reason } = row;
    const ofBox = cuts.get(row.box_id) ?? [];
    ofBox.push({ ...sourced, strategy, reason });
    cuts.set(row.box_id, ofBox);
  }
  return cuts;
}

/** Follows the boxes that callers named, from one to the next, and adds the leaf boxes that hold the cards. */
const BOXES = statement(`
  with recursive named(id) as (
    select unnest($1::uuid[])
    union
    select x.via from named n
      cross join lateral (select b.segments from boxcar.boxes b where b.id = n.id and b.kind = 'context' offset 0) b,
      jsonb_array_elements(b.segments) s, jsonb_to_record(s) as x(via uuid)
    where x.via is not null
  ),
  wanted as (
    select id from named
    union
    select x.source from named n
      cross join lateral (select b.segments from boxcar.boxes b where b.id = n.id and b.kind = 'context' offset 0) b,
      jsonb_array_elements(b.segments) s, jsonb_to_record(s) as x(source uuid)
    where x.source is not null
  )
  select b.id as box_id, b.kind, b.owner_agent_id, b.maker_agent_id, b.segments
  from wanted w cross join lateral (select * from boxcar.boxes x where x.id = w.id offset 0) b`);

interface BoxDbRow extends pg.QueryResultRow {
  box_id: BoxId;
  kind: 'context' | 'tape';
  owner_agent_id: AgentId | null;
  maker_agent_id: AgentId | null;
  segments: readonly Segment[] | null;
}

async function loadBoxRows(db: Queryable, boxIds: readonly BoxId[]): Promise<ReadonlyMap<BoxId, BoxRow>> {
  const rows = await run<BoxDbRow>(db, BOXES, [boxIds]);
  return new Map(
    rows.map((row) => [
      row.box_id,
      {
        boxId: row.box_id,
        kind: row.kind,
        ownerAgentId: row.owner_agent_id,
        makerAgentId: row.maker_agent_id,
        segments: row.segments ?? [],
      },
    ]),
  );
}

const RIGHTS = statement(`
  select w.actor_id, w.box_id, p.operator_agent_id = w.actor_id as is_operator, coalesce(b.owner_agent_id = w.actor_id, false) as is_owner,
    coalesce(b.maker_agent_id = w.actor_id, false) as is_maker, coalesce(o.owner_agent_id = w.actor_id, false) as is_launcher,
    exists (select from boxcar.agents a join boxcar.profiles f on f.id = a.profile_id where a.id = w.actor_id and f.box_id = b.id) as is_profile,
    exists (select from boxcar.turns c where c.output_box_id = b.id and (c.parent_turn_id is not null or c.told_agent_id is not null) and ${wroteFor('w.actor_id')}) as is_parent,
    g.source, g.upto_position, g.expires_at, g.created_at
  from unnest($1::uuid[], $2::uuid[]) as w(actor_id, box_id)
    cross join lateral (select * from boxcar.boxes x where x.id = w.box_id offset 0) b
    join boxcar.projects p on p.id = b.project_id
    left join lateral (select a.owner_agent_id from boxcar.agents a where a.id = b.owner_agent_id offset 0) o on true
    left join lateral (select * from boxcar.grants x where x.agent_id = w.actor_id and x.box_id = w.box_id and x.mode = 'read' and x.source not like 'turn:%' offset 0) g on true`);

interface RightDbRow extends pg.QueryResultRow {
  actor_id: AgentId;
  box_id: BoxId;
  is_operator: boolean;
  is_owner: boolean;
  is_maker: boolean;
  is_launcher: boolean;
  is_profile: boolean;
  is_parent: boolean;
  source: string | null;
  upto_position: number | null;
  expires_at: Date | null;
  created_at: Date | null;
}

export const rightKey = (actorId: AgentId, boxId: BoxId): string => `${actorId} ${boxId}`;

/** Who packed from which box: the maker of each box on the way, for what its segments name and hold. */
function readersOf(boxes: ReadonlyMap<BoxId, BoxRow>): readonly (readonly [AgentId, BoxId])[] {
  const pairs = new Map<string, readonly [AgentId, BoxId]>();
  for (const { makerAgentId, segments } of boxes.values()) {
    if (makerAgentId === null) continue;
    for (const { via, source } of segments) {
      for (const boxId of [via, source]) {
        if (boxId !== undefined) pairs.set(rightKey(makerAgentId, boxId), [makerAgentId, boxId]);
      }
    }
  }
  return [...pairs.values()];
}

async function loadRights(
  db: Queryable,
  boxes: ReadonlyMap<BoxId, BoxRow>,
): Promise<ReadonlyMap<string, BoxRight>> {
  const pairs = readersOf(boxes);
  const rows = await run<RightDbRow>(db, RIGHTS, [
    pairs.map(([actorId]) => actorId),
    pairs.map(([, boxId]) => boxId),
  ]);
  return new Map(
    rows.map((row) => [
      rightKey(row.actor_id, row.box_id),
      {
        isOperator: row.is_operator,
        isOwner: row.is_owner,
        isMaker: row.is_maker,
        isProfile: row.is_profile,
        isLauncher: row.is_launcher,
        isParent: row.is_parent,
        grant:
          row.source === null || row.created_at === null
            ? null
            : {
                source: row.source,
                uptoPosition: row.upto_position,
                expiresAt: row.expires_at,
                createdAt: row.created_at,
              },
      },
    ]),
  );
}

/** The context box that a `turn.started` event names. */
function startedContext({ kind, payload }: TapeEntry): BoxId | undefined {
  if (kind !== 'event') return undefined;
  const event = payload as { name?: string; data?: { context_box_id?: BoxId } } | null;
  return event?.name === 'turn.started' ? event.data?.context_box_id : undefined;
}

/** One snapshot for all statements: what is explained never mixes two states of a turn. */
async function readSnapshot<T>(pool: pg.Pool, body: (db: Queryable) => Promise<T>): Promise<T> {
  const client = await checkOut(pool);
  let hasFailed = true;
  try {
    await client.query(`${beginOn(pool)}; set transaction isolation level repeatable read, read only`);
    const result = await body(client);
    await client.query('commit');
    hasFailed = false;
    return result;
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    // The connection of a failed read may be in the middle of it: the next gets a fresh one.
    client.release(hasFailed);
  }
}

/**
 * The rows behind the prompts of a turn.
 *
 * @param ref - Its id, or a beginning of it of at least eight digits.
 * @param options.project - Id or name; a turn of another project is not found.
 * @param options.choose - The steps whose prompts are wanted; what it throws is thrown.
 * @throws KernelError `not_found`; `bad_request` when `ref` is no id, or fits several turns.
 */
export function loadTurnRows(
  pool: pg.Pool,
  ref: string,
  options: { readonly project: string; readonly choose: ChooseSteps },
): Promise<TurnRows> {
  return readSnapshot(pool, async (db) => {
    const { turnId, projectId } = await findTurnId(db, ref, options.project);
    const turn = await loadTurn(db, turnId);
    const all = (await run<StepDbRow>(db, STEPS, [turnId, turn.outputBoxId])).map(toStep);
    const steps = options.choose(turn, all);
    const entries = await loadEntries(db, turn, steps);
    const contextIds = new Set([
      turn.contextBoxId,
      ...entries.flatMap(({ entry }) => startedContext(entry) ?? []),
    ]);
    const contexts = await loadContexts(db, [...contextIds]);
    const cuts = await loadCuts(db, contexts);
    const boxes = await loadBoxRows(db, [...contextIds]);
    const rights = await loadRights(db, boxes);
    const parents = [...contexts.values()]
      .flat()
      .flatMap(({ stored: { card } }) =>
        card.type === CARD_TYPES.parentPointer ? (parentOf(card.content) ?? []) : [],
      );
    const authors = [
      ...entries.map(({ stored }) => stored?.card.authorId ?? null),
      ...[...contexts.values(), ...cuts.values()].flat().map(({ stored }) => stored.card.authorId),
    ];
    return {
      turn,
      steps,
      entries,
      contexts,
      cuts,
      boxes,
      rights,
      agentNames: await loadAgentNames(db, projectId, [
        turn.profile.card.card.authorId,
        ...authors,
        ...parents,
        ...[...boxes.values()].flatMap((box) => [box.ownerAgentId, box.makerAgentId]),
        ...[...rights.values()].map((right) => right.grant?.source ?? null),
      ]),
      toolsets: await loadToolsets(
        db,
        projectId,
        steps.flatMap((step) => step.toolsetHash ?? []),
      ),
    };
  });
}
