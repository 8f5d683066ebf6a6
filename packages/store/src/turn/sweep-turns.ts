/** The facts about a turn that another process needs to end it: the result of the sweep's searches. */
import type { AgentId, BoxId, ProjectId, RunId, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';

export interface SweepClock {
  /** A clock for tests; the default is the clock of Postgres. */
  readonly now?: Date;
}

export interface EndableTurn extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly run_id: RunId;
  readonly agent_id: AgentId;
  readonly epoch: number;
  readonly holder_id: WorkerId | null;
  readonly parent_turn_id: TurnId | null;
  readonly parent_tool_call_id: ToolCallId | null;
  readonly is_awaited: boolean;
  readonly primitive: string;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
  readonly step_count: number;
  readonly attempt: number;
}

/** The columns of `EndableTurn` of a turn `t`. */
export const ENDABLE = `
  t.id as turn_id, t.project_id, t.run_id, t.agent_id, t.epoch, t.holder_id, t.parent_turn_id, t.parent_tool_call_id,
  t.is_awaited, t.primitive, t.context_box_id, t.output_box_id, t.step_count, t.attempt`;
