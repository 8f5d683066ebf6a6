import type { JsonValue } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import type { PermissionEvaluator } from '@boxcar/policy';
import type { Runtime } from '../../runtime.js';
import type { Tool } from '../../tool/tool.js';
import type { Facts } from './facts.js';

/** A submission was refused, and a repetition would not help. */
export class Refused extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

/** Submits like a persistent program: under the same key, until there is an answer. */
export interface Client {
  /** @throws Refused */
  submit(primitive: string, args: Readonly<Record<string, JsonValue>>): Promise<JsonValue>;
  /** Works with a runtime in other ways than by primitives, until the work completes: `work` may be started again. */
  use<T>(work: (runtime: Runtime) => Promise<T>): Promise<T>;
}

/** Reads the rows on a connection without faults. */
export interface Watcher {
  /** Waits until the statement selects something, and returns its first row. */
  until(statement: string): Promise<Readonly<Record<string, JsonValue>>>;
}

/**
 * Work to be disturbed. Its outcome must be the same whatever faults occur. So its models answer from the request alone, and no answer
 * depends on the result of a tool of `once`, which may remain unknown. Where more than one outcome is right, for example when a turn is
 * ended while it works, `judge` decides which outcomes are right.
 */
export interface Scenario {
  readonly name: string;
  /** The profiles as they are applied. The default model is `scripted`. */
  readonly profiles: readonly Readonly<Record<string, unknown>>[];
  /** Models by the name in `scripted:<name>`. */
  readonly models?: Readonly<Record<string, ScriptedFunction>>;
  /** Tools whose runs are counted; see `EFFECTS_TABLE`. */
  readonly tools?: readonly ScenarioTool[];
  /** Tools of servers, each named `server.tool`. Every process has them. They are counted as `tools` are. */
  readonly served?: readonly ScenarioTool[];
  /** Functions that serve handoffs. They are counted as tools are. With at least one function, models may hand off. */
  readonly agents?: readonly ScenarioAgent[];
  /** The policy of its processes. */
  readonly policy?: PermissionEvaluator;
  /** The answers of workers outside, by target. They must be equal for equal arguments. */
  readonly outside?: Readonly<Record<string, (args: JsonValue) => JsonValue>>;
  /** Statements that complete its scene. */
  readonly prepare?: string;
  /** Submits everything; need not wait for the results. Submissions are distinguished by their order. */
  drive(client: Client, watcher: Watcher): Promise<JsonValue | undefined>;
  /** Describes what is wrong with an outcome. Without it, any difference from the run without faults is wrong. */
  judge?(facts: Facts): readonly string[];
}

/** The models, tools, functions and policy that several scenarios need, together. */
export type Cast = Pick<Scenario, 'models' | 'tools' | 'served' | 'agents' | 'policy'>;

/** @throws Error when two scenarios use one name with different meanings. */
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
  /** `never`: a call runs at most once, whatever faults occur. */
  readonly retry: 'safe' | 'never';
  readonly answer: (input: unknown) => JsonValue;
};

export interface ScenarioAgent {
  readonly name: string;
  /** `never`: runs at most once for each handoff, whatever faults occur. */
  readonly retry: 'safe' | 'never';
  /** Parts of the result that the function shows before the result is complete. */
  readonly says?: readonly string[];
  /** Questions that the function asks one after the other. Its answer is then the list of replies. */
  readonly asks?: readonly string[];
  readonly answer: (input: JsonValue) => JsonValue;
}
