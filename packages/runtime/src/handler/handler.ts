import type {
  AgentId,
  BatchId,
  BoxId,
  BudgetInput,
  DelegationPolicy,
  DelegationTarget,
  ErrorBody,
  HandoffId,
  JsonValue,
  ProjectId,
  Ring,
  RunId,
  ToolCallId,
  TurnId,
  TurnView,
} from '@boxcar/kernel';
import type { AgentRow, ChainLink, NewHandoff, ProfileRow, Queryable, Tx } from '@boxcar/store';
import type { z } from 'zod';
import type { HandlerPacker } from '../pack/index.js';
import type { Tape, TapeTarget } from '../tape/index.js';

/** The caller of a primitive. */
export interface CallerContext {
  readonly projectId: ProjectId;
  readonly primitive: string;
  readonly source: {
    readonly agentId: AgentId;
    readonly name: string;
    readonly isOperator: boolean;
    readonly policy: DelegationPolicy | undefined;
  };
  readonly channelId: string;
  readonly traceparent: string | null;
  /** The turn that calls, when the caller is an agent at work. */
  readonly parent:
    | {
        readonly turnId: TurnId;
        readonly runId: RunId;
        readonly agentId: AgentId;
        readonly depth: number;
        /** The account it stands under; null = none. */
        readonly budgetId: string | null;
        readonly priority: number;
        readonly contextBoxId: BoxId;
        readonly outputBoxId: BoxId;
        /** From the calling turn to the root. */
        readonly chain: readonly ChainLink[];
      }
    | undefined;
}

/** A turn that this primitive makes; it exists once the primitive's transaction commits. */
export interface TurnRef {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
}

export interface SubmitTurnRequest {
  /** A fresh agent of a profile, or an existing agent. */
  readonly target:
    | ({ readonly kind: 'new' } & Pick<NewAgentRequest, 'profile' | 'derivedFrom' | 'agentId'>)
    | { readonly kind: 'reuse'; readonly agent: AgentRow };
  /** A sealed box made by `packer`, or one that the caller may read. */
  readonly contextBoxId: BoxId;
  /**
   * Who decides whether the caller may reach the target and hand on the context: its delegation policy, `checkReuse` and its right to
   * read (`actor`, the default), or the handler, which has done so (`trusted`).
   */
  readonly access?: 'actor' | 'trusted' | undefined;
  /** True: the end of the turn is the answer of this primitive. At most one turn or batch of a primitive can be awaited. */
  readonly wait?: boolean | undefined;
  readonly deadlineMs?: number | undefined;
  /** What the turn and all below it may use; without a calling turn it limits the run. Rule: docs/reference/budgets.md. */
  readonly budget?: BudgetInput | undefined;
  /** What errors about the target call it, for example `tasks.3.target_ref`. */
  readonly argument?: string | undefined;
  /** −100 to 100, the higher the sooner, within the project; default: that of the calling turn, else 0. */
  readonly priority?: number | undefined;
  /** Where its view of its tape begins; default: as its session, else its profile says. Rule: docs/reference/views.md, "Where a view begins". */
  readonly view?: TurnView | undefined;
  /** The handoff that it serves, and who may take it; null: the workers of its profile. @internal */
  readonly serves?: { readonly workerTarget: string | null } | undefined;
}

export interface JoinRequest {
  /** True (default): the end of the batch is the answer of this primitive. */
  readonly wait?: boolean | undefined;
  /** Default 3,600,000 when waiting, else none. Turns made here are ended then; for others only the wait is. */
  readonly deadlineMs?: number | undefined;
  /** Turns made here only: the rest is ended at the first failure. */
  readonly isFailFast?: boolean | undefined;
  /** Turns made here only: so many successes are enough, the rest is ended then. */
  readonly minSuccess?: number | undefined;
  /** Turns made here only: one starts first, the rest when its first model call has filled the prompt cache (docs/reference/primitives.md, "fork_join"). */
  readonly warmsCache?: boolean | undefined;
  /** What errors call the nth turn. Default `turn_ids.<n>`. */
  readonly argumentOf?: ((index: number) => string) | undefined;
}

