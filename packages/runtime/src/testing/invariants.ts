import { type InvariantOptions, inspectInvariants } from '@boxcar/store/report';
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';

/** An end is told to its parent in a transaction of its own, and a test waits for the end alone. */
const TELL_MS = 10_000;

/** Waits until every end has been told. An end that nobody tells is left to the invariant `told`. */
async function untilTold(pool: pg.Pool, deadlineMs: number): Promise<void> {
  const isTold = async (): Promise<boolean> => {
    const { rowCount } = await pool.query(
      'select from boxcar.turns where ended_at is not null and (notifies or unseen_position is not null) limit 1',
    );
    return rowCount === 0;
  };
  await waitFor(isTold, { message: 'every end is told', deadlineMs }).catch(() => undefined);
}

/** Waits until every turn has ended and every end has been told, so that nothing more is written. */
export async function untilSettled(pool: pg.Pool): Promise<void> {
  const hasEnded = async (): Promise<boolean> => {
    const { rowCount } = await pool.query('select from boxcar.turns where ended_at is null limit 1');
    return rowCount === 0;
  };
  await waitFor(hasEnded, { message: 'every turn has ended', deadlineMs: 60_000 });
  await untilTold(pool, 60_000);
}

/**
 * Checks the invariants that must hold after all turns have ended, whatever faults occurred. With `isSettled: false`, checks only those
 * that hold at every moment.
 *
 * @param tellMs - How long to wait first until every end has been told.
 * @throws Error that lists every broken invariant.
 */
export async function checkInvariants(
  pool: pg.Pool,
  { tellMs = TELL_MS, ...options }: InvariantOptions & { readonly tellMs?: number } = {},
): Promise<void> {
  if (options.isSettled !== false) await untilTold(pool, tellMs);
  const reports = await inspectInvariants(pool, { isSettled: true, ...options });
  const broken = reports.flatMap(({ name, rule, broken: found }) =>
    found.map(({ id, what }) => `${name}: ${rule}: ${id} ${what}`),
  );
  if (broken.length > 0) throw new Error(`broken invariants:\n${broken.join('\n')}`);
}
