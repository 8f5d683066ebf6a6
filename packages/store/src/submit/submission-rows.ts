/** What a submission writes, row by row. */
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
  /** Anyone whose policy reaches its profile may give it turns. */
  readonly isShared?: boolean;
}

export interface NewRun {
  readonly id: RunId;
  readonly projectId: ProjectId;
  readonly rootTurnId: TurnId;
  /** Turns that it begins with; default 1. */
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
  /** True: started by the end of its parent turn. */
  readonly isWoken?: boolean;
  /** True: a call of its parent waits for it, so its deadline is not later than its parent's. */
  readonly isWaitedFor?: boolean;
  readonly traceparent: string | null;
  /** True for an agent that exists already: it may have a turn in hand, so its row must be locked before this write. */
  readonly isReuse: boolean;
  /** The nearest account and what it has reserved for the turn; absent: none. */
  readonly budgetId?: string;
  readonly allottedTokens?: number | null;
  readonly allottedCost?: number | null;
  readonly allottedSteps?: number | null;
  /** The end of the account's time: the turn has no later one. */
  readonly budgetDeadlineAt?: string | null;
  /** True: what it spends is kept in its row. */
  readonly isMetered?: boolean;
  /** The batch that waits for it from the beginning. */
  readonly batchIds?: readonly BatchId[];
  /** −100 to 100, the higher the sooner, within its project; default 0. */
  readonly priority?: number;
  /** The migration that a build must know to read it; default: this build's format. */
  readonly format?: number;
  /** Where its view begins; absent: as its tape says. */
  readonly ownViewAnchor?: number;
  readonly ownViewPosition?: number;
  /** What makes its prompts; absent: nothing but its view. */
  readonly selector?: string;
  /** True: its end is told, also where no session asks for it. */
  readonly isTold?: boolean;
  /** The turn whose first model call it waits for, to share its prompt cache; its own id: the others wait for it. */
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
  /** Of members that have ended already; new ones have not. */
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
  /** The last readable position of a tape; null = all, also what comes later. */
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
  /** Not of a turn: refused while its project is archived. */
  readonly isOutside?: boolean;
  /** What decided it was read earlier: refused unless it is still so. */
  readonly seen?: SeenCaller | undefined;
}

/** Versions of rows are their `xmin`: another one after each change of the row. */
export interface SeenCaller {
  readonly projectVersion: string;
  readonly sourceId: AgentId;
  readonly sourceVersion: string;
  /** Current versions of their profiles. */
  readonly profileIds: readonly ProfileId[];
}

/** The calling turn must still be running at this epoch in this worker's hands, or, without these, must not have ended. */
export interface Fence {
  readonly turnId: TurnId;
  readonly epoch: number | null;
  readonly holderId: WorkerId | null;
  /** True: the turn must have ended; its end starts the new turns. */
  readonly isEnded?: boolean;
  /** The run of the new turns below it, whose lock comes first; null when there are none. */
  readonly spawnRunId?: RunId | null;
  /** How many turns that run may have, unless its own account limits them; absent or null: no limit. */
  readonly maxRunTurns?: number | null;
}

/** The call of the fenced turn waits for what the submission makes, for so long. */
export interface CallWait {
  readonly toolCallId: ToolCallId;
  /** Null: it waits for a turn, which names its call itself. */
  readonly batchId: BatchId | null;
  readonly deadlineMs: number;
}

/** The account of a new run or capped subtree, with what its first turn has been given. */
export interface NewBudget {
  readonly id: RunId | TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly parentId: string | null;
  readonly topDepth: number;
  readonly limits: BudgetLimits;
  /** From now to the end of its time; null: as the parent's. */
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
  /** Of a hop and of its compensation. */
  readonly hop: number | null;
  readonly compensates: HandoffId | null;
  /** The handoff whose result it has from the beginning. */
  readonly cachedFrom: HandoffId | null;
  /** Of one that identical ones may be answered with. */
  readonly cacheKey: string | null;
  readonly cacheSeconds: number | null;
  readonly decision: JsonObject | null;
  readonly error: ErrorBody | null;
  readonly timeoutMs: number;
  readonly retry: JsonObject;
  readonly idempotencyKey: string | null;
  readonly requestHash: string;
  /** Where its end is sent to; null: nowhere. */
  readonly callbackUrl: string | null;
  /** The agent on whose tape its end is told; null: none. */
  readonly toldAgentId: AgentId | null;
  /** True with such an agent, else null. */
  readonly notifies: true | null;
  /** Of a task that another platform gives; else all of them are null. */
  readonly publicAgent: string | null;
  readonly conversation: string | null;
  readonly messageId: string | null;
  readonly servingAgentId: AgentId | null;
  /** The session that is handed on, and how; null: none is. */
  readonly sessionId: HandoffSessionId | null;
  readonly sessionRequest: HandoffRequestType | null;
  readonly sessionHead: number | null;
  readonly events: readonly { readonly type: string; readonly data: JsonObject }[];
}

/** Everything a primitive writes, gathered before the one statement. */
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
