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
  /** The calling turn, when the caller is an agent at work. */
  readonly parent:
    | {
        readonly turnId: TurnId;
        readonly runId: RunId;
        readonly agentId: AgentId;
        readonly depth: number;
        /** The budget account of the turn; null = none. */
        readonly budgetId: string | null;
        readonly priority: number;
        readonly contextBoxId: BoxId;
        readonly outputBoxId: BoxId;
        /** From the calling turn to the root. */
        readonly chain: readonly ChainLink[];
      }
    | undefined;
}

/** A turn that this primitive makes. It exists after the primitive's transaction has committed. */
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
  /** A sealed box made by `packer`, or a box that the caller may read. */
  readonly contextBoxId: BoxId;
  /**
   * Where access is checked: whether the caller may reach the target and hand on the context. With `actor` (the default) the
   * submission checks the caller's delegation policy, `checkReuse` and the right to read. With `trusted` the handler has already
   * checked access.
   */
  readonly access?: 'actor' | 'trusted' | undefined;
  /** True: the end of the turn is the answer of this primitive. A primitive can wait for at most one turn or batch. */
  readonly wait?: boolean | undefined;
  readonly deadlineMs?: number | undefined;
  /**
   * The budget of the turn and of all turns below it; without a calling turn it limits the run. Rule: docs/reference/budgets.md.
   */
  readonly budget?: BudgetInput | undefined;
  /** How errors name the target argument, for example `tasks.3.target_ref`. */
  readonly argument?: string | undefined;
  /** −100 to 100 within the project; higher priorities run sooner. Default: the priority of the calling turn, else 0. */
  readonly priority?: number | undefined;
  /**
   * Where the turn's view of its tape begins. Default: the setting of its session, else of its profile. Rule:
   * docs/reference/views.md, "Where a view begins".
   */
  readonly view?: TurnView | undefined;
  /** The handoff that the turn serves, and the target whose workers may take it; null: the workers of its profile. @internal */
  readonly serves?: { readonly workerTarget: string | null } | undefined;
}

export interface JoinRequest {
  /** True (default): the end of the batch is the answer of this primitive. */
  readonly wait?: boolean | undefined;
  /** Default 3,600,000 when waiting, else none. At the deadline turns made here are ended; for other turns only the wait ends. */
  readonly deadlineMs?: number | undefined;
  /** Turns made here only: the first failure ends the remaining turns. */
  readonly isFailFast?: boolean | undefined;
  /** Turns made here only: this number of successes is enough, and the remaining turns are ended. */
  readonly minSuccess?: number | undefined;
  /**
   * Turns made here only: one turn starts first, the others after its first model call has filled the prompt cache
   * (docs/reference/primitives.md, "fork_join").
   */
  readonly warmsCache?: boolean | undefined;
  /** How errors name the nth turn. Default `turn_ids.<n>`. */
  readonly argumentOf?: ((index: number) => string) | undefined;
}

export interface BatchRef {
  readonly batchId: BatchId;
  readonly turnIds: readonly TurnId[];
}

export interface NewAgentRequest {
  readonly profile: ProfileRow;
  /** Unique in the project. Default: the profile's name and the agent's id. */
  readonly name?: string | undefined;
  /** Lineage: the predecessor of the agent. */
  readonly derivedFrom?: AgentId | undefined;
  /** Any agent whose policy reaches its profile may give it turns; default: false. */
  readonly isShared?: boolean | undefined;
  /** From `newId`, when the id must be known before the agent is made. */
  readonly agentId?: AgentId | undefined;
}

/**
 * The tools of a handler. Effects are gathered and committed together with the answer, in one transaction. Calls that the handler
 * has not awaited are completed first; when one of these calls fails, the submission is refused.
 */