export interface BatchRef {
  readonly batchId: BatchId;
  readonly turnIds: readonly TurnId[];
}

export interface NewAgentRequest {
  readonly profile: ProfileRow;
  /** Unique in the project. Default: made of the profile's name and the agent's id. */
  readonly name?: string | undefined;
  /** Lineage: the agent it comes after. */
  readonly derivedFrom?: AgentId | undefined;
  /** Anyone whose policy reaches its profile may give it turns; default: false. */
  readonly isShared?: boolean | undefined;
  /** Of `newId`, where its id must be known before it is made. */
  readonly agentId?: AgentId | undefined;
}

/**
 * What a handler works with. Its effects are gathered and committed with its answer, in one transaction. Calls that the handler has not
 * awaited are completed first; when one of them fails, the submission is refused.
 */
export interface HandlerTools {
  /** For reads: sees what the primitive has made so far, and opens no transaction when it has made nothing. */
  readonly db: Queryable;
  /**
   * The primitive's transaction. It begins with the first statement run on it, and holds a connection from then on. Until
   * the handler answers, it must not take a second connection, and must wait only for the database: a transaction that
   * idles for 8 s is ended.
   */
  readonly tx: Tx;
  /** Fires at the deadline of the handler, and when its turn is lost. The effects of the handler are then discarded. */
  readonly signal: AbortSignal;
  /** Packs in the caller's name; boxes and cards become part of the primitive's transaction. */
  readonly packer: HandlerPacker;
  readonly ctx: CallerContext;
  /**
   * A tape that there is, used in the caller's name with the rights it has. What is appended commits with the primitive.
   *
   * @throws KernelError `not_found`.
   */
  tape(target: TapeTarget): Promise<Tape>;
  /** The current version, or the one named. @throws KernelError `not_found`. */
  findProfile(name: string, version?: number): Promise<ProfileRow>;
  /** By id or name. @throws KernelError `not_found`. */
  findAgent(ref: string): Promise<AgentRow>;
  /** Agents by id or name, in the order of the references; undefined = no such agent. One statement. */
  findAgents(refs: readonly string[]): Promise<readonly (AgentRow | undefined)[]>;
  /**
   * `submitTurn` and `submitTurns` check it too; asked before, nothing is packed in vain.
   *
   * @throws KernelError `delegation_denied` unless the caller's policy allows the target.
   */
  checkDelegation(target: DelegationTarget): void;
  /**
   * Whether the caller may give turns to an agent that exists: the operator, the agent itself, who made it, who may append to its
   * tape without end, and for a shared agent anyone. Asked in addition to the policy.
   *
   * @throws KernelError `delegation_denied`.
   */
  checkReuse(agent: AgentRow): void;
  /** `submitTurns` checks it too; asked before, nothing is packed in vain. @throws KernelError `fan_out_exceeded`. */
  checkFanOut(turns: number): void;
  /**
   * Makes an agent without a turn; the caller owns it. A turn may be submitted to it at once, as to any agent.
   *
   * @throws KernelError `agent_exists` when the name is taken, `bad_request` for one that is blank, too long, an id, or the name
   * of a profile where the caller is an agent.
   */
  createAgent(request: NewAgentRequest): Promise<AgentRow>;
  /** @throws KernelError `delegation_denied`, `box_not_authorized`, `depth_exceeded`, `delegation_cycle`, `budget_exceeded`. */
  submitTurn(request: SubmitTurnRequest): Promise<TurnRef>;
  /** Rings for turns that the primitive's transaction has dispatched, once it is committed. */
  ring(rings: readonly Ring[]): void;
  /**
   * Ends turns of one run, and every turn below them, with this status and error. A turn that has already ended is not
   * changed. A caller that waits for one of the roots gets that error as its result.
   *
   * @param request.rootTurnIds - Absent: every turn of the run. A run may have several roots.
   * @returns The turns that were ended. The turns whose end could not be written are in `unended`.
   */
  endSubtrees(request: {
    readonly runId: RunId;
    readonly rootTurnIds?: readonly TurnId[] | undefined;
    readonly status: 'canceled' | 'timeout' | 'failed' | 'partial';
    readonly error: ErrorBody;
  }): Promise<readonly TurnId[]>;
  /**
   * The turns that `endSubtrees` could not end, with the cause. No worker runs them any more, and the sweep tries again
   * to end them.
   */
  readonly unended: readonly { readonly turnId: TurnId; readonly error: ErrorBody }[];
  /**
   * Makes several turns, in as many statements as one; without a calling turn they are the roots of one run. None is awaited
   * by itself: `joinTurns` joins them.
   *
   * @param options.runBudget - From outside: what the run may use.
   * @throws KernelError `delegation_denied`, `box_not_authorized`, `fan_out_exceeded`, `depth_exceeded`, `budget_exceeded`.
   */
  submitTurns(
    requests: readonly SubmitTurnRequest[],
    options?: { readonly runBudget?: BudgetInput | undefined },
  ): Promise<readonly TurnRef[]>;
  /**
   * Joins turns into a batch: all made by this primitive, or all of earlier ones, which the caller must be allowed to read.
   *
   * @throws KernelError `not_found`, `box_not_authorized`, `delegation_cycle`.
   */
  joinTurns(turnIds: readonly TurnId[], request?: JoinRequest): Promise<BatchRef>;
  /**
   * Ends the calling turn with this deliverable. Cannot be combined with other effects. The call must be the only one of its
   * message, and meet what the turn must end with (docs/reference/turns.md, "Ends"); else it fails, and the turn goes on.
   *
   * @throws KernelError `payload_too_large`; `bad_request` when no turn calls.
   */
  endTurn(deliverable: JsonValue): void;
}

