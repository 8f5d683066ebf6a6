import { type JsonValue, KernelError } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { createScriptedModel } from './scripted.js';

const model = createScriptedModel({ functions: { echo: () => ({ text: 'echo' }) } });

function refusalOf(profile: { model: string; script?: readonly JsonValue[] }): KernelError {
  try {
    model.checkProfile?.(profile);
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('the profile was accepted');
}

const call = { tool: 'list_files', arguments: { path: '{{instruction/path}}' } };

describe('an invalid script is refused with its path when the profile is applied', () => {
  it.each<[string, readonly JsonValue[], string]>([
    ['no step', [], 'script: a script needs at least one step'],
    ['a step that is not an object', ['say hello'], 'script.0: '],
    ['an unknown key', [{ say: 'x', sya: 'y' }], "script.0: unknown key 'sya' (did you mean 'say'?)"],
    [
      'no answer and no failure',
      [{ delayMs: 5 }],
      'script.0: a step needs calls, say, empty, fail or overflow',
    ],
    ['a call without tool', [{ say: 'x' }, { calls: [{ arguments: {} }] }], 'script.1.calls.0.tool: '],
    [
      'an unknown key in a call',
      [{ calls: [{ tool: 'a', args: {} }] }],
      "script.0.calls.0: unknown key 'args'",
    ],
    ['no calls in calls', [{ calls: [] }], 'script.0.calls: '],
    ['arguments and raw', [{ calls: [{ tool: 'a', arguments: {}, raw: '{' }] }], 'script.0.calls.0.raw: '],
    ['an empty text', [{ say: '' }], 'script.0.say: '],
    [
      'empty together with say',
      [{ say: 'x', empty: true }],
      'script.0.empty: cannot be combined with calls or say',
    ],
    ['forEach without calls', [{ say: 'x', forEach: '{{instruction}}' }], 'script.0.forEach: repeats calls'],
    [
      'forEach in longer text',
      [{ calls: [call], forEach: 'x{{instruction}}' }],
      'script.0.forEach: must be one template',
    ],
    ['a wrong role', [{ say: 'x', expect: { lastRole: 'human' } }], 'script.0.expect.lastRole: '],
    [
      'an unknown expectation',
      [{ say: 'x', expect: { role: 'user' } }],
      "script.0.expect: unknown key 'role'",
    ],
    ['a status that is not a failure', [{ fail: { status: 200 } }], 'script.0.fail.status: '],
    [
      'times without an answer',
      [{ fail: { status: 429, times: 2 } }],
      'script.0.fail.times: needs an answer',
    ],
    [
      'fail together with overflow',
      [{ say: 'x', fail: { status: 500 }, overflow: true }],
      'script.0.overflow: ',
    ],
    ['usage without an answer', [{ fail: { status: 500 }, usage: { inputTokens: 1 } }], 'script.0.usage: '],
    ['a negative delay', [{ say: 'x', delayMs: -1 }], 'script.0.delayMs: '],
    ['zero chunks', [{ say: 'x', chunks: 0 }], 'script.0.chunks: '],
    ['an unknown root', [{ say: '{{result/a}}' }], 'script.0.say: {{result/a}}: a pointer begins with'],
    ['an empty template', [{ say: '{{}}' }], 'script.0.say: {{}}: a pointer begins with'],
    [
      'an unknown helper',
      [{ say: '{{avg:instruction}}' }],
      "script.0.say: {{avg:instruction}}: no helper 'avg'",
    ],
    [
      'a helper without its argument',
      [{ say: '{{take:instruction}}' }],
      'script.0.say: {{take:instruction}}: take',
    ],
    [
      'a helper with a wrong argument',
      [{ say: '{{take(x):instruction}}' }],
      'script.0.say: {{take(x):instruction}}: take',
    ],
    [
      'an argument too many',
      [{ say: '{{sum(x):instruction}}' }],
      'script.0.say: {{sum(x):instruction}}: sum takes no',
    ],
    [
      'an empty segment',
      [{ say: '{{instruction//a}}' }],
      'script.0.say: {{instruction//a}}: a path has an empty',
    ],
    ['results of no tool', [{ say: '{{results}}' }], 'script.0.say: {{results}}: name the tool'],
    ['results of every tool', [{ say: '{{results/*}}' }], 'script.0.say: {{results/*}}: name the tool'],
    [
      'a path into index',
      [{ forEach: '{{instruction}}', calls: [{ tool: 'a', id: '{{index/x}}' }] }],
      'script.0.calls.0.id: ',
    ],
    ['an open template', [{ say: 'a {{instruction' }], 'script.0.say: a {{ without its }}'],
    [
      'item without forEach',
      [{ calls: [{ tool: 'a', arguments: { x: ['{{item}}'] } }] }],
      'script.0.calls.0.arguments.x.0: item is available only',
    ],
    [
      'item together with a repeated element',
      [{ calls: [{ tool: 'a', arguments: { x: [{ $forEach: '{{item}}', $item: '{{item}}' }] } }] }],
      'script.0.calls.0.arguments.x.0.$forEach: item is available only',
    ],
    [
      'item in say',
      [{ forEach: '{{instruction}}', calls: [call], say: '{{item}}' }],
      'script.0.say: item is available only',
    ],
    [
      'results of a tool that no step calls',
      [{ calls: [call] }, { say: '{{sum:results/list_file/*/lines}}' }],
      'script.1.say: results/list_file: no earlier step calls list_file',
    ],
    [
      'results of a call of the same step',
      [{ calls: [call, { tool: 'b', arguments: '{{results/list_files}}' }] }],
      'script.0.calls.1.arguments: results/list_files: no earlier step calls list_files',
    ],
  ])('%s', (_name, script, message) => {
    const refusal = refusalOf({ model: 'scripted', script });
    expect(refusal.code).toBe('profile_invalid');
    expect(refusal.message).toContain(message);
  });

  it('all findings are in the details', () => {
    const { details } = refusalOf({
      model: 'scripted',
      script: [{ say: '{{x}}' }, { calls: [{ tool: '' }] }],
    });
    expect(details).toEqual({
      issues: [
        expect.objectContaining({ path: 'script.0.say' }),
        expect.objectContaining({ path: 'script.1.calls.0.tool' }),
      ],
    });
  });

  it('a missing script is refused', () => {
    expect(refusalOf({ model: 'scripted' }).message).toMatch(/^script: is missing/);
  });

  it('a missing function with that name is refused', () => {
    for (const name of ['scripted:nope', 'scripted:', 'scripted:toString', 'scriptedly', 'openai:x']) {
      const { code, message } = refusalOf({ model: name });
      expect(code).toBe('profile_invalid');
      expect(message).toContain(`model: no scripted model '${name}'; known are scripted, scripted:echo`);
    }
  });
});

describe('the schema of a script allows', () => {
  it('every form of a step', () => {
    const script: readonly JsonValue[] = [
      {
        expect: { lastRole: 'user', contains: 'Survey', notContains: 'secret' },
        calls: [{ id: 'call_0', ...call }],
        delayMs: 20,
        chunks: 5,
      },
      {
        forEach: '{{results/list_files/files}}',
        calls: [{ id: 'c{{index}}', tool: 'count_lines', arguments: { path: '{{item/path}}' } }],
        say: 'Counting.',
      },
      {
        calls: [{ tool: 'count_lines', raw: '{not json {{item}}' }],
        finishReason: 'length',
        usage: { inputTokens: 1, outputTokens: 2 },
      },
      { fail: { status: 429, retryAfter: 0.5, message: 'slow down', times: 2 }, say: 'done' },
      { fail: { status: 400 } },
      { overflow: true, empty: true },
      { overflow: true },
      { calls: [{ tool: 'submit_result' }] },
    ];
    expect(() => model.checkProfile?.({ model: 'scripted', script })).not.toThrow();
  });

  it('a function without a script', () => {
    expect(() => model.checkProfile?.({ model: 'scripted:echo' })).not.toThrow();
  });
});
