/**
 * Reads the compactions of a turn's tape and the cards that they have left out. Follows fork lines: a fork reads the compactions of its
 * line.
 */
import type { CardId, JsonObject, Profile, TurnId } from '@boxcar/kernel';
import { LEAVES, SHOWN_SEGMENTS } from '../box/index.js';
import { type Queryable, run, statement } from '../db/index.js';
import { entriesOf, hiddenContext, isLent, viewPositionOf } from '../visible/index.js';

/**
 * The anchors named `$n` that the tape `b` reads, including those of a fork's line. The condition on the kind has the form that the
 * index uses.
 */
const anchorsOf = (name: string): string =>
  entriesOf('b', {
    from: '1',
    to: 'b.head_position',
    where: `
      o.kind = 'anchor'
      and hashtextextended(o.anchor_name, 0) = hashtextextended(${name}, 0)
      and o.anchor_name = ${name}`,
  });

const ANCHORS_OF_TURN = statement(`
  select /* compactions.anchors_of_turn */ count(*)::int as n
  from boxcar.turns t
  join boxcar.boxes b on b.id = t.output_box_id
  cross join lateral ${anchorsOf('$2')} e
  join boxcar.cards a on a.id = e.card_id
  where t.id = $1 and e.turn_id = t.id and a.author_id = 'kernel'`);

/** Counts the anchors of a name that the kernel has written for a turn. The turn's agent may have used the same name. */
export async function countAnchorsOfTurn(db: Queryable, turnId: TurnId, anchorName: string): Promise<number> {
  const [row] = await run<{ n: number }>(db, ANCHORS_OF_TURN, [turnId, anchorName]);
  return row?.n ?? 0;
}

const ANCHOR_OF_TURN = statement(`
  select /* compactions.anchor_of_turn */ a.metadata
  from boxcar.turns t
  join boxcar.boxes b on b.id = t.output_box_id
  cross join lateral ${anchorsOf('$2')} e
  join boxcar.cards a on a.id = e.card_id
  where t.id = $1 and e.turn_id = t.id and a.author_id = 'kernel'
  order by e.position desc
  limit 1`);

/** The metadata of the last anchor of a name that the kernel has written for a turn. */
export async function findAnchorOfTurn(
  db: Queryable,
  turnId: TurnId,
  anchorName: string,
): Promise<{ readonly metadata: JsonObject } | undefined> {
  const [row] = await run<{ metadata: JsonObject }>(db, ANCHOR_OF_TURN, [turnId, anchorName]);
  return row;
}

const LAST_THOUGHT = statement(`
  select /* compactions.last_thought */ c.content->>'text' as text
  from boxcar.turns t
  join boxcar.tape_entries e on e.box_id = t.output_box_id and e.position >= t.start_position
  join boxcar.cards c on c.id = e.card_id
  where t.id = $1
    and e.turn_id = t.id
    and e.kind = 'message'
    and c.type = 'agent.thought'
    and c.content->>'text' ~ '\\S'
  order by e.position desc
  limit 1`);

/** The last words of a turn, also when its prompts no longer show them; null when it said nothing. */
export async function findLastWords(db: Queryable, turnId: TurnId): Promise<string | null> {
  const [row] = await run<{ text: string }>(db, LAST_THOUGHT, [turnId]);
  return row?.text ?? null;
}

// In a session, an anchor from before the fork may summarize contexts that the forking agent may not read. While such a context exists,
// the anchor links only cards of entries.
const SEES_ALL = `
  (
    case
      when held.fork_position is null then true
      else ${hiddenContext('held', {
        from: '1',
        to: 'held.fork_position',
        maker: 'coalesce(held_by.owner_agent_id, t.agent_id)',
      })} is null
    end
  )`;

