/**
 * Tool calls: results by compare-and-set, and the resumption of the turn after the last result.
 *
 * R1  The first result of a call wins. Later results are reported as duplicates and change nothing.
 * R2  Whether calls are still out is read from `turns.pending_calls` in the UPDATE that lowers it, never from a sub-select.
 * R3  The transaction that lowers `pending_calls` to zero appends all results of the step to the tape, in call order, and resumes the
 *     turn. A separate statement (ADVANCE) does this; it begins after the lock. A setting of the transaction tells ADVANCE which turns
 *     are complete, so both statements can be sent together.
 */

import type { Ring, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  firstLimit,
  type LimitedTry,
  limited,
  patientOn,
  type Queryable,
  retriesOf,
  retryBatch,
  run,
  sendOnce,
  skipping,
  statement,
  type Tx,
  transactOnce,
} from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { heldView, heldViewPosition } from '../visible/index.js';
import type { Advance, AdvanceOutcome, CallSettlement, SettledTurns } from './call-types.js';
import { findAdvanced, findRecorded, findRings, lockTapes, lockTurns } from './first-tries.js';
import { hasStatus } from './turns.js';

export interface RecordedTurns extends SettledTurns {
  /** Turns whose results were left out because a row was locked, when locked turns are to be left out. The caller tries them again. */
  readonly lockedTurnIds: readonly TurnId[];
}

// Turns are locked by id, then their calls by id. The second result of a call waits for the lock of its turn, then finds the call settled,
// and is a duplicate (R1). Each call is locked and read by its key, after the turns. Looking up each call in a list of all calls took two
// minutes for 6,000 calls.
const RECORD = statement(`
  with /* tool-calls.record */
  r as (
    select *
    from json_to_recordset($1) as x(
      call_id uuid, turn_id uuid, status text, due_at timestamptz, ended_id uuid, deliverable_id uuid, ${CARD_COLUMNS}
    )
    where (
      select t.deliverable_card_id
      from boxcar.turns t
      where t.id = x.ended_id
    ) is not distinct from x.deliverable_id
  ),
  lk as (
    select t.id
    from boxcar.turns t
    where t.id = any ($2::uuid[])
    order by t.id
    for update
  ),
  locked as materialized (
    select
      k.id, r.status, r.id as card_id,
      k.status = 'pending' and (r.due_at is null or k.deadline_at = r.due_at) as is_open
    from (
      select *
      from r
      where (r.turn_id in (select id from lk)) is true
      order by r.call_id
    ) r
    cross join lateral (
      select x.id, x.status, x.deadline_at
      from boxcar.tool_calls x
      where x.id = r.call_id and x.turn_id = r.turn_id
      offset 0
      for update of x
    ) k
  ),
  won as (
    update boxcar.tool_calls k
    set status = l.status, result_card_id = l.card_id, ended_at = now()
    from locked l
    where k.id = l.id and l.is_open
    returning k.id, k.turn_id
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from r x
    where (x.call_id in (select id from won)) is true
  ),
  lowered as (
    update boxcar.turns t
    set pending_calls = t.pending_calls - w.n
    from (select turn_id, count(*)::int as n from won group by turn_id) w
    where t.id = w.turn_id
    returning t.id, t.pending_calls, t.status
  )
  select
    (select coalesce(json_agg(id), '[]') from won) as won,
    set_config(
      'boxcar.complete',
      (
        select coalesce(array_agg(id), '{}')::text
        from lowered
        where pending_calls = 0 and status in ('dispatched', 'running', 'suspended')
      ),
      true
    )`);

