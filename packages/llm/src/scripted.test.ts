import { getEventListeners } from 'node:events';
import { type JsonValue, type Message, ModelError, type ModelRequest } from '@boxcar/kernel';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { ask, exchange, requestOf, runTurn, TURN_ID, userMessage } from './fixtures/requests.js';
import { createScriptedModel, type ScriptedModelOptions } from './scripted.js';

async function failureOf(request: ModelRequest, options?: ScriptedModelOptions): Promise<ModelError> {
  const failure: unknown = await ask(createScriptedModel(options), request).then(
    () => new Error('it answered'),
    (error: unknown) => error,
  );
  if (failure instanceof ModelError) return failure;
  throw failure;
}

const reply = (request: ModelRequest, options?: ScriptedModelOptions) =>
  ask(createScriptedModel(options), request);

afterEach(() => {
  // Timers that other code set under the fake clock must not be lost with it.
  if (vi.isFakeTimers()) vi.runOnlyPendingTimers();
  vi.useRealTimers();
});

describe('the position in a script', () => {
  const script = [{ say: 'one' }, { say: 'two' }, { say: 'three' }];

  it('depends only on the turn: a new instance continues at step n', async () => {
    for (const [index, text] of ['one', 'two', 'three'].entries()) {
      await expect(reply(requestOf({ script, step: index + 1 }))).resolves.toMatchObject({ text });
    }
  });

  it('does not change when a step is requested again, in any order', async () => {
    const model = createScriptedModel();
    const texts = [];
    for (const step of [3, 1, 1, 2, 3]) texts.push((await ask(model, requestOf({ script, step }))).text);
    expect(texts).toEqual(['three', 'one', 'one', 'two', 'three']);
  });

  it('beyond the end is a script_mismatch that shows the request', async () => {
    const failure = await failureOf(requestOf({ script, step: 4 }));
    expect(failure.code).toBe('script_mismatch');
    expect(failure.canRetry).toBe(false);
    expect(failure.message).toBe(
      `Turn ${TURN_ID}, step 4: the script ends after 3 steps; it was asked again with 'Survey src'.`,
    );
    expect((await failureOf(requestOf({}))).message).toContain('ends after 0 steps');
  });

  it('at a step whose form was never checked is a script_mismatch with its path', async () => {
    const failure = await failureOf(requestOf({ script: [{ say: 'x' }, { calls: [{ tool: 7 }] }], step: 2 }));
    expect(failure.code).toBe('script_mismatch');
    expect(failure.message).toContain(`Turn ${TURN_ID}, step 2: script.1.calls.0.tool: `);
  });
});

