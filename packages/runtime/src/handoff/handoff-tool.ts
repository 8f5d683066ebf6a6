/** Handoffs for programs: the interface of the source system, backed by durable rows. */
import type { HandoffAdapter } from '@boxcar/adapters';
import {
  type Handoff,
  type HandoffEvent,
  type HandoffMessage,
  type HandoffOutline,
  type HandoffPart,
  type HandoffRequest,
  type HandoffResponse,
  type HandoffToolSchema,
  handoffToolSchema,
  KernelError,
  type ProjectId,
  parseId,
  readHandoffCall,
  toHandoffRequest,
  toHandoffResponse,
  type WebhookDelivery,
} from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { findHandoff, loadHandoffEvents } from '@boxcar/store';
import { type ApprovalGate, DEFAULT_PROJECT } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import type { WebhookSender } from '../webhook/index.js';
import { createWorker, type Worker } from '../worker/index.js';
import type { AgentFunction, AgentRunner } from './agents.js';
import { chainPrimitive } from './chain-primitives.js';
import { type HandoffEnvironment, readHandoffEnvironment } from './config.js';
import { handOff, handoffsOfRoot, loadHandoff, logRefused, waitForHandoff } from './hand-off.js';
import { type HandoffPage, type ListHandoffsOptions, listHandoffPage } from './handoff-lists.js';
import { featureDisabled, handoffPrimitive } from './handoff-primitive.js';
import type { ChainHopInput, ChainOptions, HandoffAnswer, HandoffInput } from './handoff-types.js';
import { messagesOf, type ReplyOptions, replyTo } from './messages.js';
import type { HandoffParts, HandoffRules } from './parts.js';
import { retryCompensation } from './retry-compensation.js';
import { type StreamOptions, streamHandoff } from './stream-handoff.js';
import {
  type ListWebhooksOptions,
  listWebhookPage,
  retryWebhook,
  type WebhookPage,
} from './webhook-lists.js';

/** The part of a runtime that a tool needs. `Runtime` implements it. @internal */
export interface HandoffRuntime extends RuntimeCore {
  readonly handoffs: HandoffParts;
  readonly webhooks: WebhookSender;
  /** The model that summarizes sessions when they are handed on. Undefined: no model does. */
  readonly summaryModel: string | undefined;
  /** Registers work to do before the runtime closes. @returns A function that removes the registration. */
  beforeClose(work: () => Promise<void>): () => void;
}

export interface HandoffToolOptions {
  readonly runtime: HandoffRuntime;
  /** Default: the evaluator of the runtime. Null: no policy is asked. */
  readonly permissionEvaluator?: PermissionEvaluator | null | undefined;
  /** Default: the gate of the runtime. Null: no gate; a handoff that needs an approval is refused. */
  readonly approvalGate?: ApprovalGate | null | undefined;
  /** Serves native targets that are not an agent, a profile or a registered function. */
  readonly agentRunner?: AgentRunner | undefined;
  /** Agents and models of other platforms, by name. They are added to the targets of the runtime. */
  readonly targets?: unknown;
  readonly projectId?: ProjectId | undefined;
  /** Default true, unless `BOXCAR_HANDOFF_ENABLED` or `AGDD_HANDOFF_ENABLED` is `false`. */
  readonly handoffEnabled?: boolean | undefined;
  /** How many handoffs to adapters and functions this process serves at once. Default 10. With 0, other processes serve them. */
  readonly concurrency?: number | undefined;
}

/** The policy of the runtime, or else the policy file of the environment. @throws KernelError `policy_invalid`, `bad_config`. */
function ownPolicy(
  { gate }: Pick<RuntimeCore, 'gate'>,
  { policyFile }: HandoffEnvironment,
): PermissionEvaluator | undefined {
  return (
    gate.evaluator ?? (policyFile === undefined ? undefined : new PermissionEvaluator({ file: policyFile }))
  );
}

/** One interface to agents of this installation and of other platforms, under policy and approval. Rule: docs/reference/handoff.md. */
export class HandoffTool implements AsyncDisposable {
  readonly #runtime: HandoffRuntime;
  readonly #projectId: ProjectId;
  readonly #handler: Handler;
  readonly #chainHandler: Handler;
  readonly #rules: () => HandoffRules;
  readonly #concurrency: number;
  readonly #isEnabled: boolean;
  readonly #served = new Set<string>();
  readonly #workers: Promise<Worker>[] = [];
  #forget: (() => void) | undefined;

