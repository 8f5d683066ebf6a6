/**
 * Erasure removes the content of a card and keeps everything else. The function `erase_cards` in the database decides which cards may be
 * erased; it is the only way to change sealed content. Rule: docs/reference/operations.md, "Erasure".
 */
import {
  type BoxId,
  type CardId,
  isJsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx, transactAtOnce } from '../db/index.js';
import { query } from '../query/query.js';
import type { Row } from '../schema/index.js';

/**
 * `profile_in_use`: agents and turns use the profile. `bootstrap`: every tape of the project begins with the card. `open_call`: the
 * arguments of the call are still needed.
 */
export type ErasureOutcome =
  | 'erased'
  | 'already_erased'
  | 'not_found'
  | 'profile_in_use'
  | 'bootstrap'
  | 'open_call';

export interface ErasedCard extends pg.QueryResultRow {
  readonly card_id: CardId;
  readonly outcome: ErasureOutcome;
}

const MAX_REASON_LENGTH = 1000;
/** The number of cards in a transaction. Batches of the project end before or after such a transaction. */
const CHUNK = 1000;

const ERASE = statement(`
  select /* erasure.erase */ e.card_id, e.outcome
  from boxcar.erase_cards((
    select coalesce(array_agg(c.id), '{}')
    from boxcar.cards c
    where c.id = any ($1::uuid[]) and c.project_id = $2
  ), $3) e`);

const NO_RIGHT = '42501';

/**
 * Erases cards of one project, a thousand in a transaction. A repeated erasure changes no card and keeps the first reason; it removes the
 * text of the cards from copies that were made since.
 *
 * @returns One outcome per card, in order.
 * @throws KernelError `bad_request` for a blank or too long reason, `database_forbidden` for a role that was not granted the function.
 */
export async function eraseCards(
  pool: pg.Pool,
  cardIds: readonly CardId[],
  of: { readonly projectId: ProjectId; readonly reason: string },
): Promise<readonly ErasedCard[]> {
  const { projectId, reason } = of;
  checkReason(reason);
  const outcomes = new Map<CardId, ErasureOutcome>();
  for (let at = 0; at < cardIds.length; at += CHUNK) {
    const ids = cardIds.slice(at, at + CHUNK);
    // A separate transaction, because at a stricter isolation level the function would not see the changes for which it has waited.
    const rows = await transactAtOnce(pool, (tx) =>
      run<ErasedCard>(tx, ERASE, [ids, projectId, reason]),
    ).catch(explainRight);
    for (const row of rows) outcomes.set(row.card_id, row.outcome);
  }
  return cardIds.map((card_id) => ({ card_id, outcome: outcomes.get(card_id) ?? 'not_found' }));
}

function checkReason(reason: string): void {
  if (reason.trim() === '' || reason.length > MAX_REASON_LENGTH)
    throw new KernelError('bad_request', {
      message: `reason: must have 1 to ${MAX_REASON_LENGTH} characters.`,
      details: { field: 'reason' },
    });
}

/** @throws KernelError `database_forbidden` in place of the Postgres error for a missing right; otherwise the error that was thrown. */
export function explainRight(error: unknown): never {
  if (!(error instanceof Error) || !('code' in error) || error.code !== NO_RIGHT) throw error;
  throw new KernelError('database_forbidden', { message: `Postgres: ${error.message}.`, cause: error });
}

const ERASE_EVIDENCE = statement(`
  select /* erasure.erase_evidence */ e.evidence_id, e.outcome
  from boxcar.erase_evidence((
    select coalesce(array_agg(v.id), '{}')
    from boxcar.evidence v
    where v.id = any ($1::uuid[]) and v.project_id = $2
  ), $3) e`);

export interface ErasedEvidence extends pg.QueryResultRow {
  readonly evidence_id: string;
  readonly outcome: Extract<ErasureOutcome, 'erased' | 'already_erased' | 'not_found'>;
}

