/** The shared parts of the runtime. `Runtime` implements this interface; the parts import only this file. */
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

/** Calls of tools that workers outside the kernel run. */
export interface QueueToolCalls {
  /** Adds the jobs of committed calls. With a limit, locked calls are left to a later sweep. */
  send(
    calls: readonly Pick<PendingCall, 'id' | 'turn_id' | 'name' | 'target' | 'retry' | 'arguments'>[],
    limit?: LockLimit,
  ): Promise<void>;
  load(id: ToolCallId): Promise<QueueCall | null>;
  /** Records the answer of a tool worker, whatever its shape. */
  record(
    call: QueueCall,
    answer: {
      readonly status: CallSettlement['status'];
      readonly result?: unknown;
      readonly error?: ErrorBody;
    },
    options?: { readonly lockedMs?: () => number },
  ): Promise<{ readonly outcome: 'recorded' | 'duplicate'; readonly status: CallSettlement['status'] }>;
  /** Keeps an answer as evidence when its call has already ended. */
  keepLate(
    call: Pick<QueueCall, 'id'>,
    answer: {
      readonly status: CallSettlement['status'];
      readonly result?: unknown;
      readonly error?: ErrorBody;
    },
  ): Promise<void>;
  /** Records the outcome of a call's job, and removes the job. */
  collect(call: QueueCall): Promise<void>;
  /** Removes the jobs of calls that no longer need an answer. @returns False when the queue does not answer. */
  forget(calls: readonly { readonly id: ToolCallId; readonly target: string | null }[]): Promise<boolean>;
  /** Checks the calls that are due. @returns False when the queue does not answer. */
  sweep(options?: { readonly now?: Date } & LockLimit): Promise<boolean>;
}

export type Ends = Pick<
  CommitResult,
  'endedTurnIds' | 'doorTurnIds' | 'backlogTargets' | 'dueBatchIds' | 'noticeTurnIds'
>;

/** How calls of tools and primitives are allowed or refused before they begin. */
export interface CallGateOptions {
  /** Undefined: no policy is configured, so none is asked. */
  readonly evaluator: PermissionEvaluator | undefined;
  /** How long a request waits for its decision. Undefined: no gate, so calls that need approval are refused. */
  readonly approvalMs: number | undefined;
}

/** A worker of this process. */
export interface LocalWorker {
  /** Runs a turn that this worker may have claimed in a commit whose answer was lost. */
  recover(ring: Pick<Ring, 'turnId' | 'epoch'>): void;
  /** Reserves a slot for a turn that a commit is about to dispatch. Undefined when the worker has no free slot. */
  reserve(
    ring: Pick<Ring, 'turnId' | 'epoch'> & Partial<Pick<Ring, 'workerTarget'>>,
  ): Reservation | undefined;
  /** Keeps rings of this process while no other worker lives. @returns The rings that it does not keep. */
  keep(rings: readonly Ring[]): readonly Ring[];
}

/** A slot of a worker for a turn that the same commit dispatches and claims. */
export interface Reservation {
  readonly along: ClaimAlong;
  /** Runs the turn, or frees the slot. With undefined the outcome of the commit is unknown, and the worker finds out. */
  settle(claim: ViewedClaim | undefined): void;
}

export interface RuntimeCore {
  readonly pool: pg.Pool;
  readonly doorbell: Doorbell;
  readonly model: Model;
  readonly directUrl: string;
  readonly limits: PackLimits;
  /** The time limit for handlers that no turn calls. */
  readonly handlerTimeoutMs: number;
  /** The first table that has a model sets its price. */
  readonly prices: readonly PriceTable[];
  readonly strategies: PackingStrategies;
  readonly selectors: Selectors;
  readonly log: Log;
  readonly handlers: ReadonlyMap<string, Handler>;
  /** The kernel's own handlers. They take connections only through their tools. */
  readonly ownHandlers: ReadonlySet<Handler>;
  readonly tools: ReadonlyMap<string, Tool>;
  /** Where the tools of a profile's `mcp` come from; undefined when no servers are defined. */
  readonly toolServers: ToolServers | undefined;
  readonly watcher: TurnWatcher;
  /** How calls are allowed or refused before they begin. */
  readonly gate: CallGateOptions;
  readonly handoffs: Handoffs;
  readonly webhooks: Webhooks;
  readonly isClosed: boolean;
  /** @throws KernelError `internal_error` after the runtime was asked to close. */
  checkOpen(): void;
  /** Whether this build may work on the database. */
  readonly builds: BuildWatch;
  /** Loads the rows that a submission needs about its caller, together with other requests of the same moment. */
  readonly open: (request: CallerRequest) => Promise<CallerFacts | undefined>;
  /** Facts about callers that were looked up earlier. */
  readonly keptCallers: KeptCallers;
  /** Writes a submission together with other submissions of the same moment. */
  readonly write: (item: SubmissionItem) => Promise<SubmissionResult>;
  /** Rings after a commit: at once, in the background, without ever failing. */
  ring(rings: readonly Ring[]): void;
  /** Workers that may take the turns that this process submits. */
  readonly localWorkers: Set<LocalWorker>;
  /** Runs work in the background, without ever failing. */
  afterwards(work: () => Promise<void>): void;
  /** Calls that tool workers answer; undefined when the runtime was opened without their queues. */
  readonly outside: QueueToolCalls | undefined;
  /** Sends a committed call to the tool workers: in the background, without ever failing. */
  sendSoon(call: PendingCall): void;
  accept(primitive: string, args: unknown, options?: SubmitOptions & InnerSubmitOptions): Promise<Accepted>;
  /** Checks soon whether there is room for queued turns of this target. */
  promoteSoon(workerTarget: string): void;
  /** The turn has reached the point that its siblings wait for (`warm_cache`): their queues are checked. */
  letWarmedIn(turnId: TurnId): void;
  /**
   * Call after a commit that ended turns. Sends hints to callers in this process, jobs at the queue door, batches and queued
   * turns.
   */
  announceEnds(ends: Ends): void;
  /** Ends these batches soon, or does other work that is due for them. */
  finishSoon(batchIds: readonly BatchId[]): void;
  /** Soon reports the end of a handoff to the agent that requested it, without ever failing. */
  tellSourceSoon(handoffId: HandoffId): void;
  /** Wakes the jobs at the queue door that wait for these turns and batches. */
  wakeDoorJobsSoon(ids: readonly (TurnId | BatchId)[]): void;
}
