/** Sets, reads and lists the limits of providers. */
import {
  checkWholeNumber,
  DEFAULT_BREAKER_AFTER,
  isCleanText,
  isPlainName,
  KernelError,
  providerOf,
} from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import { IS_CALLING, IS_KEPT } from './provider-books.js';

export interface ProviderLimits {
  /** Null removes the limit; undefined leaves it as it is. */
  readonly maxConcurrent?: number | null | undefined;
  readonly requestsPerMinute?: number | null | undefined;
  /** The number of failures in a row after which calls wait; 0 = never; null = the default. */
  readonly breakerAfter?: number | null | undefined;
}

// Without a breaker there is no pause. The wait of the turn that has waited longest becomes due, so that the next sweep looks at the
// provider: there may be room now. The insert locks the provider's row, and then the wait. A locked wait is skipped: its turn is just being
// woken or ended.
const SET = statement(`
  with /* provider-limits.set */
  p as (
    insert into boxcar.providers as p (name, max_concurrent, requests_per_minute, breaker_after)
    values ($1, $2, $3, $4)
    on conflict (name) do update
      set updated_at = now(),
        max_concurrent = case when $5 then excluded.max_concurrent else p.max_concurrent end,
        requests_per_minute = case when $6 then excluded.requests_per_minute else p.requests_per_minute end,
        breaker_after = case when $7 then excluded.breaker_after else p.breaker_after end,
        open_until = case when $7 and excluded.breaker_after = 0 then null else p.open_until end,
        openings = case when $7 and excluded.breaker_after = 0 then 0 else p.openings end
    returning name
  )
  update boxcar.waits w
  set due_at = now()
  from p
  cross join lateral (
    select w.turn_id
    from boxcar.waits w
    where w.provider = p.name and w.kind = 'limit' and ${notSetAside('due_waits', 'w.turn_id', 'now()')}
    order by w.created_at, w.turn_id
    limit 1
    for update skip locked
  ) first
  where w.turn_id = first.turn_id and w.due_at > now()`);

const MAX_LIMIT = 1_000_000;

/** @throws KernelError `bad_request` for an invalid name or limit. */
function checkLimits(name: string, limits: ProviderLimits): void {
  if (
    typeof name !== 'string' ||
    name.length > 200 ||
    !/^[^:]+$/.test(name) ||
    !isCleanText(name) ||
    !isPlainName(name)
  )
    throw new KernelError('bad_request', {
      message: "name: must be the part of a model's name before ':', such as openai.",
      details: { field: 'name' },
    });
  const account = providerOf(name);
  if (account !== name)
    throw new KernelError('bad_request', {
      message: `name: calls of ${name} count as calls of ${account}: set the limits of ${account}.`,
      details: { field: 'name', provider: account },
    });
  for (const field of ['maxConcurrent', 'requestsPerMinute', 'breakerAfter'] as const) {
    const value = limits[field];
    if (value !== undefined && value !== null)
      checkWholeNumber(value, field, { min: field === 'breakerAfter' ? 0 : 1, max: MAX_LIMIT });
  }
}

/**
 * Sets the given fields and leaves the others. Workers see the change at their next heartbeat. The next sweep applies it to waiting
 * turns.
 *
 * @throws KernelError `bad_request` naming a limit that is not a whole number from 1 (`breakerAfter`: 0) to 1,000,000.
 */
export async function setProviderLimits(pool: pg.Pool, name: string, limits: ProviderLimits): Promise<void> {
  checkLimits(name, limits);
  const { maxConcurrent, requestsPerMinute, breakerAfter } = limits;
  await runRetrying(pool, SET, [
    name,
    maxConcurrent ?? null,
    requestsPerMinute ?? null,
    breakerAfter ?? null,
    maxConcurrent !== undefined,
    requestsPerMinute !== undefined,
    breakerAfter !== undefined,
  ]);
}

/** True for a provider `p` whose calls must ask for room. */
export const IS_GATED =
  '(p.max_concurrent is not null or p.requests_per_minute is not null or p.open_until is not null)';

const GATED = statement(
  `select /* provider-limits.gated */ p.name from boxcar.providers p where ${IS_GATED}`,
);

/** Providers whose calls must ask for room. */
export async function findGatedProviders(pool: pg.Pool): Promise<readonly string[]> {
  return (await runRetrying<{ name: string }>(pool, GATED, [])).map((row) => row.name);
}

export interface ProviderLine extends pg.QueryResultRow {
  readonly name: string;
  readonly max_concurrent: number | null;
  readonly requests_per_minute: number | null;
  readonly breaker_after: number;
  readonly failures: number;
  readonly open_until: Date | null;
  /** Calls under way, and places that are kept for woken turns. */
  readonly in_use: number;
  /** Turns that wait for room. */
  readonly waiting: number;
}

const LIST = statement(`
  select /* provider-limits.list */
    p.name, p.max_concurrent, p.requests_per_minute,
    coalesce(p.breaker_after, ${DEFAULT_BREAKER_AFTER}) as breaker_after,
    p.failures, p.open_until,
    (
      select count(*)::int
      from boxcar.provider_slots s
      join boxcar.turns t on t.id = s.turn_id
      where s.provider = p.name and (${IS_CALLING} or ${IS_KEPT})
    ) as in_use,
    (select count(*)::int from boxcar.waits w where w.provider = p.name) as waiting
  from boxcar.providers p
  order by p.name`);

/** Lists the providers with limits or failures. */
export function listProviders(pool: pg.Pool, options: { readonly now?: Date } = {}): Promise<ProviderLine[]> {
  return runRetrying<ProviderLine>(pool, LIST, [options.now ?? null]);
}