// `complete`: the turns that RECORD has completed in this transaction; empty when RECORD was not sent. $2 holds all turns that may be
// meant, because no index finds turns by a condition with two alternatives. Turns are locked by id, then their tapes by id. The turns that
// RECORD has completed are already locked by this transaction, so a turn is resumed once.
const advanceText = (leavesLocked: boolean): string => `
  with /* tool-calls.advance */
  holders as (select * from json_to_recordset($1) as h(turn_id uuid, epoch int, holder_id uuid)),
  complete as materialized (
    select unnest(nullif(current_setting('boxcar.complete', true), '')::uuid[]) as id
  ),
  lk as (
    select
      t.*,
      t.id in (select id from complete) as is_complete,
      h.turn_id is not null and t.status = 'running' and t.epoch = h.epoch and t.holder_id = h.holder_id as is_held
    from boxcar.turns t
    left join holders h on h.turn_id = t.id
    where t.id = any ($2::uuid[])
      and (h.turn_id is not null or t.id in (select id from complete))
      and ${hasStatus('dispatched', 'running', 'suspended')}
    order by t.id
    for update of t${skipping(leavesLocked)}
  ),
  results as (
    select
      lk.id as turn_id, lk.output_box_id, lk.step_count, lk.agent_id, k.result_card_id,
      row_number() over (partition by lk.id order by k.ordinal) as n
    from lk
    join boxcar.tool_calls k on k.turn_id = lk.id and k.step = lk.step_count
    where lk.is_complete
  ),
  counts as (
    select output_box_id, count(*)::int as n
    from results
    group by output_box_id
  ),
  heads as (
    select b.id
    from boxcar.boxes b
    join counts on counts.output_box_id = b.id
    order by b.id
    for no key update of b
  ),
  hd as (
    update boxcar.boxes b
    set head_position = b.head_position + counts.n
    from counts, heads
    where b.id = heads.id and counts.output_box_id = b.id
    returning b.id, b.head_position, b.head_position - counts.n as base, b.view_position, b.view_anchor_position,
      b.last_anchor_position
  ),
  entries as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, turn_id, step, author_id)
    select hd.id, hd.base + r.n, 'tool_result', r.result_card_id, c.token_estimate, r.turn_id, r.step_count,
      c.author_id
    from results r
    join hd on hd.id = r.output_box_id
    join boxcar.cards c on c.id = r.result_card_id
  ),
  up as (
    update boxcar.turns t
    set
      status = case
        when t.pending_calls = 0 and t.status = 'suspended' then 'dispatched'
        when t.pending_calls > 0 and lk.is_held then 'suspended'
        else t.status
      end,
      epoch = case when t.pending_calls = 0 and t.status = 'suspended' then t.epoch + 1 else t.epoch end,
      dispatched_at = case when t.pending_calls = 0 and t.status = 'suspended' then now() else t.dispatched_at end,
      holder_id = case when t.pending_calls > 0 and lk.is_held then null else t.holder_id end,
      attempt = case when t.pending_calls = 0 and lk.is_held then t.attempt + 1 else t.attempt end
    from lk
    where t.id = lk.id
    returning t.id, t.project_id, t.epoch, t.status, t.holder_id, t.step_count, t.attempt, t.worker_target,
      t.output_box_id, lk.is_held, lk.status as old_status, ${heldView('t')}
  ),
  opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select
      up.id, up.step_count + 1, up.attempt, up.project_id, up.epoch, up.holder_id,
      case when hd.id is null then ${heldViewPosition('up', 'b')} else ${heldViewPosition('up', 'hd')} end,
      coalesce(hd.head_position, b.head_position)
    from up
    join boxcar.boxes b on b.id = up.output_box_id
    left join hd on hd.id = b.id
    where up.is_held and up.status = 'running'
  )
  select up.id as turn_id, up.epoch, up.status, up.worker_target, up.attempt, up.is_held, up.old_status
  from up`;
const ADVANCE = statement(advanceText(false));
/** For turns that record no results. */
const ADVANCE_UNLOCKED = statement(advanceText(true));

const HELD = statement(`
  select /* tool-calls.held */ t.id
  from json_to_recordset($1) as h(turn_id uuid, epoch int, holder_id uuid)
  cross join lateral (select * from boxcar.turns t where t.id = h.turn_id offset 0) t
  where t.status = 'running' and t.epoch = h.epoch and t.holder_id = h.holder_id`);

type AdvanceRow = Row<
  'turns',
  'epoch' | 'worker_target' | 'attempt',
  { turn_id: 'id'; old_status: 'status' }
> & {
  readonly status: 'dispatched' | 'running' | 'suspended';
  readonly is_held: boolean;
};

/** Records results. `turnIds` are locked first, all at once and by id; they include the turns of the settlements. */
async function record(
  tx: Queryable,
  settlements: readonly CallSettlement[],
  turnIds: readonly TurnId[],
): Promise<ReadonlySet<ToolCallId>> {
  const records = settlements.map((item) => ({
    call_id: item.toolCallId,
    turn_id: item.turnId,
    status: item.status,
    ...(item.deadlineAt === undefined ? {} : { due_at: item.deadlineAt }),
    ...(item.ifEnded === undefined
      ? {}
      : { ended_id: item.ifEnded.turnId, deliverable_id: item.ifEnded.deliverableCardId }),
    ...cardRecord(item.card),
  }));
  const [row] = await run<{ won: ToolCallId[] }>(tx, RECORD, [JSON.stringify(records), turnIds]);
  return new Set(row?.won);
}

