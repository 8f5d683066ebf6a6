import {
  briefSchema,
  checkArguments,
  commandFault,
  type ErrorBody,
  findingsOf,
  isJsonObject,
  type JsonValue,
  KernelError,
  LIST_PROFILES,
  meant,
  type Profile,
  parseJson,
  type QueueTool,
  referToProfiles,
  sanitizeJson,
  sanitizeText,
  startTimer,
  type ToldProfiles,
  type ToolSchema,
  toErrorBody,
  toolNames,
} from '@boxcar/kernel';
import {
  type CallSettlement,
  isOutside,
  type NewToolCall,
  type PendingCall,
  settleCalls,
} from '@boxcar/store';
import type { Handler } from '../handler.js';
import type { RuntimeCore } from '../runtime.js';
import { type Begun, begin } from '../submit/opening.js';
import type { Accepted, SubmitOptions } from '../submit/options.js';
import { onPool, untilAborted } from '../tape/connection.js';
import { openTape } from '../tape/open-tape.js';
import { parseGiven, retryOf, type Tool, toParameters } from '../tool.js';
import { unlessAborted } from '../unless-aborted.js';
import { answeredMeanwhile, type CallOutcome, toFailure, toSettlement } from './call-result.js';
import { type RunningCall, runInScope } from './call-scope.js';
import type { HeldTurn } from './held-turn.js';
import { keepLate, lateResult } from './late.js';

/** What a profile may call in one turn, decided once and enforced at dispatch. */
export interface Toolbox {
  readonly allowed: ReadonlySet<string>;
  /** Tools that the profile declares and workers outside run. */
  readonly queued: ReadonlyMap<string, QueueTool>;
  readonly schemas: readonly ToolSchema[];
}

/** By what they come from, and by name: one handler may be registered under several. The same schema is the same object. */
const schemas = new WeakMap<object, Map<string, ToolSchema>>();

const MAX_SCHEMAS = 1_000;

function schemaOnce(source: object, name: string, build: () => ToolSchema): ToolSchema {
  const known = schemas.get(source) ?? new Map<string, ToolSchema>();
  // There are as many lists of profiles as there are projects and policies.
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
  // What a plugin has written is shown as it is.
  return ownHandlers.has(source) ? briefSchema(whole, source.outsideOnly) : whole;
}

