import { expect, test } from 'vitest';
import { PLATFORM_NAMES, PLATFORMS } from '../platform/platform.js';
import { handoffToolSchema, readHandoffCall } from './tool-schemas.js';

test('our own agents get the tool in this shape', () => {
  expect(handoffToolSchema('agdd')).toEqual({
    name: 'handoff',
    description: 'Delegate work to another agent or system',
    parameters: {
      type: 'object',
      properties: {
        target_agent: { type: 'string', description: 'Agent slug or identifier to delegate to' },
        task: { type: 'string', description: 'Task description for the target agent' },
        context: { type: 'object', description: 'Additional context to pass to target agent' },
      },
      required: ['target_agent', 'task'],
    },
  });
});

test('OpenAI gets the tool in this shape', () => {
  expect(handoffToolSchema('openai')).toEqual({
    type: 'function',
    function: {
      name: 'handoff',
      description: 'Delegate task to another agent',
      parameters: {
        type: 'object',
        properties: {
          agent_id: { type: 'string', description: 'Target agent ID' },
          instructions: { type: 'string', description: 'Instructions for the target agent' },
        },
        required: ['agent_id', 'instructions'],
      },
    },
  });
});

test('a program that changes the schema it got does not change the schema of others', () => {
  const given = handoffToolSchema('agdd') as { parameters: { properties: Record<string, unknown> } };
  given.parameters.properties.extra = { type: 'string' };
  expect(JSON.stringify(handoffToolSchema('agdd'))).not.toContain('extra');
});

test.each([
  ['anthropic', 'target_agent', 'request'],
  ['adk', 'target', 'message'],
])(
  'the platform %s gets a flat tool with an input schema of %s, %s and context',
  (platform, target, task) => {
    const text = { type: 'string', description: expect.stringMatching(/./) };
    expect(handoffToolSchema(platform)).toEqual({
      name: 'handoff',
      description: expect.stringMatching(/^Delegate /),
      input_schema: {
        type: 'object',
        properties: {
          [target]: text,
          [task]: text,
          context: { type: 'object', description: expect.stringMatching(/./) },
        },
        required: [target, task],
      },
    });
  },
);

test('each name of a platform gives its schema, and a name that differs in any letter is refused', () => {
  for (const platform of PLATFORMS)
    for (const name of PLATFORM_NAMES[platform])
      expect(handoffToolSchema(name.toUpperCase())).toEqual(handoffToolSchema(platform));
  for (const call of [() => handoffToolSchema('gemini'), () => readHandoffCall('gemini', {})])
    expect(call).toThrow(
      expect.objectContaining({ code: 'bad_request', message: 'Unsupported platform: gemini' }),
    );
});

test('arguments in each shape make the same handoff', () => {
  const context = { a: 1 };
  const calls = [
    readHandoffCall('native', { target_agent: 'x', task: 'do', context }),
    readHandoffCall('adk', { target: 'x', message: 'do', context }),
    readHandoffCall('openai', { agent_id: 'x', instructions: 'do', context }),
    readHandoffCall('claude', { target_agent: 'x', request: 'do', context }),
  ];
  expect(calls).toEqual(PLATFORMS.map((platform) => ({ platform, target_agent: 'x', task: 'do', context })));
  expect(readHandoffCall('openai', { agent_id: 'x', instructions: 'do' })).not.toHaveProperty('context');
});

test.each([
  [
    'openai',
    { target_agent: 'x', task: 'do' },
    ['arguments.agent_id', 'arguments.instructions', 'arguments'],
  ],
  ['agdd', { target_agent: ' ', task: 5 }, ['arguments.target_agent', 'arguments.task']],
  ['adk', { target: 'x', message: 'do', context: [] }, ['arguments.context']],
  ['anthropic', null, ['arguments']],
])('arguments that do not match the shape of %s are refused with every finding', (platform, args, paths) => {
  let caught: unknown;
  try {
    readHandoffCall(platform, args);
  } catch (error) {
    caught = error;
  }
  const { code, details } = caught as { code: string; details: { issues: { path: string }[] } };
  expect(code).toBe('bad_request');
  expect(details.issues.map(({ path }) => path)).toEqual(paths);
});
