/** The adapters, targets and functions that a process has for handoffs. Programs add to them through `HandoffTool`. */
import type { AdapterRegistry, AskedTask, HandoffAdapter, Target, Targets } from '@boxcar/adapters';
import {
  errorText,
  type HandoffId,
  isCleanText,
  type JsonObject,
  KernelError,
  maskSecrets,
  normalizePlatform,
  sanitizeJson,
  type TicketId,
} from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import {
  type CallGateOptions,
  CHAIN_TARGET,
  HANDOFF_TARGET,
  type Handoffs,
  type PackedHandoff,
  type PreparedHandoff,
  type RuntimeCore,
} from '../core/index.js';
import type { Handler } from '../handler/index.js';
import type { WebhookSettings } from '../webhook/index.js';
import {
  type AgentRunner,
  agentTarget,
  platformTarget,
  prepareAgent,
  type RegisteredAgent,
  RUNNER_TARGET,
  runnerFunction,
} from './agents.js';
import { cancelHandoff } from './cancel-handoff.js';
import { decided } from './decided.js';
import { handOff, loadHandoff } from './hand-off.js';
import type { HandoffAnswer, HandoffInput } from './handoff-types.js';

/** Adapters import SDKs, so a process loads them only when it first needs one. */
const loadAdapters = () => import('@boxcar/adapters');
type AdapterLibrary = Awaited<ReturnType<typeof loadAdapters>>;

const BUILT_IN_PLATFORMS = ['adk', 'openai', 'anthropic'] as const;

/** How long a question of a platform waits for its reply. */
const ASK_MS = 86_400_000;

/** The question in a form that a card can hold. */
function questionText(question: string): string {
  const text = maskSecrets(String(sanitizeJson(question).value));
  return text.trim() === '' ? 'The agent waits for input, and does not say for what.' : text;
}

const MAX_TASK_NAME = 1_000;

/** The platform's name of the waiting task, in a form that a row can hold. The next attempt asks for the task by this name. */
function taskName(name: string | undefined, platform: string): string | undefined {
  if (!name) return undefined;
  if (name.length <= MAX_TASK_NAME && isCleanText(name)) return name;
  throw new KernelError('platform_failed', {
    message: `The agent of ${platform} asks, and the name of its task cannot be kept: it is longer than ${MAX_TASK_NAME} characters, or has some that are not text.`,
    details: { platform },
  });
}

class TargetsFile {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }
}

/** Describes the first problem of an adapter. Undefined: the adapter is valid. */
function findingOf(adapter: unknown): { readonly field: string; readonly message: string } | undefined {
  const { platform, supportsPlatform, executeHandoff } = Object(adapter) as Partial<HandoffAdapter>;
  if (typeof supportsPlatform !== 'function' || typeof executeHandoff !== 'function')
    return { field: 'adapter', message: 'takes an object with supportsPlatform and executeHandoff' };
  if (typeof platform !== 'string' || platform.trim() === '')
    return { field: 'platform', message: 'the adapter must name its platform' };
  const first = normalizePlatform(platform) ?? platform.trim().toLowerCase();
  return platform === first
    ? undefined
    : { field: 'platform', message: `platform: '${platform}' must be '${first}'` };
}

/** Checks an adapter when it is added. Otherwise the registry would refuse it only at the first handoff that needs any adapter. */
function checkAdapter(adapter: unknown): void {
  const finding = findingOf(adapter);
  if (finding === undefined) return;
  const { field, message } = finding;
  throw new KernelError('bad_request', { message: `registerAdapter: ${message}.`, details: { field } });
}

/** The rules that decide about handoffs: those of a tool, or else those of its runtime. */
export interface HandoffRules {
  readonly isEnabled: boolean;
  readonly gate: CallGateOptions;
}

export interface HandoffSettings {
  /** Whether models and doors may hand off. Default false. */
  readonly enabled?: boolean | undefined;
  /** Agents and models of other platforms by name, in the format of a targets file. */
  readonly targets?: unknown;
  /** False: this process decides about approvals without knowing the policy, and workers begin the approved handoffs. */
  readonly beginsApproved?: boolean | undefined;
  /** How callbacks are sent. Without these settings no callbacks are sent. */
  readonly webhooks?: WebhookSettings | undefined;
}

const isTimeout = ({ reason }: AbortSignal): boolean =>
  reason instanceof KernelError && reason.code === 'handoff_timeout';

export class HandoffParts implements Handoffs {
  readonly isEnabled: boolean;
  readonly beginsApproved: boolean;
  readonly agents = new Map<string, RegisteredAgent>();
  runner: AgentRunner | undefined;
  /** The rules by which this process judges hops of chains: those of a tool, or else those of the runtime. */
  rules: () => HandoffRules;
  /** Functions that start serving worker targets in this process. */
  readonly servers = new Set<(...workerTargets: readonly string[]) => Promise<void>>();
  readonly #runtime: RuntimeCore;
  readonly #adapters: HandoffAdapter[] = [];
  readonly #targets: unknown[] = [];
  /** Evaluators of tools that differ from the evaluator of the runtime, the newest tool last. */
  readonly #evaluators = new Set<PermissionEvaluator>();
  /** Evaluators that asked for an approval, by the version of their policy at that time. */
  readonly #askers = new Map<string, PermissionEvaluator>();
  #loaded: Promise<{ readonly registry: AdapterRegistry; readonly targets: Targets }> | undefined;