/** What handlers of the kernel work with beside that. */
export interface KernelTools extends HandlerTools {
  /** The call of the turn that asks. */
  readonly toolCallId: ToolCallId | undefined;
  /** Adds a handoff with the first events of its log. */
  addHandoff(handoff: NewHandoff): void;
  /** Says of handoffs that were added how far their targets read the session that is handed on. */
  noteHead(handoffIds: readonly HandoffId[], sessionHead: number): void;
  /** Leaves the call open, for so long at most: something else than a turn or batch will answer it. */
  waitElsewhere(deadlineMs: number): void;
  /** Writes a line to the log once the primitive is committed. */
  logLater(event: string, fields: Readonly<Record<string, unknown>>): void;
}

/** A primitive: its arguments, and what it does. The built-in ones are made of this very interface. */
export interface Handler<I = unknown> {
  readonly description: string;
  readonly input: z.ZodType<I>;
  /** The schema that models are shown; default: that of `input`. */
  readonly parameters?: JsonValue;
  /** True: a turn may ask for the same again and again with nothing new to go by. Rule: docs/reference/budgets.md, "Loop guard". */
  readonly repeatable?: boolean;
  /** Optional arguments that no turn can use: of the kernel's own primitives models are not shown them. */
  readonly outsideOnly?: readonly string[];
  /** What of an answer is a failure: recorded, and told to the caller as one. Default: no answer is. @internal */
  failureOf?(answer: JsonValue): ErrorBody | undefined;
  /** True: models are not shown it, and their calls are refused. @internal */
  isOff?(): boolean;
  /** True: for turns of the kernel's own alone. No list has it, and no door takes it. @internal */
  readonly isInternal?: boolean;
  /** True: its arguments name profiles. Models are then told which profiles their agent may reach. */
  readonly namesProfiles?: boolean;
  /** The profiles it will ask `findProfile` for, as far as the arguments tell: they are then loaded with the caller. */
  profileNames?(input: I): readonly string[];
  /**
   * Its effects are what it gathers and writes through its tools. It may run again when its transaction lost a race or its
   * connection, so it must have no other effect.
   */
  handle(input: I, tools: HandlerTools): JsonValue | Promise<JsonValue>;
}
