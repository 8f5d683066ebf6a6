import {
  briefSchema,
  checkArguments,
  type ErrorBody,
  isJsonObject,
  type JsonValue,
  KernelError,
  LIST_PROFILES,
  meant,
  type Profile,
  type QueueTool,
  referToProfiles,
  type ToldProfiles,
  type ToolSchema,
  toolNames,
} from '@boxcar/kernel';
import type { NewToolCall } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { isServed, retryOf, type Tool, toParameters } from '../tool/index.js';

/** The calls that a profile may make in one turn, decided once and enforced at dispatch. */
export interface Toolbox {
  readonly allowed: ReadonlySet<string>;
  /** Tools that the profile declares and that tool workers outside the kernel run. */
  readonly queued: ReadonlyMap<string, QueueTool>;
  /** Tools of the profile's servers, as they were when the step was built. */
  readonly served: ReadonlyMap<string, Tool>;
  readonly schemas: readonly ToolSchema[];
}

/**
 * The schemas by source and by name, because one handler may be registered under several names. An unchanged schema is the same
 * object.
 */
const schemas = new WeakMap<object, Map<string, ToolSchema>>();

const MAX_SCHEMAS = 1_000;

function schemaOnce(source: object, name: string, build: () => ToolSchema): ToolSchema {
  const known = schemas.get(source) ?? new Map<string, ToolSchema>();
  // There can be as many lists of profiles as there are projects and policies.
  if (known.size >= MAX_SCHEMAS) known.clear();
  const schema = known.get(name) ?? build();
  schemas.set(source, known.set(name, schema));
  return schema;
}

function parametersOf({ ownHandlers }: Pick<RuntimeCore, 'ownHandlers'>, source: Tool | Handler): JsonValue {
  const own = 'parameters' in source ? source.parameters : undefined;
  if (own !== undefined) return own;
  const whole = toParameters(source.input);
  if (!('handle' in source) || !isJsonObject(whole)) return whole;
  // The schemas of plugins are shown unchanged.
  return ownHandlers.has(source) ? briefSchema(whole, source.outsideOnly) : whole;
}

/** @param words - The text for the description about the profiles that the agent may reach. */
function schemaOf(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers' | 'ownHandlers'>,
  name: string,
  words?: string,
): ToolSchema | undefined {
  const source = runtime.tools.get(name) ?? runtime.handlers.get(name);
  if (source !== undefined && 'isOff' in source && source.isOff?.() === true) return undefined;
  return (
    source &&
    schemaOnce(source, words === undefined ? name : `${name} ${words}`, () => ({
      name,
      description: words === undefined ? source.description : `${source.description}\n${words}`,
      parameters: parametersOf(runtime, source),
    }))
  );
}

const queueSchemaOf = (tool: QueueTool): ToolSchema =>
  schemaOnce(tool, tool.name, () => {
    const { $schema: _dialect, ...parameters } = tool.parameters;
    return { name: tool.name, description: tool.description, parameters };
  });

const servedSchemaOf = (tool: Tool): ToolSchema =>
  schemaOnce(tool, tool.name, () => ({
    name: tool.name,
    description: tool.description,
    parameters: tool.parameters ?? toParameters(tool.input),
  }));

/** Whether the profile or the runtime already uses a name. */
const isTaken = (
  { tools, handlers }: Pick<RuntimeCore, 'tools' | 'handlers'>,
  queued: ReadonlyMap<string, QueueTool>,
  name: string,
): boolean => queued.has(name) || tools.has(name) || handlers.has(name);

/** The function that answers a call in this process. */
export const findFunction = (
  { tools }: Pick<RuntimeCore, 'tools'>,
  { served }: Pick<Toolbox, 'served'>,
  name: string,
): Tool | undefined => tools.get(name) ?? served.get(name);

/** The names in a profile's `tools` and `must_end_with` that no registered tool, primitive or declaration has. */
export function findMissing(
  { tools, handlers }: Pick<RuntimeCore, 'tools' | 'handlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with' | 'mcp'>,
): readonly string[] {
  const declared = new Set(profile.tools.flatMap((tool) => (typeof tool === 'string' ? [] : [tool.name])));
  const names = new Set([...toolNames(profile), ...profile.must_end_with]);
  return [...names].filter(
    (name) => !declared.has(name) && !tools.has(name) && !handlers.has(name) && !isServed(profile, name),
  );
}

/** The first of these tools whose arguments name profiles. Its description lists the profiles. */
export const findTeller = (
  { handlers }: Pick<RuntimeCore, 'handlers'>,
  names: readonly string[],
): string | undefined => names.find((name) => handlers.get(name)?.namesProfiles === true);

/**
 * The tools of a turn: the profile's tools, the tools it must end with, submit_result when its result has declared fields, and
 * tools that the kernel adds (`extra`).
 */
