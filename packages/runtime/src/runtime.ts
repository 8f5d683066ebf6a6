import {
  type BatchId,
  BUILT_IN_PRICES,
  checkDuration,
  type Doorbell,
  type HandoffId,
  type JsonValue,
  KernelError,
  type Model,
  type PackingStrategies,
  type PackingStrategy,
  type PriceTable,
  type Profile,
  type Ring,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import {
  type Build,
  type CallerRequest,
  loadCallers,
  loadTurnStates,
  outsideHandlers,
  type PendingCall,
  type ProfileLine,
  type ProjectLine,
  type ProjectReport,
  type ReadReplica,
  type ReplicaFacts,
  readOn,
  refuseNested,
  type SubmissionItem,
  THIS_BUILD,
} from '@boxcar/store';
import type { ListedAgent, ListedBox, ListedRun, ListedTurn } from '@boxcar/store/report';
import type pg from 'pg';
import { Announcer } from './announcer.js';
import type {
  Accepted,
  CallGateOptions,
  Ends,
  InnerSubmitOptions,
  LocalWorker,
  RuntimeCore,
  SubmitOptions,
} from './core/index.js';
import type { StepExplanation, WhyAnswer } from './explain/index.js';
import { explainStep, type StepChoice, why } from './explain/index.js';
import type { Handler } from './handler/index.js';
import { HandoffParts, type HandoffSettings, handoffHandlers, handoffModels } from './handoff/index.js';
import {
  Batcher,
  BuildWatch,
  cutOffSilent,
  KeptCallers,
  type Log,
  logPoolWaits,
  silentLog,
  withinTime,
  withoutSecrets,
} from './lib/index.js';
import {
  type ListAgentsOptions,
  type ListBoxesOptions,
  type ListOptions,
  type ListProjectsOptions,
  type ListTurnsOptions,
  listAgents,
  listBoxes,
  listPrimitives,
  listProjects,
  listRuns,
  listTools,
  listTurns,
  type RegisteredList,
  type RowList,
} from './lists.js';
import type { PackPreview, PreviewOptions } from './pack/index.js';
import {
  HandoverPacker,
  type PackLimits,
  type PackRequest,
  type Selector,
  type Selectors,
} from './pack/index.js';
import {
  archiveProject,
  type CreatedProject,
  type CreateProjectOptions,
  checkNamesDiffer,
  createProject,
  findProfileVersions,
  getProfile,
  getProject,
  listProfiles,
  nameProfile,
  type ProfileRef,
  type ProfileScope,
  type ProfileVersion,
  type StoredVersion,
  storeProfiles,
} from './profile/index.js';
import {
  batchNotFound,
  isOfProject,
  runtimeClosed,
  type TurnResult,
  TurnWatcher,
  toTurnResult,
  turnNotFound,
} from './queue/index.js';
import { type ProfileFinding, Registry } from './registry.js';
import { accept, warnAgain, writeHere } from './submit/index.js';
import type { Tape, TapeSource, TapeTarget } from './tape/index.js';
import {
  type ImportedTape,
  type ImportOptions,
  importTape,
  onPool,
  openTape,
  type ResolvedTapeRef,
  resolveTapeRef,
  SessionGraph,
  type TapeOptions,
} from './tape/index.js';
import type { IsolatedTool, Tool, ToolServers } from './tool/index.js';
import type { ToolQueue } from './tool-queue/index.js';
import { OutsideCalls } from './tool-queue/index.js';
import { WebhookSender } from './webhook/index.js';

/** How long each part of closing a runtime may take. */
const CLOSE_LIMIT_MS = 3_000;
/** How long the handler of a primitive may take when no turn calls it. */
const HANDLER_TIMEOUT_MS = 60_000;
/** How long an approval request waits for its decision. */
const APPROVAL_MS = 1_800_000;

export interface RuntimeOptions {
  /** The caller's pool; the runtime never ends it. */
  readonly pool: pg.Pool;
  /** Lists and explanations are read from this replica; the caller closes it. Default: `pool`. */
  readonly replica?: ReadReplica | undefined;
  readonly doorbell: Doorbell;
  readonly model: Model;
  /** The queue from which tool workers outside this process take their calls. Without it, profiles cannot use queue tools. */
  readonly toolQueue?: ToolQueue;
  /** A direct connection (not through a transaction pooler) for LISTEN and session locks. */
  readonly directUrl: string;
  readonly limits?: PackLimits;
  /** Prices by model. They take precedence over the built-in prices. */
  readonly prices?: PriceTable;
  readonly log?: Log;
  /** How long the handler of a primitive may take when no turn calls it, at most 30 days. Default 60,000. */
  readonly handlerTimeoutMs?: number;
  /** The policy that is asked before calls of tools and primitives. Default: no policy. */
  readonly permissionEvaluator?: PermissionEvaluator | undefined;
  /**
   * How long a request waits for its approval, in milliseconds. Default half an hour. With null no gate exists: calls that need
   * approval are refused.
   */
  readonly approvalMs?: number | null | undefined;
  /** Whether models and doors may hand off, and the agents of other platforms. Default: handoffs are off. */
  readonly handoffs?: HandoffSettings | undefined;
  /**
   * The model that summarizes a client's session when the session is handed off. Without a model, the summary consists of counts.
   */
  readonly summaryModel?: string | undefined;
  /** The servers whose tools a profile can name in `mcp`. The caller closes them. Default: no servers. */
  readonly toolServers?: ToolServers | undefined;
}

/** The project in which a turn is looked up. */
export interface TurnScope {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
}

export type { ProfileFinding };

export interface AppliedProfile extends StoredVersion {
  /** The findings of `findProfileFindings` about the profile's tools and settings. Absent when there are no findings. */
  readonly findings?: readonly ProfileFinding[];
}

export class Runtime implements RuntimeCore {
  readonly pool: pg.Pool;
  readonly doorbell: Doorbell;
  readonly model: Model;
  readonly directUrl: string;
  readonly limits: PackLimits;
  readonly handlerTimeoutMs: number;
  readonly summaryModel: string | undefined;
  readonly prices: readonly PriceTable[];
  readonly strategies: PackingStrategies;
  readonly selectors: Selectors;
  readonly log: Log;
  /** @internal */
  readonly watcher: TurnWatcher;
  /** @internal */
  readonly gate: CallGateOptions;
  /** @internal Programs use `HandoffTool`. */
  readonly handoffs: HandoffParts;
  /** @internal */
  readonly webhooks: WebhookSender;
  /** @internal */
  readonly builds: BuildWatch;
  /** @internal */
  readonly open: RuntimeCore['open'];
  /** @internal */
  readonly keptCallers = new KeptCallers();
  /** @internal */
  readonly localWorkers = new Set<LocalWorker>();
  /** @internal */
  readonly write: RuntimeCore['write'];
  /** @internal */
  readonly outside: OutsideCalls | undefined;
  /** The lineage of forked sessions. */
  readonly sessions: SessionGraph;
  /** Packs contexts from anywhere: `packContext`, `packMany`, `preview`, `createBox`, `grantBox`, `createCards`. */
  readonly packer: HandoverPacker;
  readonly ownHandlers: ReadonlySet<Handler>;
  /** @internal */
  readonly toolServers: ToolServers | undefined;
  readonly #beforeClose = new Set<() => Promise<void>>();
  readonly #stopWatching: readonly (() => void)[];
  #isClosing = false;
  #isClosed = false;
  #closing: Promise<void> | undefined;
  readonly #announcer: Announcer;
  readonly #registry: Registry;
  readonly #replica: ReadReplica | undefined;

  /** @param build - Tests pass another build here. */
  constructor(options: RuntimeOptions, build: Build = THIS_BUILD) {
    this.pool = options.pool;
    this.#replica = options.replica;
    this.doorbell = options.doorbell;
    this.directUrl = options.directUrl;
    this.limits = options.limits ?? {};
    this.handlerTimeoutMs = checkDuration(options.handlerTimeoutMs ?? HANDLER_TIMEOUT_MS, 'handlerTimeoutMs');
    this.summaryModel = options.summaryModel;
    this.handoffs = new HandoffParts(this, options.handoffs);
    this.webhooks = new WebhookSender(this, options.handoffs?.webhooks);
    this.#registry = new Registry(options, handoffHandlers(this, this.handoffs), handoffModels(options.pool));
    const { model, strategies, selectors, ownHandlers } = this.#registry;
    this.model = model;
    this.strategies = strategies;
    this.selectors = selectors;
    this.ownHandlers = ownHandlers;
    this.toolServers = options.toolServers;
    this.#announcer = new Announcer(this);
    this.gate = {
      evaluator: options.permissionEvaluator,
      approvalMs:
        options.approvalMs === null
          ? undefined
          : checkDuration(options.approvalMs ?? APPROVAL_MS, 'approvalMs'),
    };
    this.prices = [options.prices ?? {}, BUILT_IN_PRICES];
    this.log = withoutSecrets(options.log ?? silentLog);
    this.#stopWatching = [logPoolWaits(options.pool, this.log), cutOffSilent(options.pool, this.log)];
    this.sessions = new SessionGraph(options.pool);
    this.builds = new BuildWatch(options.pool, build);
    this.watcher = new TurnWatcher({ pool: options.pool, directUrl: options.directUrl, log: this.log });
    const openings = new Batcher(async (requests: readonly CallerRequest[]) =>
      (await loadCallers(this.pool, requests)).map((opening) => ({ opening })),
    );
    this.open = async (request) => (await openings.add(request)).opening;
    // A single submission sends a hint to the workers; when many are written together, the workers are awake anyway. Workers of
    // this process take the turns that are submitted here without a hint.
    const writes = new Batcher((items: readonly SubmissionItem[]) => writeHere(this, items));
    // A write with a fence locks the caller's turn. It is written alone, so that it does not wait for other writes.
    this.write = async (item) => {
      if (item.fence === undefined) return writes.add(item);
      const [result] = await outsideHandlers(() => writeHere(this, [item]));
      return result ?? { outcome: 'refused' };
    };
    this.outside = options.toolQueue && new OutsideCalls(this, options.toolQueue);
    this.packer = new HandoverPacker({
      db: options.pool,
      limits: this.limits,
      strategies: this.strategies,
      selectors: this.selectors,
    });
  }

  get handlers(): ReadonlyMap<string, Handler> {
    return this.#registry.handlers;
  }

  get tools(): ReadonlyMap<string, Tool> {
    return this.#registry.tools;
  }

  /**
   * Adds a primitive. It has the same guarantees as the built-in primitives and is available at the same doors.
   *
   * @throws KernelError `bad_request` for a name, description, schema or function that is not valid, `conflict` when the name is
   * taken.
   */
  registerHandler<I>(name: string, handler: Handler<I>): void {
    this.#registry.registerHandler(name, handler);
  }

  /** Adds a tool. Models can call it when their profile lists it. @throws KernelError as `registerHandler`. */
  registerTool<I>(tool: Tool<I> | IsolatedTool<I>): void {
    this.#registry.registerTool(tool);
  }

  /**
   * Adds a strategy that makes a packing fit a token budget, for handovers that name it in `budget_strategy`. The strategy must
   * be pure and synchronous; its choice is checked (docs/reference/packing.md, "Strategies of your own").
   *
   * @throws KernelError `bad_request` for a name that is not valid, `conflict` for a name that is taken; built-in names are
   * taken.
   */
  registerPackingStrategy(name: string, strategy: PackingStrategy): void {
    this.strategies.add(name, strategy);
  }

  /**
   * Adds a selector. It makes the prompts of the turns that name it: `view: { selector: name }` of a submission, a delegation or
   * a profile. The selector must be pure and synchronous; its result is checked like every prompt (docs/reference/views.md,
   * "Selectors").
   *
   * Several versions of a name may be registered. At its first step a turn takes the version that was registered last, and keeps
   * it. Register selectors before the worker starts: at its start the worker tells other processes which selectors it has.
   *
   * @throws KernelError `bad_request` for a name, version or function that is not valid, `conflict` when another function is
   * registered under the same name and version.
   */
  registerSelector(name: string, selector: Selector): void {
    this.selectors.add(name, selector);
  }

  /** Shows the result of a packing without making it: `packer.preview`. */
  preview(request: PackRequest, options: PreviewOptions = {}): Promise<PackPreview> {
    return this.packer.preview(request, options);
  }

  /** Serves the models named `prefix` or `prefix:…`. It takes precedence over the model that the runtime was opened with. */
  registerModel(prefix: string, model: Model): void {
    this.#registry.registerModel(prefix, model);
  }

  /** True after `close` has been called and all work in progress is done. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Call this before opening a door or a worker.
   *
   * @throws KernelError `internal_error` after the runtime was asked to close.
   */
  checkOpen(): void {
    if (this.#isClosing) throw runtimeClosed();
  }

  /** From now on no door and no worker can be opened. Work in progress can still submit, until `close`. @internal */
  beginClose(): void {
    this.#isClosing = true;
  }

  /**
   * Accepts a primitive and returns at once. A primitive that waits for a turn or batch returns its receipt.
   *
   * @typeParam Answer - The type that the caller expects. The answer is not checked against it.
   * @throws KernelError of the catalogue; then nothing was written.
   */
  async accept<Answer = JsonValue>(
    primitive: string,
    args: unknown,
    options: SubmitOptions & InnerSubmitOptions = {},
  ): Promise<Accepted<Answer>> {
    refuseNested(this.pool);
    const { call, doorJobId, wokenBy } = options;
    // Workers and queue doors that are still closing may finish the work they have begun.
    if (call === undefined && doorJobId === undefined && wokenBy === undefined && this.#isClosed)
      throw runtimeClosed();
    // Calls of a turn skip this check: their worker checks the build, and hands the turn to another worker when the build is too
    // old.
    if (call === undefined) await this.builds.check();
    return (await accept(this, primitive, args, options)) as Accepted<Answer>;
  }

  /**
   * Submits a primitive and returns its answer. When the primitive waits for a turn, the answer is that turn's result.
   *
   * @typeParam Answer - The type that the caller expects. The answer is not checked against it.
   * @throws KernelError of the catalogue; then nothing was written.
   */
  async submit<Answer = JsonValue>(
    primitive: string,
    args: unknown,
    options: SubmitOptions & { readonly signal?: AbortSignal } = {},
  ): Promise<Answer> {
    return (await this.#submit(primitive, args, options)) as Answer;
  }

  async #submit(
    primitive: string,
    args: unknown,
    { signal, ...options }: SubmitOptions & { readonly signal?: AbortSignal },
  ): Promise<JsonValue> {
    const accepted = await this.accept(primitive, args, options);
    const waiting = { projectId: accepted.projectId, ...(signal === undefined ? {} : { signal }) };
    const { answer, awaitedBatchId, awaitedTurnId } = accepted;
    if (awaitedBatchId !== null) return warnAgain(await this.waitForBatch(awaitedBatchId, waiting), answer);
    if (awaitedTurnId === null) return answer;
    const result = await this.waitForTurn(awaitedTurnId, waiting);
    return warnAgain({ ...result } as unknown as JsonValue, answer);
  }

  /**
   * Waits for the end of a turn. The end is read from the turn's row.
   *
   * @param options.timeoutMs - At most 30 days; `Infinity` means no limit, which is the default.
   * @throws KernelError `not_found`, also for a turn of another project; `wait_timeout`; `not_ended` for a turn whose end cannot
   * be written; or the signal's reason.
   */
  async waitForTurn(
    turnId: string,
    options: TurnScope & { readonly timeoutMs?: number | undefined; readonly signal?: AbortSignal } = {},
  ): Promise<TurnResult> {
    const { projectId: project = 'default', ...rest } = options;
    const id = tryParseId<'turn'>(turnId);
    if (id === undefined) throw turnNotFound(turnId, project);
    return toTurnResult(await this.watcher.wait(id, { project, ...rest }));
  }

  /**
   * Waits for the end of a batch that no call waits for, and returns the batch's answer.
   *
   * @typeParam Answer - The type that the caller expects. The answer is not checked against it.
   * @throws KernelError `not_found`, also for a batch of another project; `wait_timeout`; `not_ended` for a batch whose end
   * cannot be written; or the signal's reason.
   */
  async waitForBatch<Answer = JsonValue>(
    batchId: string,
    options: TurnScope & { readonly timeoutMs?: number | undefined; readonly signal?: AbortSignal } = {},
  ): Promise<Answer> {
    const { projectId: project = 'default', ...rest } = options;
    const id = tryParseId<'batch'>(batchId);
    if (id === undefined) throw batchNotFound(batchId, project);
    return (await this.watcher.waitForBatch(id, { project, ...rest })).answer as Answer;
  }

  /** The current state of a turn. @throws KernelError `not_found`, also for a turn of another project. */
  async getTurn(turnId: string, options: TurnScope = {}): Promise<TurnResult> {
    const { projectId: project = 'default' } = options;
    const id = tryParseId<'turn'>(turnId);
    const [state] = id === undefined ? [] : await loadTurnStates(this.pool, [id]);
    if (state === undefined || !isOfProject(state, project)) throw turnNotFound(turnId, project);
    return toTurnResult(state);
  }

  /**
   * The exact prompt of a step: every message, with the cards, rules and rights that put it there. Rule:
   * docs/reference/explain.md.
   *
   * @param turnId - The turn's id, or at least its first eight digits.
   * @throws KernelError `not_found` for the turn, or for a step that the turn does not have.
   */
  explainStep(turnId: string, options: TurnScope & StepChoice = {}): Promise<StepExplanation> {
    const { projectId: project = 'default', ...choice } = options;
    return readOn(this.#replica, this.pool, (pool) =>
      explainStep(pool, turnId, { project, ...choice, selectors: this.selectors, model: this.model }),
    );
  }

  /**
   * Finds the origin of a text in a turn's prompts: card, box, packing rule, right, author and tokens. The search runs in slices
   * of a few milliseconds; aborting `signal` ends it with the signal's reason.
   *
   * @throws KernelError `not_found` as `explainStep`; `bad_request` for a blank text.
   */
  why(
    turnId: string,
    text: string,
    options: TurnScope & { readonly step?: number; readonly signal?: AbortSignal } = {},
  ): Promise<WhyAnswer> {
    const { projectId: project = 'default', step, signal } = options;
    return readOn(this.#replica, this.pool, (pool) =>
      why(pool, turnId, { text, project, step, signal, selectors: this.selectors }),
    );
  }

  /**
   * Resolves a `tape://…` reference to its place on a tape, with the frozen head of that tape. Rule: docs/reference/tape.md,
   * "References".
   *
   * @param options.as - Id or name of the agent whose rights count; default: the operator.
   * @throws KernelError `bad_request`, `not_found`, `box_not_authorized`.
   */
  resolveTapeRef(
    ref: string,
    options: ProfileScope & { readonly as?: string | undefined } = {},
  ): Promise<ResolvedTapeRef> {
    const { projectId: project = 'default', as } = options;
    return resolveTapeRef(this.pool, ref, { project, as });
  }

  /**
   * Opens a tape by its name, the tape of an agent, or a box. A named tape that does not exist is made with its bootstrap, unless
   * `create` is false. The tape is used in the name of the operator, or of the agent `as` with that agent's rights. Rule:
   * docs/reference/tape.md.
   *
   * @throws KernelError `not_found`, `bad_request`.
   */
  tape(target: TapeTarget, options: TapeOptions = {}): Promise<Tape> {
    return openTape(onPool(this.pool, this.limits.maxCardBytes), target, options);
  }

  /**
   * Makes a tape from the lines of files in the original's form. With `append` the lines are added to an existing tape.
   *
   * A new tape is made in one transaction. An existing tape is appended to chunk by chunk; the same import under the same
   * `dedupKey` continues where an earlier attempt ended. Rule: docs/reference/tape.md, "Files".
   *
   * @throws KernelError `bad_request` with `details.line`, or when a tape of this name exists; `payload_too_large`; the errors of
   * an append, with `details.written` after the first chunk.
   */
  importTape(target: TapeTarget, source: TapeSource, options: ImportOptions = {}): Promise<ImportedTape> {
    const { limits, directUrl } = this;
    return importTape(
      this.pool,
      { target, source },
      { ...options, maxCardBytes: limits.maxCardBytes, directUrl },
    );
  }

  /**
   * Makes a profile the current version of its name. Applying the same content again changes nothing. Existing agents keep the
   * version that they were made with.
   *
   * @throws KernelError `profile_invalid` naming every wrong field, `not_found` for the project.
   */
  async applyProfile(input: unknown, options: { readonly projectId?: string } = {}): Promise<AppliedProfile> {
    const [applied] = await this.#applyChecked([this.checkProfile(input)], options);
    if (applied === undefined) throw new KernelError('internal_error');
    return applied;
  }

  /**
   * As `applyProfile` for each profile, in one transaction: all of them are applied or none.
   *
   * @returns One result per profile, in the order of `inputs`.
   * @throws KernelError as `applyProfile`, with `profile_index` and `profile_name` in the details; `profile_invalid` when two
   * profiles have the same name; `bad_request` when `inputs` is not a list.
   */
  async applyProfiles(
    inputs: readonly unknown[],
    options: { readonly projectId?: string } = {},
  ): Promise<readonly AppliedProfile[]> {
    // Programs without types also call this method.
    if (!Array.isArray(inputs))
      throw new KernelError('bad_request', {
        message: 'profiles: must be a list.',
        details: { issues: [{ path: 'profiles', message: 'must be a list' }] },
      });
    const profiles = inputs.map((input: unknown, index) => {
      try {
        return this.checkProfile(input);
      } catch (error) {
        throw nameProfile(error, { index, input });
      }
    });
    checkNamesDiffer(profiles);
    return this.#applyChecked(profiles, options);
  }

  async #applyChecked(
    profiles: readonly Profile[],
    options: { readonly projectId?: string },
  ): Promise<readonly AppliedProfile[]> {
    const findings: (readonly ProfileFinding[])[] = [];
    for (const profile of profiles) findings.push(await this.findProfileFindings(profile));
    const stored = await storeProfiles(this.pool, profiles, options);
    return stored.map((version, index) => {
      const found = findings[index] ?? [];
      return found.length === 0 ? version : { ...version, findings: found };
    });
  }

  /**
   * A profile as `applyProfile` would store it; nothing is written.
   *
   * @throws KernelError `profile_invalid` naming every wrong field; `payload_too_large` for a profile that does not fit in a
   * card.
   */
  checkProfile(input: unknown): Profile {
    return this.#registry.checkProfile(input);
  }

  /**
   * Findings about a profile that do not make it invalid:
   * - tools that are not registered here; a plugin of the workers may still bring them
   * - tools that the profile must end with but does not list
   * - the parts of the schemas of registered tools that the profile's model does not receive
   * - settings that are not sent to the model as they are written
   */
  findProfileFindings(profile: Profile): Promise<readonly ProfileFinding[]> {
    return this.#registry.findProfileFindings(profile);
  }

  /**
   * The current profiles of a project by name; with `tag`, only the profiles that have this tag. @throws KernelError `not_found`.
   */
  listProfiles(
    options: ProfileScope & { readonly tag?: string | undefined } = {},
  ): Promise<readonly ProfileLine[]> {
    return listProfiles(this.pool, options);
  }

  /**
   * How far the read replica has replayed; undefined without a replica. Errors are part of the report and are never thrown.
   */
  inspectReplica(): Promise<ReplicaFacts | undefined> {
    return Promise.resolve(this.#replica?.inspect());
  }

  /** @param writes - The list first writes the words of turns, so it cannot run on a standby. */
  #list<O, T>(
    list: (pool: pg.Pool, options?: O) => Promise<T>,
    options: O | undefined,
    writes = false,
  ): Promise<T> {
    return readOn(writes ? undefined : this.#replica, this.pool, (pool) => list(pool, options));
  }

  /**
   * Runs, the newest first, page by page. A run is listed when one of its root turns matches.
   *
   * @throws KernelError `bad_request` with all findings; `not_found` for project, profile or agent.
   */
  listRuns(options?: ListTurnsOptions): Promise<RowList<'runs', ListedRun>> {
    return this.#list(listRuns, options, options?.text !== undefined);
  }

  /** Turns, the newest first, page by page. @throws KernelError as `listRuns`. */
  listTurns(options?: ListTurnsOptions): Promise<RowList<'turns', ListedTurn>> {
    return this.#list(listTurns, options, options?.text !== undefined);
  }

  /** Agents, the newest first, page by page. @throws KernelError as `listRuns`. */
  listAgents(options?: ListAgentsOptions): Promise<RowList<'agents', ListedAgent>> {
    return this.#list(listAgents, options);
  }

  /** Context boxes and tapes, the newest first, page by page. @throws KernelError as `listRuns`. */
  listBoxes(options?: ListBoxesOptions): Promise<RowList<'boxes', ListedBox>> {
    return this.#list(listBoxes, options);
  }

  /** The tools that live workers have registered, by name. @throws KernelError `bad_request`. */
  listTools(options?: ListOptions): Promise<RegisteredList<'tools'>> {
    return this.#list(listTools, options);
  }

  /** The primitives that live workers and doors have registered, by name. @throws KernelError `bad_request`. */
  listPrimitives(options?: ListOptions): Promise<RegisteredList<'primitives'>> {
    return this.#list(listPrimitives, options);
  }

  /** Projects, the newest first, with the number of their running turns and their limits. @throws KernelError `bad_request`. */
  listProjects(options?: ListProjectsOptions): Promise<RowList<'projects', ProjectLine>> {
    return this.#list(listProjects, options);
  }

  /**
   * Makes a project, or returns the existing one. @throws KernelError `bad_request`; `conflict` when the existing project has
   * other limits.
   */
  createProject(options: CreateProjectOptions): Promise<CreatedProject> {
    return createProject(this.pool, options);
  }

  /** A project by id or name, with its turns that have not ended. @throws KernelError `not_found`. */
  getProject(project: string): Promise<ProjectReport> {
    return getProject(this.pool, project);
  }

  /**
   * Archives a project: it takes no new submissions, and its running turns continue to their end. `isArchived: false` opens it
   * again.
   *
   * @param project - Id or name.
   * @throws KernelError `not_found`.
   */
  archiveProject(
    project: string,
    options?: { readonly isArchived?: boolean | undefined },
  ): Promise<ProjectReport> {
    return archiveProject(this.pool, project, options);
  }

  /** One version of a profile, by default the current one. @throws KernelError `not_found`. */
  getProfile(
    name: string,
    options: ProfileScope & { readonly version?: number | undefined } = {},
  ): Promise<ProfileVersion> {
    return getProfile(this.pool, name, options);
  }

  /** Several versions at once, in the order of the request. Versions that do not exist are left out. */
  findProfileVersions(
    refs: readonly ProfileRef[],
    options: ProfileScope = {},
  ): Promise<readonly ProfileVersion[]> {
    return findProfileVersions(this.pool, refs, options);
  }

  /** Runs `work` before the runtime closes, with a limit of time. @returns A function that removes `work` again. */
  beforeClose(work: () => Promise<void>): () => void {
    this.#beforeClose.add(work);
    return () => void this.#beforeClose.delete(work);
  }

  /** @internal */
  ring(rings: readonly Ring[]): void {
    this.#announcer.ring(rings);
  }

  /** @internal */
  sendSoon(call: PendingCall): void {
    this.#announcer.sendSoon(call);
  }

  /** @internal */
  promoteSoon(workerTarget: string): void {
    this.#announcer.promoteSoon(workerTarget);
  }

  /** @internal */
  letWarmedIn(turnId: TurnId): void {
    this.#announcer.letWarmedIn(turnId);
  }

  /** @internal */
  announceEnds(ends: Ends): void {
    this.#announcer.announceEnds(ends);
  }

  /** @internal */
  finishSoon(batchIds: readonly BatchId[]): void {
    this.#announcer.finishSoon(batchIds);
  }

  /** A field and not a method, so that it can be passed on without its runtime. @internal */
  readonly tellSourceSoon = (handoffId: HandoffId): void => this.#announcer.tellSourceSoon(handoffId);

  /** @internal */
  wakeDoorJobsSoon(ids: readonly (TurnId | BatchId)[]): void {
    this.#announcer.wakeDoorJobsSoon(ids);
  }

  /** @internal */
  afterwards(work: () => Promise<void>): void {
    this.#announcer.afterwards(work);
  }

  /**
   * Waits for rings and promotions in progress, then closes the doorbell and the watcher. The pool stays open, because the caller
   * owns it. Servers that do not answer delay the close by a few seconds only. A part that could not be closed is logged as
   * `runtime.not_closed`. Later calls wait for the same end.
   */
  close(): Promise<void> {
    this.beginClose();
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const attempt = async (part: string, work: Promise<unknown>): Promise<void> => {
      try {
        await withinTime(work, CLOSE_LIMIT_MS, part);
      } catch (error) {
        this.log('warn', 'runtime.not_closed', { part, error });
      }
    };
    for (const stop of this.#stopWatching) stop();
    await Promise.all([...this.#beforeClose].map((work) => attempt('the services for handoffs', work())));
    await attempt('rings and promotions in progress', this.#announcer.settled());
    this.#isClosed = true;
    await Promise.all([
      attempt('the queues', this.doorbell.close()),
      attempt('the watcher of turns', this.watcher.close()),
    ]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
