/**
 * The books of providers: who calls now, who waits for room, and whether the provider works (kernel/model/provider.ts decides).
 *
 * B1  Whatever reads and changes a provider's books locks its row first, so admissions are exact over all workers.
 *     It is locked before turns: nobody who has a turn locked asks for it.
 * B2  A place counts while the worker that holds its turn has its lease, or, kept for a turn that was woken, for ten seconds:
 *     what a killed worker had is free with its lease, and no timer is needed.
 * B3  Waiting turns are woken with a place of their own, oldest first; locked turns are passed over for now. Other turns find no
 *     room while a turn waits. A turn that finds no room is suspended under the same lock, so that no place becomes free in
 *     between, unseen. The sweep sets aside a turn that cannot be woken, so that it does not keep other turns waiting.
 *     A turn that was woken keeps its position until it calls: if it comes late, it waits again where it was, or takes a place
 *     that is kept for a turn after it.
 * B4  Only a worker that holds its turn is admitted, and a place counts only at the epoch at which it was taken. So a worker that
 *     has lost its turn does not take or overwrite the place of the next holder. (A kept place belongs to the holder of the turn.)
 */
import {
  type Asking,
  beginCalls,
  checkWholeNumber,
  chooseCallers,
  DEFAULT_BREAKER_AFTER,
  findRoom,
  isCleanText,
  isPlainName,
  KernelError,
  noteFailure,
  PROBE_MS,
  type ProjectId,
  type ProviderState,
  providerOf,
  type Ring,
  type Room,
  type TurnId,
  type WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import {
  type BatchTry,
  type LockLimit,
  limitLocks,
  run,
  runRetrying,
  statement,
  type Tx,
  transaction,
  transactWithin,
} from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import { hasStatus, toRing } from '../turn/index.js';
import { strayWaits } from './waits.js';

export interface ProviderLimits {
  /** Null = not limited; undefined = as it is. */
  readonly maxConcurrent?: number | null | undefined;
  readonly requestsPerMinute?: number | null | undefined;
  /** Failures in a row after which its calls wait; 0 = never; null = the default. */
  readonly breakerAfter?: number | null | undefined;
}

// Without a breaker there is no pause. The turn that has waited longest makes the next sweep look at the provider: there may be room now.
const SET = statement(`
  with p as (
    insert into boxcar.providers as p (name, max_concurrent, requests_per_minute, breaker_after) values ($1, $2, $3, $4)
    on conflict (name) do update set updated_at = now(),
      max_concurrent = case when $5 then excluded.max_concurrent else p.max_concurrent end,
      requests_per_minute = case when $6 then excluded.requests_per_minute else p.requests_per_minute end,
      breaker_after = case when $7 then excluded.breaker_after else p.breaker_after end,
      open_until = case when $7 and excluded.breaker_after = 0 then null else p.open_until end,
      openings = case when $7 and excluded.breaker_after = 0 then 0 else p.openings end
    returning name
  )
  update boxcar.waits w set due_at = now() from p cross join lateral (
    select w.turn_id from boxcar.waits w where w.provider = p.name and w.kind = 'limit' and ${notSetAside('due_waits', 'w.turn_id', 'now()')}
    order by w.created_at, w.turn_id limit 1 for update skip locked
  ) first where w.turn_id = first.turn_id and w.due_at > now()`);

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
 * Sets the given fields and leaves the others. Workers see the change at their next heartbeat; turns that wait, by the next sweep.
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

/** A provider `p` whose calls have to ask for room. */
export const IS_GATED =
  '(p.max_concurrent is not null or p.requests_per_minute is not null or p.open_until is not null)';

const GATED = statement(`select p.name from boxcar.providers p where ${IS_GATED}`);

/** Providers whose calls have to ask for room. */
export async function findGatedProviders(pool: pg.Pool): Promise<readonly string[]> {
  return (await runRetrying<{ name: string }>(pool, GATED, [])).map((row) => row.name);
}

/** $1: the clock of tests. */
const CLOCK = 'coalesce($1::timestamptz, clock_timestamp())';
/** Of a place `s` and its turn `t`: a call under way. */
const IS_CALLING = `(t.status = 'running' and not s.is_kept and s.queued_at is null and s.epoch = t.epoch
    and t.holder_id in (select w.id from boxcar.workers w where w.lease_until > ${CLOCK}))`;
/** The turn was woken and has not called yet: its position is known. Older builds write `is_kept` in place of `queued_at`. */
const IS_COMING = "((s.is_kept or s.queued_at is not null) and t.status in ('dispatched', 'running'))";
const IS_KEPT = `(${IS_COMING} and s.taken_at > ${CLOCK} - interval '10 seconds')`;

export interface ProviderLine extends pg.QueryResultRow {
  readonly name: string;
  readonly max_concurrent: number | null;
  readonly requests_per_minute: number | null;
  readonly breaker_after: number;
  readonly failures: number;
  readonly open_until: Date | null;
  /** Calls under way, and places kept for turns that were woken. */
  readonly in_use: number;
  /** Turns that wait for room. */
  readonly waiting: number;
}

const LIST = statement(`
  select p.name, p.max_concurrent, p.requests_per_minute, coalesce(p.breaker_after, ${DEFAULT_BREAKER_AFTER}) as breaker_after, p.failures, p.open_until,
    (select count(*)::int from boxcar.provider_slots s join boxcar.turns t on t.id = s.turn_id where s.provider = p.name and (${IS_CALLING} or ${IS_KEPT})) as in_use,
    (select count(*)::int from boxcar.waits w where w.provider = p.name) as waiting
  from boxcar.providers p order by p.name`);

/** Providers with limits or failures. */
export function listProviders(pool: pg.Pool, options: { readonly now?: Date } = {}): Promise<ProviderLine[]> {
  return runRetrying<ProviderLine>(pool, LIST, [options.now ?? null]);
}

const ms = (column: string): string => `(extract(epoch from ${column}) * 1000)::float8`;

// The time is that after the wait for the lock: calls are paid for as of it.
const LOCK = statement(`
  with p as materialized (select * from boxcar.providers where name = $2 for update)
  select ${ms(CLOCK)} as now, max_concurrent, requests_per_minute, coalesce(breaker_after, ${DEFAULT_BREAKER_AFTER}) as breaker_after,
    ${ms('paced_until')} as paced_until, ${ms('open_until')} as open_until, ${ms('failing_since')} as failing_since, failures, openings
  from p`);

interface LockedRow extends pg.QueryResultRow {
  now: number;
  max_concurrent: number | null;
  requests_per_minute: number | null;
  breaker_after: number;
  paced_until: number | null;
  open_until: number | null;
  failing_since: number | null;
  failures: number;
  openings: number;
}

const lock = async (tx: Tx, name: string, now: Date | undefined): Promise<LockedRow | undefined> =>
  (await run<LockedRow>(tx, LOCK, [now ?? null, name]))[0];

// Places that no longer count are removed by the first who counts, under the lock: a turn that comes back cannot revive one. The
// position of a turn that has not come yet remains.
const COUNT = statement(`
  with s as materialized (
    select s.turn_id, s.is_probe and s.taken_at > ${CLOCK} - ${PROBE_MS} * interval '1 millisecond' as is_probe, coalesce(s.queued_at, s.taken_at) as queued_at,
      coalesce(${IS_CALLING}, false) as is_calling, coalesce(${IS_KEPT}, false) as is_kept, coalesce(${IS_COMING} and s.queued_at is not null, false) as is_coming
    from boxcar.provider_slots s left join boxcar.turns t on t.id = s.turn_id where s.provider = $2
  ),
  held as materialized (
    select x.turn_id from json_to_recordset($3) as x(turn_id uuid, epoch int, holder_id uuid)
    cross join lateral (select t.status, t.epoch, t.holder_id from boxcar.turns t where t.id = x.turn_id offset 0) t
    where t.status = 'running' and t.epoch = x.epoch and t.holder_id = x.holder_id
  ),
  absent as materialized (select s.turn_id, s.queued_at from s where s.is_kept and s.turn_id not in (select turn_id from held)),
  line as materialized (
    select h.turn_id, coalesce(s.is_kept, false) as is_kept, coalesce(s.is_calling, false) as is_calling,
      case when s.is_kept or s.is_coming then s.queued_at end as queued_at
    from held h left join s on s.turn_id = h.turn_id
  ),
  gone as (delete from boxcar.provider_slots x using s where x.turn_id = s.turn_id and not (s.is_calling or s.is_kept or s.is_coming))
  select (select count(*)::int from s where is_calling) as in_use, (select count(*)::int from absent) as kept,
    exists (select from s where is_calling and is_probe) as is_probing,
    (select coalesce(json_agg(json_build_object('turnId', l.turn_id, 'isCalling', l.is_calling, 'hasPlace', l.is_kept, 'isNew', l.queued_at is null,
        'keptBefore', (select count(*) from absent a where l.queued_at is null or (a.queued_at, a.turn_id) < (l.queued_at, l.turn_id)),
        'isBehind', l.queued_at is not null and exists (select from boxcar.waits w where w.provider = $2 and (w.created_at, w.turn_id) < (l.queued_at, l.turn_id)
          and ${notSetAside('due_waits', 'w.turn_id', CLOCK)}))
      order by l.queued_at, l.turn_id), '[]') from line l) as line,
    (select true from boxcar.waits w where w.provider = $2 and ${notSetAside('due_waits', 'w.turn_id', CLOCK)} limit 1) is not null as has_waiting`);

/** A caller that holds its turn (B4). */
interface LineMember extends Asking {
  readonly turnId: TurnId;
  /** It has a place of an earlier call. */
  readonly isCalling: boolean;
  /** It has not waited before. */
  readonly isNew: boolean;
}

interface Books {
  readonly state: ProviderState;
  /** The callers, the one that came first is first; those that have not waited are last, in no order. */
  readonly line: readonly LineMember[];
  readonly hasWaiting: boolean;
}

interface CountRow extends pg.QueryResultRow {
  in_use: number;
  kept: number;
  is_probing: boolean;
  line: LineMember[];
  has_waiting: boolean;
}

/** A statement of its own, begun after the row was locked. `state.kept` counts places of turns that are not among the callers. */
async function count(
  tx: Tx,
  name: string,
  of: { row: LockedRow; now: Date | undefined; callers: readonly Caller[] },
): Promise<Books> {
  const { row, now, callers } = of;
  const [found] = await run<CountRow>(tx, COUNT, [now ?? null, name, JSON.stringify(callers.map(toRecord))]);
  const hasWaiting = found?.has_waiting ?? false;
  return {
    state: {
      now: row.now,
      maxConcurrent: row.max_concurrent,
      requestsPerMinute: row.requests_per_minute,
      breakerAfter: row.breaker_after,
      pacedUntil: row.paced_until,
      openUntil: row.open_until,
      failingSince: row.failing_since,
      failures: row.failures,
      openings: row.openings,
      inUse: found?.in_use ?? 0,
      kept: found?.kept ?? 0,
      isProbing: found?.is_probing ?? false,
    },
    line: (found?.line ?? []).map((member) => (member.isNew ? { ...member, isBehind: hasWaiting } : member)),
    hasWaiting,
  };
}

const at = (n: string): string => `to_timestamp(${n}::float8 / 1000)`;
// A place that was passed on to an earlier turn ($5 of them, the last in line first) is not kept any more.
const BOOK = statement(`
  with passed as (
    update boxcar.provider_slots s set taken_at = '-infinity' from (
      select k.turn_id from boxcar.provider_slots k where k.provider = $2 and k.queued_at is not null and k.taken_at > '-infinity'
        and k.turn_id not in (select x.turn_id from json_to_recordset($4) as x(turn_id uuid)) order by k.queued_at desc, k.turn_id desc limit $5
    ) k where s.turn_id = k.turn_id
  ),
  placed as (
    insert into boxcar.provider_slots (turn_id, provider, epoch, is_kept, queued_at, is_probe, taken_at)
    select x.turn_id, $2, x.epoch, false, x.queued_at, x.is_probe, ${CLOCK} from json_to_recordset($4) as x(turn_id uuid, epoch int, queued_at timestamptz, is_probe boolean)
    on conflict (turn_id) do update set provider = excluded.provider, epoch = excluded.epoch, is_kept = false, queued_at = excluded.queued_at,
      is_probe = excluded.is_probe, taken_at = excluded.taken_at
  )
  update boxcar.providers set paced_until = ${at('$3')} where name = $2`);

interface Place {
  readonly turn_id: TurnId;
  readonly epoch: number;
  /** Null: of a call. */
  readonly queued_at: string | null;
  readonly is_probe: boolean;
}

async function book(
  tx: Tx,
  name: string,
  of: { now: Date | undefined; pacedUntil: number | null; places: readonly Place[]; passedOn?: number },
): Promise<void> {
  const { now = null, pacedUntil, places, passedOn = 0 } = of;
  await run(tx, BOOK, [now, name, pacedUntil, JSON.stringify(places), passedOn]);
}

/** A turn at an open step that is about to call its model. */
export interface Caller {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  readonly step: number;
  readonly attempt: number;
}

const toRecord = ({ turnId, epoch, holderId, step, attempt }: Caller) => ({
  turn_id: turnId,
  epoch,
  holder_id: holderId,
  step,
  attempt,
});

export type Entry =
  | { readonly outcome: 'admitted'; readonly isProbe: boolean }
  /** The turn is suspended until there is room. */
  | { readonly outcome: 'waiting'; readonly lookAfterMs: number }
  | { readonly outcome: 'fenced' };

// Nothing was asked: the attempt is taken back, and opened again when the turn is. A turn that was woken before waits at its first
// position; the others after all, in the order in which they ask.
const WAIT = statement(`
  with want as (
    select * from rows from (json_to_recordset($2) as (turn_id uuid, epoch int, holder_id uuid, step int, attempt int)) with ordinality
      as w(turn_id, epoch, holder_id, step, attempt, n)
  ),
  lk as (
    select t.id, t.project_id, w.step, w.attempt, w.n from boxcar.turns t join want w on w.turn_id = t.id and w.epoch = t.epoch and w.holder_id = t.holder_id
    where t.id = any ($3::uuid[]) and ${hasStatus('running')} order by t.id for update of t
  ),
  unasked as (delete from boxcar.steps s using lk where s.turn_id = lk.id and s.step = lk.step and s.attempt = lk.attempt),
  up as (
    update boxcar.turns t set status = 'suspended', holder_id = null, attempt = t.attempt - 1 from lk where t.id = lk.id
  ),
  was as (delete from boxcar.provider_slots s using lk where s.turn_id = lk.id returning s.turn_id, s.provider, s.queued_at)
  insert into boxcar.waits (turn_id, project_id, kind, due_at, provider, detail, created_at)
  select lk.id, lk.project_id, 'limit', ${at('$4')}, $1, $5::jsonb, coalesce(was.queued_at, coalesce($6::timestamptz, clock_timestamp()) + lk.n * interval '1 microsecond')
  from lk left join was on was.turn_id = lk.id and was.provider = $1
  returning turn_id`);

/** How long a provider's row stays locked for the lock of a turn. The whole request is tried again after that. */
const TURN_LOCK_MS = 200;

async function suspend(
  tx: Tx,
  name: string,
  of: { callers: readonly Caller[]; room: Room; now: Date | undefined },
): Promise<ReadonlySet<TurnId>> {
  const records = of.callers.map(toRecord);
  limitLocks(tx, { lockMs: TURN_LOCK_MS });
  const rows = await run<{ turn_id: TurnId }>(tx, WAIT, [
    name,
    JSON.stringify(records),
    records.map((record) => record.turn_id),
    of.room.lookAt,
    JSON.stringify({ reason: of.room.reason ?? 'order' }),
    of.now ?? null,
  ]);
  return new Set(rows.map((row) => row.turn_id));
}

// Only a wait takes an attempt back: after a takeover its row remains. The wait may be over since, or its turn at an end.
const DECIDED = statement(`
  select x.turn_id, exists (select from boxcar.provider_slots s where s.turn_id = x.turn_id and s.epoch = x.epoch and s.provider = $1 and not s.is_kept and s.queued_at is null) as is_placed,
    not exists (select from boxcar.steps s
      where s.turn_id = x.turn_id and s.step = x.step and s.attempt = x.attempt and s.epoch = x.epoch and s.holder_id = x.holder_id) as has_waited
  from json_to_recordset($2) as x(turn_id uuid, epoch int, holder_id uuid, step int, attempt int)`);

interface Decisions {
  readonly admitted: ReadonlySet<TurnId>;
  readonly waited: ReadonlySet<TurnId>;
}

/**
 * The decisions of an earlier try of the same request, whose answer was lost. The provider is locked, so that try has ended.
 *
 * @param held - The callers that hold their turns: of these, none waits.
 */
async function findDecisions(
  tx: Tx,
  name: string,
  of: { readonly callers: readonly Caller[]; readonly held: ReadonlySet<TurnId> },
): Promise<Decisions> {
  const rows = await run<{ turn_id: TurnId; is_placed: boolean; has_waited: boolean }>(tx, DECIDED, [
    name,
    JSON.stringify(of.callers.map(toRecord)),
  ]);
  const idsOf = (which: typeof rows): ReadonlySet<TurnId> => new Set(which.map((row) => row.turn_id));
  return {
    admitted: idsOf(rows.filter((row) => row.is_placed && of.held.has(row.turn_id))),
    waited: idsOf(rows.filter((row) => row.has_waited && !of.held.has(row.turn_id))),
  };
}

const NOTHING_DECIDED: Decisions = { admitted: new Set(), waited: new Set() };

/**
 * Asks for room for one call of each turn. Who finds none is suspended, in the order of `callers`. A constant number of
 * statements.
 */
export function enterProvider(
  pool: pg.Pool,
  name: string,
  options: { readonly callers: readonly Caller[]; readonly now?: Date | undefined } & BatchTry,
): Promise<readonly Entry[]> {
  const { callers, now, isRepeated = false, ...patience } = options;
  return transaction(
    pool,
    async (tx, attempt) => {
      const row = await lock(tx, name, now);
      if (row === undefined) return callers.map((): Entry => ({ outcome: 'admitted', isProbe: false }));
      const { state, line } = await count(tx, name, { row, now, callers });
      const held = new Set(line.map(({ turnId }) => turnId));
      const isFirst = attempt === 1 && !isRepeated;
      const before = isFirst ? NOTHING_DECIDED : await findDecisions(tx, name, { callers, held });
      const callerOf = new Map(callers.map((caller, index) => [caller.turnId, { caller, index }]));
      const indexOf = ({ turnId }: LineMember): number => callerOf.get(turnId)?.index ?? 0;
      const undecided = line.filter(({ turnId }) => !before.admitted.has(turnId));
      const asking = [
        ...undecided.filter(({ isNew }) => !isNew),
        ...undecided.filter(({ isNew }) => isNew).toSorted((a, b) => indexOf(a) - indexOf(b)),
      ];
      // What a turn has of its own comes on top: a place of an earlier call is there already.
      const inUse = state.inUse - asking.filter(({ isCalling }) => isCalling).length;
      const { calls, isProbe } = findRoom({ ...state, inUse, kept: 0 });
      const placed = chooseCallers(asking, calls);
      const passedOn = Math.max(placed.length + state.kept - calls, 0);
      const kept = state.kept - passedOn;
      const begun = { ...state, ...beginCalls({ ...state, inUse }, placed.length), kept };
      if (placed.length > 0)
        await book(tx, name, {
          now,
          pacedUntil: begun.pacedUntil,
          passedOn,
          places: placed.map(({ turnId }) => ({
            turn_id: turnId,
            epoch: callerOf.get(turnId)?.caller.epoch ?? 0,
            queued_at: null,
            is_probe: isProbe,
          })),
        });
      const refused = asking
        .filter((turn) => !placed.includes(turn))
        .flatMap(({ turnId }) => callerOf.get(turnId)?.caller ?? []);
      const room = findRoom({ ...begun, isProbing: state.isProbing || (isProbe && placed.length > 0) });
      const suspended = refused.length === 0 ? [] : await suspend(tx, name, { callers: refused, room, now });
      const waiting = new Set([...before.waited, ...suspended]);
      const isAdmitted = new Set([...before.admitted, ...placed.map(({ turnId }) => turnId)]);
      return callers.map(({ turnId }): Entry => {
        if (waiting.has(turnId))
          return { outcome: 'waiting', lookAfterMs: Math.max(room.lookAt - row.now, 0) };
        return isAdmitted.has(turnId)
          ? { outcome: 'admitted', isProbe: row.open_until !== null }
          : { outcome: 'fenced' };
      });
    },
    patience,
  );
}

/** Turns woken by one pass; the rest follows with the next. */
const WAKE_LIMIT = 200;
/** So many locked turns do not keep the turns after them from their room. */
const SPARE_WAITERS = 16;
/** When a turn that could not be woken is looked at again. */
const LOCKED_AGAIN_MS = 500;

const WAITERS = statement(`
  select w.turn_id, w.project_id from boxcar.waits w
  where w.provider = $2 and ($4::uuid[] is null or w.turn_id = any ($4)) and ${notSetAside('due_waits', 'w.turn_id', CLOCK)}
  order by w.created_at, w.turn_id limit $3`);

interface Waiter extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
}

