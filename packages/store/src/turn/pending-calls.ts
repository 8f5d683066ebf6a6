/** The calls of a turn: its open calls, and the calls of a step with their results. */
import type { JsonValue, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import type { CallRouteKind } from '../kinds/row-kinds.js';

const PENDING = statement(`
  select /* pending-calls.pending */
    k.id, k.turn_id, k.step, k.ordinal, k.provider_call_id, k.name, k.arguments, k.route, k.target, k.retry, k.epoch,
    encode(k.guard_hash, 'hex') as guard_hash,
    extract(epoch from k.deadline_at - now()) * 1000 as remaining_ms,
    exists (select from boxcar.turns c where c.parent_tool_call_id = k.id and c.is_awaited)
    or k.batch_id is not null as is_awaiting,
    exists (
      select from boxcar.approvals a
      where a.turn_id = k.turn_id and a.tool_call_id = k.id and a.voided_at is null
    ) as has_ticket,
    k.look_at is not null or k.sent_at is not null as is_out
  from boxcar.tool_calls k
  where k.turn_id = $1 and k.status = 'pending'
  order by k.ordinal`);

export interface PendingCall extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly step: number;
  readonly ordinal: number;
  readonly provider_call_id: string;
  readonly name: string;
  readonly arguments: JsonValue;
  readonly route: CallRouteKind;
  /** The target whose queue the call goes to; null unless the route is `queue`. */
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly epoch: number;
  /** Null when the call is not guarded. */
  readonly guard_hash: string | null;
  readonly remaining_ms: number;
  /** A child turn or a batch exists whose end will be the result. */
  readonly is_awaiting: boolean;
  /** True when an approval was requested. */
  readonly has_ticket: boolean;
  /** True when the call's job is in the queue, or the next look sends it. */
  readonly is_out: boolean;
}

/** The unanswered calls of a turn, in call order. */
export async function loadPendingCalls(db: Queryable, turnId: TurnId): Promise<PendingCall[]> {
  const rows = await run<PendingCall>(db, PENDING, [turnId]);
  return rows.map((row) => ({ ...row, remaining_ms: Number(row.remaining_ms) }));
}

/** The call was answered, and the turn or batch that it waited for, if any, did not fail. */
const SUCCEEDED = `
  k.status = 'success'
  and not exists (
    select from boxcar.batches b
    where b.tool_call_id = k.id and b.status in ('failed', 'timeout', 'canceled')
  )
  and not exists (
    select from boxcar.turns c
    where c.parent_tool_call_id = k.id and c.is_awaited and c.status in ('failed', 'timeout', 'canceled')
  )`;

const HAS_SUCCEEDED = statement(`
  select /* pending-calls.has_succeeded */ exists (
    select from boxcar.tool_calls k
    where k.turn_id = $1 and k.name = any ($2::text[]) and ${SUCCEEDED}
  ) as has_succeeded`);

/** Whether a call of one of these tools succeeded in the turn. */
export async function hasSucceeded(
  db: Queryable,
  turnId: TurnId,
  names: readonly string[],
): Promise<boolean> {
  const [row] = await run<{ has_succeeded: boolean }>(db, HAS_SUCCEEDED, [turnId, names]);
  return row?.has_succeeded === true;
}

const CALLS_OF_STEP = statement(`
  select /* pending-calls.calls_of_step */ k.name, k.status, (${SUCCEEDED}) as has_succeeded,
    coalesce(c.content, c.placeholder) as content
  from boxcar.tool_calls k
  left join boxcar.cards c on c.id = k.result_card_id
  where k.turn_id = $1 and k.step = $2
  order by k.ordinal`);

/** The calls of a committed step with their results. */
export function loadCallsOfStep(
  db: Queryable,
  turnId: TurnId,
  step: number,
): Promise<{ name: string; status: string; has_succeeded: boolean; content: JsonValue }[]> {
  return run(db, CALLS_OF_STEP, [turnId, step]);
}
