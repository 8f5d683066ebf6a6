/** Handoffs of the project: the operator sees all, an agent only the handoffs that it requested. */
import { HANDOFF_STATUSES, type JsonObject } from '@boxcar/kernel';
import { findActor, listHandoffPage } from '@boxcar/runtime';
import { z } from 'zod';
import type { McpClientScope } from '../client-scope.js';
import { inputOf, outputOf, parseArguments, READS, type ToolDefinition, toJson } from '../tool/index.js';

const text = z.string().min(1);
const schema = z.strictObject({
  source_agent: text.optional(),
  target_agent: text.optional(),
  status: z.enum(HANDOFF_STATUSES).optional(),
  platform: text.optional(),
  run: text
    .optional()
    .describe(
      'The id of a run: of the caller, of the turn that asked for the handoff, or of the turn that serves it.',
    ),
  limit: z.int().min(1).max(200).optional().describe('Default 50.'),
  cursor: text.optional().describe('The next_cursor of the previous page.'),
});

async function list({ runtime, projectId, as }: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const asked = parseArguments(schema, args);
  const actor = await findActor(runtime.pool, projectId, as);
  const own = actor.agentId === actor.operatorId ? undefined : actor.agentName;
  if (own !== undefined && asked.source_agent !== undefined && asked.source_agent !== own)
    return { success: true, handoffs: [], next_cursor: null };
  const { handoffs, next_cursor } = await listHandoffPage(
    runtime,
    actor.projectId,
    { ...asked, source_agent: own ?? asked.source_agent },
    // For the operator: requests from outside may carry any source name.
    own === undefined ? {} : { agentId: actor.agentId },
  );
  return { success: true, handoffs: toJson(handoffs), next_cursor };
}

export const listHandoffs = (scope: McpClientScope): ToolDefinition => ({
  name: 'list_handoffs',
  title: 'List handoffs',
  description: 'Lists handoffs, the newest first, with their status and result.',
  input: inputOf(schema),
  output: outputOf(
    z.object({
      success: z.literal(true),
      handoffs: z.array(z.record(z.string(), z.unknown())),
      next_cursor: z.string().nullable(),
    }),
  ),
  scope: 'handoffs:read',
  annotations: READS,
  run: (args) => list(scope, args),
});
