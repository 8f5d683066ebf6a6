import { type InvariantOptions, inspectInvariants } from '@boxcar/store/report';
import type pg from 'pg';

/**
 * Checks the invariants that must hold after all turns have ended, whatever faults occurred. With `isSettled: false`, checks only those
 * that hold at every moment.
 *
 * @throws Error that lists every broken invariant.
 */
export async function checkInvariants(pool: pg.Pool, options: InvariantOptions = {}): Promise<void> {
  const reports = await inspectInvariants(pool, { isSettled: true, ...options });
  const broken = reports.flatMap(({ name, rule, broken: found }) =>
    found.map(({ id, what }) => `${name}: ${rule}: ${id} ${what}`),
  );
  if (broken.length > 0) throw new Error(`broken invariants:\n${broken.join('\n')}`);
}
