/**
 * The names of a runtime: handlers of primitives, tools, models, packing strategies and selectors; and the findings about a
 * profile that uses these names.
 *
 * The registry owns the names. A name belongs to one tool or primitive, and is never reassigned. The registry reads and writes no
 * rows. `Runtime`, which passes its calls on, documents each method.
 */
import {
  answerTokensOf,
  checkDuration,
  EXPAND_TOOL,
  estimateTokens,
  findAnswerFinding,
  KernelError,
  LIST_PROFILES,
  type Model,
  meant,
  PackingStrategies,
  type Profile,
  parseProfile,
  type SelectorFinding,
  type SettingFinding,
  selectorOfView,
  TOOL_NAME,
  type ToolFinding,
  toolNames,
} from '@boxcar/kernel';
import type pg from 'pg';
import type { Handler } from './handler/index.js';
import { BUILT_IN } from './handlers/built-in.js';
import { newId } from './lib/index.js';
import { type PackLimits, Selectors } from './pack/index.js';
import { buildProfileCard } from './profile/index.js';
import {
  checkRegistered,
  expandTool,
  type IsolatedTool,
  isServed,
  listProfilesTool,
  type Tool,
  type ToolServers,
  tapeTools,
  toTool,
  unknownServers,
} from './tool/index.js';
import { buildToolbox, findMissing } from './toolbox/index.js';

/** Tools that a turn may get in addition to the tools of its profile. */
const ADDED = ['submit_result', LIST_PROFILES, EXPAND_TOOL];

export type ProfileFinding = ToolFinding | SelectorFinding | SettingFinding;

export class Registry {
  readonly strategies = new PackingStrategies();
  readonly selectors = new Selectors();
  readonly handlers = new Map<string, Handler>();
  readonly tools = new Map<string, Tool>();
  /** The built-in handlers. */
  readonly ownHandlers: ReadonlySet<Handler>;
  /** Passes each request to the model that serves its name. */
  readonly model: Model;
  /** Serves every name that no registered model serves. */
  readonly #given: Model;
  readonly #models = new Map<string, Model>();
  /** Models of the kernel, by their whole names. */
  readonly #ownModels: ReadonlyMap<string, Model>;
  readonly #maxCardBytes: number | undefined;
  readonly #toolServers: ToolServers | undefined;

  /**
   * @param own - Handlers of the kernel that belong to one runtime.
   * @param ownModels - The models that decide for the kernel's own turns, by whole names.
   */
  constructor(
    options: {
      readonly pool: pg.Pool;
      readonly model: Model;
      readonly limits?: PackLimits;
      readonly toolServers?: ToolServers | undefined;
    },
    own: ReadonlyMap<string, Handler> = new Map(),
    ownModels: ReadonlyMap<string, Model> = new Map(),
  ) {
    this.#ownModels = ownModels;
    this.#given = options.model;
    this.#toolServers = options.toolServers;
    this.#maxCardBytes = options.limits?.maxCardBytes;
    this.model = {
      generate: (request, rest) => this.#modelOf(request.model).generate(request, rest),
      checkProfile: (profile) => this.#modelOf(profile.model).checkProfile?.(profile),
      checkTools: (model, tools) => this.#modelOf(model).checkTools?.(model, tools) ?? [],
      describeWire: (name, prompt) => {
        const model = this.#modelOf(name);
        return model.describeWire === undefined ? [] : model.describeWire(name, prompt);
      },
      checkSettings: async (model, settings) =>
        (await this.#modelOf(model).checkSettings?.(model, settings)) ?? [],
      countTokens: (texts, model) =>
        this.#modelOf(model).countTokens?.(texts, model) ??
        Promise.resolve(texts.map((text) => estimateTokens(Buffer.byteLength(text)))),
    };
    for (const [name, handler] of [...BUILT_IN, ...own]) this.#addHandler(name, handler);
    this.registerTool(expandTool(options.pool));
    this.registerTool(listProfilesTool(options.pool));
    this.ownHandlers = new Set(this.handlers.values());
    for (const tool of tapeTools()) this.registerTool(tool);
  }

  #checkName(name: string): void {
    if (!TOOL_NAME.test(name))
      throw new KernelError('bad_request', {
        message: `'${name}' is not a valid name for a tool or primitive: use only letters, digits, _ . -, at most 64.`,
        details: { name },
      });
    if (this.handlers.has(name) || this.tools.has(name))
      throw new KernelError('conflict', { message: `'${name}' is registered already.`, details: { name } });
  }