describe('a scripted answer', () => {
  it('has calls with filled-in arguments, text next to them, and ids that are unique within the turn', async () => {
    const script = [
      {
        say: 'Looking into {{instruction/path}}.',
        calls: [
          { tool: 'list_files', arguments: { path: '{{instruction/path}}', depth: 2 } },
          { id: 'call_0', tool: 'list_files' },
          { id: 'call_0', tool: 'note', arguments: '{{instruction}}' },
        ],
      },
    ];
    const answer = await reply(requestOf({ script, instruction: { path: 'src' } }));
    expect(answer).toEqual({
      text: 'Looking into src.',
      toolCalls: [
        { id: 'call_1_0', name: 'list_files', arguments: '{"path":"src","depth":2}' },
        { id: 'call_0', name: 'list_files', arguments: '{}' },
        { id: 'call_0', name: 'note', arguments: '{"path":"src"}' },
      ],
      usage: { inputTokens: 10, outputTokens: 21 },
      finishReason: 'tool_calls',
    });
  });

  it('repeats the calls for each item', async () => {
    const script = [
      {
        forEach: '{{instruction/folders}}',
        calls: [
          { id: 'f{{index}}', tool: 'survey', arguments: { path: '{{item/path}}' } },
          { tool: 'note', arguments: { text: '{{index}}: {{item}}' } },
        ],
      },
    ];
    const instruction = { folders: [{ path: 'a' }, { path: 'b' }] };
    const { toolCalls } = await reply(requestOf({ script, instruction }));
    expect(toolCalls).toEqual([
      { id: 'f0', name: 'survey', arguments: '{"path":"a"}' },
      { id: 'call_1_1', name: 'note', arguments: '{"text":"0: {\\"path\\":\\"a\\"}"}' },
      { id: 'f1', name: 'survey', arguments: '{"path":"b"}' },
      { id: 'call_1_3', name: 'note', arguments: '{"text":"1: {\\"path\\":\\"b\\"}"}' },
    ]);
  });

  it('without items is empty, including its text, so that it cannot end the turn', async () => {
    const script = [{ forEach: '{{instruction/folders}}', calls: [{ tool: 'survey' }], say: 'Surveying.' }];
    await expect(reply(requestOf({ script, instruction: { folders: [] } }))).resolves.toMatchObject({
      text: '',
      toolCalls: [],
      finishReason: 'stop',
    });
  });

  it('with forEach over a value that is not a list is a script_mismatch', async () => {
    const script = [{ forEach: '{{instruction/folders}}', calls: [{ tool: 'survey' }] }];
    const failure = await failureOf(requestOf({ script, instruction: { folders: { a: 1 } } }));
    expect(failure.code).toBe('script_mismatch');
    expect(failure.message).toContain('step 1: {{instruction/folders}}: forEach needs a list');
  });

  it('repeats an element of a list for each item of another list', async () => {
    const task = { target_ref: 'expert', instruction: 'Folder {{index}}: {{item/path}}' };
    const script = [
      {
        calls: [
          {
            tool: 'fork_join',
            arguments: {
              tasks: [{ $forEach: '{{instruction/folders}}', $item: task }, { target_ref: 'last' }],
            },
          },
        ],
      },
    ];
    const instruction = { folders: [{ path: 'a' }, { path: 'b{{index}}' }] };
    const { toolCalls } = await reply(requestOf({ script, instruction }));
    expect(JSON.parse(toolCalls[0]?.arguments ?? '')).toEqual({
      tasks: [
        { target_ref: 'expert', instruction: 'Folder 0: a' },
        { target_ref: 'expert', instruction: 'Folder 1: b{{index}}' },
        { target_ref: 'last' },
      ],
    });
    const failure = await failureOf(requestOf({ script, instruction: { folders: 3 } }));
    expect(failure.message).toContain('{{instruction/folders}}: $forEach needs a list, got a number');
  });

  it('can be invalid: broken arguments, arguments that are not an object, or nothing at all', async () => {
    const script = [
      {
        calls: [
          { tool: 'list_files', raw: '{not json {{item}}' },
          { tool: 'list_files', arguments: [1] },
        ],
      },
      { empty: true },
    ];
    const { toolCalls } = await reply(requestOf({ script }));
    expect(toolCalls.map((call) => call.arguments)).toEqual(['{not json {{item}}', '[1]']);
    await expect(reply(requestOf({ script, step: 2 }))).resolves.toMatchObject({
      text: '',
      toolCalls: [],
      finishReason: 'stop',
    });
  });

  it('has the usage and the finish reason that the script names', async () => {
    const script = [{ say: 'half an ans', usage: { inputTokens: 7 }, finishReason: 'length' }];
    await expect(reply(requestOf({ script }))).resolves.toMatchObject({
      usage: { inputTokens: 7, outputTokens: 3 },
      finishReason: 'length',
    });
  });

  it('with a missing pointer is a script_mismatch that names the pointer', async () => {
    const script = [{ calls: [{ tool: 'list_files', arguments: { path: '{{instruction/path}}' } }] }];
    const failure = await failureOf(requestOf({ script, instruction: { folder: 'src' } }));
    expect(failure.code).toBe('script_mismatch');
    expect(failure.details).toEqual({ turnId: TURN_ID, step: 1 });
    expect(failure.message).toBe(
      `Turn ${TURN_ID}, step 1: {{instruction/path}}: instruction/path is missing; there is folder`,
    );
  });
});

