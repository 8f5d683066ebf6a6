/**
 * The deterministic model of demos, tests and benches: `scripted` follows the script of the profile,
 * `scripted:<name>` a registered function.
 *
 * M1  It keeps nothing between calls: the position is `turn.step`, everything else is read from the request. A fresh instance on another
 *     worker continues at the same position.
 * M2  A request that the script does not provide for fails with a `script_mismatch` that names turn, step and the prompt's content.
 * M3  An abort ends a call at once with the signal's reason, and leaves no timer behind.
 */
import {
  errorText,
  type GenerateOptions,
  type JsonValue,
  KernelError,
  type Model,
  ModelError,
  type ModelReply,
  type ModelRequest,
  type ModelToolCall,
  type ModelUsage,
  safeParse,
  toBadRequest,
} from '@boxcar/kernel';
import { pause, raceAbort } from './abort.js';
import {
  type Conversation,
  estimatePromptTokens,
  estimateReplyTokens,
  readConversation,
} from './conversation.js';
import { hasAnswer, type ScriptStep, scriptSchema, scriptStepSchema } from './script.js';
import { fillText, fillValue, isList, shapeOf, type TemplateScope } from './template.js';

/** The answer of a scripted function; omitted fields are empty, estimated, or derived from the others. */
export interface ScriptedReply {
  readonly text?: string | undefined;
  readonly toolCalls?: readonly ModelToolCall[] | undefined;
  readonly usage?: { readonly [K in keyof ModelUsage]?: number | undefined } | undefined;
  readonly finishReason?: ModelReply['finishReason'] | undefined;
}

/** The script's readers, for functions. */
export interface ScriptedHelpers {
  /** The turn's own instruction: text, or the JSON it was given; null when it has none. */
  readonly instruction: JsonValue;
  /** The results of this turn's calls of `tool` in call order, parsed when they are JSON, else their text. */
  results(tool: string): readonly JsonValue[];
  /** A JSON value with its templates filled in, as in a script. @throws ModelError `script_mismatch` */
  template(value: JsonValue): JsonValue;
  /** A call whose arguments are valid JSON. The id defaults to `call_<step>`. */
  call(tool: string, argumentsValue: JsonValue, id?: string): ModelToolCall;
  /** Waits; rejects with the signal's reason when the call is aborted. */
  pause(delayMs: number): Promise<void>;
  /** Emits a piece of the text before the answer is complete. The joined pieces are the answer's text. */
  write(text: string): void;
  readonly signal: AbortSignal;
}

/**
 * A model in code, for behavior that scripts cannot express. It must derive its answer from the request alone. A thrown `ModelError`
 * passes unchanged, any other error becomes `model_failed`.
 */
export type ScriptedFunction = (
  request: ModelRequest,
  helpers: ScriptedHelpers,
) => ScriptedReply | Promise<ScriptedReply>;

export interface ScriptedModelOptions {
  /** The functions of `scripted:<name>`, looked up at each call: plugins may add to them after the start. */
  readonly functions?: Readonly<Record<string, ScriptedFunction>>;
}

const PREFIX = 'scripted';
const MAX_SEEN = 300;

const shorten = (text: string): string =>
  text.length <= MAX_SEEN ? text : `${text.slice(0, MAX_SEEN).toWellFormed()}…`;

/** A finding in a profile, in the same form as a failed schema. */
export function toProfileInvalid(path: string, message: string): KernelError {
  return new KernelError('profile_invalid', {
    message: `${path}: ${message}.`,
    details: { issues: [{ path, message }] },
  });
}

function createMismatch(
  request: ModelRequest,
  why: string,
  details: Record<string, unknown> = {},
): ModelError {
  const { turnId, step } = request.turn;
  return new ModelError('script_mismatch', `Turn ${turnId}, step ${step}: ${why}`, {
    details: { turnId, step, ...details },
  });
}

function createScope(request: ModelRequest, conversation: Conversation): TemplateScope {
  return {
    instruction: request.turn.instruction,
    results: (tool) => conversation.results(tool),
    refuse: (why) => {
      throw createMismatch(request, why);
    },
  };
}

