/** Primitives as tools. They are submitted as through every other interface. Rule: docs/reference/primitives.md. */
import { isJsonObject, type JsonObject, type JsonValue, KernelError, TAPE_HANDOFF } from '@boxcar/kernel';
import { type Accepted, builtInHandlers, type Handler } from '@boxcar/runtime';
import { z } from 'zod';
import { type McpClientScope, OPERATOR } from '../client-scope.js';
import { ADDS, ENDS, inputOf, outputOf, type ToolCall, type ToolDefinition } from '../tool/index.js';
import { DEFAULT_WAIT_SECONDS, tellingProgress, unlessLate } from './wait.js';

/** `submit_result` ends the calling turn, and calls here come from no turn. `tape_handoff` is one of the tools for tapes. */
const NOT_OFFERED: ReadonlySet<string> = new Set(['submit_result', TAPE_HANDOFF.name]);
const DESTRUCTIVE: ReadonlySet<string> = new Set(['cancel', 'context_handoff', 'handoff']);
/** These primitives access only database rows. */
const CLOSED_WORLD: ReadonlySet<string> = new Set([
  'cancel',
  'create_box',
  'grant_box',
  'raise_budget',
  'collect',
]);

const KEY = {
  type: 'string',
  description: 'Calls with the same arguments and the same key take effect once.',
} as const;

const output = outputOf(
  z.object({
    success: z.literal(true),
    status: z
      .enum(['done', 'waiting', 'pending_approval'])
      .describe(
        'waiting: the work continues; get the result with wait_for_turn and the turn_id of this answer.',
      ),
    ticket_id: z.string().optional(),
    answer: z.unknown(),
  }),
);

/** The primitive's schema, with an added idempotency key when it has none. Schemas of alternatives cannot take an additional member. */
function schemaOf({ input }: Handler): JsonObject {
  const schema = inputOf(input);
  const { properties } = schema;
  return isJsonObject(properties)
    ? { ...schema, properties: { idempotency_key: KEY, ...properties } }
    : schema;
}

const toToolName = (name: string): string => name.replaceAll(/[^A-Za-z0-9_]/g, '_');

export function primitiveTools(scope: McpClientScope): readonly ToolDefinition[] {
  const offered = [...scope.runtime.handlers].filter(
    ([name, handler]) => !NOT_OFFERED.has(name) && handler.isInternal !== true && handler.isOff?.() !== true,
  );
  return offered.map(([name, handler]) => ({
    name: toToolName(name),
    title: `Primitive ${name}`,
    description: handler.description,
    input: schemaOf(handler),
    output,
    scope: 'turns:write',
    annotations: {
      ...(DESTRUCTIVE.has(name) || !builtInHandlers.has(name) ? ENDS : ADDS),
      openWorldHint: !CLOSED_WORLD.has(name),
    },
    isKeyed: true,
    run: (args, call) => submit(scope, { name, handler, args }, call),
  }));
}

const hasKey = ({ input }: Handler): boolean =>
  input instanceof z.ZodObject && Object.hasOwn(input.shape, 'idempotency_key');

async function submit(
  { runtime, projectId, as }: McpClientScope,
  of: { readonly name: string; readonly handler: Handler; readonly args: JsonObject },
  call: ToolCall,
): Promise<JsonObject> {
  const { idempotency_key: key, ...rest } = of.args;
  if (typeof key !== 'string')
    throw new KernelError('bad_request', {
      message: 'arguments.idempotency_key: must be a string.',
      details: { field: 'arguments.idempotency_key' },
    });
  const accepted = await runtime.accept(of.name, hasKey(of.handler) ? of.args : rest, {
    projectId,
    idempotencyKey: key,
    ...(as === OPERATOR ? {} : { sourceAgentId: as }),
  });
  return toAnswer(runtime, accepted, call);
}

const ticketIn = (answer: JsonValue): string | undefined => {
  const { ticket_id: ticketId } = isJsonObject(answer) ? answer : {};
  return typeof ticketId === 'string' ? ticketId : undefined;
};

/** A call that waits for turns waits here too, within a time limit. A call that waits for a person does not. */
async function toAnswer(
  runtime: McpClientScope['runtime'],
  { projectId, answer, awaitedBatchId, awaitedTurnId }: Accepted,
  call: ToolCall,
): Promise<JsonObject> {
  const ticketId = ticketIn(answer);
  if (ticketId !== undefined)
    return { success: true, status: 'pending_approval', ticket_id: ticketId, answer };
  if (awaitedBatchId === null && awaitedTurnId === null) return { success: true, status: 'done', answer };
  const options = { projectId, signal: call.signal, timeoutMs: DEFAULT_WAIT_SECONDS * 1_000 };
  const wait = async (): Promise<JsonValue> =>
    awaitedBatchId === null
      ? ({ ...(await runtime.waitForTurn(awaitedTurnId ?? '', options)) } as unknown as JsonValue)
      : runtime.waitForBatch(awaitedBatchId, options);
  const of = awaitedBatchId === null ? `turn ${awaitedTurnId}` : `batch ${awaitedBatchId}`;
  const result = await tellingProgress(
    call,
    async () => `Waits for ${of}.`,
    () => unlessLate(wait),
  );
  return result === undefined
    ? { success: true, status: 'waiting', answer }
    : { success: true, status: 'done', answer: result };
}
