import type { BoxId, EntryKind, JsonValue, Profile, ProfileId, TapeEntry, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type ExpandedCard, expandContexts } from './boxes.js';
import { type Queryable, run, statement } from './db.js';
import { CARD_READ, type CardRow, readCard } from './records.js';

const ENTRIES = statement(`
  select t.id as turn_id, b.last_anchor_position, e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step, ${CARD_READ}
  from boxcar.turns t join boxcar.boxes b on b.id = t.output_box_id
    join boxcar.tape_entries e on e.box_id = b.id and e.position >= b.view_position and e.position <= b.head_position
    left join boxcar.cards c on c.id = e.card_id
  where t.id = any ($1::uuid[])
  order by t.id, e.position`);

interface EntryRow extends CardRow, pg.QueryResultRow {
  turn_id: TurnId;
  last_anchor_position: number;
  position: number;
  kind: EntryKind;
  payload: JsonValue | null;
  anchor_name: string | null;
  entry_turn_id: TurnId | null;
  step: number | null;
}

/** The rows of a view: tape entries from where it must begin, and the cards of every context box it shows. */
export interface LoadedView {
  readonly entries: readonly TapeEntry[];
  readonly lastAnchorPosition: number;
  readonly contexts: ReadonlyMap<BoxId, readonly ExpandedCard[]>;
}

/** The context box that a `turn.started` event names. */
function startedContext(payload: JsonValue | null): BoxId | undefined {
  const event = payload as { name?: string; data?: { context_box_id?: BoxId } } | null;
  return event?.name === 'turn.started' ? event.data?.context_box_id : undefined;
}

/** Loads the views of turns in two statements, however many turns, boxes and cards. */
export async function loadViews(
  db: Queryable,
  turns: readonly { readonly turnId: TurnId; readonly contextBoxId: BoxId }[],
): Promise<ReadonlyMap<TurnId, LoadedView>> {
  const rows = await run<EntryRow>(db, ENTRIES, [turns.map((turn) => turn.turnId)]);
  const byTurn = new Map<TurnId, { entries: TapeEntry[]; lastAnchorPosition: number; boxIds: Set<BoxId> }>(
    turns.map((turn) => [
      turn.turnId,
      { entries: [], lastAnchorPosition: 1, boxIds: new Set([turn.contextBoxId]) },
    ]),
  );
  for (const row of rows) {
    const view = byTurn.get(row.turn_id);
    if (view === undefined) continue;
    view.lastAnchorPosition = row.last_anchor_position;
    const started = row.kind === 'event' ? startedContext(row.payload) : undefined;
    if (started !== undefined) view.boxIds.add(started);
    view.entries.push({
      position: row.position,
      kind: row.kind,
      card: readCard(row),
      payload: row.payload,
      anchorName: row.anchor_name,
      turnId: row.entry_turn_id,
      step: row.step,
    });
  }
  const boxIds = new Set([...byTurn.values()].flatMap((view) => [...view.boxIds]));
  const contexts = await expandContexts(db, [...boxIds]);
  return new Map(
    [...byTurn].map(([turnId, view]) => [
      turnId,
      {
        entries: view.entries,
        lastAnchorPosition: view.lastAnchorPosition,
        contexts: new Map([...view.boxIds].map((id) => [id, contexts.get(id) ?? []])),
      },
    ]),
  );
}

const PROFILE_CARDS = statement(`
  select f.id as profile_id, c.content->'data' as profile from boxcar.profiles f join boxcar.cards c on c.id = f.card_id where f.id = any ($1::uuid[])`);

/** Profile versions by id; they never change, so callers may keep them. */
export async function loadProfiles(
  db: Queryable,
  profileIds: readonly ProfileId[],
): Promise<ReadonlyMap<ProfileId, Profile>> {
  const rows = await run<{ profile_id: ProfileId; profile: Profile }>(db, PROFILE_CARDS, [profileIds]);
  return new Map(rows.map((row) => [row.profile_id, row.profile]));
}
