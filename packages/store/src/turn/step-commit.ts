import type {
  AgentId,
  CardId,
  EntryKind,
  ErrorBody,
  FinalStatus,
  JsonValue,
  NewCard,
  ProjectId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import type { CallRouteKind } from '../kinds/row-kinds.js';
import type { CallSettlement } from './call-types.js';

export interface NewEntry {
  readonly kind: EntryKind;
  readonly cardId: CardId;
  readonly tokens: number;
}

export interface NewToolCall {
  readonly id: ToolCallId;
  readonly ordinal: number;
  readonly providerCallId: string;
  readonly name: string;
  readonly arguments: JsonValue;
  readonly route: CallRouteKind;
  /** The target whose queue the call goes to; null unless the route is `queue`. */
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly timeoutMs: number;
  /** Identifies the call for the loop guard. Absent: the call is not guarded. */
  readonly guardHash?: string;
  /** True when the call may have to wait for an approval: no sweep sends its job before the call has begun. */
  readonly isGated?: boolean;
  /** The result, when it is known before the commit: the commit that writes the call also ends the turn. */
  readonly answer?: { readonly status: CallSettlement['status']; readonly cardId: CardId };
}

export interface TurnEnding {
  readonly status: FinalStatus;
  readonly deliverableCardId: CardId;
  readonly error: ErrorBody | null;
  /** The result of the call that awaits this turn, if there is such a call. */
  readonly settles: {
    readonly toolCallId: ToolCallId;
    readonly turnId: TurnId;
    readonly status: CallSettlement['status'];
    readonly card: NewCard;
  } | null;
}

/** The changes that one commit makes to one turn. */
export interface StepCommit {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly epoch: number;
  /** True when the claim of the turn found batches that wait for it. Then the end takes the locks at once. */
  readonly isMember?: boolean;
  /** The worker that must hold the turn; null for the sweep, which ends turns without a holder. */
  readonly holderId: WorkerId | null;
  /** The step that this commit closes; null for an end between steps. */
  readonly step: {
    readonly step: number;
    readonly attempt: number;
    readonly model: string;
    readonly promptHash: string;
    /** The hash of the row in boxcar.toolsets with the tools that were offered. */
    readonly toolsetHash: string;
    readonly manifest: JsonValue;
    /** The card that holds the answer: the thought, the deliverable, or the first call of an answer without words. */
    readonly thoughtCardId: CardId | null;
    readonly usage: JsonValue;
    readonly finishReason: string;
    readonly modelMs: number;
    readonly error: ErrorBody | null;
  } | null;
  /** The tokens and cost of the step, for a turn whose row counts them. */
  readonly spent?: { readonly tokens: number; readonly costMicros: number } | undefined;
  readonly cards: readonly NewCard[];
  readonly entries: readonly NewEntry[];
  readonly calls: readonly NewToolCall[];
  readonly emptyReplies: number;
  /** Results of this turn's own calls. They are recorded first. */
  readonly results: readonly CallSettlement[];
  readonly end: TurnEnding | null;
}
