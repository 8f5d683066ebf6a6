/**
 * Erasure: the content of a card goes, everything else stays. What may be erased is decided by the function in the database, the
 * only way past the seal. Rule: docs/operations.md, "Erasure".
 */
import { type BoxId, type CardId, KernelError, type ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from './db.js';

/**
 * `profile_in_use`: agents and turns are made of it. `bootstrap`: every tape of the project begins with it. `open_call`: its
 * arguments are still to be used.
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

const ERASE = statement(`
  select e.card_id, e.outcome from boxcar.erase_cards((
    select coalesce(array_agg(c.id), '{}') from boxcar.cards c where c.id = any ($1::uuid[]) and c.project_id = $2), $3) e`);

const NO_RIGHT = '42501';

/**
 * Erases cards of one project. A second time changes nothing, the first reason stays.
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
  if (reason.trim() === '' || reason.length > MAX_REASON_LENGTH)
    throw new KernelError('bad_request', {
      message: `reason: must have 1 to ${MAX_REASON_LENGTH} characters.`,
      details: { field: 'reason' },
    });
  const rows = await runRetrying<ErasedCard>(pool, ERASE, [cardIds, projectId, reason]).catch(explainRight);
  const outcomes = new Map(rows.map((row) => [row.card_id, row.outcome]));
  return cardIds.map((card_id) => ({ card_id, outcome: outcomes.get(card_id) ?? 'not_found' }));
}

/** @throws KernelError `database_forbidden` in place of what Postgres says to a role without the right; else what was thrown. */
export function explainRight(error: unknown): never {
  if (!(error instanceof Error) || !('code' in error) || error.code !== NO_RIGHT) throw error;
  throw new KernelError('database_forbidden', { message: `Postgres: ${error.message}.`, cause: error });
}

const OWN_CARDS = statement(`
  select u.card_id from boxcar.boxes b cross join lateral (
    select x.card_id, x.n from unnest(b.card_ids) with ordinality as x(card_id, n)
    union all
    select e.card_id, e.position from boxcar.tape_entries e where b.kind = 'tape' and e.box_id = b.id and e.card_id is not null
    union all
    select k.result_card_id, ${2 ** 31} + row_number() over (order by k.turn_id, k.step, k.ordinal)
    from (select distinct e.turn_id from boxcar.tape_entries e where b.kind = 'tape' and e.box_id = b.id) t join boxcar.tool_calls k on k.turn_id = t.turn_id
    where k.result_card_id is not null and not exists (select from boxcar.tape_entries e where e.card_id = k.result_card_id and e.box_id = b.id)
  ) u
  where b.id = $1 and b.project_id = $2 order by u.n`);

const HAS_BOX = statement('select id from boxcar.boxes where id = $1 and project_id = $2');

/**
 * The own cards of a box in stored order: those a sealed box lists itself, not those it inherits; those of a tape's entries, then the
 * results that calls of its turns have without an entry, as those of canceled calls.
 *
 * @throws KernelError `not_found`.
 */
export async function findOwnCards(
  db: Queryable,
  boxId: BoxId,
  projectId: ProjectId,
): Promise<readonly CardId[]> {
  if ((await run(db, HAS_BOX, [boxId, projectId])).length === 0)
    throw new KernelError('not_found', {
      message: `No box ${boxId} in this project.`,
      details: { box_id: boxId, project_id: projectId },
    });
  return (await run<{ card_id: CardId }>(db, OWN_CARDS, [boxId, projectId])).map((row) => row.card_id);
}