/** @param words - What the description says of the profiles that the agent may reach. */
function schemaOf(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers' | 'ownHandlers'>,
  name: string,
  words?: string,
): ToolSchema | undefined {
  const source = runtime.tools.get(name) ?? runtime.handlers.get(name);
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

/** The names in `tools` and `must_end_with` of a profile that neither a registered tool nor a primitive nor a declaration has. */
export function findMissing(
  { tools, handlers }: Pick<RuntimeCore, 'tools' | 'handlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with'>,
): readonly string[] {
  const declared = new Set(profile.tools.flatMap((tool) => (typeof tool === 'string' ? [] : [tool.name])));
  const names = new Set([...toolNames(profile), ...profile.must_end_with]);
  return [...names].filter((name) => !declared.has(name) && !tools.has(name) && !handlers.has(name));
}

/** The first of these tools whose arguments name profiles: its description tells them. */
export const findTeller = (
  { handlers }: Pick<RuntimeCore, 'handlers'>,
  names: readonly string[],
): string | undefined => names.find((name) => handlers.get(name)?.namesProfiles === true);

/**
 * The tools of a turn: those the profile lists, those it must end with, submit_result when fields bind its result, and what
 * the kernel itself adds (`extra`).
 */
export function buildToolbox(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers' | 'ownHandlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with'>,
  {
    hasResultFields,
    extra = [],
    told,
  }: {
    readonly hasResultFields: boolean;
    readonly extra?: readonly string[];
    /** What the model is told of the profiles that its agent may reach. */
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
  const teller = findTeller(runtime, [...allowed]);
  const schemas = [...allowed].flatMap((name) => {
    const tool = queued.get(name);
    // A profile is versioned, what a worker has registered is not: the declaration counts.
    if (tool !== undefined) return queueSchemaOf(tool);
    const words =
      told === undefined || teller === undefined || runtime.handlers.get(name)?.namesProfiles !== true
        ? undefined
        : name === teller
          ? told.text
          : referToProfiles(teller);
    return schemaOf(runtime, name, words) ?? [];
  });
  return { allowed, queued, schemas };
}

/** How a call will be answered: by a function, by a primitive, by a worker outside, or by nobody because it is refused. */
export type CallRoute = Pick<NewToolCall, 'route' | 'target' | 'retry' | 'timeoutMs'>;

/** What a model asked for. */
interface ModelCall {
  readonly name: string;
  readonly arguments: JsonValue;
}

/** Decided before the call is committed: a row with route `queue` has arguments that fit, whoever sends its job. */
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
  const tool = runtime.tools.get(name);
  if (tool !== undefined)
    return {
      route: 'function',
      target: null,
      retry: retryOf(tool),
      timeoutMs: tool.timeoutMs ?? timeoutMs,
    };
  return { ...refused, route: runtime.handlers.has(name) ? 'primitive' : 'none' };
}

const invalidArguments = (findings: readonly string[]): KernelError =>
  new KernelError('tool_arguments_invalid', {
    message: `${findings.join('; ')}.`,
    details: { findings },
  });

/** The profile has the name, and this worker nothing for it. */
const missingTool = (name: string, what = `The profile lists '${name}'`): KernelError =>
  new KernelError('tool_unknown', {
    message: `${what}, but this worker has no tool or primitive of this name.`,
    next: 'Load the plugin that brings it (boxcar worker --plugin), or correct the profile.',
    details: { tool: name },
  });

/** Why a turn cannot end as its profile says: all that it must end with is missing here. */
export function findNoEnd(
  runtime: Pick<RuntimeCore, 'tools' | 'handlers'>,
  profile: Pick<Profile, 'tools' | 'must_end_with'>,
): KernelError | undefined {
  const missing = findMissing(runtime, profile);
  const [first] = profile.must_end_with;
  if (first === undefined || !profile.must_end_with.every((name) => missing.includes(name))) return undefined;
  return missingTool(first, `The turn must end with a call of ${profile.must_end_with.join(' or ')}`);
}

/** Why a call with route `none` is refused, in words the model can use. */
function refusal(runtime: RuntimeCore, call: ModelCall, toolbox: Toolbox): ErrorBody {
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

/** Arguments as the model wrote them: an object, or the text it sent instead. */
export function parseCallArguments(text: string): {
  readonly value: JsonValue;
  readonly isSanitized: boolean;
} {
  const clean = sanitizeText(text);
  if (clean.value.trim() === '') return { value: {}, isSanitized: clean.isChanged };
  try {
    const parsed = sanitizeJson(parseJson(clean.value));
    if (isJsonObject(parsed.value))
      return { value: parsed.value, isSanitized: clean.isChanged || parsed.isChanged };
  } catch {
    // Kept as text: the model is shown what it wrote.
  }
  return { value: clean.value, isSanitized: clean.isChanged };
}

async function runFunction(
  runtime: RuntimeCore,
  tool: Tool,
  call: PendingCall,
  turn: HeldTurn,
): Promise<{ result: JsonValue; isSanitized: boolean }> {
  const { parsed } = parseGiven(tool.input, isJsonObject(call.arguments) ? call.arguments : {});
  if (!parsed.success) {
    const findings = findingsOf(parsed.error);
    throw invalidArguments(findings.map(({ path, message }) => `${path || 'arguments'}: ${message}`));
  }
  const { turnId, agentId, projectId } = turn.turn;
  const output = await runLimited(call, turn, async ({ signal, fail }) => {
    if (call.retry === 'never') turn.begunIds.add(call.id);
    const code: RunningCall = {
      kind: 'call',
      tool: call.name,
      toolCallId: call.id,
      turnId,
      holderId: turn.holderId,
    };
    const crash = (error: unknown): void => {
      const crashed = toolCrashed(call, error);
      runtime.log('error', 'tool.crashed', {
        tool: call.name,
        tool_call_id: call.id,
        turn_id: turnId,
        is_answered: !fail(crashed),
        error: crashed.message,
        stack: error instanceof Error ? error.stack : undefined,
      });
    };
    // A tool that does not listen may bring its result when nobody waits for it any more.
    const brought = await runInScope({ code, crash }, async () =>
      tool.run(parsed.data, {
        toolCallId: call.id,
        turnId,
        agentId,
        projectId,
        signal,
        tape: (target) =>
          openTape(untilAborted(onPool(runtime.pool, runtime.limits.maxCardBytes), signal), target, {
            projectId,
            as: agentId,
            create: false,
          }),
      }),
    );
    if (turn.signal.aborted)
      await keepLate(runtime, turn, [
        lateResult(call.id, call.step, { status: 'success', result: sanitizeJson(brought).value }),
      ]);
    return brought;
  });
  const { value, isChanged } = sanitizeJson(output);
  return { result: value, isSanitized: isChanged };
}

interface Limit {
  /** Fires at the call's deadline, and when the turn is lost. */
  readonly signal: AbortSignal;
  /** The effect is about to be committed: from here on the deadline no longer ends the call. @throws when it has. */
  readonly pass: () => void;
  /** Ends the call with this error. @returns False when the call has ended before. */
  readonly fail: (error: KernelError) => boolean;
}

const toolCrashed = (call: Pick<PendingCall, 'id' | 'name'>, error: unknown): KernelError =>
  new KernelError('tool_crashed', {
    message: `${call.name} left an error that nothing caught: ${toErrorBody(error).message}.`,
    details: { tool: call.name, tool_call_id: call.id },
    cause: error,
  });

/** Runs outside code for a call until the call's deadline, or until its turn is lost, whether that code listens or not. */
async function runLimited<T>(
  call: PendingCall,
  { signal: lost }: HeldTurn,
  work: (limit: Limit) => Promise<T>,
): Promise<T> {
  lost.throwIfAborted();
  const controller = new AbortController();
  const { signal } = controller;
  const onLost = (): void => controller.abort(lost.reason);
  lost.addEventListener('abort', onLost, { once: true });
  const timer = startTimer(Math.max(call.remaining_ms, 0), () =>
    controller.abort(
      new KernelError('tool_timeout', {
        message: `${call.name} did not answer in time.`,
        details: { tool: call.name, tool_call_id: call.id },
      }),
    ),
  );
  const pass = (): void => {
    signal.throwIfAborted();
    timer.clear();
  };
  let isOver = false;
  const fail = (error: KernelError): boolean => {
    const isFirst = !isOver && !signal.aborted;
    if (isFirst) controller.abort(error);
    return isFirst;
  };
  try {
    return await unlessAborted(work({ signal, pass, fail }), signal);
  } finally {
    isOver = true;
    timer.clear();
    lost.removeEventListener('abort', onLost);
  }
}

export type CallRun =
  | { readonly kind: 'result'; readonly settlement: CallSettlement }
  /** Answered in its own transaction, or waiting for a turn. */
  | { readonly kind: 'elsewhere' }
  /** submit_result and its like: the turn ends with this deliverable. */
  | ({ readonly kind: 'ending'; readonly settlement: CallSettlement } & NonNullable<Accepted['ending']>);

interface CallOptions {
  readonly isAlone: boolean;
  readonly begun: Begun | undefined;
  /** @throws KernelError unless the turn may end by this call with this deliverable. */
  readonly checkEnd: (name: string, deliverable: JsonValue) => Promise<void>;
}

/**
 * Runs one pending call. Whatever the tool does, the model gets a readable result; only the loss of the turn or of the
 * database is thrown.
 */
export async function runCall(
  runtime: RuntimeCore,
  turn: HeldTurn,
  call: PendingCall,
  toolbox: Toolbox,
  options: CallOptions,
): Promise<CallRun> {
  const target = {
    toolCallId: call.id,
    turnId: call.turn_id,
    name: call.name,
    projectId: turn.turn.projectId,
  };
  const settle = (outcome: CallOutcome, isSanitized = false): CallSettlement =>
    toSettlement(target, outcome, {
      authorId: call.route === 'function' ? `tool:${call.name}` : turn.turn.agentId,
      isSanitized,
      maxBytes: runtime.limits.maxCardBytes,
    });
  if (call.is_awaiting) return { kind: 'elsewhere' };
  try {
    if (call.route === 'none')
      return { kind: 'result', settlement: settle(toFailure(refusal(runtime, call, toolbox))) };
    if (call.route === 'queue') {
      // After a takeover it may be out already; whether one that must not be sent twice was, the sweep knows.
      if (call.retry === 'safe' || call.epoch === turn.turn.epoch) runtime.sendSoon(call);
      return { kind: 'elsewhere' };
    }
    if (!isJsonObject(call.arguments)) {
      throw new KernelError('tool_arguments_invalid', {
        message: commandFault(call.arguments) ?? 'The arguments are not a JSON object.',
        details: { received: String(call.arguments).slice(0, 200) },
      });
    }
    if (call.route === 'primitive') return await runPrimitive(runtime, turn, call, { ...options, settle });
    const tool = runtime.tools.get(call.name);
    if (tool === undefined)
      throw new KernelError('tool_unknown', {
        message: `This worker has no tool '${call.name}'; load its plugin.`,
      });
    if (call.epoch !== turn.turn.epoch && call.retry === 'never') {
      throw new KernelError('outcome_unknown', {
        message: `${call.name} was interrupted.`,
        details: { tool: call.name, tool_call_id: call.id },
      });
    }
    const { result, isSanitized } = await runFunction(runtime, tool, call, turn);
    return { kind: 'result', settlement: settle({ status: 'success', result }, isSanitized) };
  } catch (error) {
    if (turn.signal.aborted || (call.route === 'primitive' && isFatal(error, turn))) throw error;
    const body = toErrorBody(error, 'tool_failed');
    const clean = sanitizeJson(body).value as unknown as ErrorBody;
    return {
      kind: 'result',
      settlement: settle({ status: clean.code === 'tool_timeout' ? 'timeout' : 'failed', error: clean }),
    };
  }
}

/** Ours to act on: the database is away, or this worker no longer holds the turn. An outside handler can say neither. */
const isFatal = (error: unknown, { turn }: HeldTurn): boolean =>
  error instanceof KernelError &&
  !isOutside(error) &&
  (error.code === 'database_unavailable' ||
    (error.code === 'turn_ended' && error.details.turn_id === turn.turnId));

const callerOf = ({ turn }: HeldTurn): SubmitOptions => ({
  projectId: turn.projectId,
  sourceAgentId: turn.agentId,
  channelId: turn.channelId,
  ...(turn.traceparent === null ? {} : { traceparent: turn.traceparent }),
});

/** Begins a primitive beside the commit of its call. Undefined: it is none, or will be refused by `runCall`. */
export function beginCall(
  runtime: RuntimeCore,
  held: HeldTurn,
  call: Pick<NewToolCall, 'id' | 'name' | 'arguments' | 'route'>,
): Begun | undefined {
  if (call.route !== 'primitive') return undefined;
  try {
    return begin(runtime, call.name, call.arguments, {
      ...callerOf(held),
      call: { turnId: held.turn.turnId, toolCallId: call.id, holderId: held.holderId },
    });
  } catch {
    return undefined;
  }
}

async function runPrimitive(
  runtime: RuntimeCore,
  held: HeldTurn,
  call: PendingCall,
  options: CallOptions & { readonly settle: (outcome: CallOutcome) => CallSettlement },
): Promise<CallRun> {
  const { turn, holderId } = held;
  let rings: Parameters<RuntimeCore['ring']>[0] = [];
  const accepted = await runLimited(call, held, ({ signal, pass }) =>
    runtime.accept(call.name, call.arguments, {
      ...callerOf(held),
      call: {
        begun: options.begun,
        turnId: turn.turnId,
        epoch: turn.epoch,
        holderId,
        toolCallId: call.id,
        signal,
        settle: async (tx, answer) => {
          pass();
          const settled = await settleCalls(tx, [options.settle({ status: 'success', result: answer })]);
          if (settled.duplicates.length > 0) throw answeredMeanwhile(call.name, call.id);
          rings = settled.rings;
        },
        pass,
        ring: held.ring,
      },
    }),
  );
  runtime.ring(rings);
  if (accepted.ending === null) return { kind: 'elsewhere' };
  const { ending } = accepted;
  if (!options.isAlone)
    throw new KernelError('tool_arguments_invalid', {
      message: `${call.name} must be the only call of its message.`,
    });
  await options.checkEnd(call.name, ending.deliverable);
  return {
    kind: 'ending',
    settlement: options.settle({ status: 'success', result: accepted.answer }),
    ...ending,
  };
}
