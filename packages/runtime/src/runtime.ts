import {
  answerTokensOf,
  type BatchId,
  BUILT_IN_PRICES,
  checkDuration,
  type Doorbell,
  estimateTokens,
  findAnswerFinding,
  type JsonValue,
  KernelError,
  type Model,
  meant,
  PackingStrategies,
  type PackingStrategy,
  type PriceTable,
  type Profile,
  parseProfile,
  type Ring,
  type SelectorFinding,
  type SettingFinding,
  selectorOfView,
  TOOL_NAME,
  type ToolFinding,
  type TurnId,
  toolNames,
  tryParseId,
} from '@boxcar/kernel';
import {
  type Build,
  findDoorsOf,
  findWarmedTargets,
  loadOpenings,
  loadTurnStates,
  type OpeningRequest,
  outsideHandlers,
  type PendingCall,
  type ProfileLine,
  type ProjectLine,
  type ProjectReport,
  promote,
  refuseNested,
  type SubmissionItem,
  THIS_BUILD,
  writeSubmission,
  writeSubmissions,
} from '@boxcar/store';
import type { ListedAgent, ListedBox, ListedRun, ListedTurn } from '@boxcar/store/report';
import type pg from 'pg';
import type { Accepted, DoorOptions, Ends, RuntimeCore, SubmitOptions } from './core/index.js';
import { finishBatch, tellParent } from './end/index.js';
import type { StepExplanation, WhyAnswer } from './explain/index.js';
import { explainStep, type StepChoice, why } from './explain/index.js';
import type { Handler } from './handler/index.js';
import { BUILT_IN } from './handlers/built-in.js';
import {
  Batcher,
  BuildWatch,
  cutOffSilent,
  type Log,
  logPoolWaits,
  newId,
  OnceAtATime,
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
import { HandoverPacker, type PackLimits, type PackRequest, type Selector, Selectors } from './pack/index.js';
import {
  archiveProject,
  buildProfileCard,
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
  type TurnResult,
  TurnWatcher,
  toTurnResult,
  turnNotFound,
} from './queue/index.js';
import { accept, warnAgain } from './submit/index.js';
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
import {
  checkRegistered,
  expandTool,
  type IsolatedTool,
  listProfilesTool,
  type Tool,
  tapeTools,
  toTool,
} from './tool/index.js';
import type { ToolQueue } from './tool-queue/index.js';
import { OutsideCalls } from './tool-queue/index.js';
import { buildToolbox, findMissing } from './toolbox/index.js';

/** How long each part of closing a runtime may take. */
const CLOSE_LIMIT_MS = 3_000;
/** How long the handler of a primitive that no turn calls may take. */
const HANDLER_TIMEOUT_MS = 60_000;

export interface RuntimeOptions {
  /** The caller's pool; the runtime never ends it. */
  readonly pool: pg.Pool;
  readonly doorbell: Doorbell;
  readonly model: Model;
  /** Where workers outside find their calls. Without it profiles cannot use queue tools. */
  readonly toolQueue?: ToolQueue;
  /** A direct connection (not through a transaction pooler) for LISTEN and session locks. */
  readonly directUrl: string;
  readonly limits?: PackLimits;
  /** Prices by model, before the built-in ones. */
  readonly prices?: PriceTable;
  readonly log?: Log;
  /** How long the handler of a primitive that no turn calls may take, at most 30 days. Default 60,000. */
  readonly handlerTimeoutMs?: number;
}

/** Where a turn is looked for. */
export interface TurnScope {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
}

export type ProfileFinding = ToolFinding | SelectorFinding | SettingFinding;

export interface AppliedProfile extends StoredVersion {
  /** What `findProfileFindings` says of its tools and settings. Absent: nothing. */
  readonly findings?: readonly ProfileFinding[];
}

export class Runtime implements RuntimeCore {
  readonly pool: pg.Pool;
  readonly doorbell: Doorbell;
  readonly model: Model;
  readonly directUrl: string;
  readonly limits: PackLimits;
  readonly handlerTimeoutMs: number;
  readonly prices: readonly PriceTable[];
  readonly strategies = new PackingStrategies();
  readonly selectors = new Selectors();
  readonly log: Log;
  readonly watcher: TurnWatcher;
  readonly builds: BuildWatch;
  readonly open: RuntimeCore['open'];
  readonly write: RuntimeCore['write'];
  readonly outside: OutsideCalls | undefined;
  /** The lineage of forked sessions. */
  readonly sessions: SessionGraph;
  /** Packs contexts from anywhere: `packContext`, `packMany`, `preview`, `createBox`, `grantBox`, `createCards`. */
  readonly packer: HandoverPacker;
  readonly ownHandlers: ReadonlySet<Handler>;
  readonly #handlers = new Map<string, Handler>();
  readonly #tools = new Map<string, Tool>();
  readonly #given: Model;
  readonly #models = new Map<string, Model>();
  readonly #stopWatching: readonly (() => void)[];
  readonly #background = new Set<Promise<void>>();
  readonly #rings: Ring[] = [];
  readonly #sending: PendingCall[] = [];
  // What fails is still due: the rows say so, and the sweep comes back to it.
  readonly #promoting = new OnceAtATime<string>(async (target) => {
    try {
      this.ring(await promote(this.pool, target));
    } catch (error) {
      this.log('warn', 'queue.promote_failed', { worker_target: target, error });
    }
  });
  readonly #finishing = new OnceAtATime<BatchId>(async (id) => {
    try {
      await finishBatch(this, id);
    } catch (error) {
      this.log('warn', 'batch.finish_failed', { batch_id: id, error });
    }
  });

  /** @param build - For tests: what another build would be. */
  constructor(options: RuntimeOptions, build: Build = THIS_BUILD) {
    this.pool = options.pool;
    this.doorbell = options.doorbell;
    this.#given = options.model;
    this.model = {
      generate: (request, rest) => this.#modelOf(request.model).generate(request, rest),
      checkProfile: (profile) => this.#modelOf(profile.model).checkProfile?.(profile),
      checkTools: (model, tools) => this.#modelOf(model).checkTools?.(model, tools) ?? [],
      describeWire: (model, prompt) => this.#modelOf(model).describeWire?.(model, prompt) ?? [],
      checkSettings: async (model, settings) =>
        (await this.#modelOf(model).checkSettings?.(model, settings)) ?? [],
      countTokens: (texts, model) =>
        this.#modelOf(model).countTokens?.(texts, model) ??
        Promise.resolve(texts.map((text) => estimateTokens(Buffer.byteLength(text)))),
    };
    this.directUrl = options.directUrl;
    this.limits = options.limits ?? {};
    this.handlerTimeoutMs = checkDuration(options.handlerTimeoutMs ?? HANDLER_TIMEOUT_MS, 'handlerTimeoutMs');
    this.prices = [options.prices ?? {}, BUILT_IN_PRICES];
    this.log = withoutSecrets(options.log ?? silentLog);
    this.#stopWatching = [logPoolWaits(options.pool, this.log), cutOffSilent(options.pool, this.log)];
    this.sessions = new SessionGraph(options.pool);
    this.builds = new BuildWatch(options.pool, build);
    this.watcher = new TurnWatcher({ pool: options.pool, directUrl: options.directUrl, log: this.log });
    const openings = new Batcher(async (requests: readonly OpeningRequest[]) =>
      (await loadOpenings(this.pool, requests)).map((opening) => ({ opening })),
    );
    this.open = async (request) => (await openings.add(request)).opening;
    const writes = new Batcher((items: readonly SubmissionItem[]) => writeSubmissions(this.pool, items));
    // A fence locks the caller's turn: such a write goes alone, so that it waits for nobody else's.
    this.write = (item) =>
      item.fence === undefined ? writes.add(item) : writeSubmission(this.pool, item.submission, item);
    this.outside = options.toolQueue && new OutsideCalls(this, options.toolQueue);
    this.packer = new HandoverPacker({
      db: options.pool,
      limits: this.limits,
      strategies: this.strategies,
      selectors: this.selectors,
    });
    for (const [name, handler] of BUILT_IN) this.#addHandler(name, handler);
    this.registerTool(expandTool(options.pool));
    this.registerTool(listProfilesTool(options.pool));
    this.ownHandlers = new Set(this.#handlers.values());
    for (const tool of tapeTools()) this.registerTool(tool);
  }

  get handlers(): ReadonlyMap<string, Handler> {
    return this.#handlers;
  }

  get tools(): ReadonlyMap<string, Tool> {
    return this.#tools;
  }

  #checkName(name: string): void {
    if (!TOOL_NAME.test(name))
      throw new KernelError('bad_request', {
        message: `'${name}' is no name for a tool or primitive: letters, digits, _ . - only, 64 at most.`,
        details: { name },
      });
    if (this.#handlers.has(name) || this.#tools.has(name))
      throw new KernelError('conflict', { message: `'${name}' is registered already.`, details: { name } });
  }

  /** A tool that a profile declares must not have the name of one that is registered: the model could not tell them apart. */
  #checkDeclared({ tools }: Profile): void {
    for (const [index, tool] of tools.entries()) {
      if (typeof tool === 'string' || !(this.#handlers.has(tool.name) || this.#tools.has(tool.name)))
        continue;
      throw new KernelError('profile_invalid', {
        message: `tools.${index}.name: '${tool.name}' is a ${this.#tools.has(tool.name) ? 'registered tool' : 'primitive'}.`,
        details: {
          issues: [
            {
              path: `tools.${index}.name`,
              message: `'${tool.name}' is a ${this.#tools.has(tool.name) ? 'registered tool' : 'primitive'}, so the profile cannot declare it`,
            },
          ],
        },
      });
    }
  }

  /**
   * Adds a primitive, with the same guarantees and at the same doors as the built-in ones.
   *
   * @throws KernelError `bad_request` for a name, description, schema or function that is not valid, `conflict` for a name that is
   *   taken.
   */
  registerHandler<I>(name: string, handler: Handler<I>): void {
    checkRegistered(name, handler, { field: 'handle', value: handler.handle });
    this.#addHandler(name, handler);
  }

  #addHandler<I>(name: string, handler: Handler<I>): void {
    this.#checkName(name);
    this.#handlers.set(name, handler as Handler);
  }

  /** Adds a tool that models may call once a profile lists it. @throws KernelError as `registerHandler`. */
  registerTool<I>(given: Tool<I> | IsolatedTool<I>): void {
    this.#checkName(given.name);
    if (given.timeoutMs !== undefined) checkDuration(given.timeoutMs, `${given.name}: timeoutMs`);
    const tool = toTool(given as Tool | IsolatedTool, this.limits.maxCardBytes);
    checkRegistered(tool.name, tool, { field: 'run', value: tool.run });
    this.#tools.set(tool.name, tool);
  }

  /**
   * Adds a way to meet a token budget, for handovers whose `budget_strategy` names it. It must be pure and synchronous;
   * what it chooses is checked (docs/packing.md, "Strategies of your own").
   *
   * @throws KernelError `bad_request` for a name that is none, `conflict` for one that is taken, built-in ones included.
   */
  registerPackingStrategy(name: string, strategy: PackingStrategy): void {
    this.strategies.add(name, strategy);
  }

  /**
   * Adds a selector, which makes the prompts of the turns that name it: `view: { selector: name }` of a submission, a delegation or a
   * profile. It must be pure and synchronous; what it returns is checked as every prompt is (docs/views.md, "Selectors").
   *
   * Several versions of a name may be registered. A turn takes the one that was registered last when it makes its first step, and keeps
   * it. Register selectors before the worker starts, which tells the others what it has.
   *
   * @throws KernelError `bad_request` for a name, version or function that is not valid, `conflict` for another function under a name
   *   and version that are taken.
   */
  registerSelector(name: string, selector: Selector): void {
    this.selectors.add(name, selector);
  }

  /** What a packing would make, without making it: `packer.preview`. */
  preview(request: PackRequest, options: PreviewOptions = {}): Promise<PackPreview> {
    return this.packer.preview(request, options);
  }

  /** Serves the models whose name is `prefix` or begins with `prefix:`; it comes before the one the runtime was opened with. */
  registerModel(prefix: string, model: Model): void {
    if (!/^[a-z0-9-]+$/.test(prefix))
      throw new KernelError('bad_request', {
        message: `'${prefix}' is no model prefix: lower-case letters, digits and - only.`,
        details: { prefix },
      });
    if (this.#models.has(prefix))
      throw new KernelError('conflict', {
        message: `Models '${prefix}:' are registered already.`,
        details: { prefix },
      });
    this.#models.set(prefix, model);
  }

  #modelOf(name: string): Model {
    return this.#models.get(name.split(':', 1)[0] ?? '') ?? this.#given;
  }

  /**
   * Accepts a primitive and returns at once, with the receipt of a waiting one.
   *
   * @throws KernelError of the catalogue; then nothing was written.
   */
  async accept(
    primitive: string,
    args: unknown,
    options: SubmitOptions & DoorOptions = {},
  ): Promise<Accepted> {
    refuseNested(this.pool);
    // A call of a turn is its worker's business: it hands the turn over instead.
    if (options.call === undefined) await this.builds.check();
    return accept(this, primitive, args, options);
  }

  /**
   * Submits a primitive and returns its answer; when it waits for a turn, that turn's result.
   *
   * @throws KernelError of the catalogue; then nothing was written.
   */
  async submit(
    primitive: string,
    args: unknown,
    options: SubmitOptions & { readonly signal?: AbortSignal } = {},
  ): Promise<JsonValue> {
    const { signal, ...rest } = options;
    const accepted = await this.accept(primitive, args, rest);
    const waiting = { projectId: accepted.projectId, ...(signal === undefined ? {} : { signal }) };
    const { answer, awaitedBatchId, awaitedTurnId } = accepted;
    if (awaitedBatchId !== null) return warnAgain(await this.waitForBatch(awaitedBatchId, waiting), answer);
    if (awaitedTurnId === null) return answer;
    const result = await this.waitForTurn(awaitedTurnId, waiting);
    return warnAgain({ ...result } as unknown as JsonValue, answer);
  }

  /**
   * Waits for the end of a turn, read from its row.
   *
   * @param options.timeoutMs - At most 30 days; `Infinity` means no limit, which is the default.
   * @throws KernelError `not_found`, also for a turn of another project; `wait_timeout`; `not_ended` for a turn whose end cannot be
   *   written; or the signal's reason.
   */
  async waitForTurn(
    turnId: string,
    options: TurnScope & { readonly timeoutMs?: number; readonly signal?: AbortSignal } = {},
  ): Promise<TurnResult> {
    const { projectId: project = 'default', ...rest } = options;
    const id = tryParseId<'turn'>(turnId);
    if (id === undefined) throw turnNotFound(turnId, project);
    return toTurnResult(await this.watcher.wait(id, { project, ...rest }));
  }

  /**
   * Waits for the end of a batch that no call waits for, and returns what it came to.
   *
   * @throws KernelError `not_found`, also for a batch of another project; `wait_timeout`; `not_ended` for a batch whose end cannot be
   *   written; or the signal's reason.
   */
  async waitForBatch(
    batchId: string,
    options: TurnScope & { readonly timeoutMs?: number; readonly signal?: AbortSignal } = {},
  ): Promise<JsonValue> {
    const { projectId: project = 'default', ...rest } = options;
    const id = tryParseId<'batch'>(batchId);
    if (id === undefined) throw batchNotFound(batchId, project);
    return (await this.watcher.waitForBatch(id, { project, ...rest })).answer;
  }

  /** Where a turn stands. @throws KernelError `not_found`, also for a turn of another project. */
  async getTurn(turnId: string, options: TurnScope = {}): Promise<TurnResult> {
    const { projectId: project = 'default' } = options;
    const id = tryParseId<'turn'>(turnId);
    const [state] = id === undefined ? [] : await loadTurnStates(this.pool, [id]);
    if (state === undefined || !isOfProject(state, project)) throw turnNotFound(turnId, project);
    return toTurnResult(state);
  }

  /**
   * The exact prompt of a step, every message with the cards, rules and rights behind it. Rule: docs/explain.md.
   *
   * @param turnId - Its id, or a beginning of it of at least eight digits.
   * @throws KernelError `not_found` for the turn, or a step it has not.
   */
  explainStep(turnId: string, options: TurnScope & StepChoice = {}): Promise<StepExplanation> {
    const { projectId: project = 'default', ...choice } = options;
    return explainStep(this.pool, turnId, {
      project,
      ...choice,
      selectors: this.selectors,
      model: this.model,
    });
  }

  /**
   * Where a text of a turn's prompts came from: card, box, packing rule, right, author and tokens. It works in slices of a few
   * milliseconds; `signal` ends it with its reason.
   *
   * @throws KernelError `not_found` as `explainStep`; `bad_request` for a blank text.
   */
  why(
    turnId: string,
    text: string,
    options: TurnScope & { readonly step?: number; readonly signal?: AbortSignal } = {},
  ): Promise<WhyAnswer> {
    const { projectId: project = 'default', step, signal } = options;
    return why(this.pool, turnId, { text, project, step, signal, selectors: this.selectors });
  }

  /**
   * The place on a tape that `tape://…` names, with its frozen head. Rule: docs/tape.md, "References".
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
   * A tape: by its name (made with its bootstrap when there is none, unless `create: false`), that of an agent, or a box.
   * Used in the name of the operator, or of the agent `as` with the rights it has. Rule: docs/tape.md.
   *
   * @throws KernelError `not_found`, `bad_request`.
   */
  tape(target: TapeTarget, options: TapeOptions = {}): Promise<Tape> {
    return openTape(onPool(this.pool, this.limits.maxCardBytes), target, options);
  }

  /**
   * Makes a tape out of the lines of files in the original's form; with `append` the lines are added to an existing tape.
   * A new tape is made by one transaction. To an existing tape the lines are appended chunk by chunk; the same import under its
   * `dedupKey` goes on where an earlier one has ended. Rule: docs/tape.md, "Files".
   *
   * @throws KernelError `bad_request` with `details.line`, or when there is a tape of this name; `payload_too_large`; what an append
   *   throws, with `details.written` after the first chunk.
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
   * Makes a profile the current version of its name; the same content again changes nothing. Agents keep the version they
   * were made with.
   *
   * @throws KernelError `profile_invalid` naming every wrong field, `not_found` for the project.
   */
  async applyProfile(input: unknown, options: { readonly projectId?: string } = {}): Promise<AppliedProfile> {
    const [applied] = await this.#applyChecked([this.checkProfile(input)], options);
    if (applied === undefined) throw new KernelError('internal_error');
    return applied;
  }

  /**
   * As `applyProfile` for each, in one transaction: all of them or none.
   *
   * @returns One for each, in order.
   * @throws KernelError as `applyProfile`, with `profile_index` and `profile_name` in the details; `profile_invalid` when two have one name.
   */
  async applyProfiles(
    inputs: readonly unknown[],
    options: { readonly projectId?: string } = {},
  ): Promise<readonly AppliedProfile[]> {
    const profiles = inputs.map((input, index) => {
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
   * @throws KernelError `profile_invalid` naming every wrong field; `payload_too_large` for one that no card can hold.
   */
  checkProfile(input: unknown): Profile {
    const profile: Profile = parseProfile(input);
    this.#checkDeclared(profile);
    this.model.checkProfile?.(profile);
    buildProfileCard(profile, { projectId: newId<'project'>(), authorId: 'operator' });
    return profile;
  }

  /**
   * Tools of the profile that nothing here has, which a plugin of the workers may still bring; tools that it must end with and does not
   * list; what its model is not told of the schemas of the tools that are registered here; and settings that are not sent as they are
   * written.
   */
  async findProfileFindings(profile: Profile): Promise<readonly ProfileFinding[]> {
    const { schemas } = buildToolbox(this, profile, { hasResultFields: false });
    const { model, model_settings: settings } = profile;
    const listed = toolNames(profile);
    const unlisted = profile.must_end_with.filter((name) => !listed.includes(name));
    const tools = [
      ...findMissing(this, profile).map((tool) => ({
        tool,
        message: `no registered tool or primitive has this name, and the profile does not declare it${meant(tool, [...this.#tools.keys(), ...this.#handlers.keys()]) || '; a plugin of the workers must bring it'}`,
      })),
      ...unlisted.map((tool) => ({ tool, message: 'must_end_with names it, and tools does not list it' })),
      ...(this.model.checkTools?.(model, schemas) ?? []),
      ...this.#selectorFindings(profile),
    ];
    if (settings.temperature === undefined && settings.max_output_tokens === undefined) return tools;
    const answer = findAnswerFinding(profile);
    const sent = { ...settings, max_output_tokens: answerTokensOf(profile) };
    const others = (await this.model.checkSettings?.(model, sent)) ?? [];
    return [...tools, ...(answer === undefined ? [] : [answer]), ...others];
  }

  #selectorFindings({ view }: Profile): readonly SelectorFinding[] {
    const selector = selectorOfView(view);
    if (selector === null || this.selectors.has(selector)) return [];
    const hint = meant(selector, this.selectors.names) || '; a plugin of the workers must bring it';
    return [{ selector, message: `no selector of this name is registered${hint}` }];
  }

  /** The current profiles of a project by name, or those of them with a tag. @throws KernelError `not_found`. */
  listProfiles(
    options: ProfileScope & { readonly tag?: string | undefined } = {},
  ): Promise<readonly ProfileLine[]> {
    return listProfiles(this.pool, options);
  }

  /**
   * Runs, the newest first, page by page. A run is listed when a root of it fits.
   *
   * @throws KernelError `bad_request` with all findings; `not_found` for project, profile or agent.
   */
  listRuns(options?: ListTurnsOptions): Promise<RowList<'runs', ListedRun>> {
    return listRuns(this.pool, options);
  }

  /** Turns, the newest first, page by page. @throws KernelError as `listRuns`. */
  listTurns(options?: ListTurnsOptions): Promise<RowList<'turns', ListedTurn>> {
    return listTurns(this.pool, options);
  }

  /** Agents, the newest first, page by page. @throws KernelError as `listRuns`. */
  listAgents(options?: ListAgentsOptions): Promise<RowList<'agents', ListedAgent>> {
    return listAgents(this.pool, options);
  }

  /** Context boxes and tapes, the newest first, page by page. @throws KernelError as `listRuns`. */
  listBoxes(options?: ListBoxesOptions): Promise<RowList<'boxes', ListedBox>> {
    return listBoxes(this.pool, options);
  }

  /** The tools that live workers have registered, by name. @throws KernelError `bad_request`. */
  listTools(options?: ListOptions): Promise<RegisteredList<'tools'>> {
    return listTools(this.pool, options);
  }

  /** The primitives that live workers and doors have registered, by name. @throws KernelError `bad_request`. */
  listPrimitives(options?: ListOptions): Promise<RegisteredList<'primitives'>> {
    return listPrimitives(this.pool, options);
  }

  /** Projects, the newest first, with their turns under way and their limits. @throws KernelError `bad_request`. */
  listProjects(options?: ListProjectsOptions): Promise<RowList<'projects', ProjectLine>> {
    return listProjects(this.pool, options);
  }

  /** Makes a project, or finds it. @throws KernelError `bad_request`; `conflict` when it has other limits. */
  createProject(options: CreateProjectOptions): Promise<CreatedProject> {
    return createProject(this.pool, options);
  }

  /** A project by id or name, with its turns that have not ended. @throws KernelError `not_found`. */
  getProject(project: string): Promise<ProjectReport> {
    return getProject(this.pool, project);
  }

  /**
   * Lets a project take no new submissions, or with `isArchived: false` again. What runs in it goes on to its end.
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

  /** Several versions at once, in the order of the request; what does not exist is left out. */
  findProfileVersions(
    refs: readonly ProfileRef[],
    options: ProfileScope = {},
  ): Promise<readonly ProfileVersion[]> {
    return findProfileVersions(this.pool, refs, options);
  }

  ring(rings: readonly Ring[]): void {
    if (rings.length === 0) return;
    this.#rings.push(...rings);
    // What the same turn of the event loop brings rings together.
    if (this.#rings.length > rings.length) return;
    this.#inBackground(() =>
      new Promise((settle) => setImmediate(settle)).then(() => this.doorbell.ring(this.#rings.splice(0))),
    );
  }

  sendSoon(call: PendingCall): void {
    const { outside } = this;
    if (outside === undefined) return;
    this.#sending.push(call);
    if (this.#sending.length > 1) return;
    this.#inBackground(() =>
      new Promise((settle) => setImmediate(settle)).then(() => outside.send(this.#sending.splice(0))),
    );
  }

  promoteSoon(workerTarget: string): void {
    this.#inBackground(() => this.#promoting.ask(workerTarget));
  }

  letWarmedIn(turnId: TurnId): void {
    this.#inBackground(async () => {
      for (const target of await findWarmedTargets(this.pool, turnId)) this.promoteSoon(target);
    });
  }

  announceEnds(ends: Ends): void {
    for (const target of ends.backlogTargets) this.promoteSoon(target);
    this.finishSoon(ends.dueBatchIds);
    for (const turnId of ends.noticeTurnIds) this.#tellSoon(turnId);
    if (ends.endedTurnIds.length === 0) return;
    this.watcher.hint(ends.endedTurnIds);
    if (ends.doorTurnIds.length > 0) this.knockSoon(ends.doorTurnIds);
  }

  finishSoon(batchIds: readonly BatchId[]): void {
    for (const id of batchIds) this.#inBackground(() => this.#finishing.ask(id));
  }

  #tellSoon(turnId: TurnId): void {
    this.#inBackground(() =>
      tellParent(this, turnId).catch((error: unknown) => {
        this.log('warn', 'session.tell_failed', { turn_id: turnId, error });
      }),
    );
  }

  knockSoon(ids: readonly (TurnId | BatchId)[]): void {
    this.#inBackground(async () => {
      const doors = await findDoorsOf(this.pool, ids);
      await this.doorbell.knock(doors.map((door) => door.job_id));
    });
  }

  afterwards(work: () => Promise<void>): void {
    this.#inBackground(work);
  }

  /** Work that a handler has caused does not belong to the handler: it runs in parallel, on other connections. */
  #inBackground(work: () => Promise<void>): void {
    const tracked = outsideHandlers(work)
      .catch((error: unknown) => this.log('warn', 'background.failed', { error }))
      .finally(() => {
        this.#background.delete(tracked);
      });
    this.#background.add(tracked);
  }

  /**
   * Waits for rings and promotions in progress, then closes the doorbell and the watcher. The pool stays open, because
   * the caller owns it. Servers that are away delay this by a few seconds only. A part that could not be closed is logged
   * as `runtime.not_closed`.
   */
  async close(): Promise<void> {
    const attempt = async (part: string, work: Promise<unknown>): Promise<void> => {
      try {
        await withinTime(work, CLOSE_LIMIT_MS, part);
      } catch (error) {
        this.log('warn', 'runtime.not_closed', { part, error });
      }
    };
    const settled = async (): Promise<void> => {
      while (this.#background.size > 0) await Promise.all(this.#background);
    };
    for (const stop of this.#stopWatching) stop();
    await attempt('rings and promotions in progress', settled());
    await Promise.all([
      attempt('the queues', this.doorbell.close()),
      attempt('the watcher of turns', this.watcher.close()),
    ]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
