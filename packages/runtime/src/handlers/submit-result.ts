import { checkResult, type SubmitResult, submitResultSchema } from '@boxcar/kernel';
import { expandContexts } from '@boxcar/store';
import type { Handler } from '../handler.js';

export const submitResult: Handler<SubmitResult> = {
  description: 'Deliver the result of this task and end it. Call it alone.',
  input: submitResultSchema,
  // Refused, it is called again; accepted, it ends the turn.
  repeatable: true,
  handle: async ({ result }, tools) => {
    const { parent } = tools.ctx;
    if (parent !== undefined) {
      const cards = (await expandContexts(tools.db, [parent.contextBoxId])).get(parent.contextBoxId) ?? [];
      const bound = cards.find(
        ({ card, rule }) => rule === 'pack_arguments' && card.content.kind === 'fields_schema',
      );
      checkResult(
        result,
        bound?.card.content.kind === 'fields_schema' ? bound.card.content.fields : undefined,
      );
    }
    tools.endTurn(result);
    return { status: 'accepted' };
  },
};
