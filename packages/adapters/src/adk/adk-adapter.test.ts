import { type Part, TaskState } from '@a2a-js/sdk';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { ResultPart } from '../adapter.js';
import { AdapterError } from '../adapter-error.js';
import { a2aDialect, type Play, textPart } from '../testing/a2a-dialect.js';
import { adkDialect } from '../testing/adk-dialect.js';
import { ANSWER, agent, failureOf, LOCAL, run } from '../testing/ask-agent.js';
import { everyCard } from '../testing/cards.js';
import { openPlatform, PLATFORM_KEY, type PlatformServer } from '../testing/platform-server.js';
import { ADKHandoffAdapter } from './adk-adapter.js';

beforeEach(() => {
  vi.stubEnv('HARBOUR_KEY', PLATFORM_KEY);
});
afterEach(() => {
  vi.unstubAllEnvs();
});

const dataPart = (value: unknown): Part => ({
  content: { $case: 'data', value },
  metadata: undefined,
  filename: '',
  mediaType: 'application/json',
});

test('an app that the server does not have is an unknown target, and no session is opened for it', async () => {
  await using server = await openPlatform(adkDialect(['other']), ANSWER);
  const { code, message } = await failureOf(run(server, { app: 'harbour' }));
  expect([code, message.includes('harbour'), server.requests.length]).toEqual(['target_unknown', false, 1]);
});

test('each attempt has a session of its own', async () => {
  await using server = await openPlatform(adkDialect(['harbour']), ANSWER);
  const ids = [];
  for (const attempt of [1, 2])
    ids.push((await run(server, { app: 'harbour', options: { attempt } })).remote_id);
  expect(ids).toEqual([1, 2].map((attempt) => `0197c1a2-0000-7000-8000-000000000001-${attempt}`));
  const again = await failureOf(run(server, { app: 'harbour' }));
  expect([again.code, again.message.includes('Session already exists')]).toEqual(['platform_failed', true]);
});

test('the result of an app is its last text, and usage is the sum of all model calls', async () => {
  await using server = await openPlatform(adkDialect(['harbour']), ANSWER);
  const { result, usage } = await run(server, { app: 'harbour' });
  expect([result, usage]).toEqual(['Done.', { input_tokens: 30, output_tokens: 9 }]);
});

test('invalid usage of an app does not affect its answer', async () => {
  for (const [usageMetadata, expected] of [
    [
      { promptTokenCount: 1.5, candidatesTokenCount: 2 },
      { input_tokens: 2, output_tokens: 2 },
    ],
    [
      { promptTokenCount: -1, candidatesTokenCount: '7' },
      { input_tokens: 0, output_tokens: 0 },
    ],
    [{ promptTokenCount: 1e300 }, null],
    ['many', null],
  ] as const) {
    const event = { author: 'a', content: { parts: [{ text: 'yes' }] }, usageMetadata };
    await using server = await openPlatform(
      adkDialect(['harbour'], () => [event]),
      ANSWER,
    );
    const { result, usage } = await run(server, { app: 'harbour' });
    expect([result, usage]).toEqual(['yes', expected]);
  }
});

test('in events of an app, thoughts and pieces are ignored, an output replaces text, and errors are failures', async () => {
  const said = (text: string, more: object = {}) => ({
    author: 'a',
    content: { parts: [{ text }] },
    ...more,
  });
  for (const [events, expected] of [
    [[said('first'), said('last'), said('to be continued', { partial: true })], 'last'],
    [[said('from the user', { author: 'user' }), said('kept')], 'kept'],
    [[{ author: 'a', content: { parts: [{ text: 'hm', thought: true }, { text: 'yes' }] } }], 'yes'],
    [[{ author: 'a', output: { total: 4 } }], { total: 4 }],
    [[said('half'), { author: 'a', errorCode: 'SAFETY' }], 'platform_refused'],
    [[{ author: 'a', errorCode: 'MALFORMED', errorMessage: 'no' }], 'platform_failed'],
    [[], 'platform_failed'],
    [[{ author: 'a', content: { parts: [{ functionCall: { name: 'x' } }] } }], 'platform_failed'],
  ] as const) {
    await using server = await openPlatform(
      adkDialect(['harbour'], () => events),
      ANSWER,
    );
    const outcome = await run(server, { app: 'harbour' }).then(
      ({ result }) => result,
      (error: unknown) => (error instanceof AdapterError ? error.code : error),
    );
    expect(outcome).toEqual(expected);
  }
});

test.each(['1.0', '0.3'] as const)(
  'an agent of protocol %s asks, gets the answer in the same task, and continues',
  async (version) => {
    const asked: Play = ({ task, userMessage }, bus, text) => {
      if (task === undefined) {
        bus.task(TaskState.TASK_STATE_WORKING);
        bus.status(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which harbour?');
        return;
      }
      bus.task(TaskState.TASK_STATE_WORKING);
      const [part] = userMessage.parts;
      const words = part?.content?.$case === 'text' ? part.content.value : '';
      bus.artifact('answer', [textPart(`${words}: ${text}`)]);
      bus.status(TaskState.TASK_STATE_COMPLETED);
    };
    await using server = await agent({ version, play: asked });
    const questions: string[] = [];
    const ask = async (question: string): Promise<string> => {
      questions.push(question);
      return 'The northern one';
    };
    const { result } = await run(server, { options: { ask } });
    expect([result, questions, server.works.length]).toEqual([
      'The northern one: Done.',
      ['Which harbour?'],
      2,
    ]);
    const ids = server.works.map(({ text }) => /"messageId":"([^"]+)"/.exec(text)?.[1]);
    expect(ids).toEqual(['k', expect.stringMatching(/^k\/[0-9a-f]{32}$/)]);
  },
);