const ringsOf = (rows: readonly AdvanceRow[]): Ring[] =>
  rows
    .filter((row) => row.status === 'dispatched' && row.old_status === 'suspended')
    .map((row) => ({ turnId: row.turn_id, epoch: row.epoch, workerTarget: row.worker_target }));

/** Keeps one settlement per call. A second settlement of the same call in a batch is a duplicate like any other. */
function distinct(settlements: readonly CallSettlement[]): {
  first: CallSettlement[];
  repeated: ToolCallId[];
} {
  const first = new Map<ToolCallId, CallSettlement>();
  const repeated: ToolCallId[] = [];
  for (const item of settlements) {
    if (first.has(item.toolCallId)) repeated.push(item.toolCallId);
    else first.set(item.toolCallId, item);
  }
  return { first: [...first.values()], repeated };
}

/**
 * Records results inside the caller's transaction, and resumes the turns that have no open calls left. The two statements are sent
 * together, before any answer is awaited.
 */
export async function settleCalls(tx: Tx, settlements: readonly CallSettlement[]): Promise<SettledTurns> {
  const { first, repeated } = distinct(settlements);
  if (first.length === 0) return { rings: [], duplicates: [] };
  const turnIds = [...new Set(first.map((item) => item.turnId))];
  const [won, rows] = await Promise.all([
    record(tx, first, turnIds),
    run<AdvanceRow>(tx, ADVANCE, ['[]', turnIds]),
  ]);
  const duplicates = [
    ...repeated,
    ...first.filter((item) => !won.has(item.toolCallId)).map((item) => item.toolCallId),
  ];
  return { rings: ringsOf(rows), duplicates };
}

/**
 * Records results before, during or after the suspension of their turn. The epoch of the turn is not needed.
 *
 * @returns The rings of the turns that were resumed, and the calls that already had a result.
 */
export function recordResults(
  pool: pg.Pool,
  settlements: readonly CallSettlement[],
  { lockMs, ...options }: LimitedTry = {},
): Promise<RecordedTurns> {
  const settle = async (tx: Tx): Promise<RecordedTurns> => ({
    ...(await settleCalls(tx, settlements)),
    lockedTurnIds: [],
  });
  return retryBatch(
    (isRepeated) =>
      isRepeated
        ? transactOnce(pool, limited({ lockMs }, settleAgain(settlements, options)))
        : sendOnce(pool, settle, lockMs === undefined ? firstLimit(options.leavesLocked) : { lockMs }),
    { ...patientOn(pool), ...retriesOf({ lockMs }), ...options },
  );
}

/** A result that an earlier try has recorded does not count as a duplicate. */
const settleAgain =
  (given: readonly CallSettlement[], options: Pick<LimitedTry, 'leavesLocked'>) =>
  async (tx: Tx): Promise<RecordedTurns> => {
    const turnIds = [...new Set(given.map(({ turnId }) => turnId))];
    const locked = await lockWithTapes(tx, turnIds, options);
    const settlements = given.filter(({ turnId }) => !locked.has(turnId));
    const recorded = await findRecorded(tx, settlements);
    const isDone = ({ card }: CallSettlement): boolean => recorded.has(card.id);
    const resumed = settlements.filter(isDone).map(({ turnId }) => turnId);
    const rings = await findRings(tx, [...new Set(resumed)]);
    const rest = await settleCalls(
      tx,
      settlements.filter((item) => !isDone(item)),
    );
    return { rings: [...rings, ...rest.rings], duplicates: rest.duplicates, lockedTurnIds: [...locked] };
  };

/** Locks turns, and also their tapes if locked turns are left out. @returns The turns that were left out. */
async function lockWithTapes(
  tx: Tx,
  turnIds: readonly TurnId[],
  options: Pick<LimitedTry, 'leavesLocked'>,
): Promise<ReadonlySet<TurnId>> {
  const locked = await lockTurns(tx, turnIds, options);
  if (options.leavesLocked !== true) return locked;
  return new Set([
    ...locked,
    ...(await lockTapes(
      tx,
      turnIds.filter((id) => !locked.has(id)),
    )),
  ]);
}

