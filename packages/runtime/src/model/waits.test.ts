import { type JsonObject, type Model, ModelError, type ModelReply, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  anthropicWire,
  type Behaviour,
  chatWire,
  inOrder,
  openProviderServer,
  type ProviderServer,
  SERVER_KEY,
} from '@boxcar/llm/testing';
import { setProviderLimits } from '@boxcar/store';
import { loadTree } from '@boxcar/store/report';
import { queueBackends, spawnNode, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { openRuntime } from '../open.js';
import type { TurnResult } from '../queue/turn-result.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';
import { createWorker } from '../worker/worker.js';

/** Pauses that a test can wait for. */
const SOON = { retry_base_seconds: 0.01, retry_max_seconds: 0.05 };
/** A pause that no test waits for. The provider sets its length, so it has no random part. */
const LATER = { status: 429, retryAfter: 3_600 };
const ANSWER: Behaviour = { answer: { text: 'done' } };

interface Place extends AsyncDisposable {
  readonly h: Harness;
  readonly server: ProviderServer;
}

/** A provider on loopback, and a profile `asker` that asks it. */
async function place(
  wire: typeof chatWire | typeof anthropicWire,
  behaviours: readonly Behaviour[],
  limits: JsonObject = {},
): Promise<Place> {
  const server = await openProviderServer(wire, inOrder(...behaviours));
  const settings = { apiKey: SERVER_KEY, baseUrl: server.baseUrl };
  const h = await harness({
    model: createModelRouter({ providers: { anthropic: settings, openaiCompatible: settings } }),
  });
  await h.runtime.applyProfile({
    name: 'asker',
    instructions: 'You ask.',
    model: `${wire.provider}:model-1`,
    limits: { ...SOON, ...limits },
  });
  await h.worker();
  return {
    h,
    server,
    [Symbol.asyncDispose]: async () => {
      await checkInvariants(h.database.pool);
      await checkPrompts(h.database.pool);
      await h[Symbol.asyncDispose]();
      await server[Symbol.asyncDispose]();
    },
  };
}

async function start(h: Harness, profile: string, rest: JsonObject = {}): Promise<TurnId> {
  const receipt = await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
    ...rest,
  });
  return (receipt as { turn_id: TurnId }).turn_id;
}
const end = (h: Harness, turnId: TurnId): Promise<TurnResult> =>
  h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const waits = (h: Harness) =>
  h.rows<{ turn_id: TurnId; kind: string; detail: JsonObject; in_ms: number }>(
    'select turn_id, kind, detail, extract(epoch from due_at - now())::float8 * 1000 as in_ms from boxcar.waits order by created_at',
  );
const untilWaiting = (h: Harness, kind: string, n = 1): Promise<unknown> =>
  waitFor(async () => (await waits(h)).filter((wait) => wait.kind === kind).length === n, {
    message: `${n} turns wait (${kind})`,
  });

