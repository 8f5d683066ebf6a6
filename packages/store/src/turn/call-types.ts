import type { CardId, NewCard, Ring, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';

export interface CallSettlement {
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  readonly status: 'success' | 'failed' | 'timeout' | 'canceled';
  readonly card: NewCard;
  /** When set, the settlement counts only while the call still has this deadline, in the text form of Postgres. */
  readonly deadlineAt?: string;
  /** When set, the settlement counts only if this turn has ended with this deliverable. */
  readonly ifEnded?: { readonly turnId: TurnId; readonly deliverableCardId: CardId };
}

export interface SettledTurns {
  /** Turns that were resumed. */
  readonly rings: readonly Ring[];
  /** Calls that already had a result. */
  readonly duplicates: readonly ToolCallId[];
}

/** A turn that its worker holds, whose own calls have all been run. */
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
      /** The head of the tape before the results; null when other entries may be between the results. */
      readonly basePosition: number | null;
    }
  /** Calls are still out. The turn is suspended and has no holder. */
  | { readonly outcome: 'suspended' }
  | { readonly outcome: 'fenced' };

/** The time from the commit of a call to the first look for its job in the queue. Until then the job is assumed to be there. */
export const FIRST_LOOK = "interval '2 seconds'";
