/**
 * The short way from a step's calls to the next step, for a worker that holds all their results.
 *
 * One statement replaces the transaction of two (`advanceTurns`), because nothing has to be read after the lock: `pending_calls` in the
 * locked row shows that no other process has answered a call.
 */

import type { TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LimitedTry,
  limited,
  patientOn,
  type Queryable,
  retriesOf,
  retryBatch,
  run,
  runRetrying,
  skipping,
  statement,
  type Tx,
  transactOnce,
} from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { heldView, heldViewPosition } from '../visible/index.js';
import type { Advance } from './call-types.js';
import { findAdvanced, lockTurns } from './first-tries.js';
import { hasStatus } from './turns.js';

/** Only turns without a locked call. */
const FREE_CALLS = `
  cross join lateral (
    select count(*) as n
    from (
      select k.id
      from boxcar.tool_calls k
      where k.id = any (heads.call_ids) and k.turn_id = heads.turn_id
      order by k.id
      for update of k skip locked
    ) c
  ) calls
  where calls.n = heads.call_count`;

// The race is with other answers to the calls, with ends and with takeovers. Each of them changes the turn's row under its lock, so a turn
// whose epoch, holder, status or `pending_calls` has changed is left out. Turns are locked by id, then their tapes by id, then their calls:
// with `leavesLocked` by id and without waiting, otherwise by the UPDATE.
const finishText = (leavesLocked: boolean): string => `
  with /* finish-steps.finish */
  d as (
    select *
    from json_to_recordset($1) as d(
      turn_id uuid, epoch int, holder_id uuid, call_count int, results json, call_ids uuid[]
    )
  ),
  lk as (
    select t.output_box_id, ${heldView('t')}, d.*
    from boxcar.turns t
    join d on d.turn_id = t.id
    where t.id = any ($2::uuid[])
      and ${hasStatus('running')}
      and t.epoch = d.epoch
      and t.holder_id = d.holder_id
      and t.pending_calls = d.call_count
    order by t.id
    for update of t${skipping(leavesLocked)}
  ),
  heads as (
    select lk.*
    from lk
    join boxcar.boxes b on b.id = lk.output_box_id
    order by b.id
    for no key update of b${skipping(leavesLocked)}
  ),
  free as (select heads.* from heads${leavesLocked ? FREE_CALLS : ''}),
  hd as (
    update boxcar.boxes b
    set head_position = b.head_position + heads.call_count
    from free heads
    where b.id = heads.output_box_id
    returning
      heads.turn_id, heads.output_box_id, heads.results, b.head_position, b.head_position - heads.call_count as base,
      ${heldViewPosition('heads', 'b')} as view_position
  ),
  up as (
    update boxcar.turns t
    set pending_calls = 0, attempt = t.attempt + 1
    from hd
    where t.id = hd.turn_id
    returning t.id, t.project_id, t.epoch, t.holder_id, t.step_count, t.attempt, hd.*
  ),
  r as materialized (
    select up.turn_id, up.output_box_id, up.step_count, up.base, x.*
    from up
    cross join lateral json_to_recordset(up.results) as x(n int, call_id uuid, status text, ${CARD_COLUMNS})
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from r x
  ),
  calls as (
    update boxcar.tool_calls k
    set status = r.status, result_card_id = r.id, ended_at = now()
    from r
    where k.id = r.call_id and k.turn_id = r.turn_id
  ),
  entries as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, turn_id, step, author_id)
    select r.output_box_id, r.base + r.n, 'tool_result', r.id, r.token_estimate, r.turn_id, r.step_count, r.author_id
    from r
  ),
  opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select up.id, up.step_count + 1, up.attempt, up.project_id, up.epoch, up.holder_id, up.view_position,
      up.head_position
    from up
  )
  select up.id as turn_id, up.attempt, up.base
  from up`;
const FINISH = statement(finishText(false));
const FINISH_UNLOCKED = statement(finishText(true));

