import { type CreateBox, createBoxSchema, type GrantBox, grantBoxSchema } from '@boxcar/kernel';
import type { Handler } from '../handler/index.js';
import { nameOfSession } from '../submit/index.js';

export const createBox: Handler<CreateBox> = {
  description: 'Make a sealed box of new and existing cards. Later calls can pass it as context.',
  input: createBoxSchema,
  handle: async (input, { packer, ctx }) => ({
    box_id: await packer.createBox({
      projectId: ctx.projectId,
      sourceAgentId: ctx.source.agentId,
      cards: input.cards,
      cardIds: input.card_ids,
    }),
  }),
};

export const grantBox: Handler<GrantBox> = {
  description: 'Let another agent read (or append to) a box.',
  input: grantBoxSchema,
  handle: async (input, { packer, ctx, tape }) => {
    const { box_id: box, grantee } = input;
    await packer.grantBox({
      projectId: ctx.projectId,
      sourceAgentId: ctx.source.agentId,
      boxId: typeof box === 'string' ? box : (await tape(box)).boxId,
      grantee: typeof grantee === 'string' ? grantee : nameOfSession(grantee, 'arguments.grantee'),
      mode: input.mode,
      until: input.until,
    });
    return { granted: true };
  },
};
