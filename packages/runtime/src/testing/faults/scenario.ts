import type { JsonValue } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import type { PermissionEvaluator } from '@boxcar/policy';
import type { Runtime } from '../../runtime.js';
import type { Tool } from '../../tool/tool.js';
import type { Facts } from './facts.js';

/** A submission was refused: again would not help. */
export class Refused extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

/** Submits as a program does that means it: until it has an answer, under the same key. */
export interface Client {
  /** @throws Refused */
  submit(primitive: string, args: Readonly<Record<string, JsonValue>>): Promise<JsonValue>;
  /** Works with a runtime by other ways than primitives, until that has come to its end: `work` may be begun again. */
  use<T>(work: (runtime: Runtime) => Promise<T>): Promise<T>;
}

/** Looks at the rows, past all faults. */
export interface Watcher {
  /** Waits until the statement selects something: its first row. */
  until(statement: string): Promise<Readonly<Record<string, JsonValue>>>;
}

/**
 * Work to be disturbed. Whatever happens meanwhile, its outcome must be the same: so its models answer from the request alone,
 * and no answer depends on what a tool of `once` returned, of which nobody may know. Where more than one outcome is right, as
 * where something is ended while it works, it says by `judge` which ones are.
 */
export interface Scenario {
  readonly name: string;
  /** As they are applied; a scripted one each, unless they say otherwise. */
  readonly profiles: readonly Readonly<Record<string, unknown>>[];
  /** Models, as `scripted:<name>`. */
  readonly models?: Readonly<Record<string, ScriptedFunction>>;
  /** What its tools write is counted; see `EFFECTS_TABLE`. */
  readonly tools?: readonly ScenarioTool[];
  /** Tools of servers, each named `server.tool`. Every process has them; they are counted as `tools` are. */
  readonly served?: readonly ScenarioTool[];
  /** Functions that serve handoffs; they are counted as tools are. Where there are some, models may hand off. */
  readonly agents?: readonly ScenarioAgent[];
  /** What the policy of its processes says. */
  readonly policy?: PermissionEvaluator;
  /** What workers outside answer, by target; the same for the same arguments. */
  readonly outside?: Readonly<Record<string, (args: JsonValue) => JsonValue>>;
  /** Statements that complete its scene. */
  readonly prepare?: string;
  /** Submits everything; need not wait for what comes of it. Its submissions are told apart by their order. */
  drive(client: Client, watcher: Watcher): Promise<JsonValue | undefined>;
  /** What is wrong with an outcome; without it, any difference from the run without faults is. */
  judge?(facts: Facts): readonly string[];
}

/** Who plays: what several scenarios need, together. */
export type Cast = Pick<Scenario, 'models' | 'tools' | 'served' | 'agents' | 'policy'>;

/** @throws Error when two of them mean something else by one name. */
export function castOf(scenarios: readonly Scenario[]): Cast {
  const models = new Map<string, ScriptedFunction>();
  const tools = new Map<string, ScenarioTool>();
  const served = new Map<string, ScenarioTool>();
  const agents = new Map<string, ScenarioAgent>();
  const policies = new Map<string, PermissionEvaluator>();
  const add = <T>(all: Map<string, T>, name: string, one: T): void => {
    if (all.has(name) && all.get(name) !== one) throw new Error(`two scenarios have another '${name}' each`);
    all.set(name, one);
  };
  for (const scenario of scenarios) {
    for (const [name, model] of Object.entries(scenario.models ?? {})) add(models, name, model);
    for (const tool of scenario.tools ?? []) add(tools, tool.name, tool);
    for (const tool of scenario.served ?? []) add(served, tool.name, tool);
    for (const agent of scenario.agents ?? []) add(agents, agent.name, agent);
    if (scenario.policy !== undefined) add(policies, 'policy', scenario.policy);
  }
  const policy = policies.get('policy');
  return {
    models: Object.fromEntries(models),
    tools: [...tools.values()],
    served: [...served.values()],
    agents: [...agents.values()],
    ...(policy === undefined ? {} : { policy }),
  };
}

export type ScenarioTool = Pick<Tool, 'name' | 'description' | 'input'> & {
  /** `never`: once in its life, whatever happens. */
  readonly retry: 'safe' | 'never';
  readonly answer: (input: unknown) => JsonValue;
};

export interface ScenarioAgent {
  readonly name: string;
  /** `never`: once for each handoff, whatever happens. */
  readonly retry: 'safe' | 'never';
  /** Parts of its result that it shows before it has it. */
  readonly says?: readonly string[];
  /** Questions that it asks one after the other. It answers with the replies then. */
  readonly asks?: readonly string[];
  readonly answer: (input: JsonValue) => JsonValue;
}
