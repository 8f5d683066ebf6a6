/**
 * The contract of the `Model` port as a list of cases, run on every adapter. It needs no test framework:
 * `for (const { name, run } of modelContract(subject)) it(name, run)`.
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Model, ModelError, type ModelReply, type ModelRequest } from '@boxcar/kernel';

export interface ModelContractSubject {
  /** A fresh instance, as another worker would create it. */
  create(): Model;
  /** The model answers it with text and no call. */
  readonly text: ModelRequest;
  /** The model answers it with at least one call. */
  readonly calls: ModelRequest;
  /** The answer takes longer than ten seconds unless the call is aborted. */
  readonly slow: ModelRequest;
  /** Requests that fail, each with the expected failure. */
  readonly failures: readonly {
    readonly request: ModelRequest;
    readonly code: ModelError['code'];
    readonly canRetry: boolean;
    readonly retryAfterMs?: number | undefined;
  }[];
}

export interface ContractCase {
  readonly name: string;
  run(): Promise<void>;
}

const ABORT_LIMIT_MS = 2_000;

function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null) return value;
  for (const member of Object.values(value)) deepFreeze(member);
  return Object.freeze(value);
}

const ask = (model: Model, request: ModelRequest): Promise<ModelReply> =>
  model.generate(request, { signal: new AbortController().signal });

/** The error of a call that must fail within a time limit; `still running` when it did not end. */
async function failureOf(call: Promise<ModelReply>): Promise<unknown> {
  const limit = new AbortController();
  const answered = call.then(
    () => assert.fail('the model answered, it should have failed'),
    (error: unknown) => error,
  );
  const late = sleep(ABORT_LIMIT_MS, undefined, { signal: limit.signal }).then(() =>
    assert.fail('still running'),
  );
  try {
    return await Promise.race([answered, late]);
  } finally {
    late.catch(() => undefined);
    limit.abort();
  }
}

function checkReply(reply: ModelReply): void {
  assert.equal(typeof reply.text, 'string');
  for (const call of reply.toolCalls) {
    assert.equal(typeof call.id, 'string');
    assert.equal(typeof call.name, 'string');
    assert.equal(typeof call.arguments, 'string', 'arguments are the text the model wrote');
  }
  assert.ok(
    reply.reasoning === undefined || reply.reasoning !== '',
    'no reasoning is none, not an empty one',
  );
  const { isEstimated = false, ...figures } = reply.usage;
  assert.equal(typeof isEstimated, 'boolean');
  for (const [name, tokens] of Object.entries(figures)) {
    assert.ok(
      tokens === undefined || (Number.isSafeInteger(tokens) && tokens >= 0),
      `usage.${name} is ${tokens}`,
    );
  }
  const {
    inputTokens,
    outputTokens,
    cachedInputTokens = 0,
    cacheWriteTokens = 0,
    reasoningTokens = 0,
  } = figures;
  assert.ok(inputTokens > 0, 'a prompt has tokens');
  assert.ok(outputTokens > 0, 'an answer has tokens');
  assert.ok(cachedInputTokens + cacheWriteTokens <= inputTokens, 'cached tokens are a part of the prompt');
  assert.ok(reasoningTokens <= outputTokens, 'reasoning is a part of the answer');
}

