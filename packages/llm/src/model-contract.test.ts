import { type Model, ModelError } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { requestOf } from './fixtures/requests.js';
import { type ModelContractSubject, modelContract } from './internal.js';
import { createModelRouter } from './router.js';
import { createScriptedModel, type ScriptedModelOptions } from './scripted.js';

const functions: ScriptedModelOptions['functions'] = {
  text: () => ({ text: 'hello' }),
  calls: (_request, { call }) => ({ toolCalls: [call('list_files', { path: 'src' })] }),
  slow: () => new Promise(() => undefined),
};

const failures: ModelContractSubject['failures'] = [
  {
    request: requestOf({ script: [{ fail: { status: 429, retryAfter: 2 } }] }),
    code: 'model_failed',
    canRetry: true,
    retryAfterMs: 2000,
  },
  { request: requestOf({ script: [{ fail: { status: 401 } }] }), code: 'model_failed', canRetry: false },
  { request: requestOf({ script: [{ overflow: true }] }), code: 'context_overflow', canRetry: false },
  {
    request: requestOf({ script: [{ expect: { contains: 'x y' }, say: 'x' }] }),
    code: 'script_mismatch',
    canRetry: false,
  },
  { request: requestOf({ model: 'scripted:nope' }), code: 'model_unknown', canRetry: false },
  { request: requestOf({ model: 'nope:x' }), code: 'model_unknown', canRetry: false },
];

const byScript: ModelContractSubject = {
  create: () => createScriptedModel(),
  text: requestOf({ script: [{ say: 'hello' }] }),
  calls: requestOf({ script: [{ calls: [{ tool: 'list_files', arguments: { path: '{{instruction}}' } }] }] }),
  slow: requestOf({ script: [{ say: 'late', delayMs: 60_000 }] }),
  failures,
};

const byFunction: ModelContractSubject = {
  create: () => createScriptedModel({ functions }),
  text: requestOf({ model: 'scripted:text' }),
  calls: requestOf({ model: 'scripted:calls' }),
  slow: requestOf({ model: 'scripted:slow' }),
  failures,
};

const subjects: readonly [string, ModelContractSubject][] = [
  ['the scripted model by script', byScript],
  ['the scripted model by function', byFunction],
  ['the router', { ...byScript, create: () => createModelRouter() }],
];

describe.each(subjects)('%s keeps the contract of Model:', (_name, subject) => {
  for (const { name, run } of modelContract(subject)) it(name, run);
});

describe('the contract refuses', () => {
  const sound = createScriptedModel();
  let count = 0;
  const broken: readonly [string, Model, string][] = [
    [
      'a model that counts its calls',
      {
        generate: async (request, options) => {
          count += 1;
          return { ...(await sound.generate(request, options)), text: `answer ${count}` };
        },
      },
      'the same request gets the same reply, from one instance and from a fresh one',
    ],
    [
      'a model without usage',
      {
        generate: async (request, options) => ({
          ...(await sound.generate(request, options)),
          usage: { inputTokens: Number.NaN, outputTokens: 1 },
        }),
      },
      'an answer in text has its text, its usage and the reason stop',
    ],
    [
      'a model that does not see an abort',
      { generate: (request) => sound.generate(request, { signal: new AbortController().signal }) },
      'a call whose signal has already aborted fails with its reason',
    ],
    [
      'a model that replaces the reason',
      {
        generate: (request, options) =>
          sound.generate(request, options).catch(() => Promise.reject(new Error('AbortError'))),
      },
      'an abort ends a running call at once with its reason',
    ],
    [
      'cached tokens beyond the prompt',
      {
        generate: async (request, options) => ({
          ...(await sound.generate(request, options)),
          usage: { inputTokens: 1, outputTokens: 1, cachedInputTokens: 2 },
        }),
      },
      'an answer in text has its text, its usage and the reason stop',
    ],
    [
      'errors that do not name their turn',
      {
        generate: (request, options) =>
          sound.generate(request, options).catch((error: unknown) => {
            throw error instanceof ModelError
              ? new ModelError(error.code, error.message, { canRetry: error.canRetry })
              : error;
          }),
      },
      'a failure is a ModelError: context_overflow (scripted)',
    ],
    [
      'a model whose abandoned work fails unseen',
      {
        generate: (request, options) => {
          options.signal.addEventListener('abort', () => void Promise.reject(new Error('unseen')));
          return sound.generate(request, options);
        },
      },
      'aborts at any moment leave no unhandled rejection',
    ],
    [
      'untyped errors',
      {
        generate: (request, options) =>
          sound.generate(request, options).catch((error: Error) => Promise.reject(error.message)),
      },
      'a failure is a ModelError: context_overflow (scripted)',
    ],
    [
      'a model that changes the request',
      {
        generate: (request, options) => {
          Object.assign(request, { model: 'scripted' });
          return sound.generate(request, options);
        },
      },
      'an answer with calls has their arguments as text, its usage and the reason tool_calls',
    ],
  ];

  it.each(broken)('%s', async (_name, model, caseName) => {
    const broken = modelContract({ ...byScript, create: () => model }).find(({ name }) => name === caseName);
    if (broken === undefined) throw new Error(`no case '${caseName}'`);
    await expect(broken.run()).rejects.toThrow();
  });
});
