/**
 * Tools that workers outside run, declared in a profile: their name, their schema and whose queue they go to are versioned
 * with it, so a worker in any language needs nothing of this code.
 */
import { z } from 'zod';
import {
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  nameSchema,
  safeParse,
} from '../base/index.js';
import { checkBySchema, findSchemaFault, findSchemasFault } from '../schema/index.js';

/** What tools and primitives may be called. */
export const TOOL_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;

const SECONDS_OF_A_WEEK = 7 * 24 * 3600;

/** Why arguments cannot be checked with this JSON schema; undefined when they can. */
function findParametersFault(schema: JsonObject): string | undefined {
  if (schema.type !== 'object') return 'must be a JSON schema of `type: object`';
  const fault = findSchemaFault(schema);
  return fault === undefined ? undefined : `is not a JSON schema that can be enforced: ${fault}`;
}

const parametersSchema = z
  .custom<JsonObject>(isJsonObject, 'must be a JSON schema of `type: object`')
  .superRefine((schema, context) => {
    const fault = isJsonObject(schema) ? findParametersFault(schema) : undefined;
    if (fault !== undefined) context.addIssue({ code: 'custom', message: fault });
  });

export const queueToolSchema = z.strictObject({
  name: z.string().regex(TOOL_NAME, 'letters, digits, _ . - only, 64 at most'),
  description: z.string().trim().min(1),
  /** JSON schema of its arguments, an object. */
  parameters: parametersSchema,
  /** Whose it is: jobs go to the queue `boxcar-tools-<target>`. */
  target: z.string().regex(/^[a-z0-9_-]{1,64}$/, 'lower-case letters, digits, - and _ only, 64 at most'),
  /** May a job that was lost with its queue be made again? */
  retry: z.enum(['safe', 'never']).default('never'),
  /** True: the same call again is no loop. For tools that are polled. */
  repeatable: z.boolean().optional(),
  /** Overrides the profile's `tool_timeout_seconds`. */
  timeout_seconds: z.number().positive().max(SECONDS_OF_A_WEEK).optional(),
});
export type QueueTool = z.infer<typeof queueToolSchema>;
type QueueToolInput = z.input<typeof queueToolSchema>;

const toolEntryInput = z.custom<string | QueueToolInput>(
  (value) => typeof value === 'string' || isJsonObject(value),
  'must be a name, or an object that declares a queue tool',
);

/** An entry of a profile's `tools`: a name, or a queue tool; findings point into the object, not at a union. */
const toolEntrySchema = toolEntryInput.transform((entry, context): string | QueueTool => {
  const parsed = typeof entry === 'string' ? safeParse(nameSchema, entry) : safeParse(queueToolSchema, entry);
  if (parsed.success) return parsed.data;
  for (const { path, message } of parsed.error.issues) context.addIssue({ code: 'custom', path, message });
  return z.NEVER;
});

/** A profile's `tools`. Schemas that are too many to compile are refused before the first of them is compiled. */
export const toolsSchema = z
  .array(toolEntryInput)
  .superRefine((entries, context) => {
    const schemas = entries.map((entry) => (typeof entry === 'string' ? undefined : entry.parameters));
    const fault = findSchemasFault(schemas.filter(isJsonObject));
    if (fault !== undefined) context.addIssue({ code: 'custom', message: fault });
  })
  .pipe(
    z.array(toolEntrySchema).superRefine((tools, context) => {
      for (const { index, name } of findNameClashes(tools))
        context.addIssue({ code: 'custom', path: [index], message: `'${name}' is declared already` });
    }),
  );

const toolNameOf = (entry: string | QueueTool): string => (typeof entry === 'string' ? entry : entry.name);

/** The names a profile's tools go by. */
export const toolNames = (profile: { readonly tools: readonly (string | QueueTool)[] }): string[] =>
  profile.tools.map(toolNameOf);

/** Names that mean two things: declared twice, or declared and listed. By the index of the later entry. */
function findNameClashes(tools: readonly (string | QueueTool)[]): { index: number; name: string }[] {
  const seen = new Map<string, boolean>();
  return tools.flatMap((entry, index) => {
    const name = toolNameOf(entry);
    const isDeclared = typeof entry !== 'string';
    const isClash = seen.has(name) && (isDeclared || seen.get(name) === true);
    seen.set(name, isDeclared || seen.get(name) === true);
    return isClash ? [{ index, name }] : [];
  });
}

/** What is wrong with the arguments of a call; empty when they fit the tool's schema. */
export function checkArguments(tool: QueueTool, args: JsonValue): string[] {
  if (!isJsonObject(args)) return ['arguments: not a JSON object'];
  return checkBySchema(tool.parameters, args, 'arguments');
}

/** What a look into the queue shows of a call's job. */
export type JobState =
  /** In a state that leads to an answer. */
  | { readonly state: 'open' }
  | { readonly state: 'gone' }
  | { readonly state: 'completed'; readonly result: unknown }
  /** For good: the queue will not try it again. */
  | { readonly state: 'failed'; readonly reason: string };

export type CallDecision =
  | { readonly kind: 'wait' }
  /** The job is over, the answer comes another way: no further look. */
  | { readonly kind: 'rest' }
  | { readonly kind: 'send' }
  | { readonly kind: 'settle'; readonly status: 'success'; readonly result: unknown }
  | { readonly kind: 'settle'; readonly status: 'failed' | 'canceled'; readonly error: KernelError };

const MAX_REASON = 4_000;
/** BullMQ's words for a job whose worker died with it, once too often. */
const STALLED = /stalled more than allowable limit/;

/** A worker that returns this will answer by `boxcar-tool-results`, before the call's deadline. */
const isLater = (result: unknown): boolean => isJsonObject(result) && result.answer === 'later';

/** What follows from a look at the job of a pending call. */
export function decideQueueCall(
  call: {
    readonly id: string;
    readonly turn_id: string;
    readonly name: string;
    readonly retry: 'safe' | 'never';
    readonly is_sent: boolean;
    readonly is_over: boolean;
  },
  look: JobState,
): CallDecision {
  const details = { tool: call.name, tool_call_id: call.id };
  const unknown = (message: string): CallDecision => ({
    kind: 'settle',
    status: 'failed',
    error: new KernelError('outcome_unknown', { message, details }),
  });
  if (call.is_over)
    return {
      kind: 'settle',
      status: 'canceled',
      error: new KernelError('turn_ended', { details: { ...details, turn_id: call.turn_id } }),
    };
  switch (look.state) {
    case 'open':
      return { kind: 'wait' };
    case 'gone':
      if (call.retry === 'safe' || !call.is_sent) return { kind: 'send' };
      return unknown(`The job of ${call.name} was lost with its queue.`);
    case 'completed':
      return isLater(look.result)
        ? { kind: 'rest' }
        : { kind: 'settle', status: 'success', result: look.result };
    case 'failed': {
      if (call.retry === 'never' && STALLED.test(look.reason))
        return unknown(`The worker that ran ${call.name} died.`);
      const reason = look.reason.slice(0, MAX_REASON) || 'The tool failed without a reason';
      return {
        kind: 'settle',
        status: 'failed',
        error: new KernelError('tool_failed', { message: `${call.name}: ${reason}.`, details }),
      };
    }
    default:
      return look satisfies never;
  }
}
