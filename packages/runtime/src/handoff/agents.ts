/** Agents that are functions of this program. They serve handoffs as other agents serve turns. */
import { createHash } from 'node:crypto';
import { isCleanText, type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import { HANDOFF_TARGET, type PackedHandoff, type PreparedHandoff } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { unlessAborted } from '../lib/index.js';
import type { HandoffAnswer, HandoffInput } from './handoff-types.js';

/** The information and the operations that a function has for the handoff that it serves. */
export interface AgentContext {
  readonly handoff_id: string;
  readonly task: string;
  /**
   * The caller's context. `handoff_id`, `handoff_source_agent`, `handoff_platform` and `parent_run_id` are added where the caller has no
   * such keys.
   */
  readonly context: JsonObject;
  /** Fires at the deadline, after a cancel, and when another process has taken over the handoff. */
  readonly signal: AbortSignal;
  /** Shows a part of a text result to the readers of the handoff. The joined parts are the result. */
  write(text: string): void;
  /**
   * Asks the readers of the handoff and waits for the reply. The wait holds no slot of the worker and does not count against the time of
   * the handoff. A function that is started again asks again, and gets the existing reply.
   *
   * @param options.timeout - In seconds. Default 86,400, at most thirty days.
   * @throws KernelError `question_expired` when there is no reply in time; `bad_request` for a function without `retry: 'safe'`.
   */
  ask(text: string, options?: { readonly timeout?: number | undefined }): Promise<string>;
  /** Hands on: the new handoff is a part of this handoff. Its `source_agent` is the name of the function. */
  handoff(request: Omit<HandoffInput, 'source_agent' | 'parent_handoff_id'>): Promise<HandoffAnswer>;
}

/** @param input - The unchanged payload; without a payload `{task, context}`. */
export type AgentFunction = (input: JsonValue, context: AgentContext) => JsonValue | Promise<JsonValue>;

/**
 * Serves agents that are not registered. A name that ends with `-sag` is passed to `invokeSag` if that exists; every other name is passed
 * to `invokeMag`.
 */
export interface AgentRunner {
  invokeMag(slug: string, input: JsonValue, context: JsonObject): unknown;
  invokeSag?(slug: string, input: JsonValue, context: JsonObject): unknown;
}

export interface RegisteredAgent {
  readonly run: AgentFunction;
  readonly retry: 'safe' | 'never';
  /** The handler for handoffs of the function. It applies the policy and the gate of the tool that registered the function. */
  readonly handler?: Handler | undefined;
}

/** The worker target of handoffs to this function: only processes that have registered it may take them. */
export const agentTarget = (slug: string): string =>
  `${HANDOFF_TARGET}agent-${createHash('sha256').update(slug).digest('hex').slice(0, 24)}`;

/** The worker target of handoffs to an unregistered agent: only processes with a runner may take them. */
export const RUNNER_TARGET = `${HANDOFF_TARGET}runner`;

export const platformTarget = (platform: string): string =>
  `${HANDOFF_TARGET}platform-${
    /^[a-z0-9_-]{1,40}$/.test(platform)
      ? platform
      : createHash('sha256').update(platform).digest('hex').slice(0, 24)
  }`;

export function runnerFunction(runner: AgentRunner, slug: string): RegisteredAgent {
  const isSag = slug.endsWith('-sag') && runner.invokeSag !== undefined;
  return {
    retry: 'never',
    run: async (input, { context }) =>
      (await (isSag
        ? runner.invokeSag?.(slug, input, context)
        : runner.invokeMag(slug, input, context))) as JsonValue,
  };
}

const contextOf = (handoff: PackedHandoff): JsonObject => ({
  handoff_id: handoff.handoff_id,
  handoff_source_agent: handoff.source_agent,
  handoff_platform: handoff.platform,
  parent_run_id: handoff.parent_run_id,
  ...handoff.context,
});

const ASK_SECONDS = 86_400;
const MAX_ASK_SECONDS = 30 * 86_400;

const badQuestion = (message: string): KernelError =>
  new KernelError('bad_request', { message: `ask: ${message}`, details: { field: 'ask' } });

function checkQuestion({ retry }: RegisteredAgent, text: unknown): string {
  if (retry !== 'safe')
    throw badQuestion(
      "only a function that is registered with { retry: 'safe' } may ask: it starts again when its process ends while it waits.",
    );
  if (typeof text !== 'string' || text.trim() === '' || !isCleanText(text))
    throw badQuestion('the question must be a text without NUL characters and lone surrogates.');
  return text;
}

function timeOf({ timeout = ASK_SECONDS }: { readonly timeout?: number | undefined }): number {
  if (!(timeout > 0 && timeout <= MAX_ASK_SECONDS))
    throw badQuestion(`timeout must be a number of seconds up to ${MAX_ASK_SECONDS}.`);
  return Math.ceil(timeout * 1000);
}

/** Prepares a function to serve one handoff. */
export function prepareAgent(
  agent: RegisteredAgent,
  handoff: PackedHandoff,
  handOn: (request: HandoffInput, signal: AbortSignal) => Promise<HandoffAnswer>,
): PreparedHandoff {
  const { handoff_id, payload, context } = handoff;
  const task = handoff.task ?? '';
  return {
    retry: agent.retry,
    need: { promptTokens: 0, maxOutputTokens: 0, model: null },
    cancel: undefined,
    adviseRetry: (error) => ({
      retryable:
        error instanceof KernelError
          ? error.entry.canRetry
          : Reflect.get(Object(error), 'retryable') === true,
    }),
    execute: async ({ signal, onText, ask, whileWaiting }) => {
      const handingOn = (request: HandoffInput): Promise<HandoffAnswer> =>
        request?.wait === false ? handOn(request, signal) : whileWaiting(() => handOn(request, signal));
      const asking = (
        text: unknown,
        options: { readonly timeout?: number | undefined } = {},
      ): Promise<string> => {
        const reply = (async () => ask(checkQuestion(agent, text), { timeoutMs: timeOf(options) }))();
        // A function may return without awaiting the reply.
        reply.catch(() => undefined);
        return reply;
      };
      const running = (async () =>
        agent.run(payload === null ? { task, context: context ?? {} } : payload, {
          handoff_id,
          task,
          context: contextOf(handoff),
          signal,
          write: onText,
          ask: asking,
          handoff: handingOn,
        }))();
      const result = (await unlessAborted(running, signal)) ?? null;
      return { result, usage: null, remoteId: null, loss: null };
    },
  };
}
