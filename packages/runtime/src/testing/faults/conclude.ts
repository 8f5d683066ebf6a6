import type { JsonValue } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { checkInvariants } from '../invariants.js';
import { type Outcome, readOutcome, readRepeatedEffects } from './outcome.js';
import type { Scenario, Watcher } from './scenario.js';

/**
 * Counts unfinished work: turns, batches (a batch whose members have all ended may itself still be open), handoffs, and ends whose
 * notifications or deliveries are pending.
 */
export async function countUnfinished(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ n: number }>(`
    select (select count(*)::int from boxcar.turns where ended_at is null)
      + (select count(*)::int from boxcar.batches where status = 'running')
      + (select count(*)::int from boxcar.handoffs where ended_at is null or notifies)
      + (select count(*)::int from boxcar.webhook_deliveries where status = 'pending')
      + (
        select count(*)::int
        from boxcar.turns
        where ended_at is not null and (notifies or unseen_position is not null)
      ) as n`);
  return rows[0]?.n ?? 0;
}

/** Reads the rows on a connection without faults. Every wait has a deadline. */
export const watcherOf = (pool: pg.Pool): Watcher => ({
  until: (statement) =>
    waitFor(async () => (await pool.query<Record<string, JsonValue>>(statement)).rows[0], {
      message: `there is a row of: ${statement}`,
      deadlineMs: 30_000,
      intervalMs: 5,
    }),
});

/**
 * Checks the conditions that must hold after any fault, and returns the outcome of the scenario. @throws Error that names the broken
 * condition.
 */
export async function concludeScene(
  pool: pg.Pool,
  scenario: Scenario,
  driven: JsonValue = null,
): Promise<Outcome> {
  await checkInvariants(pool);
  const repeated = await readRepeatedEffects(pool, scenario);
  if (repeated.length > 0) throw new Error(`ran more than once: ${repeated.join('; ')}`);
  return readOutcome(pool, scenario, driven);
}

/**
 * Describes what is wrong with an outcome. Undefined when the outcome is right.
 *
 * @param calm - The outcome of a run without faults. A scenario with its own judge does not need it.
 * @param options.isAlive - Only a connection was lost: the outcome of every call is known, and no loss may be counted.
 */
export function findFault(
  scenario: Scenario,
  outcome: Outcome,
  calm: Outcome | undefined,
  { isAlive = false }: { readonly isAlive?: boolean } = {},
): string | undefined {
  if (isAlive && outcome.losses > 0)
    return `${outcome.losses} losses were counted, although no process has died`;
  if (scenario.judge === undefined)
    return describeDifference(calm ?? outcome, outcome, isAlive ? 'exactTurns' : 'turns');
  const wrong = scenario.judge(outcome.facts);
  return wrong.length === 0
    ? undefined
    : `${wrong.join('\n')}\n${JSON.stringify(outcome.facts, undefined, 1)}`;
}

/** Describes how two outcomes differ. Undefined when they are equal. */
function describeDifference(
  calm: Outcome,
  other: Outcome,
  turns: 'turns' | 'exactTurns',
): string | undefined {
  const rest = [...other[turns]];
  const missing = calm[turns].filter((turn) => {
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
