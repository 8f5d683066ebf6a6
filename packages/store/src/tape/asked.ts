/**
 * Reads the requests that agents received: the cards that were packed for a turn, for readers of its tape. The tape contains only the
 * start of the turn, which names the context box.
 *
 * A1  A reader of the tape sees the text of a context box only with a right to read that box: a grant for a tape does not cover its
 *     contexts.
 * A2  Only own cards of the box that were packed as arguments: inherited cards are shown elsewhere.
 * A3  One statement for each page of starts: the cards of a page have up to `PAGE_BYTES`, or belong to a single start.
 */
import { askedText, type BoxId, type Card, type JsonValue, startedContext } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { HELD } from '../rows/index.js';
import { PAGE_BYTES, type TapeEntryRow } from './entries.js';
import type { TapeActor } from './tapes.js';

// Contents are only referenced until it is known which of them are sent. Takes no locks: the cards of a box never change, and an erased
// card has no content.
const ASKED = statement(`
  with /* asked.asked */
  want as materialized (
    select x.*
    from (
      select u.n, b.card_ids, b.segments, ${HELD}
      from unnest($1::uuid[]) with ordinality as u(id, n)
      cross join lateral (
        select x.*
        from boxcar.boxes x
        where x.id = u.id and x.project_id = $2 and x.kind = 'context'
        offset 0
      ) b
      join boxcar.projects p on p.id = b.project_id
    ) x
    where x.is_own or x.granted is not null
  ),
  listed as materialized (
    select w.n, s.ord, i.m, c.content, c.metadata, c.size_bytes
    from want w
    cross join lateral jsonb_array_elements(w.segments) with ordinality as s(value, ord)
    cross join lateral unnest(
      w.card_ids[(s.value->>'from')::int:(s.value->>'to')::int]
    ) with ordinality as i(card_id, m)
    cross join lateral (select x.* from boxcar.cards x where x.id = i.card_id offset 0) c
    where s.value->>'rule' = 'pack_arguments' and s.value->>'source' is null
  ),
  sized as materialized (
    select
      u.id, u.n,
      u.n = 1
      or sum(coalesce((
        select sum(l.size_bytes)
        from listed l
        where l.n = u.n
      ), 0)) over (order by u.n) <= $4::bigint as is_read
    from unnest($1::uuid[]) with ordinality as u(id, n)
  )
  select
    s.id as box_id,
    (
      select json_agg(json_build_object('content', l.content, 'metadata', l.metadata) order by l.ord, l.m)
      from listed l
      where l.n = s.n
    ) as cards
  from sized s
  where s.is_read`);

interface AskedRow extends pg.QueryResultRow {
  box_id: BoxId;
  /** Null: the box has no cards, or the actor may not read them. Without content: an erased card. */
  cards: readonly { readonly content: Card['content'] | null; readonly metadata: Card['metadata'] }[] | null;
}

const boxOf = ({ kind, payload }: { kind: string; payload: JsonValue | null }): BoxId | undefined =>
  kind === 'event' ? startedContext(payload) : undefined;

/** Adds to each start of a turn its request, as far as the actor may read it. Works page by page; a page with much text is split. */
export async function* withAsked(
  db: Queryable,
  pages: AsyncIterable<readonly TapeEntryRow[]>,
  { projectId, actorId }: TapeActor,
): AsyncGenerator<readonly TapeEntryRow[], void, void> {
  for await (const page of pages) {
    for (let left = page; left.length > 0; ) {
      const wanted = [...new Set(left.flatMap((entry) => boxOf(entry) ?? []))];
      const rows =
        wanted.length === 0 ? [] : await run<AskedRow>(db, ASKED, [wanted, projectId, actorId, PAGE_BYTES]);
      const asked = new Map(rows.map(({ box_id: id, cards }) => [id, askedText(cards ?? [])]));
      const end = left.findIndex((entry) => {
        const boxId = boxOf(entry);
        return boxId !== undefined && !asked.has(boxId);
      });
      yield left.slice(0, end === -1 ? left.length : end).map((entry) => {
        const boxId = boxOf(entry);
        return boxId === undefined ? entry : { ...entry, asked: asked.get(boxId) };
      });
      left = end === -1 ? [] : left.slice(end);
    }
  }
}