describe('a failed model call', () => {
  test.each([
    ['429 that names a time', chatWire, { status: 429, headers: { 'retry-after-ms': '40' } }],
    ['529', anthropicWire, { status: 529, error: { message: 'Overloaded', type: 'overloaded_error' } }],
    ['dropped connection', chatWire, { drop: true }],
    ['stream that breaks off', chatWire, { answer: { text: 'half of it' }, frames: 2, after: 'destroy' }],
  ] as const)(
    '(%s) is made again with the same bytes, as another attempt of its step',
    async (_, wire, failure) => {
      await using p = await place(wire, [failure, failure, ANSWER]);
      const turnId = await start(p.h, 'asker');
      expect(await end(p.h, turnId)).toMatchObject({ status: 'success', result: 'done' });
      const [first, ...others] = p.server.requests.map(({ body }) => JSON.stringify(body));
      expect(others).toEqual([first, first]);
      const steps = await p.h.rows(
        `select attempt, error->>'code' as code, finish_reason, committed_at is not null as is_committed, prompt_hash from boxcar.steps order by attempt`,
      );
      expect(steps).toMatchObject([
        { attempt: 1, code: expect.stringMatching(/^model_/), finish_reason: 'error', is_committed: false },
        { attempt: 2, code: expect.stringMatching(/^model_/), is_committed: false },
        { attempt: 3, code: null, is_committed: true },
      ]);
      expect(new Set(steps.map(({ prompt_hash }) => String(prompt_hash))).size).toBe(1);
      expect(await p.h.rows('select retries, epoch from boxcar.turns')).toEqual([{ retries: 0, epoch: 3 }]);
      const delays = p.h.log.filter(({ event }) => event === 'turn.retries_later');
      expect(delays).toHaveLength(2);
      if ('headers' in failure)
        for (const { fields } of delays) expect(fields.delay_ms).toBeGreaterThanOrEqual(40);
    },
  );

  test('that stops halfway through its answer is given up in time and made again', async () => {
    const silent: Behaviour = { answer: { text: 'half of it' }, frames: 2, after: 'hang' };
    await using p = await place(chatWire, [silent, ANSWER], { model_timeout_seconds: 1 });
    expect(await end(p.h, await start(p.h, 'asker'))).toMatchObject({ status: 'success' });
    expect(p.server.requests).toHaveLength(2);
  });

  test('ends the turn when its retries are spent, with the provider’s message and the list of tries', async () => {
    const down = (words: string): Behaviour => ({ status: 503, error: { message: words } });
    await using p = await place(chatWire, ['one', 'two', 'three'].map(down), { model_retries: 2 });
    const ended = await end(p.h, await start(p.h, 'asker'));
    const tries = ['one', 'two', 'three'].map((words, index) => ({
      attempt: index + 1,
      code: 'model_unavailable',
      message: expect.stringContaining(words),
    }));
    expect(ended).toMatchObject({
      status: 'failed',
      error: { code: 'model_unavailable', message: expect.stringContaining('three'), details: { tries } },
    });
    expect(p.server.requests).toHaveLength(3);
    expect(await waits(p.h)).toEqual([]);
  });

  test('ends the turn as a timeout when the last try was a timeout', async () => {
    await using p = await place(chatWire, [{ hang: true }], {
      model_timeout_seconds: 0.05,
      model_retries: 1,
    });
    const ended = await end(p.h, await start(p.h, 'asker'));
    expect(ended).toMatchObject({ status: 'timeout', error: { code: 'model_timeout' } });
    expect(await p.h.rows('select from boxcar.steps')).toHaveLength(2);
  });

  test('that cannot succeed is not made again', async () => {
    await using p = await place(chatWire, [{ status: 400, error: { message: 'no' } }]);
    const ended = await end(p.h, await start(p.h, 'asker'));
    expect(ended).toMatchObject({ status: 'failed', error: { code: 'model_failed' } });
    expect(ended.error?.details).not.toHaveProperty('tries');
    expect(p.server.requests).toHaveLength(1);
  });

  test('does not count as a lost worker: there can be more retries than allowed losses', async () => {
    await using h = await harness();
    await h.profile('stubborn', [{ fail: { status: 500, times: 14 }, say: 'at last' }], {
      limits: { model_retries: 20, retry_base_seconds: 0.001, retry_max_seconds: 0.001 },
    });
    // The breaker is off, so that the failures of one turn do not close off its provider.
    await setProviderLimits(h.database.pool, 'scripted', { breakerAfter: 0 });
    await h.worker();
    expect(await end(h, await start(h, 'stubborn'))).toMatchObject({ status: 'success', result: 'at last' });
    await checkInvariants(h.database.pool);
  });
});

