/** What the parts of the runtime share. `Runtime` implements it; the parts know this file only. */
import type {
  BatchId,
  Doorbell,
  ErrorBody,
  HandoffId,
  Model,
  PackingStrategies,
  PriceTable,
  Ring,
  ToolCallId,
  TurnId,
} from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import type {
  CallerFacts,
  CallerRequest,
  CallSettlement,
  ClaimAlong,
  CommitResult,
  LockLimit,
  PendingCall,
  QueueCall,
  SubmissionItem,
  SubmissionResult,
  ViewedClaim,
} from '@boxcar/store';
import type pg from 'pg';
import type { Handler } from '../handler/index.js';
import type { BuildWatch, KeptCallers, Log } from '../lib/index.js';
import type { PackLimits, Selectors } from '../pack/index.js';
import type { TurnWatcher } from '../queue/index.js';
import type { Tool, ToolServers } from '../tool/index.js';
import type { Handoffs } from './handoffs.js';
import type { Accepted, InnerSubmitOptions, SubmitOptions } from './submit-options.js';
import type { Webhooks } from './webhooks.js';

/** Calls of tools that workers outside run. */
export interface QueueToolCalls {
  /** Adds the jobs of committed calls. With a limit, calls that are locked are left to a later sweep. */
  send(
    calls: readonly Pick<PendingCall, 'id' | 'turn_id' | 'name' | 'target' | 'retry' | 'arguments'>[],
    limit?: LockLimit,
  ): Promise<void>;
  load(id: ToolCallId): Promise<QueueCall | null>;
  /** Records what a worker outside answered, in whatever shape. */
  record(
    call: QueueCall,
    answer: {
      readonly status: CallSettlement['status'];
      readonly result?: unknown;
      readonly error?: ErrorBody;
    },
    options?: { readonly lockedMs?: () => number },
  ): Promise<{ readonly outcome: 'recorded' | 'duplicate'; readonly status: CallSettlement['status'] }>;
  /** What was answered for a call that is over: kept as evidence. */
  keepLate(
    call: Pick<QueueCall, 'id'>,
    answer: {
      readonly status: CallSettlement['status'];
      readonly result?: unknown;
      readonly error?: ErrorBody;
    },
  ): Promise<void>;
  /** Takes up what the job of a call says, and removes it. */
  collect(call: QueueCall): Promise<void>;
  /** Removes the jobs of calls that need no answer any more. @returns False when the queue does not answer. */
  forget(calls: readonly { readonly id: ToolCallId; readonly target: string | null }[]): Promise<boolean>;
  /** Looks after calls that are due. @returns False when the queue does not answer. */
  sweep(options?: { readonly now?: Date } & LockLimit): Promise<boolean>;
}

export type Ends = Pick<
  CommitResult,
  'endedTurnIds' | 'doorTurnIds' | 'backlogTargets' | 'dueBatchIds' | 'noticeTurnIds'
>;

/** What decides about calls of tools and primitives before they begin. */
export interface CallGateOptions {
  /** Undefined: no policy is configured, and none is asked. */
  readonly evaluator: PermissionEvaluator | undefined;
  /** How long a request waits for its decision; undefined: there is no gate, and what needs approval is refused. */
  readonly approvalMs: number | undefined;
}

/** A worker of this process. */
export interface LocalWorker {
  /** Runs a turn that it may have taken in a commit whose answer was lost. */
  recover(ring: Pick<Ring, 'turnId' | 'epoch'>): void;
  /** Keeps a slot for a turn that a commit is about to dispatch. Undefined: it has none to give. */
  reserve(
    ring: Pick<Ring, 'turnId' | 'epoch'> & Partial<Pick<Ring, 'workerTarget'>>,
  ): Reservation | undefined;
}

/** A slot of a worker for a turn that the commit which dispatches it takes as well. */
export interface Reservation {
  readonly along: ClaimAlong;
  /** Runs the turn, or gives the slot back. Undefined: what came of it is not known, and is found out. */
  settle(claim: ViewedClaim | undefined): void;
}

export interface RuntimeCore {
  readonly pool: pg.Pool;
  readonly doorbell: Doorbell;
  readonly model: Model;
  readonly directUrl: string;
  readonly limits: PackLimits;
  /** The limit for handlers that no turn calls. */
  readonly handlerTimeoutMs: number;
  /** The first that knows a model counts. */
  readonly prices: readonly PriceTable[];
  readonly strategies: PackingStrategies;
  readonly selectors: Selectors;
  readonly log: Log;
  readonly handlers: ReadonlyMap<string, Handler>;
  /** The handlers of the kernel. They take connections only through their tools. */
  readonly ownHandlers: ReadonlySet<Handler>;
  readonly tools: ReadonlyMap<string, Tool>;
  /** Where the tools of a profile's `mcp` come from; undefined: no servers are defined. */
  readonly toolServers: ToolServers | undefined;
  readonly watcher: TurnWatcher;
  /** What decides about calls before they begin. */
  readonly gate: CallGateOptions;
  readonly handoffs: Handoffs;
  readonly webhooks: Webhooks;
  readonly isClosed: boolean;
  /** @throws KernelError `internal_error` once the runtime is closed. */
  checkOpen(): void;
  /** Whether this build may work on the database. */
  readonly builds: BuildWatch;
  /** Loads what a submission needs of its caller, together with others that come at the same moment. */
  readonly open: (request: CallerRequest) => Promise<CallerFacts | undefined>;
  /** Facts about callers that were looked up earlier. */
  readonly keptCallers: KeptCallers;
  /** Writes a submission together with others that come at the same moment. */
  readonly write: (item: SubmissionItem) => Promise<SubmissionResult>;
  /** Rings after a commit: at once, in the background, never failing. */
  ring(rings: readonly Ring[]): void;
  /** Workers that may take the turns that this process submits. */
  readonly localWorkers: Set<LocalWorker>;
  /** Does work in the background, never failing. */
  afterwards(work: () => Promise<void>): void;
  /** Calls that workers outside answer; undefined when the runtime was opened without queues for them. */
  readonly outside: QueueToolCalls | undefined;
  /** Gives a committed call to the workers outside: in the background, never failing. */
  sendSoon(call: PendingCall): void;
  accept(primitive: string, args: unknown, options?: SubmitOptions & InnerSubmitOptions): Promise<Accepted>;
  /** Looks soon whether queued turns of this target have room. */
  promoteSoon(workerTarget: string): void;
  /** The turn has come as far as its siblings wait for (`warm_cache`): a look at their queues. */
  letWarmedIn(turnId: TurnId): void;
  /** After a commit that ended turns: callers here, jobs at the queue door, batches and queued turns get to know. Hints only. */
  announceEnds(ends: Ends): void;
  /** Ends these batches soon, or does whatever is due about them. */
  finishSoon(batchIds: readonly BatchId[]): void;
  /** Tells the end of a handoff to the agent that asked for it: soon, and never failing. */
  tellSourceSoon(handoffId: HandoffId): void;
  /** Wakes the jobs at the queue door that wait for these turns and batches. */
  wakeDoorJobsSoon(ids: readonly (TurnId | BatchId)[]): void;
}
