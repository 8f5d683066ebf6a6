/** Failures of providers, as the rows count them. Rules: `kernel/model/provider.ts`. */
import { noteFailure } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, transaction } from '../db/index.js';
import { at, type Caller, lock } from './provider-books.js';

const KNOW = statement(
  'insert /* provider-failures.know */ into boxcar.providers (name) values ($1) on conflict do nothing',
);

// The failure of a call that began before the pause says nothing about the time after it.
const NOTE_FAILURE = statement(`
  with /* provider-failures.note_failure */
  tried as (
    update boxcar.provider_slots
    set is_probe = false
    where provider = $1 and is_probe and $6::boolean
  )
  update boxcar.providers
  set failures = $2,
    openings = $3,
    open_until = ${at('$4')},
    failing_since = ${at('$5')}
  where name = $1
  returning pg_current_xact_id()::text as transaction_id`);

/**
 * The facts about a failure in the rows: whether its call was the probe, and which answers other workers have reported since the first of
 * the failures in a row. $2: the time of that first failure. $5: the worker that reports the failure, which knows its own answers.
 */
const SEEN = statement(`
  select /* provider-failures.seen */
    exists (
      select from boxcar.provider_slots s
      where s.turn_id = $3 and s.epoch = $4 and s.provider = $1 and s.is_probe
    ) as is_probe,
    coalesce(bool_or((w.answers->>$1)::timestamptz > ${at('$2')}), false) as has_succeeded,
    coalesce(bool_and(w.told_at is null or w.told_at > ${at('$2')}), true) as all_told
  from boxcar.workers w
  where w.lease_until > coalesce($6::timestamptz, clock_timestamp()) and w.id is distinct from $5`);

const HAS_COMMITTED = statement(
  "select /* provider-failures.has_committed */ pg_xact_status($1::xid8) = 'committed' as has_committed",
);

/**
 * Records the failure of a provider. The provider's row does not tell whose failures it counts. So a repetition asks the server whether
 * the transaction of the previous try was committed.
 *
 * @param seen.hasSucceeded - True when the reporting worker has had an answer since the last failure that it reported.
 * @param seen.caller - The caller whose call failed.
 * @returns The time until calls continue, in milliseconds from now; null when they may continue at once.
 */
export function noteProviderFailure(
  pool: pg.Pool,
  name: string,
  seen: {
    readonly hasSucceeded: boolean;
    readonly caller?: Pick<Caller, 'turnId' | 'epoch' | 'holderId'> | undefined;
    readonly now?: Date | undefined;
  },
): Promise<{ readonly closedForMs: number | null }> {
  let earlierId: string | undefined;
  return transaction(pool, async (tx) => {
    await run(tx, KNOW, [name]);
    const row = await lock(tx, name, seen.now);
    if (row === undefined) return { closedForMs: null };
    const { now, failures, openings, open_until: openUntil, breaker_after: breakerAfter } = row;
    const closedFor = (until: number | null) => ({ closedForMs: until === null ? null : until - now });
    // The row is locked, so the previous try has ended.
    if (earlierId !== undefined) {
      const [found] = await run<{ has_committed: boolean | null }>(tx, HAS_COMMITTED, [earlierId]);
      if (found?.has_committed === true) return closedFor(openUntil);
    }
    const { turnId = null, epoch = null, holderId = null } = seen.caller ?? {};
    const failingSince = row.failing_since;
    const [told] = await run<{ is_probe: boolean; has_succeeded: boolean; all_told: boolean }>(tx, SEEN, [
      name,
      failingSince ?? now,
      turnId,
      epoch,
      holderId,
      seen.now ?? null,
    ]);
    const next = noteFailure(
      { failures, failingSince, openings, openUntil, breakerAfter, now },
      {
        hasSucceeded: seen.hasSucceeded || told?.has_succeeded === true,
        isProbe: told?.is_probe === true,
        allTold: told?.all_told !== false,
      },
    );
    const opens = next.openings > openings;
    const values = [name, next.failures, next.openings, next.openUntil, next.failingSince, opens];
    const [noted] = await run<{ transaction_id: string }>(tx, NOTE_FAILURE, values);
    earlierId = noted?.transaction_id;
    return closedFor(next.openUntil);
  });
}
