/**
 * Entries that the worker of a turn writes to its tape while a step is open, before its model call or after a failed one: a notice, or
 * a handoff of the kernel's own. All entries are written or none, under the turn's fence.
 *
 * M1  Nothing is written when the tape has grown since the caller read it, unless the caller provides entries for this case
 *     (`ifGrown`).
 * M2  A repetition changes nothing: the first card of the entries identifies it.
 */

import type { BoxId, EntryKind, JsonValue, NewCard, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx, transaction } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { viewPositionOf } from '../visible/index.js';
import type { StepCommit } from './step-commit.js';
import { hasStatus } from './turns.js';

export interface MidStepEntry {
  readonly kind: EntryKind;
  readonly card?: NewCard;
  readonly payload?: JsonValue;
  readonly anchorName?: string;
}

export interface MidStep {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  /** The head of the tape as the caller read it. */
  readonly headPosition: number;
  readonly entries: readonly MidStepEntry[];
  /** When given, the first entry is an anchor, and views begin at this position; null: views begin at the anchor. */
  readonly viewFrom?: number | null;
  /**
   * Returns the entries to write when others have appended in the meantime, with cards of the same ids. The tape is locked during this
   * call. Absent: nothing is written in this case.
   *
   * @param lastAnchorPosition - The position of the last anchor on the tape as it is now.
   */
  readonly ifGrown?: ((lastAnchorPosition: number) => Pick<MidStep, 'entries' | 'viewFrom'>) | undefined;
  /** The attempt whose call failed. It is closed with its error, and the next attempt is opened. */
  readonly failed?: NonNullable<StepCommit['step']> & Pick<StepCommit, 'spent'>;
}

export type MidStepOutcome =
  | { readonly outcome: 'written'; readonly attempt: number }
  /** Other entries were written to the tape: read the tape again. */
  | { readonly outcome: 'moved' }
  | { readonly outcome: 'fenced' };

const LOCK = statement(`
  select /* mid-step.lock */ t.output_box_id, t.agent_id, t.step_count + 1 as step, t.attempt
  from boxcar.turns t
  where t.id = $1
    and t.epoch = $2
    and t.holder_id = $3
    and ${hasStatus('running')}
    and t.pending_calls = 0
  for update`);

type LockRow = Row<'turns', 'output_box_id' | 'agent_id' | 'attempt', { step: 'step_count' }>;

// The UPDATE of the tape's row locks it. The statement begins after the turn was locked, so it sees the writes of an earlier try.
const APPEND = statement(`
  with /* mid-step.append */
  hd as (
    update boxcar.boxes b
    set head_position = b.head_position + $3,
      last_anchor_position = case when $4 then b.head_position + 1 else b.last_anchor_position end,
      view_position = case when $4 then coalesce($5::int, b.head_position + 1) else b.view_position end,
      view_anchor_position = case when $4 then null else b.view_anchor_position end,
      anchor_count = case when $4 then coalesce(b.anchor_count, 1) + 1 else b.anchor_count end
    from boxcar.turns t
    where t.id = $8::uuid
      and b.id = $1
      and b.head_position = $2
      and not exists (select from boxcar.cards c where c.id = $6)
    returning b.id, b.head_position, b.head_position - $3 as base, ${viewPositionOf('t', 'b')} as view_position
  ),
  x as materialized (
    select hd.id as box_id, hd.base, e.n, e.kind, e.payload, e.anchor_name, e.card
    from hd
    cross join lateral json_to_recordset($7::json) as e(n int, kind text, payload json, anchor_name text, card json)
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES.replaceAll('x.', 'c.')}
    from x
    cross join lateral json_to_record(x.card) as c(${CARD_COLUMNS})
    where x.card is not null
  ),
  entries as (
    insert into boxcar.tape_entries (
      box_id, position, kind, card_id, tokens, payload, anchor_name, turn_id, author_id
    )
    select x.box_id, x.base + x.n, x.kind, (x.card->>'id')::uuid, coalesce((x.card->>'token_estimate')::int, 0),
      x.payload, x.anchor_name, $8::uuid, $9
    from x
  )
  select hd.head_position, hd.view_position
  from hd
  union all
  select b.head_position, ${viewPositionOf('t', 'b')}
  from boxcar.boxes b
  join boxcar.turns t on t.id = $8::uuid
  where b.id = $1
    and not exists (select from hd)
    and exists (select from boxcar.cards c where c.id = $6)`);

