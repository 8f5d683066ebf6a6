/**
 * The rows from which the prompts of a turn were made: the rows of its view, and the origin of each card. Reads for people, in one
 * snapshot. The number of statements is constant for any size of the turn, its contexts or their history.
 */
import type { BoxId, Profile, TapeEntry, TurnId } from '@boxcar/kernel';
import { CARD_TYPES, parentOf } from '@boxcar/kernel';
import type pg from 'pg';
import { inShownPlace, SHOWN_LEAVES, SHOWN_SEGMENTS, type ShownColumns, toShownAs } from '../box/index.js';
import { type Queryable, readSnapshot, run, statement } from '../db/index.js';
import { type CardRow, PACKED_CARD_READ, readCard, VIEWED_CARD_READ } from '../rows/index.js';
import type { Outer, Row } from '../schema/index.js';
import { findTurnId, loadAgentNames } from '../submit/index.js';
import { loadToolsets } from '../turn/index.js';
import { edgeEntriesOf, entriesOf, entryAt, lastAnchorOf } from '../visible/index.js';
import { loadBoxRows, loadRights } from './box-rights.js';
import { forEachInSlices } from './in-slices.js';
import type {
  ChooseSteps,
  CutCard,
  ExplainedTurn,
  SourcedCard,
  StepRow,
  StoredCard,
  StoredEntry,
  TurnRows,
} from './turn-rows.js';

const CARD_BOOKKEEPING = `
  encode(c.content_hash, 'hex') as card_hash, c.token_estimate as card_tokens, c.created_at as card_created_at,
  c.erased_at is not null as card_is_erased`;

