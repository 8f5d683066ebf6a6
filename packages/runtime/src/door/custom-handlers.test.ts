/** Jobs of primitives that plugins register. */
import { readFile } from 'node:fs/promises';
import { KernelError } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { announceDoor, createPool, noteSweepFailure } from '@boxcar/store';
import { type QueueBackend, queueBackends, waitFor } from '@boxcar/testkit';
import type { Job, Queue } from 'bullmq';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Handler } from '../handler/handler.js';
import { silentLog } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { Runtime } from '../runtime.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker } from '../worker/worker.js';
import { noteIdOf } from './blocked-jobs.js';
import { createQueueDoor } from './queue-door.js';

const DATA = { project_id: 'default', arguments: {} };

interface Program extends AsyncDisposable {
  readonly runtime: Runtime;
  readonly events: string[];
  serve(concurrency?: number): void;
  work(): Promise<void>;
}

/** A process with a queue door, its own pool and its own queues. */
function program(backend: TestBackend): Program {
  const events: string[] = [];
  const pool = createPool({ connectionString: backend.database.url });
  const queues = openQueues(backend.connection);
  const runtime = new Runtime({
    pool,
    directUrl: backend.database.url,
    doorbell: new BullMqDoorbell(queues, silentLog),
    model: createModelRouter({}),
    log: (_level, event) => void events.push(event),
  });
  const closers = [() => runtime.close(), () => pool.end()];
  return {
    runtime,
    events,
    serve: (concurrency = 5) => {
      const door = createQueueDoor(runtime, queues, { concurrency });
      closers.unshift(() => door.close());
    },
    work: async () => {
      const worker = await createWorker(runtime, { sweepMs: 200 });
      closers.unshift(() => worker.close({ graceMs: 1_000 }));
    },
    [Symbol.asyncDispose]: async () => {
      for (const close of closers.splice(0)) await close();
    },
  };
}

/** The end of a job as its client sees it. */
const endOf = (queue: Queue, job: Job): Promise<Job> =>
  waitFor(
    async () => {
      const now = await queue.getJob(job.id ?? '');
      return now?.finishedOn === undefined ? undefined : now;
    },
    { message: `job ${job.id} (${job.name}) has ended` },
  );

const handlerOf = (handle: Handler['handle']): Handler => ({
  description: 'For tests.',
  input: z.strictObject({}),
  handle,
});