describe('a turn that waits for its next try', () => {
  test('holds no slot of its worker, reports what it waits for, and ends at its deadline', async () => {
    await using h = await harness();
    await h.profile('waiter', [{ fail: { ...LATER, message: 'slow down' } }]);
    await h.profile('quick', [{ say: 'quick' }]);
    await h.worker({ concurrency: 1 });
    const waiter = await start(h, 'waiter', { deadline_seconds: 3 });
    await untilWaiting(h, 'retry');
    expect(await waits(h)).toMatchObject([
      {
        turn_id: waiter,
        detail: { code: 'model_failed', message: expect.stringContaining('slow down'), retry: 1 },
      },
    ]);
    const { nodes } = await loadTree(h.database.pool, waiter);
    expect(nodes).toMatchObject([{ wait: { kind: 'retry', due_at: expect.any(String) } }]);
    expect(await end(h, await start(h, 'quick'))).toMatchObject({ status: 'success' });
    expect(await end(h, waiter)).toMatchObject({ status: 'timeout', error: { code: 'deadline_exceeded' } });
    expect(await waits(h)).toEqual([]);
    await checkInvariants(h.database.pool);
  });

  test.each(queueBackends())(
    'loses nothing when its worker is killed: the sweep of another worker wakes it (%s)',
    async (kind) => {
      await using backend = await testBackend(kind);
      const { pool } = backend.database;
      const options: WorkerProcessOptions = { ...backend.urls, effectsUrl: backend.database.url };
      const submitter = openRuntime({ ...backend.urls, model: createModelRouter() });
      await submitter.runtime.applyProfile({
        name: 'waiter',
        instructions: 'You wait.',
        model: 'scripted',
        script: [{ fail: { ...LATER, times: 1 }, say: 'done' }],
      });
      const child = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
        JSON.stringify(options),
      ]);
      await child.line(/^ready /, { deadlineMs: 90_000 });
      const receipt = await submitter.runtime.submit('launch_principal', {
        profile_name: 'waiter',
        instruction: 'go',
      });
      const { turn_id: turnId } = receipt as { turn_id: TurnId };
      const count = async (): Promise<number> => (await pool.query('select from boxcar.waits')).rows.length;
      await waitFor(async () => (await count()) === 1, { deadlineMs: 60_000, message: 'the turn waits' });
      await child.kill('SIGKILL');
      const worker = await createWorker(submitter.runtime, { sweepMs: 50 });
      // The hour has passed.
      await pool.query("update boxcar.waits set due_at = now() - interval '1 second'");
      const ended = await submitter.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
      expect(ended).toMatchObject({ status: 'success', result: 'done' });
      await worker.close();
      await checkInvariants(pool);
      await submitter.close();
    },
  );
});

/** A test provider named `mine`. It counts its calls, and behaves as each test sets. */
class Mine {
  calls = 0;
  inFlight = 0;
  mostInFlight = 0;
  readonly #behave: () => Promise<ModelReply>;

  constructor(behave: () => Promise<ModelReply>) {
    this.#behave = behave;
  }

  readonly model: Model = createModelRouter({
    adapters: {
      mine: {
        generate: async () => {
          this.calls++;
          this.inFlight++;
          this.mostInFlight = Math.max(this.mostInFlight, this.inFlight);
          try {
            return await this.#behave();
          } finally {
            this.inFlight--;
          }
        },
      },
    },
  });
}

const reply: ModelReply = {
  text: 'done',
  toolCalls: [],
  usage: { inputTokens: 1, outputTokens: 1 },
  finishReason: 'stop',
};

