import {
  type AgentId,
  type BoxId,
  buildCard,
  CARD_TYPES,
  type CardContent,
  type ErrorBody,
  type FinalStatus,
  type JsonObject,
  type JsonValue,
  type NewCard,
  type ProjectId,
  type ProviderData,
  type ToolCallId,
  type TurnId,
} from '@boxcar/kernel';
import type { CallSettlement, NewEntry, StepCommit, TurnEnding } from '@boxcar/store';
import { CHAIN_TOOL } from '../core/index.js';
import { deliverableOf, newId } from '../lib/index.js';

/** The facts about a turn that its end needs. */
export interface EndingTurn {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly primitive: string;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
}

export interface Ending {
  readonly status: FinalStatus;
  readonly deliverable: Extract<CardContent, { kind: 'text' | 'json' }>;
  readonly error: ErrorBody | null;
  readonly metadata?: JsonObject;
  /** Data that a provider attached to the answer that became the deliverable. */
  readonly providerData?: ProviderData;
}

export const entryOf = (kind: NewEntry['kind'], card: NewCard): NewEntry => ({
  kind,
  cardId: card.id,
  tokens: card.tokenEstimate,
});

/**
 * For cards that the kernel makes itself: the sizes of their parts were checked on arrival, and an end must never fail
 * because of its size.
 */
export const UNLIMITED = Number.POSITIVE_INFINITY;

/** How a call ended. */
export interface CallOutcome {
  readonly status: CallSettlement['status'];
  readonly result?: JsonValue;
  readonly error?: ErrorBody;
}

/** Builds the result card of a call. */
export function buildResult(
  call: {
    readonly toolCallId: ToolCallId;
    readonly turnId: TurnId;
    readonly name: string;
    readonly projectId: ProjectId;
  },
  outcome: CallOutcome,
  options: { readonly authorId: string; readonly isSanitized?: boolean; readonly maxBytes?: number },
): CallSettlement {
  const card = buildCard(
    {
      type: CARD_TYPES.toolResult,
      role: 'tool',
      content: {
        kind: 'tool_result',
        tool_call_id: call.toolCallId,
        name: call.name,
        status: outcome.status,
        ...(outcome.result === undefined ? {} : { result: outcome.result }),
        ...(outcome.error === undefined
          ? {}
          : {
              error: outcome.error as { code: string; message: string; details?: Record<string, JsonValue> },
            }),
      },
      metadata: { role: 'tool', ...(options.isSanitized === true ? { sanitized: true } : {}) },
      authorId: options.authorId,
      toolCallId: call.toolCallId,
    },
    { id: newId<'card'>(), projectId: call.projectId },
    options.maxBytes ?? UNLIMITED,
  );
  return { toolCallId: call.toolCallId, turnId: call.turnId, status: outcome.status, card };
}

/**
 * The settlement of the call that awaited this turn. The call always succeeds; its result has the status of the turn.
 */
function settlementOf(turn: EndingTurn, ending: Ending): TurnEnding['settles'] {
  if (!turn.isAwaited || turn.parentToolCallId === null || turn.parentTurnId === null) return null;
  const call = {
    toolCallId: turn.parentToolCallId,
    turnId: turn.parentTurnId,
    name: turn.primitive,
    projectId: turn.projectId,
  };
  const result: JsonValue = {
    status: ending.status,
    turn_id: turn.turnId,
    agent_id: turn.agentId,
    context_box_id: turn.contextBoxId,
    output_box_id: turn.outputBoxId,
    // A chain reads the results that it passes on from their boxes. With the results here, its own tape would hold all
    // of them.
    ...(turn.primitive === CHAIN_TOOL ? {} : { result: deliverableOf(ending.deliverable as JsonValue) }),
    ...(ending.error === null ? {} : { error: { code: ending.error.code, message: ending.error.message } }),
  };
  return buildResult(call, { status: 'success', result }, { authorId: turn.agentId });
}

/** The cards, entry and settlement of an end. Every end leaves exactly one deliverable. */
export function buildEnd(
  turn: EndingTurn,
  ending: Ending,
): Pick<StepCommit, 'cards' | 'entries'> & { readonly end: TurnEnding } {
  const card = buildCard(
    {
      type: CARD_TYPES.deliverable,
      role: 'assistant',
      content: ending.deliverable,
      metadata: { role: 'assistant', status: ending.status, ...ending.metadata },
      authorId: turn.agentId,
    },
    { id: newId<'card'>(), projectId: turn.projectId },
    UNLIMITED,
  );
  const { providerData } = ending;
  return {
    cards: [providerData === undefined ? card : { ...card, providerData }],
    entries: [entryOf('message', card)],
    end: {
      status: ending.status,
      deliverableCardId: card.id,
      error: ending.error,
      settles: settlementOf(turn, ending),
    },
  };
}

/** The deliverable of a turn that was ended before it answered: its last text, and the error. */
export function fallbackDeliverable(
  error: ErrorBody,
  stepCount: number,
  lastText: string | null,
): Ending['deliverable'] {
  return {
    kind: 'json',
    data: { error: { code: error.code, message: error.message }, steps: stepCount, last_text: lastText },
  };
}