/** Who has waited longest for a provider. */
export function findProviderWaiters(
  pool: pg.Pool,
  name: string,
  options: { readonly now?: Date | undefined } = {},
): Promise<readonly Waiter[]> {
  return runRetrying<Waiter>(pool, WAITERS, [options.now ?? null, name, WAKE_LIMIT, null]);
}

// This statement does not wait for a locked turn: the provider's row is locked, and with it every call.
const WAKE = statement(`
  with ${strayWaits('$1::uuid[]')},
  lk as (
    select t.id from unnest($1::uuid[]) with ordinality as x(id, n) join boxcar.turns t on t.id = x.id
    where t.id = any ($1::uuid[]) and ${hasStatus('suspended')} order by x.n limit $2 for update of t skip locked
  ),
  gone as (delete from boxcar.waits w using lk where w.turn_id = lk.id and w.kind = 'limit' returning w.turn_id, w.created_at)
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from gone where t.id = gone.turn_id
  returning t.id as turn_id, t.epoch, t.worker_target, gone.created_at::text as queued_at`);

export interface Woken {
  readonly rings: readonly Ring[];
  /** When those that still wait should be looked at; null = nobody waits. */
  readonly lookAfterMs: number | null;
}

/** Gives the room to the turns that have waited longest. A turn that is locked is passed over, and looked at again soon. */
async function wake(
  tx: Tx,
  name: string,
  of: { books: Books; now: Date | undefined; turnIds: readonly TurnId[] | undefined },
): Promise<Woken> {
  const { books, now } = of;
  if (!books.hasWaiting) return { rings: [], lookAfterMs: null };
  const room = findRoom(books.state);
  const wanted = Math.min(room.calls, WAKE_LIMIT);
  if (wanted === 0) return { rings: [], lookAfterMs: Math.max(room.lookAt - books.state.now, 0) };
  const values = [now ?? null, name, Math.min(wanted + SPARE_WAITERS, WAKE_LIMIT), of.turnIds ?? null];
  const waiters = await run<Waiter>(tx, WAITERS, values);
  const rows = await run<Parameters<typeof toRing>[0] & { queued_at: string }>(tx, WAKE, [
    waiters.map((row) => row.turn_id),
    wanted,
  ]);
  const places = rows.map(({ turn_id, epoch, queued_at }) => ({
    turn_id,
    epoch,
    queued_at,
    is_probe: false,
  }));
  if (rows.length > 0) await book(tx, name, { now, pacedUntil: books.state.pacedUntil, places });
  const rings = rows.map(toRing);
  const hasPassedOver = rows.length < Math.min(wanted, waiters.length);
  if (hasPassedOver) return { rings, lookAfterMs: LOCKED_AGAIN_MS };
  // Fewer than there was room for: nobody else waits.
  if (waiters.length < wanted) return { rings, lookAfterMs: null };
  const after = findRoom({ ...books.state, kept: books.state.kept + rows.length });
  return { rings, lookAfterMs: Math.max(after.lookAt - books.state.now, 0) };
}

