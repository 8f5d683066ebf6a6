/** Appends entries to a tape, each append once under its key. Source: docs/reference/tape.md. */
import {
  type BoxId,
  type CardId,
  type EntryKind,
  type JsonObject,
  type JsonValue,
  jsonText,
  type NewCard,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, retryTransient, run, statement, type Tx, transactAtOnce } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord, grantOf, OWNS } from '../rows/index.js';
import type { TapeActor } from './tapes.js';

/** An entry to append: with a new card, with an existing card (`not_found` when it does not exist), or, for events, without a card. */
export interface NewTapeEntry {
  readonly kind: EntryKind;
  readonly card: NewCard | { readonly id: CardId; readonly tokenEstimate: number } | null;
  /** Events only: `{ name, data }`. */
  readonly payload: JsonValue;
  readonly anchorName: string | null;
  readonly authorId: string;
  readonly turnId?: TurnId | null;
  readonly step?: number | null;
  readonly meta?: JsonObject | null;
  /** ISO 8601; default now. */
  readonly createdAt?: string | null;
}

export interface AppendRequest extends TapeActor {
  readonly boxId: BoxId;
  readonly entries: readonly NewTapeEntry[];
  /** The key of this append: a repeated append has no effect. */
  readonly dedupKey: string;
  /**
   * True: the caller chose the key, and may have used it for other entries. Then nothing is appended, and the result says so. False: only
   * this append uses the key.
   */
  readonly isNamed?: boolean;
  /** The head that the caller has seen: the entries are appended only directly after it. */
  readonly expectedHead?: number | undefined;
}

export type AppendResult =
  /** `isRepeated`: another append had appended the entries before under this key. */
  | {
      readonly outcome: 'appended';
      readonly first: number;
      readonly head: number;
      readonly isRepeated: boolean;
    }
  | { readonly outcome: 'conflict'; readonly head: number }
  /** Other entries were appended under this key, from this position on. */
  | { readonly outcome: 'mismatch'; readonly first: number }
  | { readonly outcome: 'not_found' | 'forbidden' | 'archived' | 'closed' };

/** The fields that `entryRecords` sends, in addition to the columns of a card. */
export const ENTRY_COLUMNS = `
  n int, kind text, is_new boolean, entry_tokens int, payload text, anchor_name text, turn_id uuid, entry_step int,
  entry_author text, entry_meta jsonb, entry_date timestamptz`;

/**
 * The beginning of the open step of the tape's own turn, if any: its calls are on the tape, its results are not yet. A new anchor is
 * placed after the calls, so views continue from that step. Only a read after the tape was locked is reliable, because a commit of the
 * step may have had the lock before.
 */
export const OPEN_STEP = `
  open_step as materialized (
    select min(e.position) as first
    from tape
    join boxcar.turns t
      on t.agent_id = tape.owner_agent_id
      and t.output_box_id = tape.id
      and t.status in ('dispatched', 'running', 'suspended')
    cross join lateral (
      select max(s.to_position) as head
      from boxcar.steps s
      where s.turn_id = t.id and s.step = t.step_count and s.committed_at is not null
    ) s
    join boxcar.tape_entries e
      on e.box_id = tape.id
      and e.position > s.head
      and e.turn_id = t.id
      and e.step = t.step_count
    where exists (select from boxcar.tool_calls k where k.turn_id = t.id and k.step = t.step_count)
      and not exists (
        select from boxcar.tape_entries r
        where r.box_id = tape.id
          and r.position > s.head
          and r.turn_id = t.id
          and r.step = t.step_count
          and r.kind = 'tool_result'
      )
  ),`;

interface AppendShape {
  readonly hasAnchor: boolean;
  /** An earlier statement of the transaction has locked the tape. */
  readonly isLocked: boolean;
}

/** The columns of the tape, apart from its head, that an append with anchors changes. */
const ANCHOR_CHANGES = `
  , last_anchor_position = b.head_position + $8::int,
  view_anchor_position = null,
  anchor_count = coalesce(b.anchor_count, 1) + $9::int,
  view_position = least((select first from open_step), b.head_position + $8::int)`;

/**
 * Owners may append even when ownership changed while the statement waited for the lock: the statement sees the new owner in the row that
 * it has locked. It sees grants as they were when it began. So the rights of all other agents are read only by a statement that begins
 * after the lock.
 */
