/**
 * The handoff tool in the shape of each platform, and the conversion of a platform's arguments to the kernel's
 * arguments.
 * Rule: docs/reference/handoff.md, "Tool schemas".
 */
import { z } from 'zod';
import { type JsonObject, jsonObjectSchema, KernelError, safeParse, toBadRequest } from '../base/index.js';
import { normalizePlatform, type Platform } from '../platform/platform.js';

const text = (description: string): JsonObject => ({ type: 'string', description });
const contextOf = (description: string): JsonObject => ({ type: 'object', description });

/** A tool in the form that the platform's models receive. */
export type HandoffToolSchema = JsonObject;

const schemaOf = (properties: JsonObject, required: readonly string[]): JsonObject => ({
  type: 'object',
  properties,
  required,
});

const CONTEXT = contextOf('Additional context to pass to target agent');

const SCHEMAS: Readonly<Record<Platform, HandoffToolSchema>> = {
  agdd: {
    name: 'handoff',
    description: 'Delegate work to another agent or system',
    parameters: schemaOf(
      {
        target_agent: text('Agent slug or identifier to delegate to'),
        task: text('Task description for the target agent'),
        context: CONTEXT,
      },
      ['target_agent', 'task'],
    ),
  },
  adk: {
    name: 'handoff',
    description: 'Delegate task to another agent',
    input_schema: schemaOf(
      { target: text('Target agent name'), message: text('Message for the target agent'), context: CONTEXT },
      ['target', 'message'],
    ),
  },
  openai: {
    type: 'function',
    function: {
      name: 'handoff',
      description: 'Delegate task to another agent',
      parameters: schemaOf(
        {
          agent_id: text('Target agent ID'),
          instructions: text('Instructions for the target agent'),
        },
        ['agent_id', 'instructions'],
      ),
    },
  },
  anthropic: {
    name: 'handoff',
    description: 'Delegate task to another agent',
    input_schema: schemaOf(
      {
        target_agent: text('Target agent name'),
        request: text('Request for the target agent'),
        context: CONTEXT,
      },
      ['target_agent', 'request'],
    ),
  },
};

/** The names of target and task in the arguments of each platform. `context` is accepted on every platform. */
const NAMES: Readonly<Record<Platform, readonly [target: string, task: string]>> = {
  agdd: ['target_agent', 'task'],
  adk: ['target', 'message'],
  openai: ['agent_id', 'instructions'],
  anthropic: ['target_agent', 'request'],
};

/** @throws KernelError `bad_request`, whose message is only `Unsupported platform: <name>`. */
export function platformOf(name: string): Platform {
  const platform = typeof name === 'string' ? normalizePlatform(name) : undefined;
  if (platform === undefined)
    throw new KernelError('bad_request', {
      message: `Unsupported platform: ${String(name)}`,
      next: '',
      details: { field: 'platform' },
    });
  return platform;
}

/**
 * The tool in the exact shape that the platform's models receive. The caller may change the returned copy.
 *
 * @param platform - Any name of the platform, in any case.
 * @throws KernelError `bad_request` for an unknown platform.
 */
export const handoffToolSchema = (platform: string): HandoffToolSchema =>
  structuredClone(SCHEMAS[platformOf(platform)]);

export interface HandoffCall {
  readonly platform: Platform;
  readonly target_agent: string;
  readonly task: string;
  readonly context?: JsonObject;
}

const filled = z.string().refine((value) => value.trim() !== '', 'must not be blank');

/**
 * Reads arguments in the shape of the platform's schema.
 *
 * @throws KernelError `bad_request` for an unknown platform, and, with all findings, for arguments that do not fit.
 */
export function readHandoffCall(name: string, args: unknown): HandoffCall {
  const platform = platformOf(name);
  const [target, task] = NAMES[platform];
  const schema = z.strictObject({ [target]: filled, [task]: filled, context: jsonObjectSchema.optional() });
  const parsed = safeParse(schema, args);
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  const { [target]: target_agent, [task]: asked, context } = parsed.data as Readonly<Record<string, unknown>>;
  return {
    platform,
    target_agent: target_agent as string,
    task: asked as string,
    ...(context === undefined ? {} : { context: context as JsonObject }),
  };
}