describe('expectations', () => {
  const messages: readonly Message[] = [
    userMessage('Survey src'),
    ...exchange([{ tool: 'list_files', result: { files: ['a.ts'] } }]),
    userMessage('Two steps are left for this task.'),
  ];

  it('are checked against everything new since the last answer', async () => {
    const script = [
      { expect: { lastRole: 'user', contains: 'Survey' }, say: 'one' },
      { expect: { lastRole: 'user', contains: '"a.ts"', notContains: 'Survey' }, say: 'two' },
    ];
    await expect(reply(requestOf({ script }))).resolves.toMatchObject({ text: 'one' });
    await expect(reply(requestOf({ script, step: 2, messages }))).resolves.toMatchObject({ text: 'two' });
  });

  it.each<[string, JsonValue, string]>([
    [
      'lastRole',
      { lastRole: 'tool' },
      'expected the last message to have the role tool; seen (last role user): ',
    ],
    ['contains', { contains: 'b.ts' }, "expected text with 'b.ts'; seen"],
    ['notContains', { notContains: 'a.ts' }, "expected no text with 'a.ts'; seen"],
  ])('%s that fails names turn, step and the text seen', async (_name, expectation, message) => {
    const script = [{ say: 'one' }, { expect: expectation, say: 'two' }];
    const failure = await failureOf(requestOf({ script, step: 2, messages }));
    expect(failure.code).toBe('script_mismatch');
    expect(failure.message).toContain(`Turn ${TURN_ID}, step 2: ${message}`);
    expect(failure.message).toContain('{"files":["a.ts"]}\nTwo steps are left');
    expect(failure.details).toMatchObject({ turnId: TURN_ID, step: 2, role: 'user' });
  });

  it('are checked at the first step against the whole turn, including inherited context, and no earlier turn', async () => {
    const script = [{ expect: { contains: 'a.ts', notContains: 'secret' }, say: 'one' }];
    const inherited = exchange([{ tool: 'list_files', result: { files: ['a.ts'] } }]);
    const request = requestOf({
      script,
      messages: [
        userMessage('secret'),
        ...inherited,
        { role: 'assistant', content: 'Done.' },
        userMessage('Go on'),
      ],
      firstMessage: 2,
    });
    await expect(reply(request)).resolves.toMatchObject({ text: 'one' });
  });

  it('show long text shortened, never with half a character', async () => {
    const script = [{ expect: { contains: 'nope' }, say: 'one' }];
    const failure = await failureOf(
      requestOf({ script, instruction: `${'x'.repeat(299)}😀${'y'.repeat(9_000)}` }),
    );
    expect(failure.message.length).toBeLessThan(500);
    expect(failure.message.isWellFormed()).toBe(true);
  });
});

