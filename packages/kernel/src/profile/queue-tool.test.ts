import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import type { JsonObject, JsonValue } from '../base/json.js';
import { parseProfile } from './profile.js';
import { checkArguments, decideQueueCall, type JobState, type QueueTool, toolNames } from './queue-tool.js';

const parameters: JsonObject = {
  type: 'object',
  properties: { city: { type: 'string', minLength: 2 }, days: { type: 'integer', maximum: 7 } },
  required: ['city'],
  additionalProperties: false,
};
const weather = { name: 'weather', description: 'Tells the weather.', parameters, target: 'weather' };

const profileWith = (...tools: readonly unknown[]) => ({
  name: 'p',
  instructions: 'i',
  model: 'scripted',
  tools,
});

/** The findings of a profile with this tool, as `path: message`. */
function faults(...tools: readonly unknown[]): string[] {
  try {
    parseProfile(profileWith(...tools));
    return [];
  } catch (error) {
    if (!(error instanceof KernelError) || error.code !== 'profile_invalid') throw error;
    return (error.details.issues as { path: string; message: string }[]).map(
      ({ path, message }) => `${path}: ${message}`,
    );
  }
}

describe('a queue tool in a profile', () => {
  test('stands beside names, and by default must not run twice', () => {
    const profile = parseProfile(profileWith('ask_expert', weather));
    expect(profile.tools).toEqual(['ask_expert', { ...weather, retry: 'never' }]);
    expect(toolNames(profile)).toEqual(['ask_expert', 'weather']);
    // A parsed profile is a valid profile again, as when it is read from its card.
    expect(parseProfile(profile)).toEqual(profile);
  });

  test.each<[string, unknown, string]>([
    ['a name no tool can have', { ...weather, name: 'the weather' }, 'tools.0.name: letters'],
    ['no description', { ...weather, description: ' ' }, 'tools.0.description: '],
    ['a target that no queue can have', { ...weather, target: 'A:b' }, 'tools.0.target: lower-case'],
    ['no target', { ...weather, target: undefined }, 'tools.0.target: '],
    ['a retry that does not exist', { ...weather, retry: 'always' }, 'tools.0.retry: '],
    ['no time at all', { ...weather, timeout_seconds: 0 }, 'tools.0.timeout_seconds: '],
    ['an unknown key', { ...weather, queue: 'x' }, 'tools.0: '],
    ['no schema', { ...weather, parameters: 'string' }, 'tools.0.parameters: must be a JSON schema'],
    ['a schema of no object', { ...weather, parameters: { type: 'string' } }, 'tools.0.parameters: must be'],
    [
      'a schema that cannot be enforced',
      { ...weather, parameters: { type: 'object', notes: { required: ['a'] } } },
      'tools.0.parameters: is not a JSON schema that can be enforced: notes: is not a keyword',
    ],
    [
      'a type that does not exist',
      { ...weather, parameters: { type: 'object', properties: { a: { type: 'strin' } } } },
      'tools.0.parameters: is not a JSON schema that can be enforced',
    ],
    [
      'a pattern that is none',
      { ...weather, parameters: { type: 'object', properties: { a: { type: 'string', pattern: '(' } } } },
      'tools.0.parameters: is not a JSON schema that can be enforced',
    ],
    ['a number for a tool', 7, 'tools.0: must be a name, or an object'],
    ['an empty name', '', 'tools.0: '],
  ])('is refused with %s', (_what, tool, expected) => {
    expect(faults(tool)).toEqual([expect.stringContaining(expected)]);
  });

  test('must not be declared twice, or listed beside its declaration', () => {
    expect(faults('weather', weather)).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults(weather, 'weather')).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults(weather, weather)).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults('ask_expert', 'ask_expert', weather)).toEqual([]);
  });

  test('names every fault at once', () => {
    expect(faults({ ...weather, name: '', target: '' })).toHaveLength(2);
  });
});

