/** How the kernel's drafts are sent to Postgres: one JSON parameter per table, read by json_to_recordset. */
import {
  type Card,
  type CardContent,
  type ContextBoxDraft,
  type JsonObject,
  type JsonValue,
  type NewCard,
  type Role,
  readProviderData,
} from '@boxcar/kernel';

export const CARD_COLUMNS = `
  id uuid, project_id uuid, type text, role text, content text, content_hash text, size_bytes int, token_estimate int,
  metadata jsonb, author_id text, tool_call_id uuid, provider_data json`;

/** The select list that turns a recordset `x` of `CARD_COLUMNS` into rows of boxcar.cards. */
export const CARD_VALUES = `
  x.id, x.project_id, x.type, x.role, x.content::json, decode(x.content_hash, 'hex'), x.size_bytes, x.token_estimate,
  x.metadata, x.author_id, x.tool_call_id, x.provider_data`;

export const CARD_TARGET = `boxcar.cards (
    id, project_id, type, role, content, content_hash, size_bytes, token_estimate, metadata, author_id, tool_call_id,
    provider_data
  )`;

export const cardRecord = (card: NewCard): Record<string, unknown> => ({
  id: card.id,
  project_id: card.projectId,
  type: card.type,
  role: card.role,
  content: card.contentText,
  content_hash: card.contentHash,
  size_bytes: card.sizeBytes,
  token_estimate: card.tokenEstimate,
  metadata: card.metadata,
  author_id: card.authorId,
  tool_call_id: card.toolCallId,
  ...(card.providerData === undefined ? {} : { provider_data: card.providerData }),
});

/** Columns of a card as reads return them, each prefixed with `card_`. */
export const CARD_READ = `
  c.id as card_id, c.type as card_type, c.role as card_role,
  coalesce(c.content, c.placeholder) as card_content,
  c.metadata as card_metadata, c.author_id as card_author_id, c.tool_call_id as card_tool_call_id`;

/** The same with the data that a provider attached. Only views load these data. */
export const VIEWED_CARD_READ = `${CARD_READ}, c.provider_data as card_provider_data`;

/** The bytes of a view's card as they are sent. Compressed values are not unpacked to measure them. */
export const VIEWED_CARD_BYTES = 'c.size_bytes + coalesce(pg_column_size(c.provider_data), 0)';

/** The same for a card of a context, a leaf `l` of it. Data that a provider attached are shown only to the agent that got the answer. */
export const PACKED_CARD_READ = `${CARD_READ}, case when l."native" then c.provider_data end as card_provider_data`;
export const PACKED_CARD_BYTES =
  'c.size_bytes + case when l."native" then coalesce(pg_column_size(c.provider_data), 0) else 0 end';

export interface CardRow {
  readonly card_id: Card['id'] | null;
  readonly card_type: string;
  readonly card_role: Role | null;
  /** After erasure, the placeholder. */
  readonly card_content: CardContent | null;
  readonly card_metadata: JsonObject;
  readonly card_author_id: string;
  readonly card_tool_call_id: Card['toolCallId'];
  readonly card_provider_data?: JsonValue;
}

const ERASED: CardContent = { kind: 'text', text: '(erased)' };

export function readCard(row: CardRow): Card | null {
  if (row.card_id === null) return null;
  const providerData = readProviderData(row.card_provider_data ?? null);
  return {
    id: row.card_id,
    type: row.card_type,
    role: row.card_role,
    content: row.card_content ?? ERASED,
    metadata: row.card_metadata,
    authorId: row.card_author_id,
    toolCallId: row.card_tool_call_id,
    ...(providerData === undefined ? {} : { providerData }),
  };
}

export const contextBoxRecord = (box: ContextBoxDraft): Record<string, unknown> => ({
  card_ids: box.cardIds,
  card_tokens: box.cardTokens,
  segments: box.segments,
  card_count: box.count,
  token_estimate: box.tokens,
});