describe('results', () => {
  const say = (template: string, step = 2): readonly JsonValue[] => [
    ...Array.from({ length: step - 1 }, () => ({ calls: [{ tool: 'count' }] })),
    { calls: [{ tool: 'out', arguments: { value: template } }] },
  ];
  const outputOf = async (request: ModelRequest): Promise<JsonValue> => {
    const [call] = (await reply(request)).toolCalls;
    return JSON.parse(call?.arguments ?? '');
  };

  it('are paired by id and are in call order, in any order of their messages', async () => {
    const [answer, first, second] = exchange([
      { tool: 'count', result: 1 },
      { tool: 'count', result: 2 },
    ]);
    const messages = [userMessage('go'), answer, second, first].filter((message) => message !== undefined);
    await expect(
      outputOf(requestOf({ script: say('{{results/count/*}}'), step: 2, messages })),
    ).resolves.toEqual({
      value: [1, 2],
    });
  });

  it('are those of all steps of this turn', async () => {
    const messages = [
      userMessage('go'),
      ...exchange([{ tool: 'count', result: { n: 1 } }], 'a'),
      userMessage('a notice'),
      ...exchange(
        [
          { tool: 'count', result: { n: 2 } },
          { tool: 'other', result: { n: 9 } },
        ],
        'b',
      ),
    ];
    const script = say('{{sum:results/count/*/n}}', 3);
    await expect(outputOf(requestOf({ script, step: 3, messages }))).resolves.toEqual({ value: 3 });
  });

  it('of earlier turns and of an inherited history are not seen', async () => {
    const inherited = exchange([{ tool: 'count', result: 100 }], 'old');
    const own = exchange([{ tool: 'count', result: 1 }], 'new');
    const earlierTurn = requestOf({
      script: say('{{results/count/*}}'),
      step: 2,
      messages: [...inherited, userMessage('go'), ...own],
      firstMessage: 3,
    });
    await expect(outputOf(earlierTurn)).resolves.toEqual({ value: [1] });
    await expect(
      outputOf({ ...earlierTurn, turn: { ...earlierTurn.turn, firstMessage: 1 } }),
    ).resolves.toEqual({
      value: [1],
    });
    const afterAnEmptyAnswer = { ...earlierTurn.turn, step: 3 };
    await expect(
      outputOf({ ...earlierTurn, script: say('{{results/count/*}}', 3), turn: afterAnEmptyAnswer }),
    ).resolves.toEqual({ value: [1] });
    const atFirstStep = requestOf({
      script: say('{{results/count/*}}', 1),
      messages: [...inherited, userMessage('go')],
    });
    await expect(outputOf(atFirstStep)).resolves.toEqual({ value: [] });
  });

  it('are found after messages of others, and after answers without calls', async () => {
    const messages: readonly Message[] = [
      userMessage('go'),
      ...exchange([{ tool: 'count', result: 1 }], 'a'),
      { role: 'assistant', content: 'From outside.' },
      { role: 'assistant', content: 'From outside, too.' },
      userMessage('[continue]'),
      ...exchange([{ tool: 'count', result: 2 }], 'b'),
    ];
    const script = say('{{results/count/*}}', 3);
    await expect(outputOf(requestOf({ script, step: 3, messages }))).resolves.toEqual({ value: [1, 2] });
    const later = say('{{results/count/*}}', 5);
    await expect(outputOf(requestOf({ script: later, step: 5, messages }))).resolves.toEqual({
      value: [1, 2],
    });
  });

  it('of failed calls have their JSON body, and text stays text', async () => {
    const messages = [
      userMessage('go'),
      ...exchange([
        { tool: 'count', result: { code: 'tool_failed', message: 'no such folder' }, isError: true },
        { tool: 'count', result: 'not { json' },
      ]),
    ];
    const at = (template: string) => requestOf({ script: say(template), step: 2, messages });
    await expect(outputOf(at('{{get(0/code):results/count/*}}'))).resolves.toEqual({ value: 'tool_failed' });
    await expect(outputOf(at('{{results/count}}'))).resolves.toEqual({ value: 'not { json' });
    const failure = await failureOf(at('{{sum:results/count/*/lines}}'));
    expect(failure.message).toContain('results/count/0/lines is missing; there are code, message');
  });
});

describe('failures', () => {
  it('are returned while the attempt is at most `times`, then the answer is returned', async () => {
    const script = [{ fail: { status: 429, retryAfter: 1.5, message: 'slow down', times: 2 }, say: 'done' }];
    for (const attempt of [1, 2]) {
      const failure = await failureOf(requestOf({ script, attempt }));
      expect([failure.code, failure.canRetry, failure.retryAfterMs]).toEqual(['model_failed', true, 1500]);
      expect(failure.message).toBe(`Turn ${TURN_ID}, step 1, attempt ${attempt}: HTTP 429: slow down`);
      expect(failure.details).toEqual({ turnId: TURN_ID, step: 1, attempt, status: 429 });
    }
    await expect(reply(requestOf({ script, attempt: 3 }))).resolves.toMatchObject({ text: 'done' });
  });

  it('are returned once by default, and always when there is no answer', async () => {
    const once = [{ fail: { status: 503 }, say: 'done' }];
    expect((await failureOf(requestOf({ script: once }))).canRetry).toBe(true);
    await expect(reply(requestOf({ script: once, attempt: 2 }))).resolves.toMatchObject({ text: 'done' });
    expect((await failureOf(requestOf({ script: [{ fail: { status: 500 } }], attempt: 99 }))).code).toBe(
      'model_failed',
    );
  });

  it.each([
    [400, false],
    [401, false],
    [404, false],
    [429, true],
    [500, true],
    [503, true],
    [529, true],
  ])('with HTTP %i can be retried: %s', async (status, canRetry) => {
    const failure = await failureOf(requestOf({ script: [{ fail: { status } }] }));
    expect([failure.canRetry, failure.retryAfterMs]).toEqual([canRetry, undefined]);
  });

  it('with overflow are a context_overflow at the first attempt, or always when there is no answer', async () => {
    const script = [{ overflow: true, say: 'shorter' }, { overflow: true }];
    const failure = await failureOf(requestOf({ script }));
    expect([failure.code, failure.canRetry]).toEqual(['context_overflow', false]);
    await expect(reply(requestOf({ script, attempt: 2 }))).resolves.toMatchObject({ text: 'shorter' });
    expect((await failureOf(requestOf({ script, step: 2, attempt: 2 }))).code).toBe('context_overflow');
  });
});