interface HeadRow {
  readonly head_position: number;
  readonly view_position: number;
}

const MOVE_STEP = statement(`
  update /* mid-step.move_step */ boxcar.steps s
  set from_position = $4, to_position = $5
  where s.turn_id = $1 and s.step = $2 and s.attempt = $3`);

// The caller holds the turn's lock (`LOCK`), so only one attempt is open. If it is already closed, an earlier try of this transaction
// closed it.
const NEXT_ATTEMPT = statement(`
  with /* mid-step.next_attempt */
  closed as (
    update boxcar.steps s
    set model = $6,
      prompt_hash = decode($7, 'hex'),
      toolset_hash = decode($8, 'hex'),
      manifest = $9::jsonb,
      finish_reason = $10,
      model_ms = $11,
      error = $12::jsonb,
      usage = $13::jsonb
    where s.turn_id = $1 and s.step = $2 and s.attempt = $3 and s.error is null
    returning s.turn_id, s.project_id, s.epoch, s.holder_id
  ),
  up as (
    update boxcar.turns t
    set attempt = $3 + 1,
      spent_tokens = t.spent_tokens + $14::bigint,
      spent_cost = t.spent_cost + $15::bigint
    from closed
    where t.id = closed.turn_id
  )
  insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
  select c.turn_id, $2, $3 + 1, c.project_id, c.epoch, c.holder_id, $4, $5
  from closed c`);

async function closeAttempt(
  tx: Tx,
  { turnId, failed }: MidStep,
  at: LockRow & HeadRow,
): Promise<MidStepOutcome> {
  const range = [at.view_position, at.head_position];
  if (failed === undefined) {
    await run(tx, MOVE_STEP, [turnId, at.step, at.attempt, ...range]);
    return { outcome: 'written', attempt: at.attempt };
  }
  const { step, attempt, model, promptHash, toolsetHash, manifest, finishReason, modelMs, error } = failed;
  const { usage, spent } = failed;
  await run(tx, NEXT_ATTEMPT, [
    turnId,
    step,
    attempt,
    ...range,
    model,
    promptHash,
    toolsetHash,
    JSON.stringify(manifest),
    finishReason,
    modelMs,
    JSON.stringify(error),
    usage === null ? null : JSON.stringify(usage),
    spent?.tokens ?? 0,
    spent?.costMicros ?? 0,
  ]);
  return { outcome: 'written', attempt: attempt + 1 };
}

const LOCK_TAPE = statement(`
  select /* mid-step.lock_tape */ head_position, last_anchor_position
  from boxcar.boxes
  where id = $1
  for no key update`);

/** The item, adjusted to the current state of the tape. */
async function placeOn(tx: Tx, boxId: BoxId, item: MidStep): Promise<MidStep> {
  if (item.ifGrown === undefined) return item;
  const [tape] = await run<{ head_position: number; last_anchor_position: number }>(tx, LOCK_TAPE, [boxId]);
  if (tape === undefined || tape.head_position === item.headPosition) return item;
  return { ...item, headPosition: tape.head_position, ...item.ifGrown(tape.last_anchor_position) };
}

const recordsOf = ({ entries }: MidStep): string =>
  JSON.stringify(
    entries.map(({ kind, card, payload, anchorName }, index) => ({
      n: index + 1,
      kind,
      payload: payload ?? null,
      anchor_name: anchorName ?? null,
      card: card === undefined ? null : cardRecord(card),
    })),
  );

/** Appends to the tape of a turn between the opening of a step and its commit. The first entry must have a card. */
export function writeMidStep(pool: pg.Pool, item: MidStep): Promise<MidStepOutcome> {
  const { turnId, epoch, holderId } = item;
  return transaction(pool, async (tx): Promise<MidStepOutcome> => {
    const [turn] = await run<LockRow>(tx, LOCK, [turnId, epoch, holderId]);
    if (turn === undefined) return { outcome: 'fenced' };
    const placed = await placeOn(tx, turn.output_box_id, item);
    const { headPosition, entries, viewFrom } = placed;
    const [head] = await run<HeadRow>(tx, APPEND, [
      turn.output_box_id,
      headPosition,
      entries.length,
      viewFrom !== undefined,
      viewFrom ?? null,
      entries.find(({ card }) => card !== undefined)?.card?.id,
      recordsOf(placed),
      turnId,
      turn.agent_id,
    ]);
    return head === undefined ? { outcome: 'moved' } : closeAttempt(tx, item, { ...turn, ...head });
  });
}
