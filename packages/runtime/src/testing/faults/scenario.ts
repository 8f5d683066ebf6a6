import type { JsonValue } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import type { Tool } from '../../tool.js';

/** Submits as a program does that means it: until it has an answer, under the same key. */
export interface Client {
  submit(primitive: string, args: Readonly<Record<string, JsonValue>>): Promise<JsonValue>;
}

/**
 * Work to be disturbed. Whatever happens meanwhile, its outcome must be the same: so its models answer from the request alone,
 * and no answer depends on what a tool of `once` returned, of which nobody may know.
 */
export interface Scenario {
  readonly name: string;
  /** As they are applied; a scripted one each, unless they say otherwise. */
  readonly profiles: readonly Readonly<Record<string, unknown>>[];
  /** Models, as `scripted:<name>`. */
  readonly models?: Readonly<Record<string, ScriptedFunction>>;
  /** What its tools write is counted; see `EFFECTS_TABLE`. */
  readonly tools?: readonly ScenarioTool[];
  /** What workers outside answer, by target; the same for the same arguments. */
  readonly outside?: Readonly<Record<string, (args: JsonValue) => JsonValue>>;
  /** Submits everything; need not wait for what comes of it. Its submissions are told apart by their order. */
  drive(client: Client): Promise<void>;
}

export type ScenarioTool = Pick<Tool, 'name' | 'description' | 'input'> & {
  /** `never`: once in its life, whatever happens. */
  readonly retry: 'safe' | 'never';
  readonly answer: (input: unknown) => JsonValue;
};
