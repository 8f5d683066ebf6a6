/** The runtime as programs use it: the types of its answers, and its errors after it is closed. */
import type { JsonValue, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, testDatabase, waitFor } from '@boxcar/testkit';
import { expect, expectTypeOf, it } from 'vitest';
import { z } from 'zod';
import type { Accepted } from './core/index.js';
import { openRuntime } from './open.js';
import { PRIMITIVES_QUEUE } from './queue/doorbell-bullmq.js';
import { openQueues } from './queue/queues.js';
import type { Runtime } from './runtime.js';
import { testBackend } from './testing/queue-backend.js';
import { createWorker } from './worker/worker.js';

const ID = '00000000-0000-7000-8000-000000000000';

it('a closed runtime tells a program that continues to use it that it is closed', async () => {
  await using database = await testDatabase();
  const opened = openRuntime({ databaseUrl: database.url, model: createModelRouter() });
  const { runtime } = opened;
  // A check of the build is repeated only after some time, so this check also covers the calls below.
  await runtime.builds.check();
  await opened.close();
  const closed = { code: 'internal_error', message: expect.stringContaining('The runtime is closed.') };
  await expect(createWorker(runtime)).rejects.toMatchObject(closed);
  await expect(runtime.submit('cancel', {})).rejects.toMatchObject(closed);
  await expect(runtime.accept('cancel', {})).rejects.toMatchObject(closed);
  await expect(runtime.waitForTurn(ID)).rejects.toMatchObject(closed);
  for (const serve of [opened.serveQueueDoor, opened.serveToolResultsDoor])
    expect(() => serve()).toThrow(expect.objectContaining(closed));
  for (const look of [
    () => runtime.listRuns(),
    () => runtime.listTools(),
    () => runtime.listProfiles(),
    () => runtime.getTurn(ID),
    () => runtime.getProject('default'),
    () => runtime.createProject({ name: 'x' }),
  ])
    await expect(look()).rejects.toMatchObject({
      name: 'KernelError',
      code: 'internal_error',
      message: expect.stringContaining('is closed.'),
    });
});

it.each(queueBackends())(
  'opens no door and no worker while it closes, and closes only once, with queues on %s',
  async (kind) => {
    await using backend = await testBackend(kind);
    const log: string[] = [];
    const opened = openRuntime({
      ...backend.urls,
      model: createModelRouter(),
      log: (_level, event) => void log.push(event),
    });
    const { runtime } = opened;
    let release = (): void => undefined;
    const held = new Promise<void>((settle) => {
      release = settle;
    });
    let isRunning = false;
    runtime.registerHandler('hold', {
      description: 'Answers when it may.',
      input: z.strictObject({}),
      handle: async () => {
        isRunning = true;
        await held;
        return { ok: true };
      },
    });
    opened.serveQueueDoor();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const job = await queue.add('hold', { project_id: 'default', arguments: {} });
    await waitFor(() => isRunning, { message: 'the job has been taken' });
    const closing = [opened.close(), opened.close()];
    const closed = { code: 'internal_error', message: expect.stringContaining('The runtime is closed.') };
    for (const serve of [opened.serveQueueDoor, opened.serveToolResultsDoor])
      expect(() => serve()).toThrow(expect.objectContaining(closed));
    await expect(createWorker(runtime)).rejects.toMatchObject(closed);
    release();
    await Promise.all(closing);
    expect(await queue.getJobState(job.id ?? '')).toBe('completed');
    await opened.close();
    await runtime.close();
    expect(log.filter((event) => event !== 'door.ready')).toEqual([]);
  },
);

it('closes its doors with itself, so they take no job that they could not answer', async () => {
  await using backend = await testBackend('postgres');
  const model = createModelRouter();
  const opened = openRuntime({ databaseUrl: backend.database.url, model });
  opened.serveQueueDoor();
  opened.serveToolResultsDoor();
  await opened.close();
  const queues = openQueues(backend.connection);
  const queue = queues.queue(PRIMITIVES_QUEUE);
  const jobId = 'asked';
  await queue.add(
    'cancel',
    { project_id: 'default', arguments: { turn_id: ID } },
    { jobId, removeOnComplete: true, removeOnFail: false },
  );
  const { runtime, serveQueueDoor, close } = openRuntime({ databaseUrl: backend.database.url, model });
  await runtime.builds.check();
  serveQueueDoor();
  const reason = await waitFor(async () => (await queue.getJob(jobId))?.failedReason, {
    message: 'the job has failed',
  });
  expect(reason).toMatch(/^not_found: /);
  await close();
  await queues.close();
});

it('does not wait a second time for a door that a program has closed, however long its job takes', async () => {
  await using backend = await testBackend('postgres');
  const opened = openRuntime({ databaseUrl: backend.database.url, model: createModelRouter() });
  let letGo = (): void => undefined;
  let isHeld = false;
  opened.runtime.registerHandler('held', {
    description: 'Is held.',
    input: z.strictObject({}),
    handle: () =>
      new Promise((settle) => {
        isHeld = true;
        letGo = () => settle({ done: true });
      }),
  });
  const door = opened.serveQueueDoor();
  const queues = openQueues(backend.connection);
  const job = { jobId: 'held', removeOnComplete: true, removeOnFail: false };
  await queues.queue(PRIMITIVES_QUEUE).add('held', { project_id: 'default', arguments: {} }, job);
  await waitFor(() => isHeld, { message: 'the handler runs' });
  let isClosed = false;
  const closed = door.close().then(() => {
    isClosed = true;
  });
  await opened.close();
  expect(isClosed).toBe(false);
  letGo();
  await closed;
  await queues.close();
});

it('types an answer as the caller asks, by default as JSON', () => {
  interface Receipt {
    readonly turn_id: TurnId;
  }
  const call = (runtime: Runtime) => ({
    plain: runtime.submit('launch_principal', {}),
    receipt: runtime.submit<Receipt>('launch_principal', {}),
    accepted: runtime.accept('launch_principal', {}),
    typed: runtime.accept<Receipt>('launch_principal', {}),
    batch: runtime.waitForBatch('id'),
    members: runtime.waitForBatch<readonly Receipt[]>('id'),
  });
  type Called = ReturnType<typeof call>;
  expectTypeOf<Called['plain']>().resolves.toEqualTypeOf<JsonValue>();
  expectTypeOf<Called['receipt']>().resolves.toEqualTypeOf<Receipt>();
  expectTypeOf<Called['accepted']>().resolves.toEqualTypeOf<Accepted>();
  expectTypeOf<Called['typed']>().resolves.toEqualTypeOf<Accepted<Receipt>>();
  expectTypeOf<Called['batch']>().resolves.toEqualTypeOf<JsonValue>();
  expectTypeOf<Called['members']>().resolves.toEqualTypeOf<readonly Receipt[]>();
});
