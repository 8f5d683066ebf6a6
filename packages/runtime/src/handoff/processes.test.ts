/** Handoffs in processes that are killed, and decisions that other processes make. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Behaviour, openaiDialect, openPlatform, PLATFORM_KEY } from '@boxcar/adapters/testing';
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { type NodeChild, queueBackends, spawnNode, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { type OpenRuntime, openRuntime } from '../open.js';
import { checkWire } from '../testing/check-wire.js';
import { failureOf } from '../testing/failure-of.js';
import type { HandoffProcessOptions } from '../testing/handoff-process.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { openReceiver, WEBHOOK_SECRET } from '../testing/receiver.js';
import { HandoffTool } from './handoff-tool.js';

/** Short, so that a death is noticed soon, but long enough for a machine that is busy with other tests. */
const QUICK = { leaseMs: 2_000, heartbeatMs: 200, sweepMs: 100, lostRingMs: 300 };
const STARTS = { deadlineMs: 90_000 };
const SOON = { deadlineMs: 60_000 };

/** A target whose adapter no process here has; the adapter is never called. */
const TARGETS = { writer: { platform: 'openai', model: 'm' } };

const WEBHOOKS = { secret: WEBHOOK_SECRET, allowPrivate: ['127.0.0.1'] };

interface Served {
  readonly url: string;
  /** The number of requests so far. */
  count(): number;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Accepts requests and answers none of them. */
async function silentServer(): Promise<Served> {
  let requests = 0;
  const server = createServer(() => {
    requests += 1;
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/`,
    count: () => requests,
    [Symbol.asyncDispose]: () => {
      server.closeAllConnections();
      return new Promise((settle) => server.close(() => settle()));
    },
  };
}

/** A database with its queues, a program that only requests handoffs, and processes that serve them. */
class Pool implements AsyncDisposable {
  readonly backend: TestBackend;
  readonly asking: OpenRuntime;
  readonly tool: HandoffTool;
  readonly #children: NodeChild[] = [];

  private constructor(backend: TestBackend, permissionEvaluator?: PermissionEvaluator) {
    this.backend = backend;
    this.asking = openRuntime({
      ...backend.urls,
      model: createModelRouter({}),
      ...(permissionEvaluator === undefined ? {} : { permissionEvaluator }),
      handoffs: { webhooks: WEBHOOKS },
    });
    const { runtime } = this.asking;
    this.tool = new HandoffTool({ runtime, concurrency: 0, targets: TARGETS });
  }

  static async open(kind: 'redis' | 'postgres', evaluator?: PermissionEvaluator): Promise<Pool> {
    return new Pool(await testBackend(kind), evaluator);
  }

  async spawn(
    options: Pick<HandoffProcessOptions, 'targets' | 'courierUrl' | 'webhooks'>,
  ): Promise<NodeChild> {
    const all = { ...this.backend.urls, worker: QUICK, ...options };
    const child = spawnNode(
      new URL('../testing/handoff-process.ts', import.meta.url),
      [JSON.stringify(all)],
      { WRITER_KEY: PLATFORM_KEY },
    );
    this.#children.push(child);
    await child.line(/^ready /, STARTS);
    return child;
  }

  async close(): Promise<void> {
    for (const child of this.#children) await child[Symbol.asyncDispose]();
    await checkInvariants(this.backend.database.pool, { isSettled: false });
    await checkWire(this.asking.runtime);
    await this.asking.close();
    await this.backend.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const ask = (target_agent: string, rest: object = {}) => ({
  source_agent: 'main',
  target_agent,
  task: 'Write a poem.',
  ...rest,
});
const targetsAt = (origin: string) => ({
  writer: { platform: 'openai', model: 'm', api_key_env: 'WRITER_KEY', base_url: `${origin}/v1` },
});
const NOBODY = 'http://127.0.0.1:9/';

describe.each(queueBackends())('with queues on %s', (kind) => {
  test('a model request that is interrupted by a killed process is made again elsewhere, and its answer is the result', async () => {
    const behaviours: readonly Behaviour[] = [{ kind: 'silent' }, { kind: 'answer', text: 'A poem.' }];
    await using server = await openPlatform(openaiDialect, ...behaviours);
    await using pool = await Pool.open(kind);
    const options = { targets: targetsAt(server.origin), courierUrl: NOBODY };
    const victim = await pool.spawn(options);
    const answer = pool.tool.handoff(ask('writer', { platform: 'openai' }));
    await server.reached();
    await victim.kill('SIGKILL');
    await pool.spawn(options);
    const { handoff_id, status, result } = await answer;
    expect({ status, result }).toEqual({ status: 'completed', result: 'A poem.' });
    expect(server.works).toHaveLength(2);
    expect(await pool.tool.getHandoff(handoff_id)).toMatchObject({ attempts: 2, phase: 'completed' });
    expect(
      (await pool.tool.getEvents(handoff_id)).map(({ event_type, attempt }) => [event_type, attempt]),
    ).toEqual([
      ['handoff.requested', undefined],
      ['handoff.started', 1],
      ['handoff.started', 2],
      ['handoff.completed', undefined],
    ]);
  });

  test('a request that may not be repeated is not repeated, and its outcome is reported as unknown', async () => {
    await using courier = await silentServer();
    await using pool = await Pool.open(kind);
    const options = { targets: {}, courierUrl: courier.url };
    const victim = await pool.spawn(options);
    const told = failureOf(
      courierTool(pool, courier.url).handoff(
        ask('anybody', { platform: 'courier', retry: { max_attempts: 5 } }),
      ),
    );
    await waitFor(() => courier.count() === 1, { message: 'the courier was asked', ...SOON });
    await victim.kill('SIGKILL');
    await pool.spawn(options);
    const error = await told;
    expect(error.code).toBe('outcome_unknown');
    expect(await pool.tool.getHandoff(String(error.details.handoff_id))).toMatchObject({
      status: 'failed',
      attempts: 1,
      error: { code: 'outcome_unknown' },
    });
    expect(courier.count()).toBe(1);
  });
});

/** This tool knows the platform, so that it can request handoffs to it. Another process serves them. */
function courierTool({ asking: { runtime } }: Pool, url: string): HandoffTool {
  const tool = new HandoffTool({ runtime, concurrency: 0 });
  tool.registerAdapter({
    platform: 'courier',
    retry: 'never',
    capabilities: {
      streaming: false,
      cancel: false,
      messages: false,
      max_context_tokens: null,
      carries: ['text', 'json'],
    },
    supportsPlatform: (name) => name === 'courier',
    executeHandoff: () => Promise.reject(new Error(`this process does not go to ${url}`)),
  });
  return tool;
}

test('a callback whose sender is killed midway is sent by another process, with the same id', async () => {
  // The receiver has got the first request, and its sender never learns of that.
  await using receiver = await openReceiver([() => undefined]);
  await using pool = await Pool.open('postgres');
  const { database } = pool.backend;
  await pool.asking.runtime.applyProfile({
    name: 'helper',
    instructions: 'Help.',
    model: 'scripted',
    script: [{ say: 'helped' }],
  });
  const options = { targets: {}, courierUrl: NOBODY, webhooks: WEBHOOKS };
  const victim = await pool.spawn(options);
  const { handoff_id } = await pool.tool.handoff(ask('helper', { callback: { url: receiver.url } }));
  await receiver.reached(1);
  await victim.kill('SIGKILL');
  await pool.spawn(options);
  // As if the time of the dead sender were over.
  await database.pool.query('update boxcar.webhook_deliveries set next_at = now()');
  const got = await receiver.reached(2);
  expect(got.map(({ id, isGenuine, body }) => [id, isGenuine, body.handoff_id])).toEqual(
    Array(2).fill([got[0]?.id, true, handoff_id]),
  );
  await waitFor(async () => (await pool.tool.listWebhooks({ status: 'delivered' })).webhooks[0], {
    message: 'it is delivered',
    ...SOON,
  });
  expect((await pool.tool.listWebhooks()).webhooks).toMatchObject([{ attempts: 2, status: 'delivered' }]);
});

test('an approval in another process wakes a waiting caller', async () => {
  await using pool = await Pool.open(
    'postgres',
    new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n',
      environment: 'production',
    }),
  );
  await pool.asking.runtime.applyProfile({
    name: 'helper',
    instructions: 'Help.',
    model: 'scripted',
    script: [{ say: 'helped' }],
  });
  const other = await pool.spawn({ targets: {}, courierUrl: NOBODY });
  const order: string[] = [];
  const answer = pool.tool.handoff(ask('helper')).then((value) => {
    order.push('answered');
    return value;
  });
  const ticketId = await waitFor(
    async () =>
      (await pool.backend.database.pool.query<{ id: string }>('select id from boxcar.approvals')).rows[0]?.id,
    { message: 'a request for approval', ...SOON },
  );
  expect(order).toEqual([]);
  other.writeLine(ticketId);
  const [, ended] = await Promise.all([
    other.line(new RegExp(`^approved ${ticketId}$`), SOON).then(() => order.push('approved')),
    answer,
  ]);
  expect(ended).toMatchObject({ status: 'completed', result: 'helped' });
});
