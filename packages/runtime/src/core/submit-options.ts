/** The data that a door passes to a submission, and the data that it gets back. */
import type {
  BatchId,
  JsonObject,
  JsonValue,
  ProjectId,
  Ring,
  SessionAddress,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import type { CallerFacts, CallerTransaction, CallerTx, Tx } from '@boxcar/store';
import type { Handler } from '../handler/index.js';

/** The default wait for a turn or batch. */
export const DEFAULT_WAIT_SECONDS = 3600;

/** A submission as a door hands it over. */
export interface SubmitOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** The agent that submits, by id, name or session; default: the project's operator. */
  readonly sourceAgentId?: string | SessionAddress | undefined;
  /** A second submission under the same key changes nothing and returns the first answer. */
  readonly idempotencyKey?: string | undefined;
  /** The parent of the new turns: it determines their run, depth and lineage. It must not have ended. */
  readonly parentTurnId?: string | undefined;
  readonly channelId?: string | undefined;
  readonly traceparent?: string | undefined;
  /**
   * A transaction of the caller, as a pg client or a drizzle node-postgres transaction. The submission is committed or rolled
   * back with it. Its isolation level is read committed, and the submission waits for no turn or batch. Rule:
   * docs/reference/primitives.md, "In a transaction of yours".
   */
  readonly tx?: CallerTx | undefined;
}

/** Options of the kernel's own doors: for a turn's tool call, or for a job that waits for the answer. */
export interface InnerSubmitOptions {
  /** The tool call of the running turn that submits. Its result commits with the effect. */
  readonly call?: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly toolCallId: ToolCallId;
    /** The result of `parseSubmission`, which runs in parallel with the commit of the call. */
    readonly parsed?: ParsedSubmission | undefined;
    /** Aborts at the call's deadline and when its turn is lost: the handler's gathered effects are then discarded. */
    readonly signal: AbortSignal;
    /** Records the answer in the same transaction, when the primitive does not wait. */
    readonly settle: (tx: Tx, answer: JsonValue) => Promise<void>;
    /** After this the call's deadline no longer ends it. @throws when the deadline has already passed. */
    readonly pass: () => void;
    /** Rings the turns that the call has dispatched. */
    readonly ring: (rings: readonly Ring[]) => void;
  };
  /** The caller's `tx`, after the submission has entered it. */
  readonly within?: CallerTransaction;
  readonly doorJobId?: string;
  /** The row id of the note that is written about that job when its handler blocks the event loop. */
  readonly doorNoteId?: string;
  /** The key is derived from the job. */
  readonly isJobKey?: boolean;
  /** A handler of the kernel that runs in place of the registered handler of the primitive. */
  readonly handler?: Handler;
  /** The submission is the approved request of a turn's call. The call waits for the turn that is made. */
  readonly begins?: { readonly toolCallId: ToolCallId | null };
  /** The key has a form that only the kernel makes. */
  readonly isKernelKey?: boolean;
  /** The turn whose end starts the new turns. The new turns are its children: they join its run and use its account. */
  readonly wokenBy?: TurnId;
}

export interface Accepted<Answer = JsonValue> {
  readonly projectId: ProjectId;
  /** The key under which the answer is stored. */
  readonly key: string;
  /** The answer, or the receipt while the primitive waits for a turn or batch. */
  readonly answer: Answer;
  /** The turn whose end is the final answer. */
  readonly awaitedTurnId: TurnId | null;
  /** The batch whose end is the final answer. */
  readonly awaitedBatchId: BatchId | null;
  /** True when another submission had been accepted under this key before. */
  readonly isReplay: boolean;
  /** The end of the calling turn, when the primitive ends it. Nothing was written then. */
  readonly ending: { readonly deliverable: JsonValue; readonly isSanitized: boolean } | null;
}

/** The caller of a submission, whose source agent is known. */
export type Caller = CallerFacts & {
  readonly source: NonNullable<CallerFacts['source']>;
  /** The caller comes from the cache and was not looked up for this submission, so the write verifies it. */
  readonly isKept: boolean;
};

/** A primitive whose arguments are valid, and whose caller is being looked up. */
export interface ParsedSubmission {
  readonly primitive: string;
  readonly handler: Handler;
  readonly input: unknown;
  readonly plain: JsonObject;
  readonly request: {
    readonly key: string;
    /** True when the caller chose the key. */
    readonly isOwnKey: boolean;
    readonly profileNames: readonly string[];
  };
  readonly caller: Promise<Caller>;
}
