import {
  type AgentId,
  copyKeyOrder,
  errorText,
  isCleanText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  type ProjectId,
  plainWords,
  type ToolCallId,
  type TurnId,
} from '@boxcar/kernel';
import { z } from 'zod';
import type { Tape, TapeTarget } from '../tape/index.js';

export interface ToolContext {
  /** Use it as idempotency key for effects outside: a call may run again after a crash. */
  readonly toolCallId: ToolCallId;
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly projectId: ProjectId;
  /** Aborts at the call's deadline, when the worker shuts down, and when the worker has lost its lease. */
  readonly signal: AbortSignal;
  /**
   * An existing tape, used in the name of the agent with the agent's rights. An entry that is appended with
   * `dedupKey: toolCallId` is stored once, however often the call runs. After the signal has aborted, the tape takes no more entries.
   *
   * @throws KernelError `not_found`.
   */
  tape(target: TapeTarget): Promise<Tape>;
}

/** A function that models may call. It runs inside the worker. */
export interface Tool<I = unknown> {
  readonly name: string;
  readonly description: string;
  /** The schema that parses the arguments for `run`. It must be an object schema. */
  readonly input: z.ZodType<I>;
  /** The JSON schema of an object, which models see instead of the schema of `input`. */
  readonly parameters?: JsonValue;
  /** The model sees the returned value as JSON, or the thrown error. */
  run(input: I, context: ToolContext): unknown;
  /** True when it changes nothing outside. */
  readonly isReadOnly?: boolean;
  /** Whether the call may run again after a crash left its outcome unknown. Default: `safe` for read-only tools, else `never`. */
  readonly retry?: 'safe' | 'never';
  /** True: the loop guard does not count repeated calls. For tools that are polled. */
  readonly repeatable?: boolean;
  /** True: each call waits for the approval of a person before it begins. */
  readonly requiresApproval?: boolean;
  /** Overrides the profile's `tool_timeout_seconds`. More than 0, at most 30 days. */
  readonly timeoutMs?: number;
}

export const retryOf = (tool: Pick<Tool, 'retry' | 'isReadOnly'>): 'safe' | 'never' =>
  tool.retry ?? (tool.isReadOnly === true ? 'safe' : 'never');

const INHERITED = Object.getOwnPropertyNames(Object.prototype);
/** Caches for each schema whether it declares a name that every object inherits. */
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
 * Parses arguments with a zod schema, without two faults of zod. zod takes an inherited property (`constructor`, `toString`) for
 * a member; here it does not. zod drops a member that is named `__proto__`; here such a member is a finding, at any depth.
 */
export function parseArguments<I>(
  input: z.ZodType<I>,
  args: JsonObject,
): { readonly success: true; readonly data: I } | { readonly success: false; readonly error: z.ZodError } {
  const { copy, restore } = namesInherited(input)
    ? withoutPrototypes(args)
    : { copy: args, restore: () => undefined };
  const parsed = input.safeParse(copy, { error: plainWords });
  restore();
  if (!parsed.success) return parsed;
  const lost = findLostPrototype(args, parsed.data);
  if (lost === undefined) return parsed;
  const message = 'cannot be the name of an argument here';
  const error = new z.ZodError([{ code: 'custom', path: lost, message, input: args }]);
  return { success: false, error };
}

const valueAt = (args: unknown, path: readonly PropertyKey[]): unknown =>
  path.reduce<unknown>(
    (value, key) =>
      typeof value === 'object' && value !== null && Object.hasOwn(value, key)
        ? Reflect.get(value, key)
        : undefined,
    args,
  );

/**
 * The paths at which nulls were refused. For a union, the alternative that refuses only nulls counts, if there is one: a value
 * that the other alternatives refuse may be a null that this alternative accepts.
 */
function nullsIn(
  args: JsonObject,
  issues: readonly z.core.$ZodIssue[],
  at: readonly PropertyKey[] = [],
): { readonly paths: readonly (readonly PropertyKey[])[]; readonly areAll: boolean } {
  const found = issues.map((issue) => {
    const path = [...at, ...issue.path];
    if (valueAt(args, path) === null && isJsonObject(valueAt(args, path.slice(0, -1))))
      return { paths: [path], areAll: true };
    if (issue.code !== 'invalid_union') return { paths: [], areAll: false };
    const alternatives = issue.errors.map((inner) => nullsIn(args, inner, path));
    const whole = alternatives
      .filter(({ paths, areAll }) => areAll && paths.length > 0)
      .toSorted((a, b) => a.paths.length - b.paths.length)[0];
    return whole ?? { paths: alternatives.flatMap(({ paths }) => paths), areAll: false };
  });
  return { paths: found.flatMap(({ paths }) => paths), areAll: found.every(({ areAll }) => areAll) };
}

/** A copy without the members at `paths` that are null; undefined when no member is null. */
function withoutNulls(args: JsonObject, paths: readonly (readonly PropertyKey[])[]): JsonObject | undefined {
  const copy = structuredClone(args);
  copyKeyOrder(args, copy);
  let isChanged = false;
  for (const path of paths) {
    const parent = valueAt(copy, path.slice(0, -1));
    const key = path.at(-1);
    if (key === undefined || !isJsonObject(parent) || !Object.hasOwn(parent, key)) continue;
    if (Reflect.get(parent, key) !== null) continue;
    Reflect.deleteProperty(parent, key);
    isChanged = true;
  }
  return isChanged ? copy : undefined;
}