  constructor(runtime: RuntimeCore, settings: HandoffSettings = {}) {
    const { enabled = false, targets, beginsApproved = true } = settings;
    this.#runtime = runtime;
    this.isEnabled = enabled;
    this.beginsApproved = beginsApproved;
    this.rules = () => ({ isEnabled: this.isEnabled, gate: this.#runtime.gate });
    if (targets !== undefined) this.addTargets(targets);
  }

  addTargets(targets: unknown): void {
    this.#targets.push(targets);
    this.#loaded = undefined;
  }

  get hasTargets(): boolean {
    return this.#targets.length > 0;
  }

  /** The file is read when a target is first needed. */
  addTargetsFile(file: string): void {
    this.addTargets(new TargetsFile(file));
  }

  /** Registers the policy of a tool, so that it is asked again before an approved handoff begins. */
  addEvaluator(evaluator: PermissionEvaluator): void {
    this.#evaluators.add(evaluator);
  }

  /** Remembers the version of the policy under which an evaluator asked for an approval. */
  addAsker(version: string, evaluator: PermissionEvaluator): void {
    this.#askers.set(version, evaluator);
  }

  /**
   * The evaluator to ask again before a handoff begins that was approved under this version of a policy. After a restart the process does
   * not know which evaluator asked, and its policy may have changed. In that case the evaluator of the runtime is asked, or else the
   * evaluator of a tool.
   */
  askerOf(version: string): PermissionEvaluator | undefined {
    const evaluators = [...this.#evaluators];
    return (
      this.#askers.get(version) ??
      evaluators.find(({ policy }) => policy.version === version) ??
      this.#runtime.gate.evaluator ??
      evaluators.at(-1)
    );
  }

  /** @throws KernelError `bad_request` for a value that is not an adapter, and for a platform that is not given by its first name. */
  addAdapter(adapter: HandoffAdapter): void {
    checkAdapter(adapter);
    this.#adapters.push(adapter);
    this.#loaded = undefined;
  }

  get workerTargets(): readonly string[] {
    return [
      ...new Set([
        CHAIN_TARGET,
        ...BUILT_IN_PLATFORMS.map(platformTarget),
        ...this.#adapters.map(({ platform }) => platformTarget(platform)),
        ...this.#functionTargets,
      ]),
    ];
  }

  get #functionTargets(): readonly string[] {
    return [
      ...[...this.agents.keys()].map(agentTarget),
      ...(this.runner === undefined ? [] : [RUNNER_TARGET]),
    ];
  }

  /**
   * Starts serving this target here if this process can. All functions are served together, because a worker for each function would take
   * two connections each. Platforms are served only on demand, because this process may lack their targets and keys.
   */
  async ensureServed(workerTarget: string): Promise<void> {
    const [serve] = this.servers;
    const functions = this.#functionTargets;
    if (functions.includes(workerTarget)) await serve?.(...functions);
    else if (this.workerTargets.includes(workerTarget)) await serve?.(workerTarget);
  }

  /** Like `ensureServed`, but does not wait. */
  serveSoon(workerTarget: string): void {
    this.ensureServed(workerTarget).catch((error: unknown) => {
      this.#runtime.log('warn', 'handoff.not_served', {
        worker_target: workerTarget,
        error: errorText(error),
      });
    });
  }

