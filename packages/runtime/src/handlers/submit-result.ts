import { type SubmitResult, submitResultSchema } from '@boxcar/kernel';
import type { Handler } from '../handler/index.js';

export const submitResult: Handler<SubmitResult> = {
  description: 'Deliver the result of this task and end it. Call it alone.',
  input: submitResultSchema,
  // A refused call is repeated; an accepted call ends the turn.
  repeatable: true,
  handle: async ({ result }, tools) => {
    tools.endTurn(result);
    return { status: 'accepted' };
  },
};
