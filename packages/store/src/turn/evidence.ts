/**
 * Answers that arrived too late: their turn had ended, or another worker held it. They are stored with their cost, and never applied.
 * Source: docs/reference/turns.md, "Evidence".
 */
import type { JsonValue, ProjectId, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';

export interface Evidence {
  readonly id: string;
  readonly projectId: ProjectId;
  readonly turnId: TurnId;
  /** A model's reply, or a tool's result. */
  readonly kind: 'reply' | 'result';
  readonly step: number;
  /** Null for a result. */
  readonly attempt: number | null;
  /** The epoch under which the work was begun. */
  readonly epoch: number;
  readonly holderId: WorkerId;
  readonly toolCallId: ToolCallId | null;
  readonly body: JsonValue;
  readonly usage: JsonValue;
}

const KEEP = statement(`
  insert /* evidence.keep */ into boxcar.evidence (
    id, project_id, turn_id, kind, step, attempt, epoch, holder_id, tool_call_id, body, usage
  )
  select x.id, x.project_id, x.turn_id, x.kind, x.step, x.attempt, x.epoch, x.holder_id, x.tool_call_id, x.body::json,
    x.usage
  from json_to_recordset($1) as x(
    id uuid, project_id uuid, turn_id uuid, kind text, step int, attempt int, epoch int, holder_id uuid,
    tool_call_id uuid, body text, usage jsonb
  )
  on conflict do nothing`);

/** Stores the late answers of a worker. Storing the same answer again changes nothing. */
export async function keepEvidence(pool: pg.Pool, items: readonly Evidence[]): Promise<void> {
  const records = items.map((item) => ({
    id: item.id,
    project_id: item.projectId,
    turn_id: item.turnId,
    kind: item.kind,
    step: item.step,
    attempt: item.attempt,
    epoch: item.epoch,
    holder_id: item.holderId,
    tool_call_id: item.toolCallId,
    body: JSON.stringify(item.body),
    usage: item.usage,
  }));
  await runRetrying(pool, KEEP, [JSON.stringify(records)]);
}

// A call that was answered keeps its answer, and a second delivery of the same answer adds nothing. So an answer is stored here only
// when its call was canceled or timed out, or is pending in an ended turn.
const KEEP_ANSWER = statement(`
  insert /* evidence.keep_answer */ into boxcar.evidence (
    id, project_id, turn_id, kind, step, epoch, tool_call_id, body
  )
  select $2, k.project_id, k.turn_id, 'result', k.step, k.epoch, k.id, $3::json
  from boxcar.tool_calls k
  where k.id = $1
    and (
      k.status in ('canceled', 'timeout')
      or (
        k.status = 'pending'
        and exists (select from boxcar.turns t where t.id = k.turn_id and t.ended_at is not null)
      )
    )
  on conflict do nothing`);

/** Stores the answer of an outside worker that arrived after its call had been canceled or had timed out. */
export async function keepLateAnswer(
  db: Queryable,
  answer: { readonly toolCallId: ToolCallId; readonly id: string; readonly body: JsonValue },
): Promise<void> {
  await run(db, KEEP_ANSWER, [answer.toolCallId, answer.id, JSON.stringify(answer.body)]);
}
