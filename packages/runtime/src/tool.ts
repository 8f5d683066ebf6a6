import {
  type AgentId,
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
