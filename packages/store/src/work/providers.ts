/**
 * The books of providers: the calls under way, the turns that wait for room, and whether the provider works (`kernel/model/provider.ts`
 * decides).
 *
 * B1  Each statement that reads and changes a provider's books locks the provider's row first, so admissions are exact over all
 *     workers. The row is locked before turns: no transaction that has locked a turn asks for it.
 * B2  A place counts while the worker that holds its turn has its lease. A place that is kept for a woken turn counts for ten seconds.
 *     So the places of a killed worker become free with its lease, and no timer is needed.
 * B3  Waiting turns are woken with their own place, oldest first; locked turns are passed over for now. Other turns find no room while
 *     a turn waits. A turn that finds no room is suspended under the same lock, so that no place can become free unnoticed in between.
 *     The sweep sets aside a turn that cannot be woken, so that it does not keep other turns waiting. A woken turn keeps its position
 *     until it calls: if it is late, it waits again at this position, or takes a place that is kept for a later turn.
 * B4  Only a worker that holds its turn is admitted, and a place counts only at the epoch at which it was taken. So a worker that has
 *     lost its turn does not take or overwrite the place of the next holder. (A kept place belongs to the holder of the turn.)
 */
import {
  beginCalls,
  chooseCallers,
  findRoom,
  type ProjectId,
  type Ring,
  type Room,
  type TurnId,
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
import {
  at,
  type Books,
  book,
  type Caller,
  CLOCK,
  count,
  type LineMember,
  lock,
  toRecord,
} from './provider-books.js';
import { strayWaits } from './waits.js';

export type GateAnswer =
  | { readonly outcome: 'admitted'; readonly isProbe: boolean }
  /** The turn is suspended until there is room. */
  | { readonly outcome: 'waiting'; readonly lookAfterMs: number }
  | { readonly outcome: 'fenced' };

// The model was not called, so the attempt is removed and opened again when the turn continues. A turn that was woken before waits at
// its first position. The other turns wait after all of these, in the order in which they ask. The provider's row is locked already; the
// turns are then locked by id (B1). A turn that has lost its holder in the meantime is left out.
const WAIT = statement(`
  with /* providers.wait */
  want as (
    select *
    from rows from (json_to_recordset($2) as (
      turn_id uuid, epoch int, holder_id uuid, step int, attempt int
    )) with ordinality as w(turn_id, epoch, holder_id, step, attempt, n)
  ),
  lk as (
    select t.id, t.project_id, w.step, w.attempt, w.n
    from boxcar.turns t
    join want w on w.turn_id = t.id and w.epoch = t.epoch and w.holder_id = t.holder_id
    where t.id = any ($3::uuid[]) and ${hasStatus('running')}
    order by t.id
    for update of t
  ),
  unasked as (
    delete from boxcar.steps s
    using lk
    where s.turn_id = lk.id and s.step = lk.step and s.attempt = lk.attempt
  ),
  up as (
    update boxcar.turns t
    set status = 'suspended', holder_id = null, attempt = t.attempt - 1
    from lk
    where t.id = lk.id
  ),
  was as (
    delete from boxcar.provider_slots s
    using lk
    where s.turn_id = lk.id
    returning s.turn_id, s.provider, s.queued_at
  )
  insert into boxcar.waits (turn_id, project_id, kind, due_at, provider, detail, created_at)
  select
    lk.id, lk.project_id, 'limit', ${at('$4')}, $1, $5::jsonb,
    coalesce(was.queued_at, coalesce($6::timestamptz, clock_timestamp()) + lk.n * interval '1 microsecond')
  from lk
  left join was on was.turn_id = lk.id and was.provider = $1
  returning turn_id`);

/**
 * The longest time for which a provider's row stays locked while the statement waits for the lock of a turn. After that the whole
 * request is tried again.
 */
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

// Only a wait removes an attempt: a takeover leaves its row. By now the wait may be over, or its turn may have ended.
const DECIDED = statement(`
  select /* providers.decided */
    x.turn_id,
    exists (
      select from boxcar.provider_slots s
      where s.turn_id = x.turn_id
        and s.epoch = x.epoch
        and s.provider = $1
        and not s.is_kept
        and s.queued_at is null
    ) as is_placed,
    not exists (
      select from boxcar.steps s
      where s.turn_id = x.turn_id
        and s.step = x.step
        and s.attempt = x.attempt
        and s.epoch = x.epoch
        and s.holder_id = x.holder_id
    ) as has_waited
  from json_to_recordset($2) as x(turn_id uuid, epoch int, holder_id uuid, step int, attempt int)`);

interface Decisions {
  readonly admitted: ReadonlySet<TurnId>;
  readonly waited: ReadonlySet<TurnId>;
}

/**
 * The decisions of an earlier try of the same request, whose answer was lost. The provider is locked, so that try has ended.
 *
 * @param held - The callers that hold their turns: none of these turns waits.
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
 * Asks for room for one call of each turn. Turns without room are suspended, in the order of `callers`. The number of statements is
 * constant.
 */
export function enterProvider(
  pool: pg.Pool,
  name: string,
  options: { readonly callers: readonly Caller[]; readonly now?: Date | undefined } & BatchTry,
): Promise<readonly GateAnswer[]> {
  const { callers, now, isRepeated = false, ...patience } = options;
  return transaction(
    pool,
    async (tx, attempt) => {
      const row = await lock(tx, name, now);
      if (row === undefined) return callers.map((): GateAnswer => ({ outcome: 'admitted', isProbe: false }));
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
      // A turn's own place does not count against it: the place of an earlier call is already in `state.inUse`.
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
      return callers.map(({ turnId }): GateAnswer => {
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

/** The most turns that one pass wakes; the next pass wakes the rest. */
const WAKE_LIMIT = 200;
/** The number of locked turns that a pass can skip without keeping later turns from their room. */
const SPARE_WAITERS = 16;
/** The time until the next look at a turn that could not be woken. */
const LOCKED_AGAIN_MS = 500;

const WAITERS = statement(`
  select /* providers.waiters */ w.turn_id, w.project_id
  from boxcar.waits w
  where w.provider = $2
    and ($4::uuid[] is null or w.turn_id = any ($4))
    and ${notSetAside('due_waits', 'w.turn_id', CLOCK)}
  order by w.created_at, w.turn_id
  limit $3`);

export interface Waiter extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
}

/** The turns that have waited longest for a provider. */
export function findProviderWaiters(
  pool: pg.Pool,
  name: string,
  options: { readonly now?: Date | undefined } = {},
): Promise<readonly Waiter[]> {
  return runRetrying<Waiter>(pool, WAITERS, [options.now ?? null, name, WAKE_LIMIT, null]);
}

// This statement does not wait for a locked turn: the provider's row is locked, and with it every call.
const WAKE = statement(`
  with /* providers.wake */
  ${strayWaits('$1::uuid[]')},
  lk as (
    select t.id
    from unnest($1::uuid[]) with ordinality as x(id, n)
    join boxcar.turns t on t.id = x.id
    where t.id = any ($1::uuid[]) and ${hasStatus('suspended')}
    order by x.n
    limit $2
    for update of t skip locked
  ),
  gone as (
    delete from boxcar.waits w
    using lk
    where w.turn_id = lk.id and w.kind = 'limit'
    returning w.turn_id, w.created_at
  )
  update boxcar.turns t
  set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from gone
  where t.id = gone.turn_id
  returning t.id as turn_id, t.epoch, t.worker_target, gone.created_at::text as queued_at`);

export interface Woken {
  readonly rings: readonly Ring[];
  /** The time until the next look at the turns that still wait; null when no turn waits. */
  readonly lookAfterMs: number | null;
}

/** Gives the room to the turns that have waited longest. A locked turn is passed over, and looked at again soon. */
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
  // There were fewer waiters than room, so no other turn waits.
  if (waiters.length < wanted) return { rings, lookAfterMs: null };
  const after = findRoom({ ...books.state, kept: books.state.kept + rows.length });
  return { rings, lookAfterMs: Math.max(after.lookAt - books.state.now, 0) };
}

const LEAVE = statement(`
  delete /* providers.leave */
  from boxcar.provider_slots s using json_to_recordset($2) as x(turn_id uuid, epoch int)
  where s.turn_id = x.turn_id and s.epoch = x.epoch and s.provider = $1`);

const FORGET_FAILURES = statement(`
  update /* providers.forget_failures */ boxcar.providers
  set failures = 0,
    openings = 0,
    open_until = null,
    failing_since = null
  where name = $1`);

const NOTHING: Woken = { rings: [], lookAfterMs: null };

/**
 * Gives places back and passes them on to waiting turns.
 *
 * @param options.hasProved - True when a probe has been answered.
 * @param options.hasAnswered - True when any call has been answered: failures before it no longer count.
 */
export function leaveProvider(
  pool: pg.Pool,
  name: string,
  options: {
    readonly turns: readonly Pick<Caller, 'turnId' | 'epoch'>[];
    readonly hasProved: boolean;
    readonly hasAnswered?: boolean;
    readonly now?: Date | undefined;
    /** When given, no other turn is woken. */
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

/** Checks whether turns that wait for a provider can continue: time has passed, or a dead worker's place became free. */
export function wakeProvider(
  pool: pg.Pool,
  name: string,
  options: { readonly now?: Date | undefined; readonly wakeOnly?: readonly TurnId[] } & LockLimit = {},
): Promise<Woken> {
  return leaveProvider(pool, name, { turns: [], hasProved: false, ...options });
}

const OVERDUE_PROVIDERS = statement(`
  select /* providers.overdue_providers */ w.provider
  from boxcar.waits w
  where w.due_at <= coalesce($1::timestamptz, now())
    and w.kind = 'limit'
    and ${notSetAside('due_waits', 'w.turn_id', 'coalesce($1::timestamptz, now())')}
  group by w.provider`);

/** Providers with waiting turns whose next look is overdue. */
export async function findOverdueProviders(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<readonly string[]> {
  const rows = await runRetrying<{ provider: string }>(pool, OVERDUE_PROVIDERS, [options.now ?? null]);
  return rows.map((row) => row.provider);
}