/**
 * Parses arguments as `parseArguments` does, except that null for an optional argument means "not given". A null that the schema
 * refuses is left out, at any depth. A schema that accepts null gets the null.
 *
 * @returns The parsed arguments (a separate object), and the given arguments without those nulls.
 */
export function parseGiven<I>(
  input: z.ZodType<I>,
  args: JsonObject,
): { readonly parsed: ReturnType<typeof parseArguments<I>>; readonly given: JsonObject } {
  let given = args;
  for (;;) {
    const parsed = parseArguments(input, structuredClone(given));
    if (parsed.success) copyKeyOrder(given, parsed.data);
    const rest = parsed.success ? undefined : withoutNulls(given, nullsIn(given, parsed.error.issues).paths);
    if (rest === undefined) return { parsed, given };
    given = rest;
  }
}

/** The path of a member named `__proto__` that `data` lacks. */
function findLostPrototype(args: JsonValue, data: unknown): string[] | undefined {
  if (typeof args !== 'object' || args === null) return undefined;
  for (const [key, member] of Object.entries(args)) {
    const isKept = typeof data === 'object' && data !== null && Object.hasOwn(data, key);
    if (key === '__proto__' && !isKept) return [key];
    const path = findLostPrototype(member as JsonValue, isKept ? Reflect.get(data, key) : undefined);
    if (path !== undefined) return [key, ...path];
  }
  return undefined;
}

/**
 * The JSON schema of a zod object, in the form that models get. Providers require `type: object` at the top, and a union of
 * objects does not have it by itself.
 *
 * @throws KernelError `bad_request` for a schema that accepts anything but an object: no model can call such a tool.
 */
export function toParameters(input: z.ZodType): JsonValue {
  const schema = readSchema(input);
  const { type } = schema;
  if (type !== 'object')
    throw new KernelError('bad_request', {
      message: `input: ${notObject(type)}.`,
      details: { field: 'input', type },
    });
  return schema;
}

function readSchema(input: z.ZodType): { readonly [key: string]: JsonValue; readonly type: JsonValue } {
  const { $schema: _dialect, ...schema } = z.toJSONSchema(input, {
    io: 'input',
    unrepresentable: 'any',
  }) as Record<string, JsonValue>;
  const { type = 'object' } = schema;
  return { type, ...schema };
}

const notObject = (type: JsonValue): string =>
  `is a schema of type ${JSON.stringify(type)}; arguments are an object`;

/** Whether a schema has an argument of this name. */
export const hasArgument = ({ input }: { readonly input: z.ZodType }, name: string): boolean =>
  input instanceof z.ZodObject && Object.hasOwn(input.shape, name);

/** The path of a zod 3 schema inside the given schema; '' means the schema itself. Schemas of zod 3 have a `typeName`. */
function findZod3(input: unknown, path: readonly string[] = []): string | undefined {
  if (typeof input !== 'object' || input === null) return undefined;
  const def: unknown = Reflect.get(input, '_def');
  if (typeof def === 'object' && def !== null && 'typeName' in def && String(def.typeName).startsWith('Zod'))
    return path.join('.');
  if (!(input instanceof z.ZodObject)) return undefined;
  for (const [key, member] of Object.entries(input.shape)) {
    const found = findZod3(member, [...path, key]);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** A part of a plugin's registration. It is outside code, so its values may not have their declared types. */
interface Registered {
  readonly description: unknown;
  readonly input: z.ZodType;
  readonly parameters?: JsonValue;
}

/**
 * Checks a tool or primitive when a plugin registers it. Otherwise every turn that offers it would fail.
 *
 * @param work - The function and its field name.
 * @throws KernelError `bad_request` naming the part.
 */
export function checkRegistered(
  name: string,
  { description, input, parameters }: Registered,
  work: { readonly field: 'run' | 'handle'; readonly value: unknown },
): void {
  const refuse = (field: string, why: string, cause?: unknown): never => {
    throw new KernelError('bad_request', {
      message: `${name}: ${field}: ${why}.`,
      details: { name, field },
      cause,
    });
  };
  if (typeof description !== 'string' || !isCleanText(description))
    refuse('description', 'is not a text without NUL and lone surrogates');
  if (typeof work.value !== 'function') refuse(work.field, 'is not a function');
  const old = findZod3(input);
  if (old !== undefined)
    refuse(
      'input',
      `${old === '' ? '' : `${old} `}is a schema of zod 3; a schema of zod 4 is needed (import { z } from 'zod' of version 4, or from 'zod/v4')`,
    );
  if (!(input instanceof z.ZodType)) refuse('input', 'is not a schema of zod 4');
  let schema: { readonly type: JsonValue } = { type: 'object' };
  try {
    schema = readSchema(input);
  } catch (error) {
    refuse('input', `has no JSON schema (${errorText(error)})`, error);
  }
  if (schema.type !== 'object') refuse('input', notObject(schema.type));
  if (JSON.stringify(schema).includes('"__proto__":'))
    refuse('input', "'__proto__' cannot be the name of an argument");
  if (parameters === undefined) return;
  if (!isJsonObject(parameters) || (parameters.type ?? 'object') !== 'object')
    refuse('parameters', 'is not the JSON schema of an object');
}