describe('the time of a scripted answer', () => {
  it('is its delay', async () => {
    vi.useFakeTimers();
    let isAnswered = false;
    const answer = reply(requestOf({ script: [{ say: 'done', delayMs: 100, chunks: 4 }] })).then((value) => {
      isAnswered = true;
      return value;
    });
    for (let chunk = 0; chunk < 4; chunk += 1) {
      expect(isAnswered).toBe(false);
      expect(vi.getTimerCount()).toBeGreaterThan(0);
      await vi.advanceTimersByTimeAsync(25);
    }
    expect(isAnswered).toBe(true);
    await expect(answer).resolves.toMatchObject({ text: 'done' });
  });

  it('is divided into as many pauses as it has chunks', async () => {
    // Each pause has its own abort listener.
    const listeners = async (chunks: number): Promise<number> => {
      const { signal } = new AbortController();
      const listen = vi.spyOn(signal, 'addEventListener');
      const request = requestOf({ script: [{ say: 'done', delayMs: 1, chunks }] });
      await createScriptedModel().generate(request, { signal });
      return listen.mock.calls.length;
    };
    expect((await listeners(4)) - (await listeners(1))).toBe(3);
  });

  it('is cut by an abort, which throws its reason at once and leaves no timer and no listener', async () => {
    vi.useFakeTimers();
    const controller = new AbortController();
    const request = requestOf({ script: [{ say: 'done', delayMs: 60_000, chunks: 3 }] });
    const call = createScriptedModel().generate(request, { signal: controller.signal });
    const outcome = expect(call).rejects.toBe('the worker stops');
    await vi.advanceTimersByTimeAsync(25_000);
    // Code of other files in this process may have set timers too.
    const timers = vi.getTimerCount();
    controller.abort('the worker stops');
    await outcome;
    expect(vi.getTimerCount()).toBe(timers - 1);
    expect(getEventListeners(controller.signal, 'abort')).toEqual([]);
  });

  it('leaves no listener on the signal after the end', async () => {
    const { signal } = new AbortController();
    const request = requestOf({ script: [{ say: 'done', delayMs: 1, chunks: 2 }] });
    await createScriptedModel().generate(request, { signal });
    expect(getEventListeners(signal, 'abort')).toEqual([]);
  });
});

