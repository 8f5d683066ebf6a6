/** What a door hands over, and what it gets. */
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

/** Of an awaited turn or batch, unless told. */
export const DEFAULT_WAIT_SECONDS = 3600;

/** A submission as a door hands it over. */
export interface SubmitOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** The agent in whose name it comes, by id, name or session; default: the project's operator. */
  readonly sourceAgentId?: string | SessionAddress | undefined;
  /** The second submission under a key changes nothing and returns the first answer. */
  readonly idempotencyKey?: string | undefined;
  /** A turn under which new turns are filed: its run, its depth, its lineage. It must not have ended. */
  readonly parentTurnId?: string | undefined;
  readonly channelId?: string | undefined;
  readonly traceparent?: string | undefined;
  /**
   * A transaction of the caller, by a pg client or a drizzle node-postgres transaction: the submission is committed, or undone,
   * with it. Its isolation level is read committed, and the submission waits for nothing. Rule: docs/reference/primitives.md,
   * "In a transaction of yours".
   */
  readonly tx?: CallerTx | undefined;
}

/** How the kernel's own doors call: a turn's tool call, or a job that waits for the answer. */
export interface InnerSubmitOptions {
  /** The tool call of a running turn that asks. Its result commits with the effect. */
  readonly call?: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly toolCallId: ToolCallId;
    /** By `parseSubmission`, beside the commit of the call. */
    readonly parsed?: ParsedSubmission | undefined;
    /** Fires at the call's deadline and when its turn is lost: what the handler has gathered comes to nothing. */
    readonly signal: AbortSignal;
    /** Records the answer in the same transaction, when the primitive does not wait. */
    readonly settle: (tx: Tx, answer: JsonValue) => Promise<void>;
    /** From here on the call's deadline no longer ends it. @throws when it has. */
    readonly pass: () => void;
    /** Rings the turns that it has dispatched. */
    readonly ring: (rings: readonly Ring[]) => void;
  };
  /** `tx` of the caller, once it was entered. */
  readonly within?: CallerTransaction;
  readonly doorJobId?: string;
  /** The note about that job, if it holds the event loop. */
  readonly doorNoteId?: string;
  /** The key is made of the job. */
  readonly isJobKey?: boolean;
  /** In place of the handler that has the name of the primitive. One of the kernel's own. */
  readonly handler?: Handler;
  /** What a call of a turn asked for begins now, after its approval: the call waits for the turn that is made. */
  readonly begins?: { readonly toolCallId: ToolCallId | null };
  /** The key is one of those that only the kernel makes. */
  readonly isKernelKey?: boolean;
  /** The turn whose end starts the new turns. They are its children: of its run, in its account. */
  readonly wokenBy?: TurnId;
}

export interface Accepted<Answer = JsonValue> {
  readonly projectId: ProjectId;
  /** The key under which the answer is stored. */
  readonly key: string;
  /** The answer, or the receipt while a turn is awaited. */
  readonly answer: Answer;
  /** The turn whose end is the final answer. */
  readonly awaitedTurnId: TurnId | null;
  /** The batch whose end is the final answer. */
  readonly awaitedBatchId: BatchId | null;
  /** True when another submission had been accepted under this key before. */
  readonly isReplay: boolean;
  /** What the calling turn ends with, when the primitive ends it. Nothing was written then. */
  readonly ending: { readonly deliverable: JsonValue; readonly isSanitized: boolean } | null;
}

/** The caller of a submission, whose source agent is known. */
export type Caller = CallerFacts & {
  readonly source: NonNullable<CallerFacts['source']>;
  /** It was not looked up for this submission: the write checks it. */
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
    /** The caller has chosen the key. */
    readonly isOwnKey: boolean;
    readonly profileNames: readonly string[];
  };
  readonly caller: Promise<Caller>;
}
