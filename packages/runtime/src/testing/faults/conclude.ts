import type pg from 'pg';
import { checkInvariants } from '../invariants.js';
import { type Outcome, readOutcome, readRepeatedEffects } from './outcome.js';
import type { Scenario } from './scenario.js';

export async function countUnfinished(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ n: number }>(
    'select count(*)::int as n from boxcar.turns where ended_at is null',
  );
  return rows[0]?.n ?? 0;
}

/** Checks what must hold after any fault and returns what came of it all. @throws Error naming what is broken. */
export async function concludeScene(pool: pg.Pool, scenario: Scenario): Promise<Outcome> {
  await checkInvariants(pool);
  const repeated = await readRepeatedEffects(pool, scenario);
  if (repeated.length > 0) throw new Error(`ran more than once: ${repeated.join('; ')}`);
  return readOutcome(pool, scenario);
}

/** Says in what two outcomes differ; undefined when in nothing. */
export function describeDifference(calm: Outcome, other: Outcome): string | undefined {
  const rest = [...other.turns];
  const missing = calm.turns.filter((turn) => {
    const at = rest.indexOf(turn);
    if (at >= 0) rest.splice(at, 1);
    return at < 0;
  });
  const counts = Object.entries(other.rows).filter(([table, n]) => calm.rows[table] !== n);
  const lines = [
    ...missing.map((turn) => `without faults:\n${turn}`),
    ...rest.map((turn) => `now:\n${turn}`),
    ...counts.map(([table, n]) => `${n} rows in ${table} instead of ${calm.rows[table]}`),
  ];
  return lines.length === 0 ? undefined : lines.join('\n');
}