  /**
   * A tool that a profile declares must not have the name of a registered tool or primitive: the model could not tell them apart.
   */
  #checkDeclared({ tools }: Profile): void {
    for (const [index, tool] of tools.entries()) {
      if (typeof tool === 'string' || !(this.handlers.has(tool.name) || this.tools.has(tool.name))) continue;
      throw new KernelError('profile_invalid', {
        message: `tools.${index}.name: '${tool.name}' is a ${this.tools.has(tool.name) ? 'registered tool' : 'primitive'}.`,
        details: {
          issues: [
            {
              path: `tools.${index}.name`,
              message: `'${tool.name}' is a ${this.tools.has(tool.name) ? 'registered tool' : 'primitive'}, so the profile cannot declare it`,
            },
          ],
        },
      });
    }
  }

  registerHandler<I>(name: string, handler: Handler<I>): void {
    checkRegistered(name, handler, { field: 'handle', value: handler.handle });
    this.#addHandler(name, handler);
  }

  #addHandler<I>(name: string, handler: Handler<I>): void {
    this.#checkName(name);
    this.handlers.set(name, handler as Handler);
  }

  registerTool<I>(given: Tool<I> | IsolatedTool<I>): void {
    this.#checkName(given.name);
    if (given.timeoutMs !== undefined) checkDuration(given.timeoutMs, `${given.name}: timeoutMs`);
    const tool = toTool(given as Tool | IsolatedTool, this.#maxCardBytes);
    checkRegistered(tool.name, tool, { field: 'run', value: tool.run });
    this.tools.set(tool.name, tool);
  }

  registerModel(prefix: string, model: Model): void {
    if (!/^[a-z0-9-]+$/.test(prefix))
      throw new KernelError('bad_request', {
        message: `'${prefix}' is not a valid model prefix: use only lower-case letters, digits and -.`,
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
    return this.#ownModels.get(name) ?? this.#models.get(name.split(':', 1)[0] ?? '') ?? this.#given;
  }

  checkProfile(input: unknown): Profile {
    const profile: Profile = parseProfile(input);
    this.#checkDeclared(profile);
    this.model.checkProfile?.(profile);
    buildProfileCard(profile, { projectId: newId<'project'>(), authorId: 'operator' });
    return profile;
  }

  async findProfileFindings(profile: Profile): Promise<readonly ProfileFinding[]> {
    const { schemas } = buildToolbox(this, profile, { hasResultFields: false });
    const { model, model_settings: settings } = profile;
    const listed = toolNames(profile);
    const unlisted = profile.must_end_with.filter(
      (name) => !listed.includes(name) && !isServed(profile, name),
    );
    const callable = new Set([...listed, ...profile.must_end_with, ...ADDED]);
    const unguarded = (profile.requires_approval ?? []).filter(
      (name) => !callable.has(name) && !isServed(profile, name),
    );
    const tools = [
      ...findMissing(this, profile).map((tool) => ({
        tool,
        message: `no tool or primitive that is registered in this process has this name, and the profile does not declare it${meant(tool, [...this.tools.keys(), ...this.#shownHandlers]) || '; load a plugin that registers it in each worker'}`,
      })),
      ...unlisted.map((tool) => ({ tool, message: 'must_end_with names it, and tools does not list it' })),
      ...unguarded.map((tool) => ({
        tool,
        message: `requires_approval names it, and the profile has no such tool${meant(tool, [...callable])}`,
      })),
      ...unknownServers(this.#toolServers, profile).map((server) => ({
        tool: `${server}.*`,
        message: `no MCP server '${server}' is defined here; BOXCAR_MCP_SERVERS of the workers must define it`,
      })),
      ...(this.model.checkTools?.(model, schemas) ?? []),
      ...this.#selectorFindings(profile),
    ];
    if (settings.temperature === undefined && settings.max_output_tokens === undefined) return tools;
    const answer = findAnswerFinding(profile);
    const sent = { ...settings, max_output_tokens: answerTokensOf(profile) };
    const others = (await this.model.checkSettings?.(model, sent)) ?? [];
    return [...tools, ...(answer === undefined ? [] : [answer]), ...others];
  }

  get #shownHandlers(): readonly string[] {
    return [...this.handlers].flatMap(([name, { isInternal }]) => (isInternal === true ? [] : [name]));
  }

  #selectorFindings({ view }: Profile): readonly SelectorFinding[] {
    const selector = selectorOfView(view);
    if (selector === null || this.selectors.has(selector)) return [];
    const hint = meant(selector, this.selectors.names) || '; load a plugin that registers it in each worker';
    return [{ selector, message: `no selector of this name is registered in this process${hint}` }];
  }
}