export function buildToolbox(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers' | 'ownHandlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with'>,
  {
    hasResultFields,
    extra = [],
    served: given = [],
    told,
  }: {
    readonly hasResultFields: boolean;
    readonly extra?: readonly string[];
    /** Tools of the servers that the profile names. A tool is left out when its name already has another meaning here. */
    readonly served?: readonly Tool[];
    /** The text for the model about the profiles that its agent may reach. */
    readonly told?: ToldProfiles | undefined;
  },
): Toolbox {
  const queued = new Map(
    profile.tools.flatMap((tool) => (typeof tool === 'string' ? [] : [[tool.name, tool] as const])),
  );
  const allowed = new Set([
    ...toolNames(profile),
    ...profile.must_end_with,
    ...(hasResultFields ? ['submit_result'] : []),
    ...(told?.isCut === true ? [LIST_PROFILES] : []),
    ...extra,
  ]);
  const served = new Map(
    given.flatMap((tool) => (isTaken(runtime, queued, tool.name) ? [] : [[tool.name, tool] as const])),
  );
  for (const name of served.keys()) allowed.add(name);
  const teller = findTeller(runtime, [...allowed]);
  const schemas = [...allowed].flatMap((name) => {
    const tool = queued.get(name);
    // A profile is versioned and the registrations of a worker are not, so the profile's declaration takes precedence.
    if (tool !== undefined) return queueSchemaOf(tool);
    const offered = served.get(name);
    if (offered !== undefined) return servedSchemaOf(offered);
    const words =
      told === undefined || teller === undefined || runtime.handlers.get(name)?.namesProfiles !== true
        ? undefined
        : name === teller
          ? told.text
          : referToProfiles(teller);
    return schemaOf(runtime, name, words) ?? [];
  });
  return { allowed, queued, served, schemas };
}

/** How a call is answered: by a function, a primitive or a tool worker. With route `none` it is refused. */
export type CallRoute = Pick<NewToolCall, 'route' | 'target' | 'retry' | 'timeoutMs'>;

/** A call as the model requested it. */
export interface ModelCall {
  readonly name: string;
  readonly arguments: JsonValue;
}

/**
 * The route is decided before the call is committed. The arguments of a row with route `queue` are therefore valid, whichever
 * process sends its job.
 */
export function routeCall(
  runtime: RuntimeCore,
  call: ModelCall,
  toolbox: Toolbox,
  profile: Pick<Profile, 'limits'>,
): CallRoute {
  const { name } = call;
  const timeoutMs = profile.limits.tool_timeout_seconds * 1000;
  const refused: CallRoute = { route: 'none', target: null, retry: 'safe', timeoutMs };
  if (!toolbox.allowed.has(name)) return refused;
  const queued = toolbox.queued.get(name);
  if (queued !== undefined) {
    if (runtime.outside === undefined || checkArguments(queued, call.arguments).length > 0) return refused;
    const { target, retry, timeout_seconds } = queued;
    return {
      route: 'queue',
      target,
      retry,
      timeoutMs: timeout_seconds === undefined ? timeoutMs : timeout_seconds * 1000,
    };
  }
  const tool = findFunction(runtime, toolbox, name);
  if (tool !== undefined)
    return {
      route: 'function',
      target: null,
      retry: retryOf(tool),
      timeoutMs: tool.timeoutMs ?? timeoutMs,
    };
  return { ...refused, route: runtime.handlers.has(name) ? 'primitive' : 'none' };
}

export const invalidArguments = (findings: readonly string[]): KernelError =>
  new KernelError('tool_arguments_invalid', {
    message: `${findings.join('; ')}.`,
    details: { findings },
  });

/** The profile has the name, but this worker has nothing registered under it. */
const missingTool = (name: string, what = `The profile lists '${name}'`): KernelError =>
  new KernelError('tool_unknown', {
    message: `${what}, but this worker has no tool or primitive of this name.`,
    next: 'Load the plugin that brings it (boxcar worker --plugin), or correct the profile.',
    details: { tool: name },
  });

/** Why a turn cannot end as its profile requires: every tool that it must end with is missing here. */
export function findNoEnd(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with' | 'mcp'>,
): KernelError | undefined {
  const missing = findMissing(runtime, profile);
  const [first] = profile.must_end_with;
  if (first === undefined || !profile.must_end_with.every((name) => missing.includes(name))) return undefined;
  return missingTool(first, `The turn must end with a call of ${profile.must_end_with.join(' or ')}`);
}

/** Why a call with route `none` is refused, in words that the model can act on. */
export function refusal(runtime: RuntimeCore, call: ModelCall, toolbox: Toolbox): ErrorBody {
  const { name } = call;
  const queued = toolbox.queued.get(name);
  const findings = queued === undefined ? [] : checkArguments(queued, call.arguments);
  if (findings.length > 0) return invalidArguments(findings).toJSON();
  if (queued !== undefined)
    return new KernelError('tool_unknown', {
      message: `'${name}' is run by workers outside, and this worker has no queue to reach them.`,
    }).toJSON();
  const names = toolbox.schemas.map((schema) => schema.name).sort();
  const isKnown = runtime.tools.has(name) || runtime.handlers.has(name);
  if (!isKnown && toolbox.allowed.has(name)) return missingTool(name).toJSON();
  const code = isKnown ? 'tool_not_allowed' : 'tool_unknown';
  return new KernelError(code, {
    message: `${isKnown ? `The tool '${name}' is not allowed here` : `There is no tool '${name}'`}${meant(name, names) || '.'} Tools you may call: ${names.join(', ') || '(none)'}.`,
  }).toJSON();
}
