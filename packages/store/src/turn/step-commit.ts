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
  /** Whose queue it goes to; null unless the route is `queue`. */
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly timeoutMs: number;
  /** What the call is, for the loop guard; absent: not guarded. */
  readonly guardHash?: string;
  /** It may have to wait for an approval: no sweep sends its job before it has begun. */
  readonly isGated?: boolean;
  /** Its result, when it is known before the commit: the commit that writes the call ends the turn. */
  readonly answer?: { readonly status: CallSettlement['status']; readonly cardId: CardId };
}

export interface TurnEnding {
  readonly status: FinalStatus;
  readonly deliverableCardId: CardId;
  readonly error: ErrorBody | null;
  /** The result of the call that awaits this turn, if one does. */
  readonly settles: {
    readonly toolCallId: ToolCallId;
    readonly turnId: TurnId;
    readonly status: CallSettlement['status'];
    readonly card: NewCard;
  } | null;
}

/** What one commit writes about one turn. */
export interface StepCommit {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly epoch: number;
  /** True when batches were known to wait for it as it was taken; then its end takes the locks at once. */
  readonly isMember?: boolean;
  /** Who must hold it; null = the sweep, which ends turns nobody holds. */
  readonly holderId: WorkerId | null;
  /** The step this commit closes; null when it closes none (an end between steps). */
  readonly step: {
    readonly step: number;
    readonly attempt: number;
    readonly model: string;
    readonly promptHash: string;
    /** Names the row of boxcar.toolsets with the tools that were offered. */
    readonly toolsetHash: string;
    readonly manifest: JsonValue;
    /** The card that holds the answer: the thought, the deliverable, or the first call of an answer without words. */
    readonly thoughtCardId: CardId | null;
    readonly usage: JsonValue;
    readonly finishReason: string;
    readonly modelMs: number;
    readonly error: ErrorBody | null;
  } | null;
  /** What the step used, for a turn whose row keeps it. */
  readonly spent?: { readonly tokens: number; readonly costMicros: number } | undefined;
  readonly cards: readonly NewCard[];
  readonly entries: readonly NewEntry[];
  readonly calls: readonly NewToolCall[];
  readonly emptyReplies: number;
  /** Results of this turn's own calls, recorded first. */
  readonly results: readonly CallSettlement[];
  readonly end: TurnEnding | null;
}
