/**
 * The message with which one agent hands its context to another. Source: docs/reference/tape.md, "Handoffs to other
 * agents".
 */

import type { AgentId, JsonObject } from '../base/index.js';
import { agentLabel } from '../base/index.js';
import { CARD_TYPES } from '../card/index.js';
import type { Handover } from '../packing/index.js';
import type { ContextHandoff } from './primitive.js';

export interface HandoffMessage {
  readonly from: AgentId;
  readonly to: AgentId;
  /** Given names of agents, by id. */
  readonly names?: ReadonlyMap<string, string>;
  readonly at: Date;
  /** A reference to the tape, with its frozen head. */
  readonly tapeRef: string;
}

/** The content of the card: these fields in this order; `intention` is present only if it was given. */
export function buildHandoff(
  { reason, summary, intention, ownership = 'share' }: ContextHandoff,
  { from, to, at, tapeRef, names = new Map() }: HandoffMessage,
): JsonObject {
  const content: JsonObject = {
    reason,
    summary,
    tape_ref: tapeRef,
    ...(intention === undefined ? {} : { intention: readIntention(intention) }),
    ownership,
  };
  return {
    type: CARD_TYPES.handoff,
    from: agentLabel(from, names) ?? `agent:${from}`,
    to: agentLabel(to, names) ?? `agent:${to}`,
    // The format has a precision of seconds.
    timestamp: at.toISOString().replace(/\.\d+Z$/, 'Z'),
    content,
  };
}

const readIntention = ({
  next_steps,
  context_summary,
}: NonNullable<ContextHandoff['intention']>): JsonObject => ({
  next_steps,
  ...(context_summary === undefined ? {} : { context_summary }),
});

/** The target that a `target_ref` names: an agent, a profile, or either of them. */
export interface HandoffTarget {
  readonly kind: 'agent' | 'profile' | 'any';
  readonly name: string;
}

export function readHandoffTarget(ref: string): HandoffTarget {
  for (const kind of ['agent', 'profile'] as const)
    if (ref.startsWith(`${kind}:`)) return { kind, name: ref.slice(kind.length + 1).trim() };
  return { kind: 'any', name: ref };
}

/** Packs the target's context, in addition to the tape: the message, the next steps, and the agent that handed over. */
export function handoffHandover(
  budget: { readonly budget_tokens?: number | undefined; readonly budget_strategy?: string | undefined } = {},
): Handover {
  const { budget_tokens, budget_strategy } = budget;
  return {
    context_packing_config: {
      pack_arguments: [
        { arg_key: 'handoff', as_card_type: CARD_TYPES.handoff, card_metadata: {} },
        { arg_key: 'instruction', as_card_type: CARD_TYPES.instruction, card_metadata: {} },
      ],
      inherit_context: { include_parent: true },
      ...(budget_tokens === undefined ? {} : { budget_tokens }),
      ...(budget_strategy === undefined ? {} : { budget_strategy }),
    },
  };
}
