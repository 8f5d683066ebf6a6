import {
  AUTO_HANDOFF_ANCHOR,
  CARD_TYPES,
  carryCompaction,
  handoffOf,
  handoffText,
  type JsonObject,
  KernelError,
  TAPE_HANDOFF,
  type TapeHandoff,
  tapeHandoffSchema,
} from '@boxcar/kernel';
import { findAnchorOfTurn } from '@boxcar/store';
import type { Handler, HandlerTools } from '../handler/index.js';
import type { EntryInput, Tape } from '../tape/index.js';
import { type TapeTarget, toTarget } from '../tape/index.js';

/** The calling turn's own tape, otherwise the tape of the agent that submits. */
function ownTape({ ctx }: HandlerTools): TapeTarget {
  if (ctx.parent?.agentId === ctx.source.agentId) return { box: ctx.parent.outputBoxId };
  if (!ctx.source.isOperator) return { agent: ctx.source.agentId };
  throw new KernelError('bad_request', {
    message: 'arguments.tape: is required here: the operator has no tape of its own.',
    details: { field: 'arguments.tape' },
  });
}

/**
 * The cards that the kernel has left out of the calling turn's context. The turn's own anchors continue to leave them out,
 * however the turn named its tape.
 */
async function carried(
  { ctx, db }: HandlerTools,
  { boxId }: Pick<Tape, 'boxId'>,
): Promise<JsonObject | undefined> {
  const { parent } = ctx;
  if (parent?.outputBoxId !== boxId) return undefined;
  const compacted = await findAnchorOfTurn(db, parent.turnId, AUTO_HANDOFF_ANCHOR);
  return compacted && carryCompaction(compacted);
}

const compactedHandoff = (of: {
  readonly name: string;
  readonly state: JsonObject | undefined;
  readonly compaction: JsonObject;
}): readonly EntryInput[] => [
  {
    kind: 'draft',
    draft: {
      kind: 'anchor',
      card: {
        type: CARD_TYPES.anchor,
        role: 'assistant',
        content: { kind: 'json', data: of.state ?? null },
        metadata: { name: of.name, ...of.compaction },
      },
      payload: null,
      anchorName: of.name,
      meta: null,
    },
  },
  { kind: 'event', name: 'handoff', data: { name: of.name } },
];

/**
 * Writes an anchor together with the result of its call. The anchor's place is after the step that requests it
 * (docs/reference/views.md).
 */
export const tapeHandoff: Handler<TapeHandoff> = {
  description: TAPE_HANDOFF.description,
  input: tapeHandoffSchema,
  parameters: TAPE_HANDOFF.parameters,
  handle: async (input, tools) => {
    const { ctx } = tools;
    const target = input.tape === undefined ? ownTape(tools) : toTarget(input.tape);
    const tape = await tools.tape(target);
    const { name, state } = handoffOf(input);
    const by = ctx.parent === undefined ? {} : { turnId: ctx.parent.turnId };
    const compaction = await carried(tools, tape);
    if (compaction === undefined)
      await tape.handoff(name, { ...(state === undefined ? {} : { state }), ...by });
    else
      await tape.append(compactedHandoff({ name, state, compaction }).map((entry) => ({ ...entry, ...by })));
    return handoffText(name);
  },
};