describe('a provider', () => {
  const apply = (h: Harness, limits: JsonObject = SOON) =>
    h.runtime.applyProfile({ name: 'asker', instructions: 'You ask.', model: 'mine:any', limits });

  test('with a limit of concurrent calls never gets more calls, from several workers, and all turns end', async () => {
    let open: () => void = () => undefined;
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    const mine = new Mine(() => opened.then(() => reply));
    await using h = await harness({ model: mine.model });
    await apply(h);
    await setProviderLimits(h.database.pool, 'mine', { maxConcurrent: 3 });
    await h.worker({ concurrency: 8 });
    await h.worker({ concurrency: 8 });
    const turnIds = await Promise.all(Array.from({ length: 14 }, () => start(h, 'asker')));
    await untilWaiting(h, 'limit', 11);
    expect(mine.inFlight).toBe(3);
    open();
    const ends = await Promise.all(turnIds.map((turnId) => end(h, turnId)));
    expect(ends.map(({ status }) => status)).toEqual(turnIds.map(() => 'success'));
    expect(mine).toMatchObject({ calls: 14, mostInFlight: 3 });
    expect(await h.rows('select max(attempt) as attempt from boxcar.steps')).toEqual([{ attempt: 1 }]);
    await checkInvariants(h.database.pool);
  });

  test('the two APIs of one account share its limits', async () => {
    let open: () => void = () => undefined;
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    const mine = new Mine(() => opened.then(() => reply));
    const adapter: Model = {
      generate: (request, options) => mine.model.generate({ ...request, model: 'mine:x' }, options),
    };
    await using h = await harness({
      model: createModelRouter({ adapters: { openai: adapter, 'openai-chat': adapter } }),
    });
    for (const [name, model] of [
      ['one', 'openai:gpt'],
      ['other', 'openai-chat:gpt'],
    ])
      await h.runtime.applyProfile({ name, instructions: 'You ask.', model });
    await setProviderLimits(h.database.pool, 'openai', { maxConcurrent: 1 });
    await h.worker();
    const first = await start(h, 'one');
    await waitFor(() => mine.inFlight === 1, { message: 'the model is asked' });
    const second = await start(h, 'other');
    await untilWaiting(h, 'limit');
    open();
    for (const turnId of [first, second]) expect(await end(h, turnId)).toMatchObject({ status: 'success' });
    expect(mine).toMatchObject({ calls: 2, mostInFlight: 1 });
    await checkInvariants(h.database.pool);
  });

  /** Two calls are in progress and a third turn waits for room; no sweep helps. */
  async function full(limits: JsonObject = {}) {
    const opened: (() => void)[] = [];
    const answers: ModelReply[] = [];
    const mine = new Mine(async () => {
      await new Promise<void>((resolve) => opened.push(resolve));
      return answers.shift() ?? reply;
    });
    const h = await harness({ model: mine.model });
    await apply(h, { ...SOON, ...limits });
    await setProviderLimits(h.database.pool, 'mine', { maxConcurrent: 2 });
    await h.worker({ sweepMs: 3_600_000 });
    const callers = [await start(h, 'asker'), await start(h, 'asker')];
    await waitFor(() => opened.length === 2, { message: 'two models are asked' });
    const waiting = await start(h, 'asker');
    await untilWaiting(h, 'limit');
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    const answer = (): void => {
      for (const open of opened.splice(0)) open();
    };
    return { h, mine, answers, callers, waiting, stranger, answer };
  }

  test('commits its answers although a turn that waits for their slots is locked, and wakes that turn later', async () => {
    const { h, mine, callers, waiting, stranger, answer } = await full();
    await using _ = h;
    await stranger.query('select from boxcar.turns where id = $1 for update', [waiting]);
    answer();
    for (const turnId of callers) expect(await end(h, turnId)).toMatchObject({ status: 'success' });
    expect(h.log.filter(({ event }) => event === 'provider.not_left')).toEqual([]);
    await stranger.end();
    await waitFor(() => mine.calls === 3, { message: 'the turn that was locked is woken' });
    answer();
    expect(await end(h, waiting)).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('commits its answers although its row is locked; their slots are freed when the row is free', async () => {
    const { h, mine, answers, callers, waiting, stranger, answer } = await full();
    await using _ = h;
    // One of the turns continues and will call again.
    answers.push({
      ...reply,
      text: '',
      toolCalls: [{ id: 'a', name: 'unknown', arguments: '{}' }],
      finishReason: 'tool_calls',
    });
    await stranger.query('select from boxcar.providers for update');
    answer();
    const committed = async (): Promise<number> =>
      (await h.rows('select from boxcar.steps where committed_at is not null')).length;
    await waitFor(async () => (await committed()) === 2, {
      message: 'both answers are committed',
      deadlineMs: 10_000,
    });
    expect(mine.calls).toBe(2);
    await stranger.end();
    await waitFor(() => mine.calls === 4, { message: 'the turn that waits and the one that goes on ask' });
    answer();
    for (const turnId of [...callers, waiting])
      expect(await end(h, turnId)).toMatchObject({ status: 'success' });
    expect(mine.mostInFlight).toBe(2);
    expect(await h.rows('select from boxcar.provider_slots')).toEqual([]);
    await checkInvariants(h.database.pool);
  });

  test('with a rate limit is called at its pace, and waiting turns are woken by time', async () => {
    const mine = new Mine(() => Promise.resolve(reply));
    await using h = await harness({ model: mine.model });
    await apply(h);
    await setProviderLimits(h.database.pool, 'mine', { requestsPerMinute: 60 });
    // No sweep helps.
    await h.worker({ sweepMs: 60_000 });
    // The calls that may start at once are used up, and the next call may start in two seconds.
    await h.rows("update boxcar.providers set paced_until = now() + interval '7.5 seconds'");
    const turnIds = await Promise.all([start(h, 'asker'), start(h, 'asker')]);
    for (const turnId of turnIds) expect(await end(h, turnId)).toMatchObject({ status: 'success' });
    expect(await h.rows('select epoch from boxcar.turns')).toEqual([{ epoch: 2 }, { epoch: 2 }]);
    await checkInvariants(h.database.pool);
  });

  test('is known to have answered through the heartbeat of the worker that got the answer', async () => {
    const mine = new Mine(() => Promise.resolve(reply));
    await using h = await harness({ model: mine.model });
    await apply(h);
    await h.worker({ heartbeatMs: 50 });
    expect(await end(h, await start(h, 'asker'))).toMatchObject({ status: 'success' });
    await waitFor(
      async () =>
        (
          await h.rows(
            "select from boxcar.workers where (answers->>'mine')::timestamptz between now() - interval '1 minute' and told_at",
          )
        ).length === 1,
      { message: 'the worker has told of the answer' },
    );
  });

  test('is known to have answered although the first heartbeats after the answer have failed', async () => {
    const mine = new Mine(async () => {
      await h.rows(
        'create trigger refuse before update on boxcar.workers for each row execute function public.refuse()',
      );
      return reply;
    });
    await using h = await harness({ model: mine.model });
    await apply(h);
    await h.rows(
      "create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'no heartbeat'; end $$",
    );
    await h.worker({ heartbeatMs: 50 });
    expect(await end(h, await start(h, 'asker'))).toMatchObject({ status: 'success' });
    const failed = () => h.log.filter(({ event }) => event === 'worker.heartbeat_failed').length;
    await waitFor(() => failed() >= 2, { message: 'heartbeats fail' });
    await h.rows('drop trigger refuse on boxcar.workers');
    await waitFor(
      async () => (await h.rows("select from boxcar.workers where answers ? 'mine'")).length === 1,
      { message: 'the worker has told of the answer', deadlineMs: 10_000 },
    );
  });

  test('that fails is not called until a single call has succeeded; the turns wait and use no retries', async () => {
    let isDown = true;
    const mine = new Mine(() =>
      isDown
        ? Promise.reject(new ModelError('model_unavailable', 'mine is down', { canRetry: true }))
        : Promise.resolve(reply),
    );
    await using h = await harness({ model: mine.model });
    await apply(h, { ...SOON, model_retries: 4 });
    await setProviderLimits(h.database.pool, 'mine', { breakerAfter: 3 });
    await h.worker({ sweepMs: 50 });
    const turnIds = await Promise.all(Array.from({ length: 6 }, () => start(h, 'asker')));
    await untilWaiting(h, 'limit', 6);
    const { calls } = mine;
    expect(calls).toBeLessThanOrEqual(6 + 3);
    // The pause is over, and the provider fails once more.
    const pass = async (): Promise<void> => {
      await h.rows("update boxcar.providers set open_until = now() - interval '1 second'");
      await h.rows("update boxcar.waits set due_at = now() where kind = 'limit'");
    };
    await pass();
    await waitFor(() => Promise.resolve(mine.calls === calls + 1), { message: 'one call tries' });
    await untilWaiting(h, 'limit', 6);
    expect(mine.calls).toBe(calls + 1);
    isDown = false;
    await pass();
    const ends = await Promise.all(turnIds.map((turnId) => end(h, turnId)));
    expect(ends.map(({ status }) => status)).toEqual(turnIds.map(() => 'success'));
    expect(await h.rows('select open_until, failures from boxcar.providers')).toEqual([
      { open_until: null, failures: 0 },
    ]);
    await checkInvariants(h.database.pool);
  });
});