describe('functions of a scripted model', () => {
  it('answer with defaults for everything that they leave out', async () => {
    const functions: ScriptedModelOptions['functions'] = {
      text: () => ({ text: 'four' }),
      calls: async (request, { call }) => ({
        toolCalls: [
          call('a', { step: request.turn.step }),
          call('b', null, 'same'),
          { id: '', name: '', arguments: '\u0000{' },
        ],
        usage: { inputTokens: 3 },
      }),
      nothing: () => ({}),
    };
    await expect(reply(requestOf({ model: 'scripted:text' }), { functions })).resolves.toEqual({
      text: 'four',
      toolCalls: [],
      usage: { inputTokens: 9, outputTokens: 1 },
      finishReason: 'stop',
    });
    await expect(reply(requestOf({ model: 'scripted:calls', step: 2 }), { functions })).resolves.toEqual({
      text: '',
      toolCalls: [
        { id: 'call_2', name: 'a', arguments: '{"step":2}' },
        { id: 'same', name: 'b', arguments: 'null' },
        { id: '', name: '', arguments: '\u0000{' },
      ],
      usage: { inputTokens: 3, outputTokens: 5 },
      finishReason: 'tool_calls',
    });
    await expect(reply(requestOf({ model: 'scripted:nothing' }), { functions })).resolves.toMatchObject({
      text: '',
      usage: { outputTokens: 0 },
    });
  });

  it('read the same values as scripts', async () => {
    const functions: ScriptedModelOptions['functions'] = {
      report: (_request, { instruction, results, template }) => ({
        text: JSON.stringify([instruction, results('count'), template({ sum: '{{sum:results/count/*/n}}' })]),
      }),
    };
    const messages = [userMessage('go'), ...exchange([{ tool: 'count', result: { n: 2 } }])];
    const { text } = await reply(
      requestOf({ model: 'scripted:report', step: 2, messages, instruction: 'go' }),
      {
        functions,
      },
    );
    expect(JSON.parse(text)).toEqual(['go', [{ n: 2 }], { sum: 2 }]);
    const failure = await failureOf(requestOf({ model: 'scripted:bad' }), {
      functions: { bad: (_request, { template }) => ({ text: `${template('{{sum:nowhere}}')}` }) },
    });
    expect([failure.code, failure.message]).toEqual([
      'script_mismatch',
      expect.stringContaining('{{sum:nowhere}}'),
    ]);
  });

  it('that are unknown are model_unknown, with the list of known functions', async () => {
    for (const model of ['scripted:nope', 'scripted:constructor', 'openai:x']) {
      const failure = await failureOf(requestOf({ model }), { functions: { echo: () => ({}) } });
      expect(failure.code).toBe('model_unknown');
      expect(failure.message).toContain(`no scripted model '${model}'; known are scripted, scripted:echo.`);
    }
  });

  it('that are added after the start are found', async () => {
    const functions: Record<string, () => { text: string }> = {};
    const model = createScriptedModel({ functions });
    functions.late = () => ({ text: 'here' });
    await expect(ask(model, requestOf({ model: 'scripted:late' }))).resolves.toMatchObject({ text: 'here' });
  });

  it('that throw are model_failed with the cause; a ModelError is passed on unchanged', async () => {
    const cause = new Error('no such thing');
    const typed = new ModelError('model_timeout', 'too slow', { canRetry: true });
    const functions: ScriptedModelOptions['functions'] = {
      throws: () => {
        throw cause;
      },
      typed: () => Promise.reject(typed),
    };
    const failure = await failureOf(requestOf({ model: 'scripted:throws' }), { functions });
    expect([failure.code, failure.cause]).toEqual(['model_failed', cause]);
    expect(failure.message).toBe(`Turn ${TURN_ID}, step 1: scripted:throws threw: no such thing`);
    await expect(reply(requestOf({ model: 'scripted:typed' }), { functions })).rejects.toBe(typed);
  });

  it('that never end are left by an abort', async () => {
    const controller = new AbortController();
    const functions: ScriptedModelOptions['functions'] = {
      hangs: () => new Promise(() => undefined),
      waits: async (_request, helpers) => {
        await helpers.pause(60_000);
        return {};
      },
    };
    const model = createScriptedModel({ functions });
    const outcomes = ['scripted:hangs', 'scripted:waits'].map((name) =>
      expect(model.generate(requestOf({ model: name }), { signal: controller.signal })).rejects.toBe(
        'enough',
      ),
    );
    controller.abort('enough');
    await Promise.all(outcomes);
    expect(getEventListeners(controller.signal, 'abort')).toEqual([]);
  });
});