export interface AdvancedTurns {
  readonly outcomes: readonly AdvanceOutcome[];
  readonly rings: readonly Ring[];
  /** Turns that are fenced only because a row was locked, when locked turns are to be left out. The caller tries them again. */
  readonly lockedTurnIds: readonly TurnId[];
}

/**
 * Records a worker's results and either opens the next step or suspends the turn. Without results this is one statement; otherwise it
 * is one transaction of two statements. Work that was already done returns the outcome of that time. With a limit for locks the
 * function works like a repetition.
 */
export function advanceTurns(
  pool: pg.Pool,
  advances: readonly Advance[],
  { lockMs, ...options }: LimitedTry = {},
): Promise<AdvancedTurns> {
  return retryBatch(
    (isRepeated) => {
      if (isRepeated || lockMs !== undefined)
        return transactOnce(pool, limited({ lockMs }, advanceAgain(advances, options)));
      return advances.every(({ results }) => results.length === 0)
        ? suspendTurns(pool, advances, options)
        : sendOnce(pool, (tx) => advanceWithin(tx, advances), firstLimit(options.leavesLocked));
    },
    { ...patientOn(pool), ...retriesOf({ lockMs }), ...options },
  );
}

const holdersOf = (advances: readonly Advance[]): string =>
  JSON.stringify(
    advances.map((item) => ({ turn_id: item.turnId, epoch: item.epoch, holder_id: item.holderId })),
  );

/** Without results no tape is needed. */
async function suspendTurns(
  pool: pg.Pool,
  advances: readonly Advance[],
  { leavesLocked = false }: Pick<LimitedTry, 'leavesLocked'>,
): Promise<AdvancedTurns> {
  const advanced = await advanceWithin(pool, advances, { leavesLocked });
  const fenced = advances.filter((_item, index) => advanced.outcomes[index]?.outcome === 'fenced');
  if (!leavesLocked || fenced.length === 0) return advanced;
  const held = await run<{ id: TurnId }>(pool, HELD, [holdersOf(fenced)]);
  return { ...advanced, lockedTurnIds: held.map(({ id }) => id) };
}

/**
 * @param db - Must be a transaction when there are results.
 * @param options.leavesLocked - Locked turns are fenced. Allowed only without results.
 */
async function advanceWithin(
  db: Queryable,
  advances: readonly Advance[],
  { leavesLocked = false }: Pick<LimitedTry, 'leavesLocked'> = {},
): Promise<AdvancedTurns> {
  const results = distinct(advances.flatMap((item) => item.results)).first;
  const turnIds = [...new Set(advances.map((item) => item.turnId))];
  const recording = results.length === 0 ? undefined : record(db, results, turnIds);
  const advancing = run<AdvanceRow>(db, leavesLocked ? ADVANCE_UNLOCKED : ADVANCE, [
    holdersOf(advances),
    turnIds,
  ]);
  const [, rows] = await Promise.all([recording, advancing]);
  const byTurn = new Map(rows.filter((row) => row.is_held).map((row) => [row.turn_id, row]));
  return {
    outcomes: advances.map((item): AdvanceOutcome => {
      const row = byTurn.get(item.turnId);
      if (row === undefined) return { outcome: 'fenced' };
      return row.status === 'running'
        ? { outcome: 'open', attempt: row.attempt, basePosition: null }
        : { outcome: 'suspended' };
    }),
    rings: ringsOf(rows),
    lockedTurnIds: [],
  };
}

const advanceAgain =
  (advances: readonly Advance[], options: Pick<LimitedTry, 'leavesLocked'>) =>
  async (tx: Tx): Promise<AdvancedTurns> => {
    const turnIds = advances.map(({ turnId }) => turnId);
    const locked = await lockWithTapes(tx, turnIds, options);
    const free = advances.filter(({ turnId }) => !locked.has(turnId));
    const found = await findAdvanced(tx, free);
    const rest = free.filter(({ turnId }) => !found.has(turnId));
    const advanced = rest.length === 0 ? { outcomes: [], rings: [] } : await advanceWithin(tx, rest);
    return {
      outcomes: advances.map(
        (item) => found.get(item.turnId) ?? advanced.outcomes[rest.indexOf(item)] ?? { outcome: 'fenced' },
      ),
      rings: [...(await findRings(tx, [...found.keys()])), ...advanced.rings],
      lockedTurnIds: [...locked],
    };
  };