const LEAVE = statement(`
  delete from boxcar.provider_slots s using json_to_recordset($2) as x(turn_id uuid, epoch int)
  where s.turn_id = x.turn_id and s.epoch = x.epoch and s.provider = $1`);

const FORGET_FAILURES = statement(
  'update boxcar.providers set failures = 0, openings = 0, open_until = null, failing_since = null where name = $1',
);

const NOTHING: Woken = { rings: [], lookAfterMs: null };

/**
 * Gives places back and passes them on.
 *
 * @param options.hasProved - A call that was there to try has been answered.
 * @param options.hasAnswered - Any call has been answered: failures before it no longer count.
 */
export function leaveProvider(
  pool: pg.Pool,
  name: string,
  options: {
    readonly turns: readonly Pick<Caller, 'turnId' | 'epoch'>[];
    readonly hasProved: boolean;
    readonly hasAnswered?: boolean;
    readonly now?: Date | undefined;
    /** Nobody else is woken. */
    readonly wakeOnly?: readonly TurnId[] | undefined;
  } & LockLimit,
): Promise<Woken> {
  const { turns, hasProved, hasAnswered = hasProved, now, wakeOnly } = options;
  return transactWithin(pool, options, async (tx) => {
    const row = await lock(tx, name, now);
    const places = turns.map(({ turnId, epoch }) => ({ turn_id: turnId, epoch }));
    await run(tx, LEAVE, [name, JSON.stringify(places)]);
    if (row === undefined) return NOTHING;
    const isWorking = row.open_until === null ? hasAnswered && row.failures > 0 : hasProved;
    if (isWorking) await run(tx, FORGET_FAILURES, [name]);
    const current = isWorking ? { ...row, failures: 0, openings: 0, open_until: null } : row;
    const books = await count(tx, name, { row: current, now, callers: [] });
    return await wake(tx, name, { books, now, turnIds: wakeOnly });
  });
}

