/** The rows that a submission writes. */
import type {
  AgentId,
  BatchId,
  BatchKind,
  BoxId,
  BudgetLimits,
  CardId,
  ContextBoxDraft,
  ErrorBody,
  HandoffId,
  HandoffMode,
  HandoffPhase,
  HandoffRequestType,
  HandoffSessionId,
  JsonObject,
  JsonValue,
  NewCard,
  ProfileId,
  ProjectId,
  RunId,
  TicketId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';

export interface NewContextBox extends ContextBoxDraft {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId | null;
  readonly makerAgentId: AgentId;
}

export interface NewTape {
  readonly id: BoxId;
  readonly projectId: ProjectId;
  readonly ownerAgentId: AgentId;
}

export interface NewAgent {
  readonly id: AgentId;
  readonly projectId: ProjectId;
  readonly name: string;
  readonly profileId: ProfileId;
  readonly ownerAgentId: AgentId;
  readonly derivedFrom: AgentId | null;
  readonly tapeBoxId: BoxId;
  /** True when any agent whose policy reaches the new agent's profile may give it turns. */
  readonly isShared?: boolean;
}

export interface NewRun {
  readonly id: RunId;
  readonly projectId: ProjectId;
  readonly rootTurnId: TurnId;
  /** The number of turns that the run begins with; default 1. */
  readonly turnCount?: number;
  readonly traceparent: string | null;
}

export interface NewTurn {
  readonly id: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly agentId: AgentId;
  readonly profileId: ProfileId;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly depth: number;
  readonly primitive: string;
  readonly channelId: string;
  readonly maxSteps: number;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly workerTarget: string;
  readonly deadlineMs: number | null;
  /** True when the end of the parent turn started this turn. */
  readonly isWoken?: boolean;
  /** True when a call of the parent waits for the turn. Then the turn's deadline is not later than the parent's. */
  readonly isWaitedFor?: boolean;
  readonly traceparent: string | null;
  /** True for an existing agent. It may have a turn under way, so its row must be locked before this write. */
  readonly isReuse: boolean;
  /** The nearest account, followed by the amounts that it has reserved for the turn. Absent when there is no account. */
  readonly budgetId?: string;
  readonly allottedTokens?: number | null;
  readonly allottedCost?: number | null;
  readonly allottedSteps?: number | null;
  /** The end of the account's time. The turn's deadline is not later. */
  readonly budgetDeadlineAt?: string | null;
  /** True when the turn's row counts its spending. */
  readonly isMetered?: boolean;
  /** The batches that wait for the turn from the beginning. */
  readonly batchIds?: readonly BatchId[];
  /** −100 to 100 within the project, default 0. Turns with a higher priority are served sooner. */
  readonly priority?: number;
  /** The migration that a build must know to read the turn. Default: the format of this build. */
  readonly format?: number;
  /** The beginning of the turn's view. Absent: the view begins where the tape's state says. */
  readonly ownViewAnchor?: number;
  readonly ownViewPosition?: number;
  /** The selector that makes the turn's prompts. Absent: the prompts show the turn's view only. */
  readonly selector?: string;
  /** True when the end of the turn is reported even if no session asks for it. */
  readonly isTold?: boolean;
  /**
   * The turn whose first model call this turn waits for, to share its prompt cache. The turn's own id means that the others wait for
   * it.
   */
  readonly warmTurnId?: TurnId;
}

export interface NewBatch {
  readonly id: BatchId;
  readonly projectId: ProjectId;
  readonly runId: RunId | null;
  readonly turnId: TurnId | null;
  readonly toolCallId: ToolCallId | null;
  readonly primitive: string;
  readonly kind: BatchKind;
  readonly turnIds: readonly TurnId[];
  /** The counters include members that have already ended, and no new members. */
  readonly remaining: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly minSuccess: number | null;
  readonly failFast: boolean;
  readonly deadlineMs: number | null;
}

export interface NewGrant {
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly boxId: BoxId;
  readonly mode: 'read' | 'append';
  /** The last readable position of a tape. Null: all positions, including later ones. */
  readonly uptoPosition: number | null;
  readonly source: string;
  readonly expiresAt: string | null;
}

export interface NewOperation {
  readonly projectId: ProjectId;
  readonly idempotencyKey: string;
  readonly primitive: string;
  readonly requestHash: string;
  readonly response: JsonValue;
  readonly awaitedTurnId: TurnId | null;
  readonly awaitedBatchId?: BatchId | null;
  readonly doorJobId: string | null;
  /** True when no turn made the submission. It is refused while its project is archived. */
  readonly isOutside?: boolean;
  /** The facts that decided the submission, which were read earlier. The submission is refused unless they still hold. */
  readonly seen?: SeenCaller | undefined;
}

/** Versions of rows are their `xmin`, which differs after each change of the row. */
export interface SeenCaller {
  readonly projectVersion: string;
  readonly sourceId: AgentId;
  readonly sourceVersion: string;
  /** The profile versions that must still be current. */
  readonly profileIds: readonly ProfileId[];
}

/**
 * The calling turn must still be running at this epoch and be held by this worker. Without these two values, the turn must not have
 * ended.
 */
export interface Fence {
  readonly turnId: TurnId;
  readonly epoch: number | null;
  readonly holderId: WorkerId | null;
  /** True: the turn must have ended, because its end starts the new turns. */
  readonly isEnded?: boolean;
  /** The run of the new turns below the turn; its lock is taken first. Null when there are no new turns. */
  readonly spawnRunId?: RunId | null;
  /** The most turns that the run may have, unless the run's own account limits them. Absent or null: no limit. */
  readonly maxRunTurns?: number | null;
}

/** The call of the fenced turn that waits for the result of the submission, and the longest wait. */
export interface CallWait {
  readonly toolCallId: ToolCallId;
  /** Null when the call waits for a turn: the turn itself names its call. */
  readonly batchId: BatchId | null;
  readonly deadlineMs: number;
}

/** The account of a new run or capped subtree, with the amounts that its first turn has got. */
export interface NewBudget {
  readonly id: RunId | TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly parentId: string | null;
  readonly topDepth: number;
  readonly limits: BudgetLimits;
  /** The seconds from now to the end of the account's time. Null: the same end as the parent's. */
  readonly seconds: number | null;
  readonly parentDeadlineAt: string | null;
  readonly tokensReserved: number;
  readonly costReserved: number;
  readonly stepsReserved: number;
  readonly turnsUsed: number;
}

/** A handoff with the first events of its log. */
export interface NewHandoff {
  readonly id: HandoffId;
  readonly projectId: ProjectId;
  readonly phase: HandoffPhase;
  readonly isEnded: boolean;
  readonly sourceAgent: string;
  readonly sourceAgentId: AgentId;
  readonly targetAgent: string;
  readonly platform: string;
  readonly runId: string | null;
  readonly parentTurnId: TurnId | null;
  readonly toolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly contextBoxId: BoxId;
  readonly taskCardId: CardId;
  readonly contextCardId: CardId | null;
  readonly payloadCardId: CardId | null;
  readonly workerTarget: string | null;
  readonly turnId: TurnId | null;
  readonly ticketId: TicketId | null;
  readonly rootHandoffId: HandoffId;
  readonly parentHandoffId: HandoffId | null;
  readonly depth: number;
  readonly mode: HandoffMode;
  /** Set for a hop and its compensation. */
  readonly hop: number | null;
  readonly compensates: HandoffId | null;
  /** The handoff whose result this handoff has from the beginning. */
  readonly cachedFrom: HandoffId | null;
  /** Set for a handoff whose result may answer identical handoffs. */
  readonly cacheKey: string | null;
  readonly cacheSeconds: number | null;
  readonly decision: JsonObject | null;
  readonly error: ErrorBody | null;
  readonly timeoutMs: number;
  readonly retry: JsonObject;
  readonly idempotencyKey: string | null;
  readonly requestHash: string;
  /** The URL to which the end is sent; null when it is not sent. */
  readonly callbackUrl: string | null;
  /** The agent on whose tape the end is reported; null when it is not reported. */
  readonly toldAgentId: AgentId | null;
  /** True together with such an agent, otherwise null. */
  readonly notifies: true | null;
  /** This and the next fields are set for a task from another platform; otherwise all of them are null. */
  readonly publicAgent: string | null;
  readonly conversation: string | null;
  readonly messageId: string | null;
  readonly servingAgentId: AgentId | null;
  /** The session that is handed on, and the form in which it is handed on; null when no session is. */
  readonly sessionId: HandoffSessionId | null;
  readonly sessionRequest: HandoffRequestType | null;
  readonly sessionHead: number | null;
  readonly events: readonly { readonly type: string; readonly data: JsonObject }[];
}

/** Everything that a primitive writes, collected for the one statement. */
export interface Submission {
  readonly cards: NewCard[];
  readonly contextBoxes: NewContextBox[];
  readonly tapes: NewTape[];
  readonly agents: NewAgent[];
  readonly runs: NewRun[];
  readonly budgets: NewBudget[];
  readonly turns: NewTurn[];
  readonly grants: NewGrant[];
  readonly batches: NewBatch[];
  readonly handoffs: NewHandoff[];
}

export const emptySubmission = (): Submission => ({
  cards: [],
  contextBoxes: [],
  tapes: [],
  agents: [],
  runs: [],
  budgets: [],
  turns: [],
  grants: [],
  batches: [],
  handoffs: [],
});
