import {
  handoffOf,
  handoffText,
  KernelError,
  TAPE_HANDOFF,
  type TapeHandoff,
  tapeHandoffSchema,
} from '@boxcar/kernel';
import type { Handler, HandlerTools } from '../handler.js';
import { type TapeTarget, toTarget } from '../tape/tape-types.js';

/** The turn's own tape, else that of the agent in whose name it comes. */
function ownTape({ ctx }: HandlerTools): TapeTarget {
  if (ctx.parent?.agentId === ctx.source.agentId) return { box: ctx.parent.outputBoxId };
  if (!ctx.source.isOperator) return { agent: ctx.source.agentId };
  throw new KernelError('bad_request', {
    message: 'arguments.tape: is required here: the operator has no tape of its own.',
    details: { field: 'arguments.tape' },
  });
}

/** Writes an anchor with the result of its call. Its place is behind the step that asks for it (docs/views.md). */
export const tapeHandoff: Handler<TapeHandoff> = {
  description: TAPE_HANDOFF.description,
  input: tapeHandoffSchema,
  parameters: TAPE_HANDOFF.parameters,
  handle: async (input, tools) => {
    const { ctx } = tools;
    const target = input.tape === undefined ? ownTape(tools) : toTarget(input.tape);
    const tape = await tools.tape(target);
    const { name, state } = handoffOf(input);
    await tape.handoff(name, {
      ...(state === undefined ? {} : { state }),
      ...(ctx.parent === undefined ? {} : { turnId: ctx.parent.turnId }),
    });
    return handoffText(name);
  },
};