/** Looks whether those who wait for a provider can go on: time has passed, or a place came free with its worker. */
export function wakeProvider(
  pool: pg.Pool,
  name: string,
  options: { readonly now?: Date | undefined; readonly wakeOnly?: readonly TurnId[] } & LockLimit = {},
): Promise<Woken> {
  return leaveProvider(pool, name, { turns: [], hasProved: false, ...options });
}

const OVERDUE_PROVIDERS = statement(`
  select w.provider from boxcar.waits w where w.due_at <= coalesce($1::timestamptz, now()) and w.kind = 'limit' and ${notSetAside('due_waits', 'w.turn_id', 'coalesce($1::timestamptz, now())')} group by w.provider`);

/** Providers for whose room someone waits, past the time at which he should look. */
export async function findOverdueProviders(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<readonly string[]> {
  const rows = await runRetrying<{ provider: string }>(pool, OVERDUE_PROVIDERS, [options.now ?? null]);
  return rows.map((row) => row.provider);
}

const KNOW = statement('insert into boxcar.providers (name) values ($1) on conflict do nothing');

// A call that tried before the pause says nothing about the time after it.
const NOTE_FAILURE = statement(`
  with tried as (
    update boxcar.provider_slots set is_probe = false where provider = $1 and is_probe and $6::boolean
  )
  update boxcar.providers set failures = $2, openings = $3, open_until = ${at('$4')}, failing_since = ${at('$5')} where name = $1
  returning pg_current_xact_id()::text as transaction_id`);

/**
 * What the rows know of a failure: whether its call was the one that tries, and what other workers have told of their answers since
 * the first of the failures in a row. $2: that moment. $5: the worker that tells of the failure, which knows its own answers.
 */
const SEEN = statement(`
  select exists (select from boxcar.provider_slots s where s.turn_id = $3 and s.epoch = $4 and s.provider = $1 and s.is_probe) as is_probe,
    coalesce(bool_or((w.answers->>$1)::timestamptz > ${at('$2')}), false) as has_succeeded,
    coalesce(bool_and(w.told_at is null or w.told_at > ${at('$2')}), true) as all_told
  from boxcar.workers w where w.lease_until > coalesce($6::timestamptz, clock_timestamp()) and w.id is distinct from $5`);

const HAS_COMMITTED = statement("select pg_xact_status($1::xid8) = 'committed' as has_committed");

/**
 * Writes down that a provider failed. Its row does not tell whose failures it counts, so a repetition asks the server whether
 * the transaction of the try before was committed.
 *
 * @param seen.hasSucceeded - The worker that tells has had an answer since the failure that it told of before.
 * @param seen.caller - Whose call failed.
 * @returns When its calls go on, in milliseconds from now; null = they may go on at once.
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
    // The row is locked, so that try has ended.
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