export interface HandlerTools {
  /** For reads: sees the rows that the primitive has written so far, and opens no transaction when it has written nothing. */
  readonly db: Queryable;
  /**
   * The primitive's transaction. It begins with the first statement run on it, and holds a connection from then on. Until the
   * handler answers, it must not take a second connection and must wait only for the database: a transaction that idles for 8 s
   * is ended.
   */
  readonly tx: Tx;
  /** Aborts at the deadline of the handler, and when the handler's turn is lost. The effects of the handler are then discarded. */
  readonly signal: AbortSignal;
  /** Packs in the caller's name; boxes and cards become part of the primitive's transaction. */
  readonly packer: HandlerPacker;
  readonly ctx: CallerContext;
  /**
   * An existing tape, used in the caller's name with the caller's rights. Appended entries commit with the primitive.
   *
   * @throws KernelError `not_found`.
   */
  tape(target: TapeTarget): Promise<Tape>;
  /** The current version, or `version`. @throws KernelError `not_found`. */
  findProfile(name: string, version?: number): Promise<ProfileRow>;
  /** By id or name. @throws KernelError `not_found`. */
  findAgent(ref: string): Promise<AgentRow>;
  /** Agents by id or name, in the order of the references; undefined = no such agent. One statement. */
  findAgents(refs: readonly string[]): Promise<readonly (AgentRow | undefined)[]>;
  /**
   * Checks the caller's policy before anything is packed. `submitTurn` and `submitTurns` check it too.
   *
   * @throws KernelError `delegation_denied` unless the caller's policy allows the target.
   */
  checkDelegation(target: DelegationTarget): void;
  /**
   * Checks whether the caller may give turns to an existing agent. Allowed are the operator, the agent itself, its maker, and
   * agents that may append to its tape without an expiry; for a shared agent any caller. This check is in addition to the policy.
   *
   * @throws KernelError `delegation_denied`.
   */
  checkReuse(agent: AgentRow): void;
  /** Checks the fan-out before anything is packed. `submitTurns` checks it too. @throws KernelError `fan_out_exceeded`. */
  checkFanOut(turns: number): void;
  /**
   * Makes an agent without a turn; the caller owns the agent. Turns can be submitted to it at once, as to any agent.
   *
   * @throws KernelError `agent_exists` when the name is taken; `bad_request` for a name that is blank, too long or an id, or,
   * when the caller is an agent, the name of a profile.
   */
  createAgent(request: NewAgentRequest): Promise<AgentRow>;
  /** @throws KernelError `delegation_denied`, `box_not_authorized`, `depth_exceeded`, `delegation_cycle`, `budget_exceeded`. */
  submitTurn(request: SubmitTurnRequest): Promise<TurnRef>;
  /** Rings for turns that the primitive's transaction has dispatched, after it has committed. */
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
   * The turns that `endSubtrees` could not end, with the cause. No worker runs these turns any more, and the sweep tries again to
   * end them.
   */
  readonly unended: readonly { readonly turnId: TurnId; readonly error: ErrorBody }[];
  /**
   * Makes several turns with as many statements as one turn needs; without a calling turn they are the roots of one run. The
   * primitive does not wait for these turns: `joinTurns` joins them.
   *
   * @param options.runBudget - For calls from outside: the budget of the run.
   * @throws KernelError `delegation_denied`, `box_not_authorized`, `fan_out_exceeded`, `depth_exceeded`, `budget_exceeded`.
   */
  submitTurns(
    requests: readonly SubmitTurnRequest[],
    options?: { readonly runBudget?: BudgetInput | undefined },
  ): Promise<readonly TurnRef[]>;
  /**
   * Joins turns into a batch. Either this primitive made all of the turns, or all are earlier turns that the caller is allowed to
   * read.
   *
   * @throws KernelError `not_found`, `box_not_authorized`, `delegation_cycle`.
   */
  joinTurns(turnIds: readonly TurnId[], request?: JoinRequest): Promise<BatchRef>;
  /**
   * Ends the calling turn with this deliverable. Cannot be combined with other effects. The call must be the only call of its
   * message, and must meet the conditions for the turn's end (docs/reference/turns.md, "Ends"). Otherwise the call fails and the
   * turn continues.
   *
   * @throws KernelError `payload_too_large`; `bad_request` when no turn calls.
   */
  endTurn(deliverable: JsonValue): void;
}

/** Further tools for the kernel's own handlers. */
export interface KernelTools extends HandlerTools {
  /** The tool call of the turn that asks. */
  readonly toolCallId: ToolCallId | undefined;
  /** Adds a handoff with the first events of its log. */
  addHandoff(handoff: NewHandoff): void;
  /** Records in added handoffs how far their targets read the session that is handed on. */
  noteHead(handoffIds: readonly HandoffId[], sessionHead: number): void;
  /** Leaves the call open for at most this time: something other than a turn or batch will answer it. */
  waitElsewhere(deadlineMs: number): void;
  /** Writes a line to the log after the primitive is committed. */
  logLater(event: string, fields: Readonly<Record<string, unknown>>): void;
}

/** A primitive: its arguments and its function. The built-in primitives use this same interface. */
export interface Handler<I = unknown> {
  readonly description: string;
  readonly input: z.ZodType<I>;
  /** The schema that models see; default: the schema of `input`. */
  readonly parameters?: JsonValue;
  /** True: a turn may repeat the same call although it has learned nothing new. Rule: docs/reference/budgets.md, "Loop guard". */
  readonly repeatable?: boolean;
  /** Optional arguments that no turn can use. The schemas of the kernel's own primitives omit these arguments for models. */
  readonly outsideOnly?: readonly string[];
  /**
   * Returns the error of an answer that is a failure; the failure is recorded and reported to the caller. Default: every answer
   * is a success. @internal
   */
  failureOf?(answer: JsonValue): ErrorBody | undefined;
  /** True: models do not see the primitive, and their calls to it are refused. @internal */
  isOff?(): boolean;
  /** True: only the kernel's own turns may use the primitive. No list contains it, and no door accepts it. @internal */
  readonly isInternal?: boolean;
  /** True: its arguments name profiles. Models then get the list of profiles that their agent may reach. */
  readonly namesProfiles?: boolean;
  /**
   * The profiles that the handler will request from `findProfile`, as far as its arguments show. They are loaded with the caller.
   */
  profileNames?(input: I): readonly string[];
  /**
   * The handler's effects are its answer and its calls and writes through `tools`. It may run again when its transaction lost a
   * race or its connection, so it must have no other effect.
   */
  handle(input: I, tools: HandlerTools): JsonValue | Promise<JsonValue>;
}
