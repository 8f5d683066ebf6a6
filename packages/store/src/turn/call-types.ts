import type { CardId, NewCard, Ring, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';

export interface CallSettlement {
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  readonly status: 'success' | 'failed' | 'timeout' | 'canceled';
  readonly card: NewCard;
  /** Given: it counts only while the call has this deadline still, as Postgres writes it. */
  readonly deadlineAt?: string;
  /** Given: it counts only if this turn has ended with this deliverable. */
  readonly ifEnded?: { readonly turnId: TurnId; readonly deliverableCardId: CardId };
}

export interface SettledTurns {
  /** Turns that were resumed. */
  readonly rings: readonly Ring[];
  /** Calls that had a result already. */
  readonly duplicates: readonly ToolCallId[];
}

/** A turn in its worker's hands whose own calls have all been run. */
export interface Advance {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  readonly results: readonly CallSettlement[];
}

export type AdvanceOutcome =
  /** All calls are answered; the next step is open. */
  | {
      readonly outcome: 'open';
      readonly attempt: number;
      /** The head of the tape before the results; null when other entries may stand among them. */
      readonly basePosition: number | null;
    }
  /** Calls are still out; the turn is suspended and in nobody's hands. */
  | { readonly outcome: 'suspended' }
  | { readonly outcome: 'fenced' };

/** How long after its commit a call is first looked for in its queue; until then its job speaks for itself. */
export const FIRST_LOOK = "interval '2 seconds'";