const appendText = ({ hasAnchor, isLocked }: AppendShape): string => `
  with /* appends.append */
  x as materialized (
    select *
    from json_to_recordset($4::json) as x(${ENTRY_COLUMNS}, ${CARD_COLUMNS})
  ),
  tape as materialized (
    select
      b.id, b.owner_agent_id, b.head_position, b.archived_at, b.fork_status,
      ${OWNS}${isLocked ? ` or ${grantOf('append')} is not null` : ''} as may_append
    from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.id = $1 and b.project_id = $2 and b.kind = 'tape'
    for no key update of b
  ),
  held as materialized (
    select c.id
    from boxcar.cards c
    where c.id = any (array(select x.id from x where not x.is_new))
    order by c.id
    for key share
  ),
  verdict as materialized (
    select
      tape.*, known.position as known,
      case
        when not may_append then '${isLocked ? 'forbidden' : 'not_own'}'
        when known.position is not null then 'appended'
        when archived_at is not null then 'archived'
        when fork_status <> 'open' then 'closed'
        when head_position <> $6::bigint then 'conflict'
        when exists (
          select from x
          where not x.is_new and x.id is not null and x.id not in (select id from held)
        )
          then 'not_found'
        else 'appended'
      end as outcome
    from tape
    left join lateral (
      select e.position
      from boxcar.tape_entries e
      where e.box_id = tape.id and e.dedup_key = $5
      offset 0
    ) known on true
  ),
  ${hasAnchor ? OPEN_STEP : ''}
  moved as (
    update boxcar.boxes b
    set head_position = b.head_position + $7::int
      ${hasAnchor ? ANCHOR_CHANGES : ''}
    from verdict v
    where b.id = v.id and v.outcome = 'appended' and v.known is null
    returning b.id, b.head_position, b.head_position - $7::int as base
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from moved
    cross join x
    where x.is_new
  ),
  entries as (
    insert into boxcar.tape_entries (
      box_id, position, kind, card_id, tokens, payload, anchor_name, turn_id, step, author_id, dedup_key, meta,
      created_at
    )
    select
      moved.id, moved.base + x.n, x.kind, x.id, x.entry_tokens, x.payload::json, x.anchor_name, x.turn_id,
      x.entry_step, x.entry_author,
      case x.n when 1 then $5 end,
      x.entry_meta, coalesce(x.entry_date, now())
    from moved
    cross join x
  )
  select
    v.outcome, v.known is not null as is_repeated, coalesce(v.known, m.base + 1) as first,
    coalesce(m.head_position, v.head_position) as head
  from verdict v
  left join moved m on true`;

const APPEND_OWN = statement(appendText({ hasAnchor: false, isLocked: false }));
const APPEND = statement(appendText({ hasAnchor: false, isLocked: true }));
const APPEND_ANCHORS = statement(appendText({ hasAnchor: true, isLocked: true }));
export const LOCK_TAPE = statement(`
  select /* appends.lock_tape */ id
  from boxcar.boxes
  where id = $1 and project_id = $2 and kind = 'tape'
  for no key update`);

// Checks only whether these entries were appended under the key. The first entry of each append has a key; the others have its time. Every
// append makes new cards, so entries with these very cards belong to an earlier try of this append.
const SAME = statement(`
  select /* appends.same */
    coalesce(bool_and(
      (x.n = 1) = (e.dedup_key is not null)
      and e.kind = x.kind
      and e.author_id = x.entry_author
      and e.payload::text is not distinct from x.payload
      and e.anchor_name is not distinct from x.anchor_name
      and e.turn_id is not distinct from x.turn_id
      and e.step is not distinct from x.entry_step
      and (
        case
          when x.is_new
            then (c.type, c.role, c.content_hash, c.metadata) is not distinct from (
              x.type, x.role, decode(x.content_hash, 'hex'), x.metadata
            )
          else e.card_id is not distinct from x.id
        end
      )
    ), false)
    and not exists (
      select from boxcar.tape_entries e
      join boxcar.tape_entries more
        on more.box_id = e.box_id
        and more.position = e.position + 1
        and more.dedup_key is null
        and more.created_at = e.created_at
        and more.author_id = e.author_id
        and more.turn_id is not distinct from e.turn_id
      where e.box_id = $1 and e.position = $2 - 1 + json_array_length($3::json)
    ) as is_same,
    coalesce(bool_or(x.is_new and e.card_id = x.id), false) as is_own
  from json_to_recordset($3::json) as x(${ENTRY_COLUMNS}, ${CARD_COLUMNS})
  left join boxcar.tape_entries e on e.box_id = $1 and e.position = $2 - 1 + x.n
  left join boxcar.cards c on c.id = e.card_id`);

interface AppendRow extends pg.QueryResultRow {
  outcome: Exclude<AppendResult['outcome'], 'mismatch'> | 'not_own';
  is_repeated: boolean;
  first: number;
  head: number;
}

/** Entries as JSON that statements read with `ENTRY_COLUMNS` and `CARD_COLUMNS`. */
export const entryRecords = ({ entries }: Pick<AppendRequest, 'entries'>): string =>
  JSON.stringify(
    entries.map((entry, index) => ({
      n: index + 1,
      kind: entry.kind,
      is_new: entry.card !== null && 'contentText' in entry.card,
      entry_tokens: entry.card?.tokenEstimate ?? 0,
      payload: entry.kind === 'event' ? jsonText(entry.payload) : null,
      anchor_name: entry.anchorName,
      turn_id: entry.turnId,
      entry_step: entry.step,
      entry_author: entry.authorId,
      entry_meta: entry.meta,
      entry_date: entry.createdAt,
      ...(entry.card === null
        ? {}
        : 'contentText' in entry.card
          ? cardRecord(entry.card)
          : { id: entry.card.id }),
    })),
  );

