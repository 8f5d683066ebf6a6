/** The types of the report of a turn. `inspect.ts` reads the data. */
import type {
  AgentId,
  BoxId,
  CardId,
  ErrorBody,
  JsonValue,
  ProjectId,
  Role,
  RunId,
  Segment,
  ToolCallId,
  TurnId,
  TurnStatus,
  WorkerId,
} from '@boxcar/kernel';
import type { BudgetReport } from '../budget/index.js';
import type { CallRouteKind } from '../kinds/row-kinds.js';
import type { WaitLine } from '../work/index.js';

/** A turn in a list: on the way to the root, or below the inspected turn. */
export interface TurnLine {
  readonly turn_id: TurnId;
  readonly status: TurnStatus;
  readonly agent: string;
  readonly profile: string;
  readonly primitive: string;
  readonly depth: number;
  /** The call that requested the turn. */
  readonly tool_call_id: ToolCallId | null;
}

export interface Usage {
  readonly input_tokens: number;
  readonly output_tokens: number;
}

export interface StepLine {
  readonly step: number;
  readonly attempt: number;
  /** Null while the model works, or when the attempt was lost with its worker. */
  readonly committed_at: Date | null;
  readonly opened_at: Date;
  readonly model: string | null;
  readonly finish_reason: string | null;
  readonly usage: Usage | null;
  readonly model_ms: number | null;
  readonly prompt_hash: string | null;
  readonly error: ErrorBody | null;
}

export interface CallLine {
  readonly tool_call_id: ToolCallId;
  readonly step: number;
  readonly ordinal: number;
  readonly name: string;
  readonly route: CallRouteKind;
  /** The target whose queue receives the call; null unless the route is `queue`. */
  readonly target: string | null;
  readonly status: 'pending' | 'success' | 'failed' | 'timeout' | 'canceled';
  /** From the commit of the call to its result; null while the result is missing. */
  readonly duration_ms: number | null;
  readonly deadline_at: Date;
  readonly arguments_preview: string;
  readonly error: ErrorBody | null;
}

/** A late reply or result, which does not count. */
export interface EvidenceLine {
  /** The id by which it can be erased. */
  readonly evidence_id: string;
  /** A reply of a model, or a result of a tool. */
  readonly kind: 'reply' | 'result';
  readonly step: number;
  readonly attempt: number | null;
  /** The epoch under which the work was begun. */
  readonly epoch: number;
  /** Null: an external worker. */
  readonly holder_id: WorkerId | null;
  readonly tool_call_id: ToolCallId | null;
  readonly at: Date;
  readonly usage: Usage | null;
  readonly preview: string;
}

export interface CardLine {
  readonly card_id: CardId;
  readonly type: string;
  readonly role: Role | null;
  readonly tokens: number;
  readonly preview: string;
  /** Index in `segments`, from 0. */
  readonly segment: number;
}

export interface TurnReport {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly project_id: ProjectId;
  readonly status: TurnStatus;
  readonly error: ErrorBody | null;
  readonly primitive: string;
  readonly channel_id: string;
  readonly worker_target: string;
  readonly depth: number;
  readonly epoch: number;
  readonly holder_id: WorkerId | null;
  readonly step_count: number;
  readonly max_steps: number;
  readonly pending_calls: number;
  /** For a turn that is suspended without an open call: its wait. */
  readonly wait: WaitLine | null;
  readonly created_at: Date;
  readonly dispatched_at: Date | null;
  readonly ended_at: Date | null;
  readonly deadline_at: Date | null;
  readonly agent: { readonly agent_id: AgentId; readonly name: string };
  readonly profile: { readonly name: string; readonly version: number };
  readonly output_box_id: BoxId;
  /** From the root of the run to this turn. */
  readonly lineage: readonly TurnLine[];
  readonly steps: readonly StepLine[];
  readonly calls: readonly CallLine[];
  /** The first answers that arrived after another worker had taken the turn, or after its end. */
  readonly evidence: readonly EvidenceLine[];
  readonly context: {
    readonly box_id: BoxId;
    readonly card_count: number;
    readonly tokens: number;
    /** The manifest, in order: the packed ranges with their rules and sources. */
    readonly segments: readonly Segment[];
    /** The first cards, in stored order. */
    readonly cards: readonly CardLine[];
  };
  readonly child_count: number;
  /** The first children. */
  readonly children: readonly TurnLine[];
  readonly deliverable: { readonly card_id: CardId; readonly content: JsonValue } | null;
  readonly run: {
    readonly run_id: RunId;
    readonly root_turn_id: TurnId;
    readonly turns: number;
    /** Turns that have not ended. */
    readonly open_turns: number;
    /** The number of committed steps, and of attempts at them. */
    readonly steps: number;
    readonly attempts: number;
    readonly usage: Usage;
    readonly cost_micros: number;
    /** Steps of models whose price is zero. */
    readonly free_steps: number;
    readonly unpriced_steps: number;
  };
  /** The spending of the turn itself, and of the turn with all turns below it. */
  readonly spent: TurnCost;
  readonly subtree: TurnCost & { readonly turns: number };
  /** The accounts of the run, the outermost first. */
  readonly budgets: readonly BudgetReport[];
}

/** The usage of steps. Steps of models without a price are counted separately from the cost. */
export interface TurnCost extends Usage {
  readonly cost_micros: number;
  /** Steps of models whose price is zero. */
  readonly free_steps: number;
  readonly unpriced_steps: number;
}