function completeReply(request: ModelRequest, reply: ScriptedReply): ModelReply {
  const text = reply.text ?? '';
  const toolCalls = reply.toolCalls ?? [];
  return {
    text,
    toolCalls,
    usage: {
      inputTokens: reply.usage?.inputTokens ?? estimatePromptTokens(request.messages),
      outputTokens: reply.usage?.outputTokens ?? estimateReplyTokens(text, toolCalls),
    },
    finishReason: reply.finishReason ?? (toolCalls.length > 0 ? 'tool_calls' : 'stop'),
  };
}

function findStep(request: ModelRequest, conversation: Conversation): ScriptStep {
  const { script = [], turn } = request;
  const item = script[turn.step - 1];
  if (item === undefined) {
    const seen = shorten(conversation.news());
    throw createMismatch(
      request,
      `the script ends after ${script.length} steps; it was asked again with '${seen}'.`,
      {
        seen,
      },
    );
  }
  const parsed = safeParse(scriptStepSchema, item);
  if (parsed.success) return parsed.data;
  const { message, details } = toBadRequest(parsed.error, `script.${turn.step - 1}`, 'profile_invalid');
  throw createMismatch(request, message, details);
}

function checkExpectation(request: ModelRequest, conversation: Conversation, step: ScriptStep): void {
  if (step.expect === undefined) return;
  const { lastRole, contains, notContains } = step.expect;
  const role = request.messages.at(-1)?.role ?? 'none';
  const news = conversation.news();
  const refuse = (expected: string): never => {
    const seen = shorten(news);
    throw createMismatch(request, `expected ${expected}; seen (last role ${role}): '${seen}'.`, {
      expected,
      seen,
      role,
    });
  };
  if (lastRole !== undefined && role !== lastRole) refuse(`the last message to have the role ${lastRole}`);
  if (contains !== undefined && !news.includes(contains)) refuse(`text with '${contains}'`);
  if (notContains !== undefined && news.includes(notContains)) refuse(`no text with '${notContains}'`);
}

/** Waits, and emits a piece of the text after each wait. */
async function writeInChunks(
  { delayMs = 0, chunks = 1 }: ScriptStep,
  text: string,
  { signal, onText }: GenerateOptions,
): Promise<void> {
  if (delayMs === 0 && chunks === 1) {
    if (text !== '') onText?.(text);
    return;
  }
  for (let chunk = 0; chunk < chunks; chunk += 1) {
    await pause(delayMs / chunks, signal);
    const part = text.slice(partStart(text, chunk, chunks), partStart(text, chunk + 1, chunks));
    if (part !== '') onText?.(part);
  }
}

const partStart = (text: string, chunk: number, chunks: number): number =>
  Math.floor((text.length * chunk) / chunks);

function foreseenFailure(request: ModelRequest, step: ScriptStep): ModelError | undefined {
  const { turnId, step: position, attempt } = request.turn;
  const times = hasAnswer(step) ? (step.fail?.times ?? 1) : Number.POSITIVE_INFINITY;
  if (attempt > times) return undefined;
  const at = `Turn ${turnId}, step ${position}, attempt ${attempt}`;
  const details = { turnId, step: position, attempt };
  if (step.overflow) {
    return new ModelError('context_overflow', `${at}: the prompt exceeds the context window, as scripted.`, {
      details,
    });
  }
  if (step.fail === undefined) return undefined;
  const { status, retryAfter, message = 'failed as scripted' } = step.fail;
  return new ModelError('model_failed', `${at}: HTTP ${status}: ${message}`, {
    canRetry: status === 429 || status >= 500,
    retryAfterMs: retryAfter === undefined ? undefined : Math.round(retryAfter * 1000),
    details: { ...details, status },
  });
}

/** The scopes in which a step's calls are filled in: one, or one for each item of `forEach`. */
function scopesOf(step: ScriptStep, scope: TemplateScope): readonly TemplateScope[] {
  if (step.forEach === undefined) return [scope];
  const items = fillValue(step.forEach, scope);
  if (!isList(items)) return scope.refuse(`${step.forEach}: forEach needs a list, got ${shapeOf(items)}`);
  return items.map((value, index) => ({ ...scope, item: { value, index } }));
}