type StoredCardRow = CardRow &
  Row<'cards', never, { card_tokens: 'token_estimate'; card_created_at: 'created_at' }> & {
    readonly card_hash: string;
    readonly card_is_erased: boolean;
  };

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
  select /* explain.turn */ t.id as turn_id, t.run_id, t.project_id, t.agent_id, a.name as agent_name,
    t.context_box_id, t.output_box_id, t.status, t.step_count, t.max_steps, t.deliverable_card_id, t.selector,
    t.selector_version, t.profile_id, f.name as profile_name, f.version as profile_version,
    f.box_id as profile_box_id, c.content->'data' as profile, ${VIEWED_CARD_READ}, ${CARD_BOOKKEEPING}
  from boxcar.turns t
  join boxcar.agents a on a.id = t.agent_id
  join boxcar.profiles f on f.id = t.profile_id
  join boxcar.cards c on c.id = f.card_id
  where t.id = $1`);

type TurnDbRow = StoredCardRow &
  Row<
    'turns',
    | 'run_id'
    | 'project_id'
    | 'agent_id'
    | 'context_box_id'
    | 'output_box_id'
    | 'status'
    | 'step_count'
    | 'max_steps'
    | 'deliverable_card_id'
    | 'selector'
    | 'selector_version'
    | 'profile_id',
    { turn_id: 'id' }
  > &
  Row<'agents', never, { agent_name: 'name' }> &
  Row<'profiles', never, { profile_name: 'name'; profile_version: 'version'; profile_box_id: 'box_id' }> & {
    readonly profile: Profile;
  };

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

// The anchor of an attempt that was not committed follows from the beginning of its view. Before the fork point, the view of a session
// begins with the anchor from which the session was made; neither the intention nor its own anchors contain that anchor. Takes no locks: an
// open step is shown as it is now.
const STEPS = statement(`
  select /* explain.steps */
    s.step, s.attempt, s.from_position as "fromPosition", s.to_position as "toPosition", s.opened_at as "openedAt",
    s.committed_at as "committedAt", s.model, encode(s.prompt_hash, 'hex') as "promptHash",
    encode(s.toolset_hash, 'hex') as "toolsetHash", s.manifest, s.usage, s.error,
    coalesce(
      (s.manifest->>'anchor')::int,
      case
        when t.own_view_anchor > 0 and coalesce(${lastAnchorOf('b', 's.to_position')}, 0) < t.start_position
          then t.own_view_anchor
      end,
      case
        when b.view_anchor_position <= s.to_position and t.own_view_anchor is distinct from 0
          then b.view_anchor_position
      end,
      (
        select n.from_position
        from boxcar.sessions n
        where n.id = b.id and s.from_position <= b.fork_position and t.own_view_anchor is distinct from 0
      ),
      (
        select max(e.position)
        from ${edgeEntriesOf(
          'b',
          { from: '1', to: 's.to_position', where: "o.kind = 'anchor'" },
          { order: 'o.position desc', limit: '1' },
        )} e
      ),
      0
    ) as "anchorPosition"
  from boxcar.steps s
  join boxcar.boxes b on b.id = $2
  join boxcar.turns t on t.id = s.turn_id
  where s.turn_id = $1
  order by s.step, s.attempt`);

type StepDbRow = Row<
  'steps',
  'step' | 'attempt' | 'model' | 'usage' | 'error',
  {
    fromPosition: 'from_position';
    toPosition: 'to_position';
    openedAt: 'opened_at';
    committedAt: 'committed_at';
  }
> &
  Pick<StepRow, 'anchorPosition' | 'promptHash' | 'toolsetHash' | 'manifest'>;

const ENTRIES = statement(`
  select /* explain.entries */ e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step,
    ${VIEWED_CARD_READ}, ${CARD_BOOKKEEPING}
  from boxcar.boxes b
  cross join lateral ${entriesOf('b', {
    from: '$2::int',
    to: 'b.head_position',
    where: '(o.position <= $3 or o.turn_id = $4)',
  })} e
  left join boxcar.cards c on c.id = e.card_id
  where b.id = $1
  order by e.position`);

type EntryDbRow = StoredCardRow &
  Row<'tapeEntries', 'position' | 'kind' | 'payload' | 'anchor_name' | 'step', { entry_turn_id: 'turn_id' }>;

async function loadEntries(
  db: Queryable,
  turn: ExplainedTurn,
  steps: readonly StepRow[],
): Promise<readonly StoredEntry[]> {
  const from = Math.min(...steps.map((step) => step.fromPosition));
  const to = Math.max(...steps.map((step) => step.toPosition));
  const rows = await run<EntryDbRow>(db, ENTRIES, [turn.outputBoxId, from, to, turn.turnId]);
  const entries: StoredEntry[] = [];
  await forEachInSlices(rows, (row) => {
    const stored = readStored(row);
    entries.push({
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
    });
  });
  return entries;
}

const CONTEXTS = statement(`
  with /* explain.contexts */
  want_boxes as (
    select *
    from boxcar.boxes
    where id = any ($1::uuid[]) and kind = 'context'
  ),
  seg as (${SHOWN_SEGMENTS}),
  leaf as (${SHOWN_LEAVES})
  select l.box_id, l.rule, l."native", l.is_reference, l.is_summary, l.is_repeat, l.part, l.ord::int, l.position::int,
    te.kind as entry_kind, te.turn_id as entry_turn_id, te.step as entry_step, ${PACKED_CARD_READ},
    ${CARD_BOOKKEEPING}
  from leaf l
  cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c
  left join lateral ${entryAt('l.source', 'l.position')} te on true
  order by l.box_id, l.ord, l.position, l.part`);

type ContextDbRow = StoredCardRow &
  ShownColumns &
  Outer<Row<'tapeEntries', never, { entry_kind: 'kind'; entry_turn_id: 'turn_id'; entry_step: 'step' }>> & {
    readonly ord: number;
    readonly position: number;
  };

async function loadContexts(
  db: Queryable,
  boxIds: readonly BoxId[],
): Promise<ReadonlyMap<BoxId, readonly SourcedCard[]>> {
  const contexts = new Map<BoxId, SourcedCard[]>(boxIds.map((id) => [id, []]));
  const rows = inShownPlace(await run<ContextDbRow>(db, CONTEXTS, [boxIds]));
  await forEachInSlices(rows, (row) => {
    const sourced = toSourced(row);
    if (sourced !== null) contexts.get(row.box_id)?.push(sourced);
  });
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

/** The cards at the positions that a budget left out, according to the manifest of a box. Takes no locks: a manifest never changes. */
const CUTS = statement(`
  with /* explain.cuts */
  cut as (
    select b.id as box_id, s.ordinality as ord, x.rule, x.source, x."native", s.value->'cut'->>'strategy' as strategy,
      p.value->>'reason' as reason, (r.value->>0)::int as "from", (r.value->>1)::int as "to"
    from boxcar.boxes b
    cross join lateral jsonb_array_elements(b.segments) with ordinality s
    cross join lateral jsonb_to_record(s.value) as x(rule text, source uuid, "native" boolean)
    cross join lateral jsonb_array_elements(s.value->'cut'->'parts') p
    cross join lateral jsonb_array_elements(p.value->'ranges') r
    where b.id = any ($1::uuid[]) and b.kind = 'context'
  ),
  leaf as (
    select g.*, g."from" - 1 + u.n as position, u.card_id
    from cut g
    cross join lateral (
      select b.card_ids
      from boxcar.boxes b
      where b.id = coalesce(g.source, g.box_id) and b.kind = 'context'
      offset 0
    ) l, unnest(l.card_ids[g."from":g."to"]) with ordinality as u(card_id, n)
    union all
    select g.*, e.position, e.card_id
    from cut g
    cross join lateral (
      select x.id, x.line_boxes, x.line_ends
      from boxcar.boxes x
      where x.id = g.source and x.kind = 'tape'
      offset 0
    ) t
    cross join lateral ${entriesOf('t', { from: 'g."from"', to: 'g."to"', where: 'o.card_id is not null' })} e
  )
  select l.box_id, l.rule, l."native", null::boolean as is_reference, null::boolean as is_summary,
    null::boolean as is_repeat, 0 as part, l.ord::int, l.position::int, l.strategy, l.reason, te.kind as entry_kind,
    te.turn_id as entry_turn_id, te.step as entry_step, ${PACKED_CARD_READ}, ${CARD_BOOKKEEPING}
  from leaf l
  cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c
  left join lateral ${entryAt('l.source', 'l.position')} te on true
  order by l.box_id, l.ord, l.position`);

/** A range may span cards that another rule has put into the box; those cards were not left out. */
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
  await forEachInSlices(rows, (row) => {
    const sourced = toSourced(row);
    if (sourced === null || kept.get(row.box_id)?.has(sourced.stored.card.id) === true) return;
    const { strategy, reason } = row;
    const ofBox = cuts.get(row.box_id) ?? [];
    ofBox.push({ ...sourced, strategy, reason });
    cuts.set(row.box_id, ofBox);
  });
  return cuts;
}

/** The context box that a `turn.started` event names. */
function startedContext({ kind, payload }: TapeEntry): BoxId | undefined {
  if (kind !== 'event') return undefined;
  const event = payload as { name?: string; data?: { context_box_id?: BoxId } } | null;
  return event?.name === 'turn.started' ? event.data?.context_box_id : undefined;
}

/**
 * The rows from which the prompts of a turn were made.
 *
 * @param ref - Its id, or a beginning of it of at least eight digits.
 * @param options.project - Id or name; a turn of another project is not found.
 * @param options.choose - Chooses the steps whose prompts are wanted; its errors are passed on.
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id, or fits several turns.
 */
export function loadTurnRows(
  pool: pg.Pool,
  ref: string,
  options: { readonly project: string; readonly choose: ChooseSteps },
): Promise<TurnRows> {
  return readSnapshot(pool, async (db) => {
    const { turnId, projectId } = await findTurnId(db, ref, options.project);
    const turn = await loadTurn(db, turnId);
    const all: readonly StepRow[] = await run<StepDbRow>(db, STEPS, [turnId, turn.outputBoxId]);
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