/**
 * Erases late results that were kept as evidence, by the ids that the report of a turn lists. Their cost and times stay.
 *
 * @returns One outcome per id, in order.
 * @throws KernelError as `eraseCards`.
 */
export async function eraseEvidence(
  pool: pg.Pool,
  evidenceIds: readonly string[],
  of: { readonly projectId: ProjectId; readonly reason: string },
): Promise<readonly ErasedEvidence[]> {
  checkReason(of.reason);
  const rows = await transactAtOnce(pool, (tx) =>
    run<ErasedEvidence>(tx, ERASE_EVIDENCE, [evidenceIds, of.projectId, of.reason]),
  ).catch(explainRight);
  const outcomes = new Map(rows.map((row) => [row.evidence_id, row.outcome]));
  return evidenceIds.map((evidence_id) => ({
    evidence_id,
    outcome: outcomes.get(evidence_id) ?? 'not_found',
  }));
}

const HOLD = statement(
  'select /* erasure.hold */ p.erasures from boxcar.projects p where p.id = $1 for share',
);

/**
 * Until this transaction ends, no erasure of the project looks for copies of texts. Texts that are read after this call and stored in the
 * same transaction belong to cards that were not erased, or the erasure finds the copies. The transaction must not lock a turn after this
 * call.
 *
 * @returns The number of erasures of the project so far. Texts that were read in another transaction may be stored only if the number is
 * still the same.
 */
export async function holdErasures(tx: Tx, projectId: ProjectId): Promise<number | undefined> {
  return (await run<Row<'projects', 'erasures'>>(tx, HOLD, [projectId]))[0]?.erasures;
}

const READING: ReadonlySet<JsonValue | undefined> = new Set(['anchors', 'search']);

/** True for the answer of a comma command that reads a tape. `erase_cards` recognizes such answers by the same test. */
export const repeatsCards = (primitive: string, answer: JsonValue): boolean =>
  primitive === 'delegate_async' && isJsonObject(answer) && READING.has(answer.command);

const OWN_CARDS = statement(`
  select /* erasure.own_cards */ u.card_id
  from boxcar.boxes b
  cross join lateral (
    select x.card_id, x.n
    from unnest(b.card_ids) with ordinality as x(card_id, n)
    union all
    select e.card_id, e.position
    from boxcar.tape_entries e
    where b.kind = 'tape' and e.box_id = b.id and e.card_id is not null
    union all
    select k.result_card_id, ${2 ** 31} + row_number() over (order by k.turn_id, k.step, k.ordinal)
    from (select distinct e.turn_id from boxcar.tape_entries e where b.kind = 'tape' and e.box_id = b.id) o
    join boxcar.turns t on t.id = o.turn_id and t.output_box_id = b.id
    join boxcar.tool_calls k on k.turn_id = t.id
    where k.result_card_id is not null
      and not exists (select from boxcar.tape_entries e where e.card_id = k.result_card_id)
  ) u
  where b.id = $1 and b.project_id = $2
  order by u.n`);

/**
 * The own cards of a box in stored order. For a sealed box, the cards that it lists itself, without inherited cards. For a tape, the cards
 * of its entries, followed by the results of calls of its turns that are not in an entry of any tape, such as results of canceled calls.
 * An entry may name a turn that writes to another tape.
 *
 * @throws KernelError `not_found`.
 */
export async function findOwnCards(
  db: Queryable,
  boxId: BoxId,
  projectId: ProjectId,
): Promise<readonly CardId[]> {
  const found = await query(db, 'erasure.find_own_cards', ({ orm, tables: { boxes }, and, eq }) =>
    orm
      .select({ id: boxes.id })
      .from(boxes)
      .where(and(eq(boxes.id, boxId), eq(boxes.projectId, projectId))),
  );
  if (found.length === 0)
    throw new KernelError('not_found', {
      message: `No box ${boxId} in this project.`,
      details: { box_id: boxId, project_id: projectId },
    });
  return (await run<{ card_id: CardId }>(db, OWN_CARDS, [boxId, projectId])).map((row) => row.card_id);
}