function writeAnswer(request: ModelRequest, step: ScriptStep, scope: TemplateScope): ScriptedReply {
  const written = scopesOf(step, scope).flatMap((itemScope) =>
    (step.calls ?? []).map((call) => ({
      id: call.id === undefined ? undefined : fillText(call.id, itemScope),
      name: call.tool,
      arguments: call.raw ?? JSON.stringify(fillValue(call.arguments ?? {}, itemScope)),
    })),
  );
  const toolCalls = written.map((call, index) => ({
    ...call,
    id: call.id ?? `call_${request.turn.step}_${index}`,
  }));
  // Text without calls would end the turn although the script defined calls; an empty answer leads to the next step.
  const saysNothing = step.calls !== undefined && toolCalls.length === 0;
  return {
    text: step.say === undefined || saysNothing ? '' : fillText(step.say, scope),
    toolCalls,
    usage: step.usage,
    finishReason: step.finishReason,
  };
}

async function followScript(request: ModelRequest, options: GenerateOptions): Promise<ScriptedReply> {
  const conversation = readConversation(request);
  const step = findStep(request, conversation);
  checkExpectation(request, conversation, step);
  const failure = foreseenFailure(request, step);
  if (failure !== undefined) {
    await writeInChunks(step, '', options);
    throw failure;
  }
  const reply = writeAnswer(request, step, createScope(request, conversation));
  await writeInChunks(step, reply.text ?? '', options);
  return reply;
}

async function callFunction(
  scripted: ScriptedFunction,
  request: ModelRequest,
  { signal, onText }: GenerateOptions,
): Promise<ScriptedReply> {
  const scope = createScope(request, readConversation(request));
  const helpers: ScriptedHelpers = {
    instruction: request.turn.instruction,
    results: scope.results,
    template: (value) => fillValue(value, scope),
    call: (tool, argumentsValue, id = `call_${request.turn.step}`) => ({
      id,
      name: tool,
      arguments: JSON.stringify(argumentsValue),
    }),
    pause: (delayMs) => pause(delayMs, signal),
    write: (text) => onText?.(text),
    signal,
  };
  const work = async (): Promise<ScriptedReply> => scripted(request, helpers);
  try {
    return await raceAbort(work(), signal);
  } catch (error) {
    if (signal.aborted || error instanceof ModelError) throw error;
    const { turnId, step } = request.turn;
    const why = errorText(error);
    throw new ModelError('model_failed', `Turn ${turnId}, step ${step}: ${request.model} threw: ${why}`, {
      details: { turnId, step, model: request.model },
      cause: error,
    });
  }
}

/**
 * Creates the scripted model.
 *
 * @returns A `Model` whose `checkProfile` throws KernelError `profile_invalid` that names each wrong part of a script
 * (`script.3.calls.0.tool`, positions from 0), and an unknown function (`model`).
 */
export function createScriptedModel({ functions = {} }: ScriptedModelOptions = {}): Model {
  /** The function that a model name stands for, undefined for the script itself, or the reason why the name is not valid. */
  const findFunction = (
    model: string,
  ): { readonly run?: ScriptedFunction } | { readonly unknown: string } => {
    if (model === PREFIX) return {};
    const name = model.startsWith(`${PREFIX}:`) ? model.slice(PREFIX.length + 1) : undefined;
    const run = name !== undefined && Object.hasOwn(functions, name) ? functions[name] : undefined;
    if (run !== undefined) return { run };
    const known = [PREFIX, ...Object.keys(functions).map((key) => `${PREFIX}:${key}`)];
    return { unknown: `no scripted model '${model}'; known are ${known.join(', ')}` };
  };

  return {
    async generate(request, options) {
      options.signal.throwIfAborted();
      const found = findFunction(request.model);
      if ('unknown' in found) {
        const { turnId, step } = request.turn;
        throw new ModelError('model_unknown', `Turn ${turnId}, step ${step}: ${found.unknown}.`, {
          details: { turnId, step, model: request.model },
        });
      }
      const reply = found.run
        ? await callFunction(found.run, request, options)
        : await followScript(request, options);
      return completeReply(request, reply);
    },

    checkProfile({ model, script }) {
      const found = findFunction(model);
      if ('unknown' in found) throw toProfileInvalid('model', found.unknown);
      if (found.run !== undefined) return;
      if (script === undefined)
        throw toProfileInvalid('script', `is missing; the model ${PREFIX} follows one`);
      const parsed = safeParse(scriptSchema, script);
      if (!parsed.success) throw toBadRequest(parsed.error, 'script', 'profile_invalid');
    },
  };
}
