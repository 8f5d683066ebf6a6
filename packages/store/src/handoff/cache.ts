/**
 * Handoffs that can reuse the result of an identical handoff.
 *
 * C1  A result can be reused when it is young enough for the new handoff, is complete, and was not itself taken from the cache.
 * C2  Of several identical handoffs only one is carried out at a time; the others wait for it. That handoff leads until its turn ends,
 *     whichever process holds the turn.
 * C3  A handoff that is part of a leading handoff, at any depth, never waits, so that two handoffs never wait for each other.
 * Rule: docs/reference/handoff.md, "Cached results".
 */
import type { CardContent, HandoffId, JsonValue, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, transaction } from '../db/index.js';
import { type LoggedEvent, writeEvents } from './handoff-changes.js';
import { CARD_VALUE, END_PHASE, ON_TURN } from './handoffs.js';

const VALUES = `h.id as handoff_id, ${CARD_VALUE('d')} as result, d.content`;

/**
 * The newest result of key `key` in project `project` that is at most `seconds` old (C1). One result is read, however many exist. The
 * second part finds a handoff whose turn has ended a moment ago, before the end was recorded in its row. Takes no locks: the result that
 * is found stays valid, also when a newer one is committed meanwhile.
 */
const results = (project: string, key: string, seconds: string): string => `
  (
    select ${VALUES}
    from boxcar.handoffs h
    ${ON_TURN}
    join boxcar.cards d on d.id = t.deliverable_card_id
    where h.project_id = ${project}
      and h.cache_key = ${key}
      and h.cached_from is null
      and h.phase = 'completed'
      and d.content is not null
      and h.ended_at > now() - ${seconds} * interval '1 second'
    order by h.ended_at desc
    limit 1
  )
  union all
  (
    select ${VALUES}
    from boxcar.handoffs h
    join boxcar.turns t on t.id = h.turn_id
    join boxcar.cards d on d.id = t.deliverable_card_id
    where h.project_id = ${project}
      and h.cache_key = ${key}
      and h.cached_from is null
      and h.ended_at is null
      and ${END_PHASE} = 'completed'
      and d.content is not null
      and t.ended_at > now() - ${seconds} * interval '1 second'
    limit 1
  )
  limit 1`;

const FIND = statement(
  `select /* cache.find */ r.handoff_id, r.result from (${results('$1', '$2', '$3')}) r`,
);

/** The result of an identical handoff; undefined without such a result. */
export const findCached = async (
  db: Queryable,
  of: { readonly projectId: ProjectId; readonly cacheKey: string; readonly seconds: number },
): Promise<{ readonly handoff_id: HandoffId; readonly result: JsonValue } | undefined> =>
  (
    await run<{ handoff_id: HandoffId; result: JsonValue }>(db, FIND, [of.projectId, of.cacheKey, of.seconds])
  )[0];

/** The state of a handoff among identical handoffs when it is about to be carried out. */
export interface Flight extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  /** The handoff need not wait: it leads, or it is part of a leading handoff. */
  readonly is_free: boolean;
  readonly cached_from: HandoffId | null;
  /** The content of a deliverable. */
  readonly content: Extract<CardContent, { kind: 'text' | 'json' }> | null;
  /** The turn of the leading handoff; null when no handoff leads. */
  readonly leader_turn_id: TurnId | null;
}

// Takes no locks: it only shows what to do next. A handoff that finds no leader becomes the leader under a lock (`lead`), where LEAD looks
// again; a handoff that finds one waits for the end of its turn.
const LOOK = statement(`
  with recursive /* cache.look */
  me as (
    select h.*
    from boxcar.handoffs h
    where h.turn_id = $1 and h.cache_key is not null
  ),
  above as (
    select o.parent_handoff_id, o.is_leading and o.ended_at is null as leads
    from me
    join boxcar.handoffs o on o.id = me.parent_handoff_id
    union all
    select o.parent_handoff_id, o.is_leading and o.ended_at is null
    from above a
    join boxcar.handoffs o on o.id = a.parent_handoff_id
  )
  select
    me.id as handoff_id,
    me.is_leading or me.attempts > 0 or exists (select from above where leads) as is_free,
    r.handoff_id as cached_from, r.content, l.turn_id as leader_turn_id
  from me
  left join lateral (${results('me.project_id', 'me.cache_key', 'me.cache_seconds')}) r on true
  left join lateral (
    select o.turn_id
    from boxcar.handoffs o
    join boxcar.turns t on t.id = o.turn_id
    where o.project_id = me.project_id
      and o.cache_key = me.cache_key
      and o.is_leading
      and t.ended_at is null
  ) l on true`);

/** Undefined: the turn serves no handoff that may be answered from the cache. */
export const findFlight = async (db: Queryable, turnId: TurnId): Promise<Flight | undefined> =>
  (await run<Flight>(db, LOOK, [turnId]))[0];

// A handoff whose turn has ended no longer leads, although its end is not recorded yet.
const CLEAR = statement(`
  update /* cache.clear */ boxcar.handoffs h
  set is_leading = false
  from boxcar.handoffs me
  join boxcar.turns mt on mt.id = me.turn_id, boxcar.turns t
  where me.turn_id = $1
    and h.project_id = me.project_id
    and h.cache_key = me.cache_key
    and h.is_leading
    and t.id = h.turn_id
    and t.ended_at is not null`);
// Another handoff may have led and ended since the look.
const LEAD = statement(`
  update /* cache.lead */ boxcar.handoffs me
  set is_leading = true
  where me.turn_id = $1
    and me.ended_at is null
    and not exists (
      select from boxcar.handoffs o
      where o.project_id = me.project_id and o.cache_key = me.cache_key and o.is_leading
    )
    and not exists (select from (${results('me.project_id', 'me.cache_key', 'me.cache_seconds')}) r)
  returning me.id`);

// Serializes the decisions of identical handoffs.
const LOCK = statement(`
  select /* cache.lock */ pg_advisory_xact_lock(hashtextextended(h.project_id::text || ' ' || h.cache_key, 39))
  from boxcar.handoffs h
  where h.turn_id = $1`);

/** Makes a handoff lead (C2). @returns False when another handoff was quicker, and leads or has ended. */
export const lead = (pool: pg.Pool, turnId: TurnId): Promise<boolean> =>
  transaction(pool, async (tx) => {
    await run(tx, LOCK, [turnId]);
    await run(tx, CLEAR, [turnId]);
    return (await run(tx, LEAD, [turnId])).length > 0;
  });

const TAKE = statement(`
  with /* cache.take */
  c as (
    update boxcar.handoffs h
    set cached_from = $2, event_count = h.event_count + 1
    where h.turn_id = $1 and h.cached_from is null and h.ended_at is null
    returning h.id, h.event_count - 1 as seq
  ),
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.cached', 'data', jsonb_build_object('cached_from', $2::text)
      ))`,
  )}
  select handoff_id, type, data
  from logged`);

/** Records which handoff provided the result. @returns The events that were written; empty when it was recorded before. */
export const takeCached = (
  db: Queryable,
  of: { readonly turnId: TurnId; readonly cachedFrom: HandoffId },
): Promise<LoggedEvent[]> => run<LoggedEvent>(db, TAKE, [of.turnId, of.cachedFrom]);