/** The cases for one adapter. Requests are frozen, so an adapter that changes a request fails. */
export function modelContract(subject: ModelContractSubject): readonly ContractCase[] {
  const text = deepFreeze(subject.text);
  const calls = deepFreeze(subject.calls);
  const slow = deepFreeze(subject.slow);
  return [
    {
      name: 'an answer in text has its text, its usage and the reason stop',
      run: async () => {
        const reply = await ask(subject.create(), text);
        checkReply(reply);
        assert.notEqual(reply.text, '');
        assert.deepEqual(reply.toolCalls, []);
        assert.equal(reply.finishReason, 'stop');
      },
    },
    {
      name: 'an answer with calls has their arguments as text, its usage and the reason tool_calls',
      run: async () => {
        const reply = await ask(subject.create(), calls);
        checkReply(reply);
        assert.notEqual(reply.toolCalls.length, 0);
        assert.equal(reply.finishReason, 'tool_calls');
      },
    },
    {
      name: 'the joined parts of a text are the whole text',
      run: async () => {
        const parts: string[] = [];
        const reply = await subject.create().generate(text, {
          signal: new AbortController().signal,
          onText: (part) => parts.push(part),
        });
        assert.ok(!parts.includes(''), 'a part has at least one character');
        assert.equal(parts.join(''), parts.length === 0 ? '' : reply.text);
      },
    },
    {
      name: 'the same request gets the same reply, from one instance and from a fresh one',
      run: async () => {
        const model = subject.create();
        for (const request of [text, calls]) {
          const first = await ask(model, request);
          assert.deepEqual(await ask(model, request), first);
          assert.deepEqual(await ask(subject.create(), request), first);
        }
      },
    },
    {
      name: 'interleaved requests do not affect each other',
      run: async () => {
        const expected = [await ask(subject.create(), text), await ask(subject.create(), calls)] as const;
        const model = subject.create();
        const stopSlow = new AbortController();
        const unfinished = failureOf(model.generate(slow, { signal: stopSlow.signal }));
        const replies = await Promise.all(
          [text, calls, calls, text, calls].map((request) => ask(model, request)),
        );
        stopSlow.abort();
        await unfinished;
        assert.deepEqual(replies, [expected[0], expected[1], expected[1], expected[0], expected[1]]);
      },
    },
    {
      name: 'a call whose signal has already aborted fails with its reason',
      run: async () => {
        const reason = new Error('already aborted');
        const failure = await failureOf(
          subject.create().generate(text, { signal: AbortSignal.abort(reason) }),
        );
        assert.equal(failure, reason);
      },
    },
    {
      name: 'an abort ends a running call at once with its reason',
      run: async () => {
        const reason = new Error('aborted while it ran');
        const controller = new AbortController();
        const call = failureOf(subject.create().generate(slow, { signal: controller.signal }));
        await new Promise((resolve) => setImmediate(resolve));
        controller.abort(reason);
        assert.equal(await call, reason);
      },
    },
    {
      name: 'aborts at any moment leave no unhandled rejection',
      run: async () => {
        const unhandled: unknown[] = [];
        const note = (error: unknown): void => void unhandled.push(error);
        process.on('unhandledRejection', note);
        try {
          const model = subject.create();
          const ended = [0, 1, 10, 100].map(async (turns) => {
            const controller = new AbortController();
            const reason = new Error(`aborted after ${turns} turns of the event loop`);
            const call = failureOf(model.generate(slow, { signal: controller.signal }));
            for (let turn = 0; turn < turns; turn += 1) await new Promise((resolve) => setImmediate(resolve));
            controller.abort(reason);
            assert.equal(await call, reason);
          });
          await Promise.all(ended);
          // Node reports unhandled rejections after the microtasks of one turn of the event loop.
          await new Promise((resolve) => setImmediate(resolve));
          assert.deepEqual(unhandled, []);
        } finally {
          process.off('unhandledRejection', note);
        }
      },
    },
    ...subject.failures.map(({ request, code, canRetry, retryAfterMs }) => ({
      name: `a failure is a ModelError: ${code}${canRetry ? ', can be retried' : ''} (${request.model})`,
      run: async () => {
        const failure = await failureOf(ask(subject.create(), deepFreeze(request)));
        assert.ok(failure instanceof ModelError, `${failure}`);
        assert.deepEqual(
          [failure.code, failure.canRetry, failure.retryAfterMs],
          [code, canRetry, retryAfterMs],
        );
        assert.notEqual(failure.message, '');
        const { turnId, step } = request.turn;
        assert.deepEqual([failure.details.turnId, failure.details.step], [turnId, step], 'it names its turn');
        const body = failure.toJSON();
        assert.deepEqual(JSON.parse(JSON.stringify(body)), body, 'an error body is plain JSON');
      },
    })),
  ];
}
