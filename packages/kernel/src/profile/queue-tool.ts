/**
 * Tools that outside workers run, declared in a profile. The profile's version covers their name, their schema and
 * their queue, so a worker in any language needs no part of this code.
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

/** The allowed names of tools and primitives. */
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
  /** The JSON schema of the tool's arguments, an object. */
  parameters: parametersSchema,
  /** The owner of the queue: jobs go to the queue `boxcar-tools-<target>`. */
  target: z.string().regex(/^[a-z0-9_-]{1,64}$/, 'lower-case letters, digits, - and _ only, 64 at most'),
  /** Whether a job may be created again after it was lost with its queue. */
  retry: z.enum(['safe', 'never']).default('never'),
  /** True: a repeated call does not count as a loop. For tools that are polled. */
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

/** An entry of a profile's `tools`: a name, or a queue tool. Findings point into the object, not at a union. */
const toolEntrySchema = toolEntryInput.transform((entry, context): string | QueueTool => {
  const parsed = typeof entry === 'string' ? safeParse(nameSchema, entry) : safeParse(queueToolSchema, entry);
  if (parsed.success) return parsed.data;
  for (const { path, message } of parsed.error.issues) context.addIssue({ code: 'custom', path, message });
  return z.NEVER;
});

/** A profile's `tools`. If the schemas are too many to compile, they are refused before any of them is compiled. */
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

/** The names of a profile's tools. */
export const toolNames = (profile: { readonly tools: readonly (string | QueueTool)[] }): string[] =>
  profile.tools.map(toolNameOf);

/** Ambiguous names: declared twice, or declared and listed. Each has the index of its later entry. */
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

/** The findings about the arguments of a call; empty when they fit the tool's schema. */
export function checkArguments(tool: QueueTool, args: JsonValue): string[] {
  if (!isJsonObject(args)) return ['arguments: not a JSON object'];
  return checkBySchema(tool.parameters, args, 'arguments');
}

/** The state of a call's job in the queue. */
export type JobState =
  /** The job is in a state that leads to an answer. */
  | { readonly state: 'open' }
  | { readonly state: 'gone' }
  | { readonly state: 'completed'; readonly result: unknown }
  /** The failure is final: the queue will not try the job again. */
  | { readonly state: 'failed'; readonly reason: string };

export type CallDecision =
  | { readonly kind: 'wait' }
  /** The job is over and the answer arrives in another way, so the job is not checked again. */
  | { readonly kind: 'rest' }
  | { readonly kind: 'send' }
  | { readonly kind: 'settle'; readonly status: 'success'; readonly result: unknown }
  | { readonly kind: 'settle'; readonly status: 'failed' | 'canceled'; readonly error: KernelError };

const MAX_REASON = 4_000;
/** BullMQ's message for a job whose worker has died too often. */
const STALLED = /stalled more than allowable limit/;

/** A worker that returns this will answer through `boxcar-tool-results`, before the call's deadline. */
const isLater = (result: unknown): boolean => isJsonObject(result) && result.answer === 'later';

/** The next action for a pending call, from the state of its job. */
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
