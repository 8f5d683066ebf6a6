/**
 * Turns whose worker lacks their selector wait for a worker that has it. Rules of waits: `waits.ts`; docs/reference/views.md,
 * "Selectors".
 *
 * L1  Such a turn is not rung. The workers that have its selector take it from the rows in their sweeps, and whenever a slot becomes
 *     free while more such turns wait. So the turn does not return to a worker without the selector.
 * L2  While a worker has the selector but no free slot, that worker postpones the end of the wait. So the wait ends only when no such
 *     worker has lived for that long.
 */
import type { ProjectId, Ring, SelectorRef, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, retryTransient, run, runRetrying, statement, transactOnce } from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import {
  ENDABLE,
  type EndableTurn,
  findSuspended,
  hasStatus,
  lockTurns,
  type SweepClock,
  toRing,
} from '../turn/index.js';
import { wakeText } from './waits.js';

/** How long a turn waits when no living worker has its selector. */
export const SELECTOR_PATIENCE_MS = 60_000;
/** The end of a wait is not postponed again within this time. */
const PUT_OFF_AGAIN_MS = 2_000;
const END = `clock_timestamp() + ${SELECTOR_PATIENCE_MS} * interval '1 millisecond'`;

interface Held {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
}

const FIX = statement(`
  update /* selector-waits.fix */ boxcar.turns t
  set selector_version = coalesce(t.selector_version, $4)
  where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and t.status = 'running'
  returning t.selector_version`);

/**
 * Fixes the selector's version for the turn, unless it is already fixed. @returns The valid version; undefined when the turn has
 * another holder.
 */
export async function fixSelector(pool: pg.Pool, held: Held, version: string): Promise<string | undefined> {
  const { turnId, epoch, holderId } = held;
  const [row] = await runRetrying<{ selector_version: string }>(pool, FIX, [
    turnId,
    epoch,
    holderId,
    version,
  ]);
  return row?.selector_version;
}

// The model was not called, so the attempt is removed and opened again when the turn continues. The turn is locked first. If a takeover, an
// end or a cancel got the lock before, the turn has another epoch, holder or status, and nothing is written.
const WAIT = statement(`
  with /* selector-waits.wait */
  lk as (
    select t.id, t.project_id, t.step_count, t.attempt, t.selector, t.selector_version
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and ${hasStatus('running')}
    for update
  ),
  unasked as (
    delete from boxcar.steps s
    using lk
    where s.turn_id = lk.id
      and s.step = lk.step_count + 1
      and s.attempt = lk.attempt
      and s.committed_at is null
  ),
  up as (
    update boxcar.turns t
    set status = 'suspended', holder_id = null, attempt = greatest(t.attempt - 1, 0)
    from lk
    where t.id = lk.id
  )
  insert into boxcar.waits (turn_id, project_id, kind, due_at, detail)
  select
    lk.id, lk.project_id, 'selector', ${END},
    jsonb_build_object('selector', lk.selector, 'selector_version', lk.selector_version)
  from lk
  returning turn_id`);

/** Suspends a turn until a worker with its selector takes it. False: the turn has another holder. */
export async function waitForSelector(pool: pg.Pool, held: Held): Promise<boolean> {
  const suspend = async (db: Queryable): Promise<boolean> =>
    (await run(db, WAIT, [held.turnId, held.epoch, held.holderId])).length > 0;
  return retryTransient((attempt) =>
    attempt === 1
      ? suspend(pool)
      : transactOnce(pool, async (tx) => {
          await lockTurns(tx, [held.turnId]);
          return (await findSuspended(tx, 'selector', [held])).size > 0 || suspend(tx);
        }),
  );
}

const MINE = `
  from boxcar.waits w
  join boxcar.turns t on t.id = w.turn_id
  where w.kind = 'selector'
    and t.worker_target = any ($1::text[])
    and exists (
      select from json_to_recordset($2) as s(name text, version text)
      where s.name = t.selector and s.version = coalesce(t.selector_version, s.version)
    )`;
const TAKE = statement(wakeText(`select w.turn_id ${MINE} order by w.created_at, w.turn_id limit $3`));
const PUT_OFF = statement(`
  with /* selector-waits.put_off */
  lk as (
    select w.turn_id
    ${MINE}
      and w.due_at < ${END} - ${PUT_OFF_AGAIN_MS} * interval '1 millisecond'
    order by w.turn_id
    for update of w skip locked
  )
  update boxcar.waits w
  set due_at = ${END}
  from lk
  where w.turn_id = lk.turn_id`);

/** The selectors of a worker, and the targets that it serves. */
export interface SelectorHolder {
  readonly targets: readonly string[];
  readonly selectors: readonly SelectorRef[];
}

const valuesOf = ({ targets, selectors }: SelectorHolder): unknown[] => [targets, JSON.stringify(selectors)];

/**
 * Wakes turns that wait for the caller's selectors, the oldest first. The caller claims these turns itself and must not ring them.
 *
 * @param limit - The number of turns that the caller has room for; the others continue to wait.
 */
export async function takeForSelectors(
  pool: pg.Pool,
  holder: SelectorHolder,
  limit: number,
): Promise<readonly Ring[]> {
  if (limit === 0) return [];
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, TAKE, [...valuesOf(holder), limit])).map(
    toRing,
  );
}

/** Postpones the end of the waits for the caller's selectors for which the caller has no room (L2). */
export async function putOffSelectorWaits(pool: pg.Pool, holder: SelectorHolder): Promise<void> {
  await runRetrying(pool, PUT_OFF, valuesOf(holder));
}

export interface UnselectedTurn extends EndableTurn {
  readonly project_id: ProjectId;
  readonly selector: string;
  readonly selector_version: string | null;
}

const UNSELECTED = statement(`
  select /* selector-waits.unselected */ ${ENDABLE}, t.selector, t.selector_version
  from boxcar.waits w
  join boxcar.turns t on t.id = w.turn_id
  where w.kind = 'selector'
    and w.due_at <= coalesce($1::timestamptz, now())
    and ${hasStatus('suspended')}
    and ${notSetAside('due_waits', 't.id', 'coalesce($1::timestamptz, now())')}
  order by w.due_at
  limit $2`);

/** Turns whose wait for a selector ended without a worker that has it. */
export function findUnselected(
  pool: pg.Pool,
  options: SweepClock & { readonly limit: number },
): Promise<UnselectedTurn[]> {
  return runRetrying<UnselectedTurn>(pool, UNSELECTED, [options.now ?? null, options.limit]);
}
