// Loaded by each worker: `boxcar worker --plugin ./plugin.js`. Adds the primitive `review_change` and a tool.
import { z } from 'zod';

export default function plugin(runtime) {
  runtime.registerTool({
    name: 'risk_of',
    description: 'Rates the risk of touching a file.',
    input: z.strictObject({ path: z.string() }),
    isReadOnly: true,
    run: ({ path }) => ({ path, risk: path.includes('auth') ? 'high' : 'low', worker: process.pid }),
  });

  runtime.registerHandler('review_change', {
    description: 'Have a change reviewed by a fresh reviewer, with the house rules as context.',
    input: z.strictObject({
      path: z.string().min(1),
      rules_box_id: z.string().optional(),
      wait: z.boolean().default(true),
    }),
    handle: async (
      { path, rules_box_id, wait },
      { packer, ctx, findProfile, checkDelegation, submitTurn },
    ) => {
      const profile = await findProfile('reviewer');
      checkDelegation({ profileName: profile.name, tags: profile.tags });
      const { contextBoxId } = await packer.packContext({
        projectId: ctx.projectId,
        toolSuffix: ctx.primitive,
        sourceAgentId: ctx.source.agentId,
        arguments: { profile_name: profile.name, instruction: { path }, rules: rules_box_id },
        handover: {
          context_packing_config: {
            pack_arguments: [{ arg_key: 'instruction' }],
            inherit_context: { include_boxes_from_args: ['rules'], include_parent: true },
          },
        },
      });
      const turn = await submitTurn({ target: { kind: 'new', profile }, contextBoxId, wait });
      return { status: 'accepted', turn_id: turn.turnId, context_box_id: contextBoxId };
    },
  });
}
