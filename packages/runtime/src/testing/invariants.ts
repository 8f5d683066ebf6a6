import { type InvariantOptions, inspectInvariants } from '@boxcar/store/report';
import type pg from 'pg';

/**
 * Checks what must hold once all turns have ended, whatever happened meanwhile; with `isSettled: false` what holds always.
 *
 * @throws Error that lists everything that does not.
 */
export async function checkInvariants(pool: pg.Pool, options: InvariantOptions = {}): Promise<void> {
  const reports = await inspectInvariants(pool, { isSettled: true, ...options });
  const broken = reports.flatMap(({ name, rule, broken: found }) =>
    found.map(({ id, what }) => `${name}: ${rule}: ${id} ${what}`),
  );
  if (broken.length > 0) throw new Error(`broken invariants:\n${broken.join('\n')}`);
}
