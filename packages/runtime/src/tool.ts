import {
  type AgentId,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
  type ToolCallId,
  type TurnId,
} from '@boxcar/kernel';
import { z } from 'zod';
import type { Tape } from './tape/tape.js';
import type { TapeTarget } from './tape/tape-types.js';

export interface ToolContext {
  /** Use it as idempotency key for effects outside: a call may run again after a crash. */
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly projectId: ProjectId;
  /** Fires at the call's deadline, when the worker shuts down, and when it has lost its lease. */
  readonly signal: AbortSignal;
  /**
   * A tape that there is, used in the name of the agent with the rights it has. What is appended with `dedupKey: toolCallId` is there
   * once, however often the call runs. Once the signal has fired it takes nothing more.
   *
   * @throws KernelError `not_found`.
   */
  tape(target: TapeTarget): Promise<Tape>;
}

/** A function that models may call, run inside the worker. */
export interface Tool<I = unknown> {
  readonly name: string;
  readonly description: string;
  /** Arguments are parsed with it before `run` sees them. An object schema. */
  readonly input: z.ZodType<I>;
  /** What it returns is shown to the model as JSON; what it throws, as an error. */
  run(input: I, context: ToolContext): unknown;
  /** True when it changes nothing outside. */
  readonly isReadOnly?: boolean;
  /** May it run again when a crash left its outcome unknown? Default: `safe` for read-only tools, else `never`. */
  readonly retry?: 'safe' | 'never';
  /** True: the same call again is no loop. For tools that are polled. */
  readonly repeatable?: boolean;
  /** Overrides the profile's `tool_timeout_seconds`. More than 0, at most 30 days. */
  readonly timeoutMs?: number;
}

export const retryOf = (tool: Pick<Tool, 'retry' | 'isReadOnly'>): 'safe' | 'never' =>
  tool.retry ?? (tool.isReadOnly === true ? 'safe' : 'never');

const INHERITED = Object.getOwnPropertyNames(Object.prototype);
/** By schema: whether it declares a name that every object inherits. */
const inherited = new WeakMap<z.ZodType, boolean>();

function namesInherited(input: z.ZodType): boolean {
  const known = inherited.get(input);
  if (known !== undefined) return known;
  const text = JSON.stringify(z.toJSONSchema(input, { io: 'input', unrepresentable: 'any' }));
  const found = INHERITED.some((name) => text.includes(JSON.stringify(name)));
  inherited.set(input, found);
  return found;
}

/** A copy whose objects inherit nothing until `restore` is called. */
function withoutPrototypes(value: JsonValue): { readonly copy: unknown; readonly restore: () => void } {
  const copies: object[] = [];
  const copy = (part: JsonValue): unknown => {
    if (!isJsonObject(part)) return Array.isArray(part) ? part.map(copy) : part;
    const bare: object = Object.assign(
      Object.create(null),
      Object.fromEntries(Object.entries(part).map(([key, member]) => [key, copy(member)])),
    );
    copies.push(bare);
    return bare;
  };
  return {
    copy: copy(value),
    restore: () => {
      for (const bare of copies) Object.setPrototypeOf(bare, Object.prototype);
    },
  };
}

/**
 * Arguments as a schema of zod reads them. zod takes what an object inherits for a member (`constructor`, `toString`) and leaves
 * out a member that is named `__proto__`: the first does not happen here, the second is a finding.
 */
export function parseArguments<I>(
  input: z.ZodType<I>,
  args: JsonObject,
): { readonly success: true; readonly data: I } | { readonly success: false; readonly error: z.ZodError } {
  const { copy, restore } = namesInherited(input)
    ? withoutPrototypes(args)
    : { copy: args, restore: () => undefined };
  const parsed = input.safeParse(copy);
  restore();
  if (!parsed.success) return parsed;
  const { data } = parsed;
  const hasLost =
    Object.hasOwn(args, '__proto__') &&
    !(typeof data === 'object' && data !== null && Object.hasOwn(data, '__proto__'));
  if (!hasLost) return parsed;
  const message = 'cannot be the name of an argument here';
  const error = new z.ZodError([{ code: 'custom', path: ['__proto__'], message, input: args }]);
  return { success: false, error };
}

/**
 * The JSON schema of a zod object, as models get it. Providers ask for `type: object` at the top, which a union of objects
 * does not say by itself.
 *
 * @throws KernelError `bad_request` for a schema that takes something else than an object: no model can call that.
 */
export function toParameters(input: z.ZodType): JsonValue {
  const { $schema: _dialect, ...schema } = z.toJSONSchema(input, {
    io: 'input',
    unrepresentable: 'any',
  }) as Record<string, JsonValue>;
  const { type = 'object' } = schema;
  if (type !== 'object')
    throw new KernelError('bad_request', {
      message: `input: is a schema of type ${JSON.stringify(type)}; arguments are an object.`,
      details: { field: 'input', type },
    });
  return { type, ...schema };
}