  constructor(options: HandoffToolOptions) {
    const { runtime, permissionEvaluator, approvalGate, agentRunner, targets } = options;
    this.#runtime = runtime;
    this.#projectId = parseId<'project'>(options.projectId ?? DEFAULT_PROJECT, 'projectId');
    this.#concurrency = options.concurrency ?? 10;
    const environment = readHandoffEnvironment();
    this.#isEnabled = options.handoffEnabled ?? environment.isEnabled ?? true;
    const { handoffs } = runtime;
    if (targets !== undefined) handoffs.addTargets(targets);
    else if (!handoffs.hasTargets && environment.targetsFile !== undefined)
      handoffs.addTargetsFile(environment.targetsFile);
    if (!runtime.webhooks.isConfigured && environment.webhooks !== undefined)
      runtime.webhooks.configure(environment.webhooks);
    if (agentRunner !== undefined) handoffs.runner = agentRunner;
    const evaluator =
      permissionEvaluator === undefined
        ? ownPolicy(runtime, environment)
        : (permissionEvaluator ?? undefined);
    if (evaluator !== undefined && evaluator !== runtime.gate.evaluator) handoffs.addEvaluator(evaluator);
    const approvalMs =
      approvalGate === null ? undefined : (approvalGate?.timeoutMs ?? runtime.gate.approvalMs);
    const rules = (): HandoffRules => ({ isEnabled: this.#isEnabled, gate: { evaluator, approvalMs } });
    this.#rules = rules;
    this.#handler = handoffPrimitive(runtime, handoffs, rules) as Handler;
    this.#chainHandler = chainPrimitive(runtime, handoffs, rules) as Handler;
    // Hops of chains that this process serves are judged by the same rules as the requests of this tool.
    handoffs.rules = rules;
  }

  /**
   * Hands a task to an agent. Resolves with the result, or at once with `wait: false`.
   *
   * @throws KernelError with `details.handoff_id` when the handoff has a row. `bad_request`: the request is not valid, for instance
   *   `Unsupported platform: <name>`. `permission_denied`: a policy or a person refused it, or the request for approval expired.
   *   `feature_disabled`. Otherwise the error with which the handoff failed.
   */
  async handoff(
    request: HandoffInput,
    options: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<HandoffAnswer> {
    if (!this.#isEnabled) throw featureDisabled();
    if (this.#concurrency > 0) this.#runtime.handoffs.servers.add(this.#serve);
    return handOff(this.#runtime, request, {
      projectId: this.#projectId,
      handler: this.#handler,
      signal: options.signal,
      parts: this.#runtime.handoffs,
    });
  }

  /**
   * Runs handoffs one after the other: each hop gets the result of the hop before it. When a hop fails, the `compensate` requests of the
   * completed hops are carried out in reverse order. Resolves with the result of the last hop.
   *
   * @throws KernelError `chain_failed` with `details.phase`: `rolled_back` or `compensation_failed`; `bad_request`, `feature_disabled`.
   */
  async chain(hops: readonly ChainHopInput[], { signal, ...request }: ChainOptions): Promise<HandoffAnswer> {
    if (!this.#isEnabled) throw featureDisabled();
    if (this.#concurrency > 0) this.#runtime.handoffs.servers.add(this.#serve);
    return handOff(
      this.#runtime,
      { ...request, hops },
      {
        primitive: 'handoff_chain',
        projectId: this.#projectId,
        handler: this.#chainHandler,
        signal,
        parts: this.#runtime.handoffs,
      },
    );
  }

  /**
   * Undoes the hops that a failed or canceled chain has left, in reverse order. Resolves with the chain after all of them are undone.
   *
   * @throws KernelError the error of a failed compensation; `conflict` for a chain that is under way or has completed; `not_found`,
   *   `feature_disabled`.
   */
  async retryCompensation(
    handoffId: string,
    options: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<Handoff> {
    if (!this.#isEnabled) throw featureDisabled();
    const id = parseId<'handoff'>(handoffId, 'handoff_id');
    if (this.#concurrency > 0) this.#runtime.handoffs.servers.add(this.#serve);
    // A compensation that only this process can serve may already be under way.
    await this.#serve(...this.#runtime.handoffs.workerTargets);
    await retryCompensation(this.#runtime, id, {
      projectId: this.#projectId,
      parts: this.#runtime.handoffs,
      rules: this.#rules,
      signal: options.signal,
    });
    return loadHandoff(this.#runtime, id, this.#projectId);
  }

  /** Null: no such handoff. @throws KernelError `bad_request` for an id that is not valid. */
  async getHandoff(handoffId: string): Promise<Handoff | null> {
    const id = parseId<'handoff'>(handoffId, 'handoff_id');
    return (await findHandoff(this.#runtime.pool, { handoffId: id, projectId: this.#projectId })) ?? null;
  }

  /**
   * All handoffs of the same root, the oldest first, without context, payload and result: the handoffs of a chain, or the handoffs that an
   * agent handed on.
   *
   * @throws KernelError `bad_request`, `not_found`.
   */
  async getChain(handoffId: string): Promise<readonly HandoffOutline[]> {
    return handoffsOfRoot(this.#runtime, parseId<'handoff'>(handoffId, 'handoff_id'), this.#projectId);
  }

  /**
   * A handoff in the shape of `handoff_request.schema.json` and `handoff_response.schema.json` of @boxcar/kernel. The response is null
   * until the handoff is taken or refused. Null: no such handoff.
   *
   * @throws KernelError `bad_request` for an id that is not valid.
   */
  async getWire(
    handoffId: string,
  ): Promise<{ readonly request: HandoffRequest; readonly response: HandoffResponse | null } | null> {
    const handoff = await this.getHandoff(handoffId);
    if (handoff === null) return null;
    return { request: toHandoffRequest(handoff), response: toHandoffResponse(handoff) ?? null };
  }

  /** Handoffs of the project, the newest first. @throws KernelError `bad_request`. */
  listHandoffs(options: ListHandoffsOptions = {}): Promise<HandoffPage> {
    return listHandoffPage(this.#runtime, this.#projectId, options);
  }

  /** The log of a handoff, in order. @throws KernelError `bad_request` for an id that is not valid. */
  async getEvents(handoffId: string): Promise<readonly HandoffEvent[]> {
    const handoff = await this.getHandoff(handoffId);
    return handoff === null
      ? []
      : loadHandoffEvents(this.#runtime.pool, parseId(handoff.handoff_id, 'handoff_id'));
  }

  /** Questions that were asked while a handoff ran, and their replies, in order. @throws KernelError `bad_request`, `not_found`. */
  async messages(handoffId: string): Promise<readonly HandoffMessage[]> {
    return messagesOf(this.#runtime, parseId<'handoff'>(handoffId, 'handoff_id'), this.#projectId);
  }

  /**
   * Replies to the question with the given number, by default to the oldest open question of the handoff. Resolves with all messages.
   *
   * @throws KernelError `question_closed` when the question takes no reply anymore; `bad_request`, `not_found`.
   */
  async reply(
    handoffId: string,
    text: string,
    options: ReplyOptions = {},
  ): Promise<readonly HandoffMessage[]> {
    return replyTo(this.#runtime, parseId<'handoff'>(handoffId, 'handoff_id'), {
      projectId: this.#projectId,
      text,
      ...options,
    });
  }

  /**
   * Resolves when a handoff has ended, with success or without.
   *
   * @throws KernelError `not_found`, `wait_timeout`, or the signal's reason.
   */
  async waitForHandoff(
    handoffId: string,
    options: { readonly timeoutMs?: number | undefined; readonly signal?: AbortSignal | undefined } = {},
  ): Promise<Handoff> {
    // The handoff may be one that only this process can serve.
    await this.#serve(...this.#runtime.handoffs.workerTargets);
    return waitForHandoff(this.#runtime, parseId<'handoff'>(handoffId, 'handoff_id'), {
      projectId: this.#projectId,
      ...options,
    });
  }

  /**
   * Yields the text of a handoff while it is written, in order, and ends with the result or the error. A reader can resume after the last
   * part that it saw, in any process.
   *
   * @throws KernelError `bad_request`, `not_found`; the signal's reason.
   */
  async *stream(handoffId: string, options: StreamOptions = {}): AsyncGenerator<HandoffPart, void> {
    const id = parseId<'handoff'>(handoffId, 'handoff_id');
    // The handoff may be one that only this process can serve.
    await this.#serve(...this.#runtime.handoffs.workerTargets);
    yield* streamHandoff(this.#runtime, id, { projectId: this.#projectId, ...options });
  }

  /** Events for the receivers of callbacks, the newest first. @throws KernelError `bad_request`. */
  listWebhooks(options: ListWebhooksOptions = {}): Promise<WebhookPage> {
    return listWebhookPage(this.#runtime, this.#projectId, options);
  }

  /**
   * Sends an event now. If that fails, it is sent again for a day.
   *
   * @throws KernelError `bad_request`, `not_found`; `conflict`: the event was already delivered.
   */
  async retryWebhook(deliveryId: string): Promise<WebhookDelivery> {
    return retryWebhook(this.#runtime, parseId<'delivery'>(deliveryId, 'delivery_id'), this.#projectId);
  }

  /** The schema of the tool, in the exact shape of a platform. @throws KernelError `bad_request` for an unknown platform. */
  getToolSchema(platform = 'agdd'): HandoffToolSchema {
    return handoffToolSchema(platform);
  }

  /**
   * Carries out a call of the tool. The arguments have the shape of that platform's schema.
   *
   * @throws KernelError as `handoff`.
   */
  async callTool(
    platform: string,
    args: unknown,
    by: Pick<HandoffInput, 'source_agent' | 'run_id' | 'wait'>,
  ): Promise<HandoffAnswer> {
    if (!this.#isEnabled) throw featureDisabled();
    let call: ReturnType<typeof readHandoffCall>;
    try {
      call = readHandoffCall(platform, args);
    } catch (error) {
      logRefused(this.#runtime, by, error);
      throw error;
    }
    return this.handoff({ ...by, ...call });
  }

  /**
   * Registers a function of this program as an agent that handoffs can name.
   *
   * @param options.retry - `safe`: the function may run again after its process died during the call. Default `never`.
   * @throws KernelError `bad_request` for a blank name.
   */
  registerAgent(
    slug: string,
    run: AgentFunction,
    { retry = 'never' }: { readonly retry?: 'safe' | 'never' } = {},
  ): void {
    if (typeof slug !== 'string' || slug.trim() === '' || typeof run !== 'function')
      throw new KernelError('bad_request', {
        message: 'registerAgent: takes a name and a function.',
        details: { field: 'slug' },
      });
    this.#runtime.handoffs.agents.set(slug, { run, retry, handler: this.#handler });
  }

  /**
   * Adds an adapter, or replaces the adapter of the same platform.
   *
   * @throws KernelError `bad_request` for a value that is not an adapter, and for a platform that is not given by its first name.
   */
  registerAdapter(adapter: HandoffAdapter): void {
    this.#runtime.handoffs.addAdapter(adapter);
  }

  /** Starts workers in this process for targets that its adapters and functions can serve. */
  readonly #serve = async (...targets: readonly string[]): Promise<void> => {
    if (this.#concurrency === 0) return;
    const missing = targets.filter((target) => !this.#served.has(target));
    if (missing.length > 0) {
      for (const target of missing) this.#served.add(target);
      this.#forget ??= this.#runtime.beforeClose(() => this.close());
      const starting = createWorker(this.#runtime, { targets: missing, concurrency: this.#concurrency });
      this.#workers.push(starting);
      starting.catch(() => {
        for (const target of missing) this.#served.delete(target);
        this.#workers.splice(this.#workers.indexOf(starting), 1);
      });
    }
    await Promise.all(this.#workers);
  };

  /** Stops serving. Running handoffs get a few seconds to finish; then other processes take them over. */
  async close(): Promise<void> {
    await Promise.all(
      this.#workers.splice(0).map(async (starting) => {
        const worker = await starting.catch(() => undefined);
        await worker?.close();
      }),
    );
    this.#served.clear();
    this.#runtime.handoffs.servers.delete(this.#serve);
    this.#forget?.();
    this.#forget = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