describe('a survey of a source tree, every step on a fresh instance', () => {
  const folders: Readonly<Record<string, JsonValue>> = {
    src: {
      files: 2,
      lines: 120,
      exports: 7,
      todos: 1,
      longest_functions: [
        { name: 'f', file: 'src/a.ts', lines: 40 },
        { name: 'g', file: 'src/a.ts', lines: 9 },
      ],
    },
    lib: {
      files: 1,
      lines: 30,
      exports: 2,
      todos: 0,
      longest_functions: [{ name: 'h', file: 'lib/b.ts', lines: 25 }],
    },
  };
  const expertScript: readonly JsonValue[] = [
    {
      expect: { lastRole: 'user', contains: 'Folder: ' },
      calls: [{ tool: 'survey_folder', arguments: { path: '{{after(Folder: ):instruction}}' } }],
    },
    {
      expect: { lastRole: 'tool' },
      calls: [
        {
          tool: 'submit_result',
          arguments: {
            result: { folder: '{{after(Folder: ):instruction}}', figures: '{{results/survey_folder}}' },
          },
        },
      ],
    },
  ];
  const principalScript: readonly JsonValue[] = [
    {
      expect: { lastRole: 'user', contains: 'Survey' },
      calls: [{ tool: 'list_folders', arguments: { path: '{{instruction/path}}' } }],
    },
    {
      forEach: '{{results/list_folders/folders}}',
      say: 'Asking one expert for each folder.',
      calls: [
        {
          tool: 'ask_expert',
          arguments: {
            expert_profile: 'surveyor',
            question: 'Survey this folder.\nFolder: {{item}}',
            wait: true,
          },
        },
      ],
    },
    {
      calls: [
        {
          tool: 'submit_result',
          arguments: {
            result: {
              files: '{{sum:results/ask_expert/*/result/figures/files}}',
              lines: '{{sum:results/ask_expert/*/result/figures/lines}}',
              exports: '{{sum:results/ask_expert/*/result/figures/exports}}',
              todos: '{{sum:results/ask_expert/*/result/figures/todos}}',
              longest_functions:
                '{{take(2):sort(-lines):results/ask_expert/*/result/figures/longest_functions/*}}',
              folders: '{{results/ask_expert/*/result}}',
              experts: '{{results/ask_expert/*/agent_id}}',
              summary:
                '{{sum:results/ask_expert/*/result/figures/lines}} lines in {{count:results/list_folders/folders}} folders: {{join:sort:results/ask_expert/*/result/folder}}',
            },
          },
        },
      ],
    },
  ];

  const survey = (names: readonly string[]) =>
    runTurn(() => createScriptedModel(), {
      script: principalScript,
      instruction: { task: 'Survey this tree', path: '.' },
      tools: {
        list_folders: () => ({ folders: names }),
        ask_expert: async (args) => {
          const question = fieldOf(args, 'question');
          const { deliverable } = await runTurn(() => createScriptedModel(), {
            script: expertScript,
            instruction: question,
            tools: { survey_folder: (folder) => folders[String(fieldOf(folder, 'path'))] ?? null },
          });
          return {
            status: 'success',
            turn_id: 't',
            agent_id: `a-${String(question).at(-1)}`,
            output_box_id: 'b',
            result: fieldOf(deliverable, 'result'),
          };
        },
      },
    });

  it('has scripts that are both accepted', () => {
    for (const script of [principalScript, expertScript]) {
      expect(() => createScriptedModel().checkProfile?.({ model: 'scripted', script })).not.toThrow();
    }
  });

  it('delivers correct numbers, taken only from results', async () => {
    const { deliverable, replies } = await survey(['src', 'lib']);
    expect(replies.map((answer) => answer.toolCalls.length)).toEqual([1, 2, 1]);
    expect(deliverable).toEqual({
      result: {
        files: 3,
        lines: 150,
        exports: 9,
        todos: 1,
        longest_functions: [
          { name: 'f', file: 'src/a.ts', lines: 40 },
          { name: 'h', file: 'lib/b.ts', lines: 25 },
        ],
        folders: [
          { folder: 'src', figures: folders.src },
          { folder: 'lib', figures: folders.lib },
        ],
        experts: ['a-c', 'a-b'],
        summary: '150 lines in 2 folders: lib, src',
      },
    });
  });

  it('delivers zeros for a tree without folders, after one reminder', async () => {
    const { deliverable, replies } = await survey([]);
    expect(replies.map((answer) => answer.toolCalls.length)).toEqual([1, 0, 1]);
    expect(deliverable).toMatchObject({ result: { files: 0, lines: 0, longest_functions: [], folders: [] } });
  });
});

function fieldOf(value: JsonValue, key: string): JsonValue {
  const member =
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.entries(value).find(([name]) => name === key);
  return member ? member[1] : null;
}