  async #load(): Promise<{
    readonly library: AdapterLibrary;
    readonly registry: AdapterRegistry;
    readonly targets: Targets;
  }> {
    const library = await loadAdapters();
    this.#loaded ??= (async () => {
      const registry = new library.AdapterRegistry([
        new library.ADKHandoffAdapter(),
        new library.OpenAIHandoffAdapter(),
        new library.AnthropicHandoffAdapter(),
      ]);
      for (const adapter of this.#adapters) registry.registerAdapter(adapter);
      const { customPlatforms } = registry;
      const checked = this.#targets.map((given) => {
        if (given instanceof TargetsFile) return library.readTargetsFile(given.path, { customPlatforms });
        return given instanceof Map ? (given as Targets) : library.checkTargets(given, { customPlatforms });
      });
      return { registry, targets: new Map(checked.flatMap((targets) => [...targets])) };
    })();
    const loading = this.#loaded;
    loading.catch(() => {
      if (this.#loaded === loading) this.#loaded = undefined;
    });
    return { library, ...(await loading) };
  }

  /**
   * The first name of a platform, as stored in rows.
   *
   * @throws KernelError `bad_request` with the text `Unsupported platform: <name>`.
   */
  async platformOf(name: string): Promise<string> {
    const known = normalizePlatform(name);
    if (known !== undefined) return known;
    return (await this.#load()).registry.adapterOf(name).platform;
  }

  /** The platform of the target with this name. Undefined: no such target. */
  async platformOfTarget(name: string): Promise<string | undefined> {
    if (this.#targets.length === 0) return undefined;
    return (await this.#load()).targets.get(name)?.platform;
  }

  /** @throws KernelError `bad_request` for a name that is not a target of the platform. The error gives the line to add. */
  async resolveTarget(platform: string, name: string): Promise<Target> {
    const { library, registry, targets } = await this.#load();
    const isCustom = registry.customPlatforms.includes(platform);
    // The adapter of a custom platform may know targets that are not listed here.
    if (isCustom && !targets.has(name)) return { platform };
    return library.resolveTarget(targets, platform, name);
  }

  async prepare(handoff: PackedHandoff, workerTarget: string): Promise<PreparedHandoff> {
    const { target_agent: name, platform } = handoff;
    if (handoff.is_erased)
      throw new KernelError('card_damaged', {
        message: 'The task, the context or the payload of this handoff was erased.',
        details: { handoff_id: handoff.handoff_id },
      });
    if (platform === 'agdd') {
      const agent =
        workerTarget === RUNNER_TARGET
          ? this.runner && runnerFunction(this.runner, name)
          : this.agents.get(name);
      if (agent === undefined)
        throw new KernelError('not_found', {
          message: `No function '${name}' is registered here.`,
          details: { target_agent: name, worker_target: workerTarget.slice(HANDOFF_TARGET.length) },
        });
      return prepareAgent(agent, handoff, (request, signal) =>
        this.#handOn(handoff, request, { handler: agent.handler, signal }),
      );
    }
    return this.#prepareAdapter(handoff);
  }

  /** The new handoff belongs to the tree of the turn that serves the function, so cancels, budgets and the depth limit apply to it. */
  async #handOn(
    handoff: PackedHandoff,
    request: HandoffInput,
    by: { readonly handler: Handler | undefined; readonly signal: AbortSignal },
  ): Promise<HandoffAnswer> {
    const { turn_id, target_agent, project_id } = handoff;
    let made: HandoffId | undefined;
    const onMade = (id: HandoffId): void => {
      made = id;
    };
    try {
      return await handOff(
        this.#runtime,
        { ...request, source_agent: target_agent },
        { projectId: project_id, parts: this, parentTurnId: turn_id, onMade, ...by },
      );
    } catch (error) {
      if (made !== undefined && isTimeout(by.signal)) this.#cancelPart(handoff, made);
      throw error;
    }
  }

  /** Cancels a part of a handoff whose time is over. No caller waits for the part anymore. */
  #cancelPart({ handoff_id, project_id }: PackedHandoff, partId: HandoffId): void {
    const runtime = this.#runtime;
    runtime.afterwards(async () => {
      const part = await loadHandoff(runtime, partId, project_id);
      // With an idempotency key, the part may belong to another caller.
      if (part.parent_handoff_id === handoff_id) await cancelHandoff(runtime, partId, project_id);
    });
  }

  async #prepareAdapter(handoff: PackedHandoff): Promise<PreparedHandoff> {
    const { library, registry } = await this.#load();
    const { handoff_id, source_agent, target_agent, task, payload, platform } = handoff;
    const adapter = registry.adapterOf(platform);
    const target = await this.resolveTarget(platform, target_agent);
    const request = {
      handoff_id,
      source_agent,
      target_agent,
      task: task ?? '',
      context: handoff.context ?? {},
      payload,
      cards: handoff.cards,
      target,
    };
    const { cancel } = adapter;
    return {
      retry: adapter.retry,
      resumes: adapter.resumes,
      need: {
        promptTokens: library.estimateRequest(request),
        maxOutputTokens: target.max_output_tokens ?? 0,
        model: 'model' in target && typeof target.model === 'string' ? `${platform}:${target.model}` : null,
      },
      cancel:
        cancel === undefined
          ? undefined
          : (remoteId, signal) => cancel.call(adapter, { target }, { remoteId, signal }),
      adviseRetry: library.adviseRetry,
      execute: async ({ signal, attempt, onRemoteId, onText, ask, resumeId }) => {
        const putQuestion = (question: string, of?: Partial<AskedTask>): Promise<string> =>
          ask(questionText(question), {
            timeoutMs: ASK_MS,
            key: of?.questionId,
            remoteTask: taskName(of?.remoteId, platform),
          });
        const { result, usage, remote_id, loss } = await adapter.executeHandoff(request, {
          signal,
          attempt,
          idempotencyKey: handoff_id,
          ...(adapter.retry === 'safe' || adapter.resumes === true ? { ask: putQuestion } : {}),
          resumeId,
          onRemoteId,
          onPart: ({ text }) => onText(text),
        });
        return { result, usage, remoteId: remote_id, loss: loss as unknown as JsonObject };
      },
    };
  }

  decided(ticketId: TicketId): Promise<void> {
    return decided(this.#runtime, ticketId, this);
  }
}