describe.each(queueBackends())('custom primitives at the queue door on %s', (kind: QueueBackend) => {
  test.each<[string, (backend: TestBackend) => Partial<Handler>, RegExp]>([
    [
      'reads a file that does not exist',
      () => ({ handle: async () => (await readFile('/nonexistent/file')).length }),
      /^internal_error: ENOENT/,
    ],
    [
      'calls a service that refuses connections',
      () => ({ handle: async () => (await fetch('http://127.0.0.1:1/')).status }),
      /^internal_error: (fetch failed|bad port)/,
    ],
    [
      'cannot connect to its own database',
      () => ({
        handle: async () => {
          const client = new pg.Client({ connectionString: 'postgres://nobody:none@127.0.0.1:1/none' });
          await client.connect();
          return null;
        },
      }),
      /^internal_error: /,
    ],
    [
      'causes a deadlock in its own database',
      ({ database }) => ({
        handle: async () => {
          const client = new pg.Client({ connectionString: database.url });
          await client.connect();
          try {
            await client.query("do $$ begin raise exception 'mine' using errcode = '40P01'; end $$");
          } finally {
            await client.end();
          }
          return null;
        },
      }),
      /^internal_error: mine/,
    ],
    ...['08001', '53100', '57P01', '25006', '25P03', '28P01'].flatMap(
      (state): [string, () => Partial<Handler>, RegExp][] =>
        (['tx', 'db'] as const).map((on) => [
          `runs a statement on ${on} that raises ${state}, and its connection lives`,
          () => ({
            handle: async (_input, tools) => {
              await tools[on].query({
                text: `do $$ begin raise exception 'mine' using errcode = '${state}'; end $$`,
              });
              return null;
            },
          }),
          /^internal_error: mine/,
        ]),
    ),
    [
      'throws an error with a code of the kernel',
      () => ({
        handle: () => {
          throw new KernelError('database_unavailable', { message: 'The crystal ball is away.' });
        },
      }),
      /^database_unavailable: The crystal ball is away/,
    ],
    [
      'throws while its arguments are checked',
      () => ({
        input: z.strictObject({}).transform(() => {
          throw Object.assign(new Error('no list of colors'), { code: 'ENOENT' });
        }),
        handle: async () => null,
      }),
      /^internal_error: no list of colors/,
    ],
    [
      'names its profiles by a lookup that fails',
      () => ({
        profileNames: () => {
          throw Object.assign(new Error('no list of profiles'), { code: 'ECONNREFUSED' });
        },
        handle: async () => null,
      }),
      /^internal_error: no list of profiles/,
    ],
  ])('a job fails at its first run when its handler %s', async (_title, make, reason) => {
    await using backend = await testBackend(kind);
    await using door = program(backend);
    let runs = 0;
    const made = make(backend);
    const handle: Handler['handle'] = (input, tools) => {
      runs += 1;
      return made.handle?.(input, tools) ?? Promise.resolve(null);
    };
    door.runtime.registerHandler('custom', { ...handlerOf(handle), ...made, handle });
    door.serve();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const ended = await endOf(queue, await queue.add('custom', DATA, { attempts: 5 }));
    expect(ended.failedReason).toMatch(reason);
    expect(runs).toBeLessThanOrEqual(1);
    expect(door.events).not.toContain('door.retry');
  });

  test('a handler’s own statement that names a missing table fails its job, whichever build the schema belongs to', async () => {
    await using backend = await testBackend(kind);
    await using door = program(backend);
    let runs = 0;
    const handle: Handler['handle'] = async (_input, { tx }) => {
      runs += 1;
      await tx.query({ text: 'select from public.later' });
      return null;
    };
    door.runtime.registerHandler('early', handlerOf(handle));
    await newerSchema(backend);
    door.serve();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const ended = await endOf(queue, await queue.add('early', DATA, { attempts: 5 }));
    expect(ended.failedReason).toMatch(/^internal_error: relation "public.later" does not exist/);
    expect(runs).toBe(1);
  });

  test('a deadlock in the kernel’s transaction and a lost connection are tried again', async () => {
    await using backend = await testBackend(kind);
    await using door = program(backend);
    const runs = { deadlock: 0, serialization: 0, lost: 0, read: 0 };
    const raise = (state: string) => ({
      text: `do $$ begin raise exception 'meanwhile' using errcode = '${state}'; end $$`,
    });
    // More often than a submission is retried by itself, so the door hands the job back.
    const isOver = (name: keyof typeof runs): boolean => ++runs[name] > 7;
    const register = (name: keyof typeof runs, fail: Handler['handle']): void =>
      door.runtime.registerHandler(
        name,
        handlerOf(async (input, tools) => (isOver(name) ? 'done' : fail(input, tools))),
      );
    register('deadlock', async (_input, { tx }) => (await tx.query(raise('40P01'))).rowCount);
    register('serialization', async (_input, { tx }) => (await tx.query(raise('40001'))).rowCount);
    const suicide = { text: 'select pg_terminate_backend(pg_backend_pid())' };
    register('lost', async (_input, { tx }) => (await tx.query(suicide)).rowCount);
    register('read', async (_input, { db }) => (await db.query(suicide)).rowCount);
    door.serve();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const jobs = await Promise.all(Object.keys(runs).map((name) => queue.add(name, DATA, { attempts: 1 })));
    const ended = await Promise.all(jobs.map((job) => endOf(queue, job)));
    expect(ended.map((job) => [job.name, job.failedReason, job.returnvalue])).toEqual(
      Object.keys(runs).map((name) => [name, undefined, 'done']),
    );
    expect(door.events).toContain('door.retry');
  });

  test('a job that has held the event loop of a worker, or ended it, waits before it runs again, and fails after the fifth time', async () => {
    await using backend = await testBackend(kind);
    await using door = program(backend);
    const runs: string[] = [];
    const notes = "from boxcar.sweep_failures where kind = 'blocked_jobs' and attempts = 1";
    for (const name of ['first', 'fifth', 'crashed', 'other'])
      door.runtime.registerHandler(
        name,
        handlerOf(async (_input, { db }) => {
          runs.push(name);
          // The queue makes the delay, by the clock of the process.
          const text = `select next_try_at < now() + interval '100 ms' as is_due ${notes}`;
          return (await db.query<{ is_due: boolean }>({ text })).rows[0]?.is_due ?? null;
        }),
      );
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const jobs = new Map<string, Job>();
    const attemptsOf = { first: 1, fifth: 5, crashed: 5, other: 0 };
    for (const [name, attempts] of Object.entries(attemptsOf)) {
      const job = await queue.add(name, DATA, { attempts: 1 });
      jobs.set(name, job);
      // The same state as after its worker's death.
      await backend.takeAndDie(PRIMITIVES_QUEUE);
      const note = {
        kind: 'blocked_jobs' as const,
        rowId: noteIdOf(job),
        projectId: null,
        error: name === 'crashed' ? 'worker_crashed: It exits.' : 'worker_blocked: The handler held it.',
      };
      for (let n = 0; n < attempts; n++)
        await noteSweepFailure(backend.database.pool, note, { maxTries: 1_000_000 });
    }
    // Later than the time at which the queue delivers the job again.
    const later = "update boxcar.sweep_failures set next_try_at = now() + interval '12 seconds'";
    await backend.database.pool.query(`${later} where attempts = 1`);
    door.serve();
    const ended = new Map<string, Job>();
    for (const [name, job] of jobs) ended.set(name, await endOf(queue, job));
    expect(ended.get('fifth')?.failedReason).toMatch(
      /^worker_blocked: The handler held it\. It has ended 5 workers\. /,
    );
    expect(ended.get('crashed')?.failedReason).toMatch(
      /^attempts_exhausted: It exits\. It has ended 5 workers\. /,
    );
    expect(runs.toSorted()).toEqual(['first', 'other']);
    expect(ended.get('first')?.returnvalue).toBe(true);
  });

  test('two versions of a plugin serve one queue under load, and no submission is lost', async () => {
    await using backend = await testBackend(kind);
    const versions = { 1: ['steady', 'waiting'], 2: ['steady', 'waiting', 'added'] };
    const start = async (version: keyof typeof versions): Promise<Program> => {
      const one = program(backend);
      for (const name of versions[version]) one.runtime.registerHandler(name, answering(name));
      await one.work();
      return one;
    };
    await using first = await start(1);
    first.serve();
    // It is alive but takes no job yet.
    await using second = await start(2);
    await first.runtime.applyProfile({
      name: 'writer',
      instructions: 'Write.',
      model: 'scripted',
      script: [{ say: 'w' }],
    });
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const load = async (count: number): Promise<Job[]> => {
      const jobs: Job[] = [];
      for (let n = 0; n < count; n++)
        for (const name of ['steady', 'added', 'waiting'])
          jobs.push(await queue.add(name, DATA, { attempts: 1 }));
      return jobs;
    };
    const before = await load(20);
    await waitFor(() => first.events.includes('door.handed_back'), { message: 'a job is handed back' });
    second.serve();
    await using third = await start(2);
    third.serve();
    const during = await load(20);
    await first[Symbol.asyncDispose]();
    const jobs = [...before, ...during, ...(await load(20))];
    const ended = await Promise.all(jobs.map((job) => endOf(queue, job)));
    expect(ended.flatMap(({ failedReason }) => failedReason ?? [])).toEqual([]);
    const { rows } = await backend.database.pool.query<{ primitive: string; n: number }>(
      'select primitive, count(*)::int as n from boxcar.operations group by primitive order by primitive',
    );
    expect(rows).toEqual(['added', 'steady', 'waiting'].map((primitive) => ({ primitive, n: 60 })));
    expect([...second.events, ...third.events]).not.toContain('door.handed_back');
  });

  test('a job is handed back while a process lives that only serves a door and knows the primitive', async () => {
    await using backend = await testBackend(kind);
    await using knows = program(backend);
    const held = gate();
    const release = gate();
    knows.runtime.registerHandler('added', answering('added'));
    knows.runtime.registerHandler(
      'hold',
      handlerOf(async () => {
        held.open();
        await release.opened;
        return null;
      }),
    );
    knows.serve(1);
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const holding = await queue.add('hold', DATA, { attempts: 1 });
    await held.opened;
    await waitFor(
      async () => (await backend.database.pool.query('select from boxcar.workers')).rowCount === 1,
      {
        message: 'the door has said what it knows',
      },
    );
    await using lacks = program(backend);
    lacks.serve();
    // The only slot of the other door is occupied.
    const job = await queue.add('added', DATA, { attempts: 1 });
    await waitFor(() => lacks.events.includes('door.handed_back'), { message: 'it is handed back' });
    await lacks[Symbol.asyncDispose]();
    release.open();
    expect((await endOf(queue, holding)).failedReason).toBeUndefined();
    const ended = await endOf(queue, job);
    expect([ended.failedReason, ended.returnvalue]).toEqual([undefined, 'added']);
    await knows[Symbol.asyncDispose]();
    // Closing it has removed its row.
    await using late = program(backend);
    late.serve();
    expect((await endOf(queue, await queue.add('added', DATA, { attempts: 5 }))).failedReason).toMatch(
      /^unknown_primitive: /,
    );
  });

  test('a process whose lease has lapsed for a moment still counts as a process that knows the primitive', async () => {
    await using backend = await testBackend(kind);
    await using lacks = program(backend);
    lacks.serve();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const announce = (primitive: string, agoMs: number): Promise<void> =>
      announceDoor(backend.database.pool, {
        id: newId<'worker'>(),
        lockKey: `${agoMs}`,
        leaseMs: -agoMs,
        info: { hostname: 'h', pid: 1, primitives: { [primitive]: '' } },
        schemaVersion: lacks.runtime.builds.build.schemaVersion,
      });
    await announce('late', 20_000);
    await announce('dead', 90_000);
    const late = await queue.add('late', DATA, { attempts: 1 });
    const dead = await endOf(queue, await queue.add('dead', DATA, { attempts: 1 }));
    expect(dead.failedReason).toMatch(/^unknown_primitive: /);
    await waitFor(() => lacks.events.includes('door.handed_back'), { message: 'a job is handed back' });
    await waitFor(async () => (await late.getState()) === 'delayed', { message: 'it is delayed' });
    expect(await queue.getFailedCount()).toBe(1);
  });

  test('a job whose arguments only another version of its primitive accepts is handed back to that version', async () => {
    await using backend = await testBackend(kind);
    await using older = program(backend);
    await using newer = program(backend);
    older.runtime.registerHandler(
      'paint',
      handlerOf(async () => 'old'),
    );
    newer.runtime.registerHandler('paint', {
      description: 'For tests.',
      input: z.strictObject({ color: z.string().optional() }),
      handle: async ({ color }: { color?: string | undefined }) => color ?? 'none',
    });
    older.serve();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const add = (args: object): Promise<Job> =>
      queue.add('paint', { ...DATA, arguments: args }, { attempts: 1 });
    const refused = /^bad_request: .*color/;
    // No other version is alive.
    expect((await endOf(queue, await add({ color: 'blue' }))).failedReason).toMatch(refused);
    // It is alive but takes no job yet.
    await newer.work();
    const job = await add({ color: 'red' });
    await waitFor(() => older.events.includes('door.handed_back'), { message: 'it is handed back' });
    expect((await endOf(queue, await add({}))).returnvalue).toBe('old');
    newer.serve();
    await older[Symbol.asyncDispose]();
    const ended = await endOf(queue, job);
    expect([ended.failedReason, ended.returnvalue]).toEqual([undefined, 'red']);
    // Neither version accepts these arguments, and only the newer version is alive.
    expect((await endOf(queue, await add({ colour: 'red' }))).failedReason).toMatch(/^bad_request: .*colour/);
  });

  test('a job that waits for a turn is not failed by a door that does not know its primitive', async () => {
    await using backend = await testBackend(kind);
    await using knows = program(backend);
    knows.runtime.registerHandler('waiting', answering('waiting'));
    const profile = { name: 'writer', instructions: 'Write.', model: 'scripted', script: [{ say: 'w' }] };
    await knows.runtime.applyProfile({ ...profile, worker_target: 'later' });
    await knows.work();
    const queue = backend.queue(PRIMITIVES_QUEUE);
    await using door = program(backend);
    door.runtime.registerHandler('waiting', answering('waiting'));
    door.serve();
    const job = await queue.add('waiting', DATA, { attempts: 1 });
    await waitFor(async () => (await job.getState()) === 'delayed', { message: 'the job waits' });
    await door[Symbol.asyncDispose]();
    await using lacks = program(backend);
    lacks.serve();
    await job.promote();
    await waitFor(() => lacks.events.includes('door.handed_back'), { message: 'it is handed back' });
    await waitFor(async () => (await job.getState()) === 'delayed', { message: 'the job waits again' });
  });

  test('an unknown primitive is handed back 20 times and for 15 minutes, and fails at once when no live process knows it', async () => {
    await using backend = await testBackend(kind);
    await using lacks = program(backend);
    const queue = backend.queue(PRIMITIVES_QUEUE);
    const add = async (handedBack: number, minutes?: number): Promise<Job> => {
      const job = await queue.add('added', DATA, { attempts: 5, delay: 3_600_000 });
      const since = minutes === undefined ? {} : { since: Date.now() - minutes * 60_000 };
      await job.updateProgress({ handed_back: handedBack, ...since });
      await job.promote();
      return job;
    };
    const isDelayed = (job: Job) =>
      waitFor(async () => (await job.getState()) === 'delayed', { message: 'it is handed back' });
    lacks.serve();
    const failed = /^unknown_primitive: No primitive 'added'/;
    expect((await endOf(queue, await add(0))).failedReason).toMatch(failed);
    expect(lacks.events).not.toContain('door.handed_back');
    {
      await using knows = program(backend);
      knows.runtime.registerHandler('added', answering('added'));
      await knows.work();
      const last = await add(19, 16);
      await isDelayed(last);
      expect((await job(last)).progress).toEqual({ handed_back: 20, since: expect.any(Number) });
      await last.promote();
      expect((await endOf(queue, last)).failedReason).toMatch(failed);
      // Many doors may lack the primitive while one door knows it.
      const early = await add(100, 14);
      await isDelayed(early);
      // In the form that an earlier build wrote.
      const older = await add(20);
      await isDelayed(older);
      for (const { progress } of [await job(early), await job(older)])
        expect(Date.now() - (progress as { since: number }).since).toBeLessThan(15 * 60_000);
    }
    expect((await endOf(queue, await add(0))).failedReason).toMatch(failed);
    async function job({ id }: Job): Promise<Job> {
      return (await queue.getJob(id ?? '')) as Job;
    }
  });
});

const gate = (): { readonly opened: Promise<void>; open(): void } => {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open: () => open() };
};

/** Answers at once; `waiting` answers with the end of a turn. */
const answering = (name: string): Handler =>
  handlerOf(async (_input, tools) => {
    if (name !== 'waiting') return name;
    const profile = await tools.findProfile('writer');
    const { contextBoxId } = await tools.packer.packContextWithInstruction({
      projectId: tools.ctx.projectId,
      toolSuffix: name,
      sourceAgentId: tools.ctx.source.agentId,
      profileName: profile.name,
      instruction: 'go',
    });
    await tools.submitTurn({ target: { kind: 'new', profile }, contextBoxId, wait: true });
    return name;
  });

/** The same state as after a newer build, which this build is compatible with, has migrated the database. */
const newerSchema = ({ database }: TestBackend): Promise<unknown> =>
  database.pool.query(
    'insert into boxcar.schema_version (version, name, checksum, min_compatible) select version + 1, name, checksum, min_compatible from boxcar.schema_version order by version desc limit 1',
  );