const LOOK_AT_TURNS = statement(`
  select /* finish-steps.look_at_turns */ t.id, t.epoch, t.holder_id, t.pending_calls
  from boxcar.turns t
  where t.id = any ($1::uuid[]) and ${hasStatus('running')}`);

type FinishRow = Row<'turns', 'attempt', { turn_id: 'id' }> & { readonly base: number };

export interface FinishedStep {
  readonly attempt: number;
  /** The head of the tape before the results; null when it is not known anymore. */
  readonly basePosition: number | null;
}

/**
 * Records the results of steps and opens the next ones, in one statement. Results that were already recorded return the outcome of that
 * time. With a limit for locks the function works like a repetition. With `leavesLocked`, the answer lacks a turn whose row, tape or
 * call is locked.
 *
 * @param steps - The results of each step must cover all calls of the turn's open step, in call order.
 * @returns The outcomes by turn. A missing turn has another holder or an answered call: `advanceTurns` tells which.
 */
export function finishSteps(
  pool: pg.Pool,
  steps: readonly Advance[],
  { lockMs, ...options }: LimitedTry = {},
): Promise<ReadonlyMap<TurnId, FinishedStep>> {
  return retryBatch(
    (isRepeated) =>
      isRepeated || lockMs !== undefined
        ? transactOnce(pool, limited({ lockMs }, finishAgain(steps, options)))
        : finishOnce(pool, steps, options.leavesLocked),
    { ...patientOn(pool), ...retriesOf({ lockMs }), ...options },
  );
}

async function finishOnce(
  db: Queryable,
  steps: readonly Advance[],
  leavesLocked = false,
): Promise<ReadonlyMap<TurnId, FinishedStep>> {
  const records = steps.map((step) => ({
    turn_id: step.turnId,
    epoch: step.epoch,
    holder_id: step.holderId,
    call_count: step.results.length,
    call_ids: step.results.map((result) => result.toolCallId),
    results: step.results.map((result, index) => ({
      n: index + 1,
      call_id: result.toolCallId,
      status: result.status,
      ...cardRecord(result.card),
    })),
  }));
  const rows = await run<FinishRow>(db, leavesLocked ? FINISH_UNLOCKED : FINISH, [
    JSON.stringify(records),
    steps.map((step) => step.turnId),
  ]);
  return new Map(rows.map((row) => [row.turn_id, { attempt: row.attempt, basePosition: row.base }] as const));
}

/** After `finishSteps` with `leavesLocked`: the turns that were left out because a row was locked. Nothing has answered their calls. */
export async function findLockedSteps(
  pool: pg.Pool,
  steps: readonly Advance[],
): Promise<ReadonlySet<TurnId>> {
  type TurnRow = Row<'turns', 'id' | 'epoch' | 'holder_id' | 'pending_calls'>;
  const rows = await runRetrying<TurnRow>(pool, LOOK_AT_TURNS, [steps.map(({ turnId }) => turnId)]);
  const turns = new Map(rows.map((row) => [row.id, row]));
  const isLocked = ({ turnId, epoch, holderId, results }: Advance): boolean => {
    const turn = turns.get(turnId);
    return turn?.epoch === epoch && turn.holder_id === holderId && turn.pending_calls === results.length;
  };
  return new Set(steps.filter(isLocked).map(({ turnId }) => turnId));
}

const finishAgain =
  (given: readonly Advance[], options: Pick<LimitedTry, 'leavesLocked'>) =>
  async (tx: Tx): Promise<ReadonlyMap<TurnId, FinishedStep>> => {
    const turnIds = given.map(({ turnId }) => turnId);
    const locked = await lockTurns(tx, turnIds, options);
    const steps = given.filter(({ turnId }) => !locked.has(turnId));
    const found = new Map<TurnId, FinishedStep>();
    for (const [turnId, outcome] of await findAdvanced(tx, steps))
      if (outcome.outcome === 'open') found.set(turnId, outcome);
    const rest = steps.filter(({ turnId }) => !found.has(turnId));
    if (rest.length > 0)
      for (const [turnId, finished] of await finishOnce(tx, rest, options.leavesLocked))
        found.set(turnId, finished);
    return found;
  };