test('a question that cannot be answered fails the handoff with the question', async () => {
  const play: Play = (_context, bus) => {
    bus.task(TaskState.TASK_STATE_WORKING);
    bus.status(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which harbour?');
  };
  await using server = await agent({ play });
  const { code, message } = await failureOf(run(server));
  expect([code, message.includes('Which harbour?'), server.works.length]).toEqual([
    'platform_failed',
    true,
    1,
  ]);
});

test.each(['1.0', '0.3'] as const)(
  'an agent of protocol %s that still shows its task as before the answer is not answered twice',
  async (version) => {
    const play: Play = ({ task }, bus, text) => {
      bus.task(TaskState.TASK_STATE_INPUT_REQUIRED);
      if (task === undefined) return;
      bus.status(TaskState.TASK_STATE_WORKING);
      bus.artifact('answer', [textPart(text)]);
      bus.status(TaskState.TASK_STATE_COMPLETED);
    };
    await using server = await agent({ version, play });
    let questions = 0;
    const ask = async (): Promise<string> => {
      questions += 1;
      return 'The northern one';
    };
    const { result } = await run(server, { options: { ask } });
    expect([result, questions, server.works.length]).toEqual(['Done.', 1, 2]);
  },
);

test('an answer to a question that did not arrive is not sent again', async () => {
  const play: Play = (_context, bus) => {
    bus.task(TaskState.TASK_STATE_WORKING);
    bus.status(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which harbour?');
  };
  for (const lost of [{ kind: 'status', status: 503 }, { kind: 'drop' }] as const) {
    await using server = await openPlatform(a2aDialect({ version: '1.0', play }), ANSWER, lost, lost, ANSWER);
    let questions = 0;
    const ask = async (): Promise<string> => {
      questions += 1;
      return 'The northern one';
    };
    const { code } = await failureOf(run(server, { options: { ask } }));
    expect([code, questions, server.works.length]).toEqual(['platform_unavailable', 1, 2]);
  }
});

test('the end of a task that is not a completion is a failure with the agent’s message', async () => {
  for (const [state, code] of [
    [TaskState.TASK_STATE_FAILED, 'platform_failed'],
    [TaskState.TASK_STATE_CANCELED, 'platform_failed'],
    [TaskState.TASK_STATE_REJECTED, 'platform_refused'],
  ] as const)
    for (const version of ['1.0', '0.3'] as const) {
      const play: Play = (_context, bus) => {
        bus.task(TaskState.TASK_STATE_WORKING);
        bus.status(state, `not this, ${PLATFORM_KEY}`);
      };
      await using server = await agent({ play, version });
      const error = await failureOf(run(server));
      expect([error.code, error.message.includes('not this, [secret: HARBOUR_KEY]')]).toEqual([code, true]);
    }
});

test('messages, values and several artifacts are results', async () => {
  const plays: readonly (readonly [Play, unknown])[] = [
    [(_context, bus) => bus.message([textPart('Hello.')]), 'Hello.'],
    [(_context, bus) => bus.message([dataPart({ cranes: 4 })]), { cranes: 4 }],
    [
      (_context, bus) => bus.message([textPart('See:'), dataPart({ cranes: 4 }), dataPart([1])]),
      { text: 'See:', data: [{ cranes: 4 }, [1]] },
    ],
    [
      (_context, bus) => {
        bus.task(TaskState.TASK_STATE_WORKING);
        bus.artifact('one', [textPart('first')]);
        bus.artifact('two', [textPart('second')]);
        bus.status(TaskState.TASK_STATE_COMPLETED);
      },
      'first\n\nsecond',
    ],
    [
      (_context, bus) => {
        bus.task(TaskState.TASK_STATE_WORKING);
        bus.status(TaskState.TASK_STATE_COMPLETED, 'Done by hand.');
      },
      'Done by hand.',
    ],
  ];
  for (const [play, expected] of plays)
    for (const isStreaming of [true, false]) {
      await using server = await agent({ play, isStreaming });
      const parts: ResultPart[] = [];
      const { result } = await run(server, { options: { onPart: (part) => parts.push(part) } });
      expect(result).toEqual(expected);
      if (typeof result === 'string') expect(parts.map(({ text }) => text).join('')).toBe(result);
    }
});

test('a value that is nested too deeply to be read is a failure of the agent', async () => {
  let deep: unknown = 1;
  for (let level = 0; level < 3_000; level += 1) deep = [deep];
  await using server = await agent({ play: (_context, bus) => bus.message([dataPart(deep)]) });
  expect((await failureOf(run(server))).code).toBe('platform_failed');
});

test('an artifact that is replaced after its parts were shown is an object, since parts cannot be withdrawn', async () => {
  const play: Play = (_context, bus) => {
    bus.task(TaskState.TASK_STATE_WORKING);
    bus.artifact('one', [textPart('draft')]);
    bus.artifact('one', [textPart('final')]);
    bus.status(TaskState.TASK_STATE_COMPLETED);
  };
  await using server = await agent({ play });
  expect((await run(server)).result).toEqual({ text: 'final' });
});

test('an agent that accepts only texts gets JSON as text, and its files are lost with the reason', async () => {
  await using server = await agent({ inputModes: ['text/plain'] });
  const { loss } = await run(server, { cards: everyCard() });
  expect(loss.lost.map(({ card_id, why }) => `${card_id}: ${why}`)).toEqual([
    'file: the agent does not accept application/pdf',
    'image: the agent does not accept image/png',
    'local_file: its content is not at an http:// or https:// address that the platform could read',
  ]);
  expect(server.works[0]?.text).not.toContain('"data"');
});

test('a card without a complete address is an error of the agent', async () => {
  for (const url of ['/rpc', '']) {
    await using server = await agent({ urlOf: () => url });
    const { code, message } = await failureOf(run(server));
    expect([code, message.includes('The address of the agent is not a URL')]).toEqual(['bad_request', true]);
    expect(server.works).toEqual([]);
  }
});

test('nothing is sent to an agent that accepts none of the cards', async () => {
  await using server = await agent({ inputModes: ['text/plain'] });
  const cards = everyCard().filter(({ id }) => id === 'image');
  const { code, details } = await failureOf(run(server, { cards }));
  expect([code, server.works.length]).toEqual(['cards_not_carried', 0]);
  expect(details.lost).toMatchObject([{ card_id: 'image', why: 'the agent does not accept image/png' }]);
});

test.each(['1.0', '0.3'] as const)(
  'a task of protocol %s that is still working is polled until it ends',
  async (version) => {
    for (const isStreaming of [true, false]) {
      const play: Play = (_context, bus) => bus.task(TaskState.TASK_STATE_WORKING);
      await using server = await agent({ version, isStreaming, play, lateAnswer: 'Done late.' });
      const parts: ResultPart[] = [];
      const { result } = await run(server, { options: { onPart: (part) => parts.push(part) } });
      expect([result, parts.map(({ text }) => text).join('')]).toEqual(['Done late.', 'Done late.']);
      expect([server.works.length, server.requests.length]).toEqual([1, 5]);
    }
  },
);

test('an agent that asks for a sign-in is reported as not authorized', async () => {
  const play: Play = (_context, bus) => {
    bus.task(TaskState.TASK_STATE_WORKING);
    bus.status(TaskState.TASK_STATE_AUTH_REQUIRED, 'Sign in.');
  };
  await using server = await agent({ play });
  const { code, message } = await failureOf(run(server));
  expect([code, message.includes('Sign in.')]).toEqual(['platform_unauthorized', true]);
});

test.each(['1.0', '0.3'] as const)(
  'an agent of protocol %s that does not stream names its task before the task has ended',
  async (version) => {
    let finish: () => void = () => undefined;
    const told = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const play: Play = async (_context, bus, text) => {
      bus.task(TaskState.TASK_STATE_WORKING);
      await told;
      bus.artifact('answer', [textPart(text)]);
      bus.status(TaskState.TASK_STATE_COMPLETED);
    };
    await using server = await agent({ version, play, isStreaming: false });
    let work: ReturnType<typeof run> | undefined;
    const named = new Promise<string>((onRemoteId) => {
      work = run(server, { options: { onRemoteId } });
    });
    expect(await named).not.toBe('');
    finish();
    expect((await work)?.result).toBe('Done.');
    expect(server.works.length).toBe(1);
  },
);

test('a cancellation reaches the agent, and a late cancellation is reported as refused', async () => {
  const adapter = new ADKHandoffAdapter(LOCAL);
  const signal = new AbortController().signal;
  const cancel = (server: PlatformServer, remoteId: string): Promise<boolean> => {
    const target = {
      platform: 'adk',
      card_url: `${server.origin}/card.json`,
      api_key_env: 'HARBOUR_KEY',
    } as const;
    return adapter.cancel({ target }, { signal, remoteId });
  };
  await using ended = await agent();
  expect(await cancel(ended, (await run(ended)).remote_id ?? '')).toBe(false);
  expect(ended.requests.at(-1)?.text).toContain('CancelTask');

  await using working = await agent({ play: (_context, bus) => bus.task(TaskState.TASK_STATE_WORKING) });
  const controller = new AbortController();
  const named = new Promise<string>((onRemoteId) => {
    run(working, { options: { onRemoteId, signal: controller.signal } }).catch(() => undefined);
  });
  expect(await cancel(working, await named)).toBe(true);
  controller.abort();

  const target = { platform: 'adk', app: 'a', base_url: working.origin } as const;
  expect(await adapter.cancel({ target }, { signal, remoteId: 'x' })).toBe(false);
});
