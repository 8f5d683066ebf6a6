/** Turns that the client may see: an agent sees its own turns and the turns that it requested, the operator sees all. */
import { type JsonObject, KernelError, type ProjectId, tryParseId } from '@boxcar/kernel';
import { findActor } from '@boxcar/runtime';
import { seesTurn } from '@boxcar/store/report';
import { z } from 'zod';
import type { McpClientScope } from '../client-scope.js';
import {
  inputOf,
  outputOf,
  parseArguments,
  READS,
  type ToolCall,
  type ToolDefinition,
  toJson,
} from '../tool/index.js';
import { DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS, tellingProgress, unlessLate } from './wait.js';

const turnSchema = z.strictObject({ turn_id: z.string().min(1) });
const waitSchema = turnSchema.extend({
  timeout_seconds: z
    .number()
    .min(0.001)
    .max(MAX_WAIT_SECONDS)
    .optional()
    .describe(
      `The longest wait, in seconds; default ${DEFAULT_WAIT_SECONDS}. The turn continues after that.`,
    ),
});

const turn = z.object({
  turn_id: z.string(),
  status: z.string(),
  agent_id: z.string(),
  context_box_id: z.string(),
  output_box_id: z.string(),
  result: z.unknown().describe('Null until the turn has ended.'),
  error: z.record(z.string(), z.unknown()).optional(),
});
const output = z.object({ success: z.literal(true), turn });

/** @throws KernelError `not_found`, also for a turn that the client may not see. */
async function checkSeen({ runtime, projectId, as }: McpClientScope, turnId: string): Promise<ProjectId> {
  const actor = await findActor(runtime.pool, projectId, as);
  const id = tryParseId<'turn'>(turnId);
  const reader = { projectId: actor.projectId, actorId: actor.agentId };
  if (id !== undefined && (await seesTurn(runtime.pool, id, reader))) return actor.projectId;
  throw new KernelError('not_found', {
    message: `No turn '${turnId}' in this project.`,
    details: { turn_id: turnId },
  });
}

async function getTurn(scope: McpClientScope, args: JsonObject): Promise<JsonObject> {
  const { turn_id: turnId } = parseArguments(turnSchema, args);
  const projectId = await checkSeen(scope, turnId);
  return { success: true, turn: toJson(await scope.runtime.getTurn(turnId, { projectId })) };
}

async function waitForTurn(scope: McpClientScope, args: JsonObject, call: ToolCall): Promise<JsonObject> {
  const { turn_id: turnId, timeout_seconds: seconds = DEFAULT_WAIT_SECONDS } = parseArguments(
    waitSchema,
    args,
  );
  const { runtime } = scope;
  const projectId = await checkSeen(scope, turnId);
  const now = () => runtime.getTurn(turnId, { projectId });
  const { signal } = call;
  const ended = await tellingProgress(
    call,
    async () => `Turn ${turnId} is ${(await now()).status}.`,
    () => unlessLate(() => runtime.waitForTurn(turnId, { projectId, signal, timeoutMs: seconds * 1_000 })),
  );
  const result = ended ?? (await now());
  return { success: true, turn: toJson(result), is_over: ended !== undefined };
}

export const turnTools = (scope: McpClientScope): readonly ToolDefinition[] => [
  {
    name: 'get_turn',
    title: 'Look at a turn',
    description: 'Returns the status of a turn, and its result if it has ended.',
    input: inputOf(turnSchema),
    output: outputOf(output),
    scope: 'turns:read',
    annotations: READS,
    run: (args) => getTurn(scope, args),
  },
  {
    name: 'wait_for_turn',
    title: 'Wait for a turn',
    description:
      'Waits for the end of a turn and returns its result. If is_over is false, the turn has not ended in time: call this tool again.',
    input: inputOf(waitSchema),
    output: outputOf(output.extend({ is_over: z.boolean() })),
    scope: 'turns:read',
    annotations: READS,
    run: (args, call) => waitForTurn(scope, args, call),
  },
];