const appendValues = (request: AppendRequest): unknown[] => [
  request.boxId,
  request.projectId,
  request.actorId,
  entryRecords(request),
  request.dedupKey,
  request.expectedHead ?? null,
  request.entries.length,
];

/** Also the index of the last anchor among the entries, and the number of anchors. */
const anchorValues = ({ entries }: AppendRequest): unknown[] => [
  entries.findLastIndex(isAnchor) + 1,
  entries.filter(isAnchor).length,
];

/** The result of one try of an append. `not_own`: the tape must be locked before the rights of the actor can be checked. */
type Tried = AppendResult | { readonly outcome: 'not_own' };

function toTried(row: AppendRow | undefined): Tried {
  if (row === undefined) return { outcome: 'not_found' };
  const { outcome, first, head, is_repeated: isRepeated } = row;
  if (outcome === 'appended') return { outcome, first, head, isRepeated };
  return outcome === 'conflict' ? { outcome, head } : { outcome };
}

/** In one statement, without anchors, for the owner, maker or operator. */
const appendOwn = async (db: Queryable, request: AppendRequest): Promise<Tried> =>
  toTried((await run<AppendRow>(db, APPEND_OWN, appendValues(request)))[0]);

/** For any actor, in the transaction that has locked the tape. */
async function appendLocked(tx: Tx, request: AppendRequest): Promise<AppendResult> {
  const [row] = await (hasAnchor(request)
    ? run<AppendRow>(tx, APPEND_ANCHORS, [...appendValues(request), ...anchorValues(request)])
    : run<AppendRow>(tx, APPEND, appendValues(request)));
  const tried = toTried(row);
  return tried.outcome === 'not_own' ? { outcome: 'forbidden' } : tried;
}

const isAnchor = ({ kind }: NewTapeEntry): boolean => kind === 'anchor';
const hasAnchor = ({ entries }: AppendRequest): boolean => entries.some(isAnchor);

/** Both statements are sent together: the second begins after the first has its lock. */
async function lockAndAppend(tx: Tx, request: AppendRequest): Promise<AppendResult> {
  const locked = run(tx, LOCK_TAPE, [request.boxId, request.projectId]);
  const [, result] = await Promise.all([locked, appendLocked(tx, request)]);
  return result;
}

/**
 * A key that the caller chose must not confirm other entries than those for which it was used. When the first try of an append was
 * committed and its answer was lost, the second try is not a repetition.
 */
async function judgeRepeat(
  db: Queryable,
  request: AppendRequest,
  result: AppendResult,
): Promise<AppendResult> {
  if (result.outcome !== 'appended' || !result.isRepeated || request.isNamed === undefined) return result;
  if (!request.isNamed) return { ...result, isRepeated: false };
  const { first } = result;
  const [row] = await run<{ is_same: boolean; is_own: boolean }>(db, SAME, [
    request.boxId,
    first,
    entryRecords(request),
  ]);
  return row?.is_same === true ? { ...result, isRepeated: !row.is_own } : { outcome: 'mismatch', first };
}

/**
 * Appends entries in sequence, with only the lock of the tape's row. Runs in the caller's transaction, which must take its other locks
 * before (run → agent → turn → tape). An anchor moves the beginning of views, also while steps of turns are open.
 */
export async function appendWithin(tx: Tx, request: AppendRequest): Promise<AppendResult> {
  const tried = hasAnchor(request) ? await lockAndAppend(tx, request) : await appendOwn(tx, request);
  // The first statement has locked the tape.
  const result = tried.outcome === 'not_own' ? await appendLocked(tx, request) : tried;
  return judgeRepeat(tx, request, result);
}

/** Two concurrent appends under one key: the second finds the key taken, and checks again. */
const isKeyTaken = (error: unknown): boolean =>
  error instanceof Error && 'constraint' in error && error.constraint === 'tape_entries_dedup';

/**
 * Appends in a separate transaction. When the connection is lost and the outcome is unknown, the append is tried again under the same key.
 */
export async function appendEntries(pool: pg.Pool, request: AppendRequest): Promise<AppendResult> {
  const append = async (): Promise<AppendResult> => {
    const tried: Tried = hasAnchor(request)
      ? { outcome: 'not_own' }
      : await retryTransient(() => appendOwn(pool, request));
    return tried.outcome === 'not_own' ? transactAtOnce(pool, (tx) => lockAndAppend(tx, request)) : tried;
  };
  const result = await append().catch((error: unknown) => {
    if (!isKeyTaken(error)) throw error;
    return append();
  });
  return judgeRepeat(pool, request, result);
}
