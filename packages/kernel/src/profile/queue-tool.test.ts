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
  test('is declared next to names of tools, and by default must not run twice', () => {
    const profile = parseProfile(profileWith('ask_expert', weather));
    expect(profile.tools).toEqual(['ask_expert', { ...weather, retry: 'never' }]);
    expect(toolNames(profile)).toEqual(['ask_expert', 'weather']);
    // A parsed profile is a valid profile again, as when it is read from its card.
    expect(parseProfile(profile)).toEqual(profile);
  });

  test.each<[string, unknown, string]>([
    ['a name that no tool can have', { ...weather, name: 'the weather' }, 'tools.0.name: letters'],
    ['no description', { ...weather, description: ' ' }, 'tools.0.description: '],
    ['a target that is not a valid queue name', { ...weather, target: 'A:b' }, 'tools.0.target: lower-case'],
    ['no target', { ...weather, target: undefined }, 'tools.0.target: '],
    ['a retry that does not exist', { ...weather, retry: 'always' }, 'tools.0.retry: '],
    ['a time of zero', { ...weather, timeout_seconds: 0 }, 'tools.0.timeout_seconds: '],
    ['an unknown key', { ...weather, queue: 'x' }, 'tools.0: '],
    ['no schema', { ...weather, parameters: 'string' }, 'tools.0.parameters: must be a JSON schema'],
    [
      'a schema that is not for an object',
      { ...weather, parameters: { type: 'string' } },
      'tools.0.parameters: must be',
    ],
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
      'a pattern that is not valid',
      { ...weather, parameters: { type: 'object', properties: { a: { type: 'string', pattern: '(' } } } },
      'tools.0.parameters: is not a JSON schema that can be enforced',
    ],
    ['a number for a tool', 7, 'tools.0: must be a name, or an object'],
    ['an empty name', '', 'tools.0: '],
  ])('is refused with %s', (_what, tool, expected) => {
    expect(faults(tool)).toEqual([expect.stringContaining(expected)]);
  });

  test('must not be declared twice, or listed by name as well', () => {
    expect(faults('weather', weather)).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults(weather, 'weather')).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults(weather, weather)).toEqual(["tools.1: 'weather' is declared already"]);
    expect(faults('ask_expert', 'ask_expert', weather)).toEqual([]);
  });

  test('reports every fault at once', () => {
    expect(faults({ ...weather, name: '', target: '' })).toHaveLength(2);
  });
});

describe('arguments', () => {
  const tool: QueueTool = { ...weather, retry: 'never' };

  test('that fit the schema are accepted', () => {
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

  test('may have more members than the schema lists unless the schema forbids it', () => {
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

describe('the decision about the job of a call', () => {
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
    ['is to wait while the job is under way', [call, { state: 'open' }], 'wait'],
    [
      'is to send a job that is gone and was never sent',
      [{ ...call, is_sent: false }, { state: 'gone' }],
      'send',
    ],
    ['is to send again a job that is gone and is safe to repeat', [safe, { state: 'gone' }], 'send'],
    [
      'is unknown when the job is gone after it was sent',
      [call, { state: 'gone' }],
      'failed outcome_unknown',
    ],
    [
      'is a success when the job has completed',
      [call, { state: 'completed', result: { answer: 'sunny' } }],
      'success',
    ],
    [
      'is a success when the job has completed with nothing',
      [call, { state: 'completed', result: null }],
      'success',
    ],
    [
      'is open when the job has completed and its answer follows later',
      [call, { state: 'completed', result: { answer: 'later' } }],
      'rest',
    ],
    [
      'is a failure when the job has failed',
      [call, { state: 'failed', reason: 'no luck' }],
      'failed tool_failed',
    ],
    [
      'is a failure when the job has failed without a reason',
      [call, { state: 'failed', reason: '' }],
      'failed tool_failed',
    ],
    ['is unknown when the job has failed with its worker', [call, stalled], 'failed outcome_unknown'],
    [
      'is a failure when a repeatable job has failed with too many workers',
      [safe, stalled],
      'failed tool_failed',
    ],
    [
      'is a cancel when the turn has ended',
      [{ ...safe, is_over: true }, { state: 'gone' }],
      'canceled turn_ended',
    ],
  ])('%s', (_what, args, expected) => {
    expect(decide(...args)).toBe(expected);
  });

  test('cuts a very long reason', () => {
    const decision = decideQueueCall(call, { state: 'failed', reason: 'x'.repeat(100_000) });
    expect(decision.kind === 'settle' && 'error' in decision && decision.error.message.length).toBeLessThan(
      5_000,
    );
  });
});