// Finds the cards that the kernel's compactions of the turn's tape refer to, their summary, and the cards that the summary lists. Anchors
// of other authors are ignored: their metadata can claim anything. No row is locked: entries and anchors never change. An anchor that is
// committed after this read is not found.
const LINKED = statement(`
  select /* compactions.linked */
    p.content->'data' as profile,
    s.id is not distinct from $2::uuid and shown.is_shown as is_summary
  from boxcar.turns t
  join boxcar.profiles f on f.id = t.profile_id
  join boxcar.cards p on p.id = f.card_id
  join boxcar.boxes b on b.id = t.output_box_id
  join boxcar.boxes held on held.id = b.id
  left join boxcar.agents held_by on held_by.id = held.owner_agent_id
  cross join lateral (select ${SEES_ALL} as sees_all offset 0) line
  cross join lateral ${anchorsOf('$3')} e
  join boxcar.cards a on a.id = e.card_id and a.author_id = 'kernel'
  cross join lateral (select e.box_id = b.id or line.sees_all as is_shown) shown
  left join boxcar.cards s on s.id = (a.metadata->'compaction'->>'summary')::uuid
  where t.id = $1
    and (
      s.id = $2::uuid
      or (a.metadata->'compaction'->'references' ? ($2::uuid)::text or s.metadata->'summarizes' ? ($2::uuid)::text)
        and (
          shown.is_shown
          or exists (
            select from ${entriesOf('b', { from: '1', to: 'b.fork_position', where: 'o.card_id = $2::uuid' })} listed
          )
        )
    )
  order by is_summary desc
  limit 1`);

// The same for the contexts that the turn got as a clone: cards that these contexts show as references, and summaries with the cards
// they list. No row is locked, for the same reason.
const GIVEN = statement(`
  with /* compactions.given */
  shown as (
    select t.context_box_id as box_id, false as is_lent
    from boxcar.turns t
    where t.id = $1
    union
    select
      (e.payload->'data'->>'context_box_id')::uuid,
      ${isLent('t.output_box_id', 'e', 'coalesce(made.owner_agent_id, made.id)')}
    from boxcar.turns t
    join boxcar.boxes b on b.id = t.output_box_id
    join boxcar.agents made on made.id = t.agent_id
    cross join lateral ${entriesOf('b', {
      from: viewPositionOf('t', 'b'),
      to: 'b.head_position',
      where: "o.kind = 'event' and o.payload->>'name' = 'turn.started'",
    })} e
    where t.id = $1
  ),
  want_boxes as materialized (
    select b.*
    from boxcar.boxes b
    where b.id in (select s.box_id from shown s)
  ),
  seg as (${SHOWN_SEGMENTS} and (x."references" is not null or x.summaries is not null)),
  leaf as (
    select
      l.*,
      l.is_summary and exists (select from shown s where s.box_id = l.box_id and not s.is_lent) as gives
    from (${LEAVES}) l
  ),
  link as (
    select l.gives and l.card_id = $2::uuid as is_summary
    from leaf l
    left join boxcar.cards s on l.gives and s.id = l.card_id
    where (l.card_id = $2::uuid and (l.is_reference or l.is_summary))
      or s.metadata->'summarizes' ? ($2::uuid)::text
  )
  select p.content->'data' as profile, coalesce(k.is_summary, false) as is_summary
  from boxcar.turns t
  join boxcar.profiles f on f.id = t.profile_id
  join boxcar.cards p on p.id = f.card_id
  cross join link k
  where t.id = $1
  order by 2 desc
  limit 1`);

/** The reason why a turn may read a card that its prompts do not show. */
export interface CompactionLink {
  /** The profile of the turn. */
  readonly profile: Profile;
  /** True when the card is a summary of the cards that it lists. */
  readonly isSummary: boolean;
}

/**
 * Tells whether a compaction has left out a card and links it, on the turn's tape or in the contexts that the turn got as a clone.
 * Undefined: the turn may not read the card.
 */
export async function findCompactionLink(
  db: Queryable,
  turnId: TurnId,
  of: { readonly cardId: CardId; readonly anchorName: string },
): Promise<CompactionLink | undefined> {
  type Row = { profile: Profile; is_summary: boolean };
  const [linked] = await run<Row>(db, LINKED, [turnId, of.cardId, of.anchorName]);
  const [given] = linked === undefined ? await run<Row>(db, GIVEN, [turnId, of.cardId]) : [];
  const row = linked ?? given;
  return row && { profile: row.profile, isSummary: row.is_summary };
}
