/** Reads the data of cards that packing under a budget, and its preview, need: everything by id, in one statement each. */
import type { Card, CardFacts, CardId, JsonValue, ProjectId } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { CARD_READ, type CardRow, readCard } from '../rows/index.js';
import type { Row } from '../schema/index.js';

// Reads each content once, whatever its kind.
const CARD_FACTS = statement(`
  select /* card-facts.card_facts */
    c.id, c.type, c.role, c.author_id as "authorId", c.size_bytes as "sizeBytes",
    case when x.kind in ('tool_call', 'tool_result') then x.tool_call_id end as "toolCallId",
    c.metadata->'summarizes' as summarizes,
    coalesce(c.metadata->'context' = 'false'::jsonb, false) as "isHidden",
    left(concat_ws(
      ' ', x.name,
      coalesce(
        x.text, x.data, x.fields, x.uri, x.result, x.error, x.arguments,
        case when c.content is null then '(erased)' else 'null' end
      )
    ), 200) as preview
  from boxcar.cards c
  cross join lateral json_to_record(coalesce(c.content, '{}')) as x(
    kind text, tool_call_id text, name text, text text, data text, fields text, uri text, result text, error text,
    arguments text
  )
  where c.id = any ($1::uuid[]) and c.project_id = $2`);

type FactsRow = Row<'cards', 'id' | 'type' | 'role', { authorId: 'author_id'; sizeBytes: 'size_bytes' }> &
  Pick<CardFacts, 'toolCallId' | 'isHidden' | 'preview'> & { readonly summarizes: JsonValue | null };

/** A caller wrote this list: values that are not ids are ignored. */
const idsIn = (value: JsonValue | null): string[] =>
  Array.isArray(value) ? value.filter((item) => typeof item === 'string') : [];

/** The facts on which packing strategies decide. */
export async function loadCardFacts(
  db: Queryable,
  cardIds: readonly CardId[],
  projectId: ProjectId,
): Promise<ReadonlyMap<CardId, CardFacts>> {
  if (cardIds.length === 0) return new Map();
  const rows = await run<FactsRow>(db, CARD_FACTS, [cardIds, projectId]);
  return new Map(
    rows.map(({ id, summarizes, ...facts }) => [id, { ...facts, summarizes: idsIn(summarizes) }]),
  );
}

const CARDS = statement(`
  select /* card-facts.cards */ ${CARD_READ}, c.size_bytes
  from boxcar.cards c
  where c.id = any ($1::uuid[]) and c.project_id = $2`);

/** Whole cards with the size of their content. */
export async function loadCards(
  db: Queryable,
  cardIds: readonly CardId[],
  projectId: ProjectId,
): Promise<ReadonlyMap<CardId, Card & { readonly sizeBytes: number }>> {
  if (cardIds.length === 0) return new Map();
  const rows = await run<CardRow & Row<'cards', 'size_bytes'>>(db, CARDS, [cardIds, projectId]);
  const cards = new Map<CardId, Card & { readonly sizeBytes: number }>();
  for (const row of rows) {
    const card = readCard(row);
    if (card !== null) cards.set(card.id, { ...card, sizeBytes: row.size_bytes });
  }
  return cards;
}