describe('arguments', () => {
  const tool: QueueTool = { ...weather, retry: 'never' };

  test('fit the schema', () => {
    expect(checkArguments(tool, { city: 'Oslo', days: 3 })).toEqual([]);
  });

  test.each<[string, JsonValue, string]>([
    ['a missing member', {}, 'city: '],
    ['a wrong type', { city: 1 }, 'city: '],
    ['a text too short', { city: 'O' }, 'city: '],
    ['a number too large', { city: 'Oslo', days: 8 }, 'days: '],
    ['an unknown member', { city: 'Oslo', more: 1 }, 'arguments: '],
    ['a text', 'Oslo', 'arguments: not a JSON object'],
    ['a list', ['Oslo'], 'arguments: not a JSON object'],
    ['nothing', null, 'arguments: not a JSON object'],
  ])('are refused for %s', (_what, args, expected) => {
    expect(checkArguments(tool, args)).toEqual([expect.stringContaining(expected)]);
  });

  test('may hold more than the schema says where it does not forbid it', () => {
    const open: QueueTool = { ...tool, parameters: { type: 'object', properties: {} } };
    expect(checkArguments(open, { anything: { goes: [1] } })).toEqual([]);
  });

  test('are checked against schemas that refer to their own parts', () => {
    const tree: QueueTool = {
      ...tool,
      parameters: {
        type: 'object',
        properties: { root: { $ref: '#/$defs/node' } },
        required: ['root'],
        $defs: {
          node: {
            type: 'object',
            properties: { children: { type: 'array', items: { $ref: '#/$defs/node' } } },
            required: ['children'],
          },
        },
      },
    };
    expect(checkArguments(tree, { root: { children: [{ children: [] }] } })).toEqual([]);
    expect(checkArguments(tree, { root: { children: [{}] } })).toEqual([
      expect.stringContaining('root.children.0.children: '),
    ]);
  });
});

describe('a look at the job of a call', () => {
  const call = {
    id: 'c',
    turn_id: 't',
    name: 'weather',
    retry: 'never',
    is_sent: true,
    is_over: false,
  } as const;
  const safe = { ...call, retry: 'safe' } as const;
  const stalled: JobState = { state: 'failed', reason: 'job stalled more than allowable limit' };
  const decide = (...args: Parameters<typeof decideQueueCall>): string => {
    const decision = decideQueueCall(...args);
    if (decision.kind !== 'settle') return decision.kind;
    return decision.status === 'success' ? 'success' : `${decision.status} ${decision.error.code}`;
  };

  test.each<[string, Parameters<typeof decideQueueCall>, string]>([
    ['under way', [call, { state: 'open' }], 'wait'],
    ['gone, and never sent', [{ ...call, is_sent: false }, { state: 'gone' }], 'send'],
    ['gone, and safe to run again', [safe, { state: 'gone' }], 'send'],
    ['gone after it was sent', [call, { state: 'gone' }], 'failed outcome_unknown'],
    ['completed', [call, { state: 'completed', result: { answer: 'sunny' } }], 'success'],
    ['completed with nothing', [call, { state: 'completed', result: null }], 'success'],
    ['completed, the answer to come', [call, { state: 'completed', result: { answer: 'later' } }], 'rest'],
    ['failed', [call, { state: 'failed', reason: 'no luck' }], 'failed tool_failed'],
    ['failed without a reason', [call, { state: 'failed', reason: '' }], 'failed tool_failed'],
    ['failed with its worker', [call, stalled], 'failed outcome_unknown'],
    ['failed with too many workers', [safe, stalled], 'failed tool_failed'],
    ['of a turn that has ended', [{ ...safe, is_over: true }, { state: 'gone' }], 'canceled turn_ended'],
  ])('%s', (_what, args, expected) => {
    expect(decide(...args)).toBe(expected);
  });

  test('cuts a reason that is a novel', () => {
    const decision = decideQueueCall(call, { state: 'failed', reason: 'x'.repeat(100_000) });
    expect(decision.kind === 'settle' && 'error' in decision && decision.error.message.length).toBeLessThan(
      5_000,
    );
  });
});
