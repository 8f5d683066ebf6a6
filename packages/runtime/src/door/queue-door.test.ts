import { declareSecrets, type JsonValue, type TurnId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { createPool, limitByLease } from '@boxcar/store';
import { type QueueBackend, queueBackends, spawnNode, tcpProxy, waitFor } from '@boxcar/testkit';
import type { Job, JobsOptions, Queue } from 'bullmq';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Log } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../queue/doorbell-bullmq.js';
import type { QueueConnection } from '../queue/job-queue.js';
import { openQueues } from '../queue/queues.js';
import { Runtime } from '../runtime.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';

import { createWorker, type WorkerOptions } from '../worker/worker.js';
import { createQueueDoor } from './queue-door.js';

/** Well below the minute after which a waiting job checks by itself. */
const SOON = { deadlineMs: 60_000 };

interface Answered {
  readonly job: Job;
  readonly answer?: JsonValue;
  readonly reason?: string;
}

interface Receipt {
  readonly turn_id: string;
  readonly agent_id: string;
  readonly context_box_id: string;
  readonly output_box_id: string;
}

interface Logged {
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

interface ProgramOptions {
  readonly databaseUrl?: string;
  readonly connection?: QueueConnection;
  readonly functions?: Readonly<Record<string, ScriptedFunction>>;
  readonly handlerTimeoutMs?: number;
}

/** A runtime with its own pool and queues, as in one program. */
class Program implements AsyncDisposable {
  readonly log: Logged[] = [];
  readonly runtime: Runtime;
  readonly #closers: (() => Promise<unknown>)[] = [];
  readonly #queues: ReturnType<typeof openQueues>;

  constructor(backend: TestBackend, options: ProgramOptions = {}) {
    const write: Log = (_level, event, fields = {}) => void this.log.push({ event, fields });
    const url = options.databaseUrl ?? backend.database.url;
    const pool = createPool({ connectionString: url });
    this.#queues = openQueues(options.connection ?? backend.connection);
    this.runtime = new Runtime({
      pool,
      directUrl: url,
      doorbell: new BullMqDoorbell(this.#queues, write),
      model: createModelRouter({ scripted: { functions: options.functions ?? {} } }),
      log: write,
      ...(options.handlerTimeoutMs === undefined ? {} : { handlerTimeoutMs: options.handlerTimeoutMs }),
    });
    this.#closers.push(
      () => this.runtime.close(),
      () => pool.end(),
    );
  }

  serve(concurrency = 5): this {
    const door = createQueueDoor(this.runtime, this.#queues, { concurrency });
    this.#closers.unshift(() => door.close());
    return this;
  }

  async work(options: WorkerOptions = {}): Promise<this> {
    const worker = await createWorker(this.runtime, { sweepMs: 100, lostRingMs: 500, ...options });
    this.#closers.unshift(() => worker.close({ graceMs: 1_000 }));
    return this;
  }

  async profile(
    name: string,
    script: readonly JsonValue[],
    rest: Record<string, JsonValue> = {},
  ): Promise<void> {
    const profile = { name, instructions: `You are ${name}.`, model: 'scripted', script, ...rest };
    await this.runtime.applyProfile(profile);
  }

  /** Opens further connections to the queue, so that requests have other connections while one answer is held back. */
  async warm(): Promise<this> {
    const queue = this.#queues.queue(PRIMITIVES_QUEUE);
    await Promise.all(Array.from({ length: 6 }, () => queue.getJobState('none')));
    return this;
  }

  logged(event: string): Promise<Logged> {
    return waitFor(() => this.log.find((line) => line.event === event), { message: `${event} is logged` });
  }

  async close(): Promise<void> {
    for (const close of this.#closers.splice(0)) await close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A job's end as its client sees it. */
async function answerOf(queue: Queue, job: Job): Promise<Answered> {
  const ended = await waitFor(
    async () => {
      const now = await queue.getJob(job.id ?? '');
      return now?.finishedOn === undefined ? undefined : now;
    },
    { message: `job ${job.id} (${job.name}) has ended`, ...SOON },
  );
  return ended.failedReason === undefined
    ? { job: ended, answer: ended.returnvalue as JsonValue }
    : { job: ended, reason: ended.failedReason };
}

const launch = (rest: Record<string, JsonValue> = {}, project: Record<string, JsonValue> = {}) => ({
  project_id: 'default',
  ...project,
  arguments: { profile_name: 'expert', instruction: 'life', ...rest },
});

async function countRows(backend: TestBackend): Promise<Record<string, number>> {
  const { rows } = await backend.database.pool.query<{ name: string; n: string }>(
    `select t.table_name as name, (xpath('/row/n/text()', query_to_xml('select count(*) as n from boxcar.' || t.table_name, false, true, '')))[1]::text as n
     from information_schema.tables t where t.table_schema = 'boxcar' order by 1`,
  );
  return Object.fromEntries(rows.map((row) => [row.name, Number(row.n)]));
}

const turnCount = async (backend: TestBackend): Promise<number> => (await countRows(backend)).turns ?? -1;

/** Adds a job and waits for its end. */
async function ask(queue: Queue, name: string, data: unknown, options?: JobsOptions): Promise<Answered> {
  const job: Job = await queue.add(name, data, options);
  return answerOf(queue, job);
}

/** Waits until the job is in this state. */
async function standsAs(queue: Queue, job: Job, state: string): Promise<void> {
  let now = 'unknown';
  const isThere = async (): Promise<boolean> => {
    now = await queue.getJobState(job.id ?? '');
    return now === state;
  };
  await waitFor(isThere, { message: `job ${job.id} is ${state}` }).catch((error: unknown) => {
    throw new Error(`${String(error)}; it is ${now}`);
  });
}

/** Holds the door's write back, which then waits for a lock. The returned `letGo` releases it. */
async function holdWrite(
  backend: TestBackend,
): Promise<{ waits(): Promise<unknown>; letGo(): Promise<void> }> {
  const { pool } = backend.database;
  const blocker = await pool.connect();
  await blocker.query('begin');
  await blocker.query('lock table boxcar.operations in exclusive mode');
  const waiting =
    "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and application_name = 'boxcar'";
  return {
    waits: () =>
      waitFor(async () => (await pool.query(waiting)).rowCount === 1, {
        message: 'the write of the door waits',
      }),
    letGo: async () => {
      await blocker.query('commit');
      blocker.release();
    },
  };
}

interface Scene extends AsyncDisposable {
  readonly backend: TestBackend;
  readonly queue: Queue;
  /** The program that serves the door. */
  readonly door: Program;
  program(options?: ProgramOptions): Program;
}

async function scene(kind: QueueBackend, options: ProgramOptions = {}, own?: TestBackend): Promise<Scene> {
  const backend = own ?? (await testBackend(kind));
  const programs: Program[] = [];
  const program = (programOptions: ProgramOptions = {}): Program => {
    const made = new Program(backend, programOptions);
    programs.push(made);
    return made;
  };
  const door = program(options);
  await door.profile('expert', [{ say: 'The answer to {{instruction}} is 42' }]);
  return {
    backend,
    queue: backend.queue(PRIMITIVES_QUEUE),
    door,
    program,
    [Symbol.asyncDispose]: async () => {
      for (const made of programs) await made.close();
      await backend.close();
    },
  };
}

/** A model that answers when the test releases it. */
function heldModel(): {
  readonly functions: { held: ScriptedFunction };
  readonly begun: Promise<void>;
  letGo(): void;
} {
  let begin = (): void => undefined;
  let letGo = (): void => undefined;
  const begun = new Promise<void>((settle) => {
    begin = settle;
  });
  const released = new Promise<void>((settle) => {
    letGo = settle;
  });
  const held: ScriptedFunction = async (_request, { instruction }) => {
    begin();
    await released;
    return { text: `held ${String(instruction)}` };
  };
  return { functions: { held }, begun, letGo: () => letGo() };
}

const success = (result: string): unknown => expect.objectContaining({ status: 'success', result });

describe.each(queueBackends())('the queue door on %s', (kind) => {
  test('treats null for an optional field of a job and of its arguments as not given', async () => {
    await using s = await scene(kind);
    s.door.serve();
    const nulls = { source_agent_id: null, parent_turn_id: null, channel_id: null, idempotency_key: null };
    const args = { context_box_id: null, wait: null, budget: null };
    const { answer, reason } = await ask(s.queue, 'launch_principal', { ...launch(args), ...nulls });
    expect(reason).toBeUndefined();
    expect(answer).toMatchObject({ status: 'accepted' });
    const none = await ask(s.queue, 'launch_principal', { ...launch(), project_id: null });
    expect(none.reason).toMatch(/^bad_request: data\.project_id: /);
    const text = await ask(s.queue, 'launch_principal', [1]);
    expect(text.reason).toMatch(/^bad_request: data/);
  });

  test('serves a process that uses only BullMQ, and 100 waiting callers do not block the 101st', async () => {
    await using s = await scene(kind);
    await s.door.profile('late', [{ say: 'late {{instruction}}' }], { worker_target: 'later' });
    const server = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
      JSON.stringify({
        ...s.backend.urls,
        effectsUrl: s.backend.database.url,
        worker: { sweepMs: 200 },
        doorConcurrency: 5,
      }),
    ]);
    const client = spawnNode(new URL('../testing/bare-client.ts', import.meta.url), [
      kind,
      s.backend.connection.url,
    ]);
    const send = (name: string, args: Record<string, JsonValue>): void =>
      client.writeLine(JSON.stringify({ name, data: { project_id: 'default', arguments: args } }));
    const answers = (): { id: string; answer: { status: string; result?: string } & Receipt }[] =>
      client.stdout.split('\n').flatMap((line) => (line.includes('"answer"') ? [JSON.parse(line)] : []));
    const answered = (count: number) =>
      waitFor(() => answers().length >= count && answers(), {
        message: `the client has ${count} answers; it printed ${client.stdout.slice(-500)}${client.stderr}`,
        ...SOON,
      });

    for (let n = 1; n <= 100; n += 1) send('ask_expert', { expert_profile: 'late', question: `q${n}` });
    // Each job has been accepted, has freed its slot, and waits.
    await waitFor(async () => (await s.queue.getDelayedCount()) === 100, {
      message: '100 callers wait',
      ...SOON,
    });
    expect(answers()).toEqual([]);
    await server.line(/^ready/);

    send('ask_expert', { expert_profile: 'expert', question: 'life' });
    const [first] = await answered(1);
    expect(first?.answer).toEqual(success('The answer to life is 42'));
    send('delegate_async', { target_strategy: 'new', target_ref: 'expert', instruction: 'this', wait: true });
    const [, second] = await answered(2);
    expect(second?.answer).toEqual(success('The answer to this is 42'));
    send('launch_principal', { profile_name: 'expert', instruction: 'that' });
    const [, , third] = await answered(3);
    expect(third?.answer).toMatchObject({ status: 'accepted', turn_id: expect.any(String) });
    expect(await s.queue.getDelayedCount()).toBe(100);

    await s.program().work({ targets: ['later'], concurrency: 20 });
    const all = await answered(103);
    const late = all.slice(3).map(({ answer }) => answer.result);
    expect(new Set(late)).toEqual(new Set(Array.from({ length: 100 }, (_, n) => `late q${n + 1}`)));
    await s.door.runtime.waitForTurn(third?.answer.turn_id ?? '', { timeoutMs: 60_000 });
    await checkInvariants(s.backend.database.pool);
    await server.kill('SIGTERM');
  });

  test('answers a job that waited with a warning about a secret in its input', async () => {
    using _secrets = declareSecrets({ A_TOOL_TOKEN: 'sk-door-test-0123456789' });
    await using s = await scene(kind);
    s.door.serve();
    const warned = { status: 'success', warnings: [expect.stringContaining('stored as it is')] };
    const args = launch({ instruction: 'sk-door-test-0123456789', wait: true }, { idempotency_key: 'k' });
    const job = await s.queue.add('launch_principal', args);
    await waitFor(async () => (await job.getState()) === 'delayed', { message: 'the job waits' });
    await s.program().work();
    expect((await answerOf(s.queue, job)).answer).toMatchObject(warned);
    // The turn has ended when this job is checked.
    expect((await answerOf(s.queue, await s.queue.add('launch_principal', args))).answer).toMatchObject(
      warned,
    );
  });

  test('wakes a waiting job whose turn ended between the check and the move to the delayed jobs', async () => {
    await using s = await scene(kind);
    await using proxy = await tcpProxy(s.backend.connection.url);
    // The door's own queue does not answer while the turn ends: the job remains active, and the knock finds it in that state.
    const door = s.program({ connection: { ...s.backend.connection, url: proxy.url } }).serve();
    const write = await holdWrite(s.backend);
    const job = await s.queue.add('launch_principal', launch({ wait: true }));
    await write.waits();
    proxy.stall();
    await write.letGo();
    await waitFor(async () => (await turnCount(s.backend)) === 1, { message: 'the job is accepted' });
    const worker = await s.program().work();
    const [turn] = (await s.backend.database.pool.query<{ id: string }>('select id from boxcar.turns')).rows;
    await worker.runtime.waitForTurn(turn?.id ?? '', { timeoutMs: 60_000 });
    // The close waits for the worker's knock. After it no process sweeps.
    await worker.close();
    const state = await s.queue.getJobState(job.id ?? '');
    await proxy.restore();
    const { answer } = await answerOf(s.queue, job);
    expect([state, answer]).toEqual(['active', success('The answer to life is 42')]);
    expect(door.log.map((line) => line.event)).not.toContain('door.retry');
    await checkInvariants(s.backend.database.pool);
  });

  test('wakes a waiting job by the sweep when the notice was lost', async () => {
    await using s = await scene(kind);
    const model = heldModel();
    await using proxy = await tcpProxy(s.backend.connection.url);
    s.door.serve();
    const worker = s.program({
      connection: { ...s.backend.connection, url: proxy.url },
      functions: model.functions,
    });
    await worker.profile('held', [], { model: 'scripted:held' });
    await worker.work();
    // The doorbell has a connection, so the knock fails at once and is not repeated later.
    await worker.runtime.doorbell.knock(['nobody']);
    const job = await s.queue.add('launch_principal', launch({ profile_name: 'held', wait: true }));
    await model.begun;
    await standsAs(s.queue, job, 'delayed');
    await proxy.cut();
    model.letGo();
    await worker.logged('doorbell.unreachable');
    expect(await s.queue.getJobState(job.id ?? '')).toBe('delayed');
    await proxy.restore();
    expect((await answerOf(s.queue, job)).answer).toEqual(success('held life'));
    await checkInvariants(s.backend.database.pool);
  });

  test('fails a job with the cause when the end of its turn cannot be written', async () => {
    await using s = await scene(kind);
    await s.door.profile('late', [{ say: 'late' }], { worker_target: 'later' });
    s.door.serve();
    const args = { target_strategy: 'new', target_ref: 'late', instruction: 'go', wait: true };
    const job = await s.queue.add('delegate_async', { project_id: 'default', arguments: args });
    await standsAs(s.queue, job, 'delayed');
    const { pool } = s.backend.database;
    const { rows } = await pool.query<{ row_id: TurnId }>(
      `insert into boxcar.sweep_failures (kind, row_id, attempts, last_error, next_try_at, is_dead)
       select 'turn_ends', t.id, 5, 'internal_error: this row is poison', now(), true from boxcar.turns t returning row_id`,
    );
    s.door.runtime.wakeDoorJobsSoon(rows.map((row) => row.row_id));
    const { reason } = await answerOf(s.queue, job);
    expect(reason).toMatch(/^not_ended: .*this row is poison.*boxcar doctor --retry-dead/);
    expect(await pool.query('select from boxcar.operations where door_job_id is not null')).toMatchObject({
      rowCount: 0,
    });
  });

  test('gives every job with the same key the first answer, at once when it waits, and runs the turn once', async () => {
    await using s = await scene(kind);
    const model = heldModel();
    s.door.serve();
    const worker = s.program({ functions: model.functions });
    await worker.profile('held', [], { model: 'scripted:held' });
    await worker.work();
    const data = launch({ profile_name: 'held', wait: true }, { idempotency_key: 'the key' });
    const jobs = [await s.queue.add('launch_principal', data), await s.queue.add('launch_principal', data)];
    await model.begun;
    await waitFor(async () => (await s.queue.getDelayedCount()) === 2, { message: 'both jobs wait' });
    const other = await ask(s.queue, 'launch_principal', launch({}, { idempotency_key: 'the key' }));
    expect(other.reason).toMatch(/^idempotency_conflict: /);
    model.letGo();
    const ended = await Promise.all(jobs.map((job) => answerOf(s.queue, job)));
    const late = await ask(s.queue, 'launch_principal', data);
    expect([...ended, late].map(({ answer }) => answer)).toEqual([1, 2, 3].map(() => success('held life')));
    expect(await turnCount(s.backend)).toBe(1);
    await checkInvariants(s.backend.database.pool);
  });

  test('answers a fork_join with its results, and wakes every other job with its key at the end of the batch', async () => {
    await using s = await scene(kind);
    await s.door.profile('late', [{ say: 'late {{instruction}}' }], { worker_target: 'later' });
    s.door.serve();
    const tasks = ['a', 'b'].map((instruction) => ({
      target_strategy: 'new',
      target_ref: 'late',
      instruction,
    }));
    const data = { project_id: 'default', arguments: { tasks }, idempotency_key: 'fan' };
    const jobs = [await s.queue.add('fork_join', data), await s.queue.add('fork_join', data)];
    await waitFor(async () => (await s.queue.getDelayedCount()) === 2, { message: 'both jobs wait' });
    await s.program().work({ targets: ['later'] });
    const ended = await Promise.all(jobs.map((job) => answerOf(s.queue, job)));
    const again = await ask(s.queue, 'fork_join', data);
    for (const { answer } of [...ended, again])
      expect(answer).toMatchObject({
        status: 'success',
        results: [{ summary: 'late a' }, { summary: 'late b' }],
      });
    const { rows } = await s.backend.database.pool.query<{ id: string }>(
      'select id from boxcar.turns order by id',
    );
    const turnIds = rows.map((row) => row.id);
    const collected = await ask(s.queue, 'collect', {
      project_id: 'default',
      arguments: { turn_ids: turnIds },
    });
    expect(collected.answer).toMatchObject({ status: 'success', results: [{ summary: 'late a' }, {}] });
    expect(await turnCount(s.backend)).toBe(2);
    await checkInvariants(s.backend.database.pool);
  });

  test('does nothing twice for a job that is delivered twice', async () => {
    await using s = await scene(kind);
    s.door.serve();
    await s.door.work();
    for (const wait of [false, true]) {
      const before = await turnCount(s.backend);
      const first = await ask(s.queue, 'launch_principal', launch({ wait }));
      await first.job.retry('completed');
      const second = await waitFor(
        async () => {
          const { job, answer } = await answerOf(s.queue, first.job);
          return (job.attemptsStarted ?? 0) > (first.job.attemptsStarted ?? 0) ? answer : undefined;
        },
        { message: 'the job has run again' },
      );
      expect(second).toEqual(first.answer);
      expect(await turnCount(s.backend)).toBe(before + 1);
    }
    // The same data in another job is another request.
    const before = await turnCount(s.backend);
    const [one, two] = [launch(), launch()].map((data) => ask(s.queue, 'launch_principal', data));
    expect((await one)?.answer).not.toEqual((await two)?.answer);
    expect(await turnCount(s.backend)).toBe(before + 2);
  });

  test('answers a job that waits with the key of a turn that has ended meanwhile', async () => {
    await using s = await scene(kind);
    s.door.serve();
    await s.door.profile('early', [{ say: 'early' }], { worker_target: 'early' });
    await s.door.profile('late', [{ say: 'late' }], { worker_target: 'late' });
    const parent = (await ask(s.queue, 'launch_principal', launch({ profile_name: 'early' })))
      .answer as unknown as Receipt;
    const data = launch({ profile_name: 'late', wait: true }, { parent_turn_id: parent.turn_id });
    const job = await s.queue.add('launch_principal', data);
    await standsAs(s.queue, job, 'delayed');
    await s.program().work({ targets: ['early'] });
    await s.door.runtime.waitForTurn(parent.turn_id, { timeoutMs: 60_000 });
    await s.program().work({ targets: ['late'] });
    expect((await answerOf(s.queue, job)).answer).toEqual(success('late'));
    // The parent has ended, so no new turn can be its child.
    const late = await ask(s.queue, 'launch_principal', launch({}, { parent_turn_id: parent.turn_id }));
    expect(late.reason).toMatch(/^turn_ended: /);
    await checkInvariants(s.backend.database.pool);
  });

  test('fails bad input and refusals at once with code and message, whatever the option attempts says, and writes nothing', async () => {
    await using s = await scene(kind);
    const foreign = await foreignProject(s.backend, s.door.runtime);
    s.door.serve();
    await s.door.work();
    await s.door.profile('silent', [{ say: 'nothing' }]);
    const made = (await ask(s.queue, 'launch_principal', launch({ profile_name: 'silent', wait: true })))
      .answer as unknown as Receipt;
    const own = await s.door.runtime.packer.createBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      cards: [{ type: 'task.context', content: { kind: 'text', text: 'mine' } }],
    });
    const nobody = newId<'turn'>();
    const inSession = (target: Record<string, JsonValue>, rest: Record<string, JsonValue> = {}) => ({
      project_id: 'default',
      arguments: {
        target_strategy: 'reuse',
        target_ref: { workspace: '/srv/demo', session: 'main', ...target },
        instruction: 'go',
        ...rest,
      },
    });
    const begun = await ask(s.queue, 'delegate_async', inSession({ profile_name: 'silent' }, { wait: true }));
    expect(begun).toMatchObject({ answer: { status: 'success' } });
    const cases: readonly [code: string, data: unknown, name?: string][] = [
      ['bad_request', null],
      ['bad_request', 'words'],
      ['bad_request', [launch()]],
      ['bad_request', { ...launch(), extra: 1 }],
      ['bad_request', { arguments: launch().arguments }],
      ['bad_request', { project_id: 'default' }],
      ['bad_request', { ...launch(), project_id: 7 }],
      ['bad_request', { ...launch(), project_id: ' ' }],
      ['bad_request', { ...launch(), arguments: [1] }],
      ['bad_request', { ...launch(), arguments: 'words' }],
      ['bad_request', { ...launch(), idempotency_key: '' }],
      ['bad_request', { ...launch(), idempotency_key: 'k'.repeat(501) }],
      ['bad_request', { ...launch(), source_agent_id: 7 }],
      ['bad_request', { ...launch(), channel_id: 'c'.repeat(201) }],
      ['bad_request', launch({ surprise: 1 })],
      ['bad_request', launch({ instruction: 5 })],
      ['bad_request', launch({ instruction: ' \n' })],
      ['bad_request', launch({ deadline_seconds: 0 })],
      ['bad_request', launch({ deadline_seconds: '9' })],
      ['bad_request', launch({ wait: 'yes' })],
      ['bad_request', launch({ context_box_id: 5 })],
      ['bad_request', launch({ context_box_id: [own, 5] })],
      ['bad_request', launch({ result_fields: [{ type: 'string' }] })],
      ['bad_request', launch({ result_fields: [{ name: 'x', type: 'money' }] })],
      ['bad_request', launch({ history: 'view' })],
      ['bad_request', nested(300)],
      ['payload_too_large', launch({ instruction: 'x'.repeat(256 * 1024 + 1) })],
      ['bad_request', { ...launch(), arguments: { result: 1 } }, 'submit_result'],
      [
        'bad_request',
        { ...launch(), arguments: { expert_profile: 'expert', question: 'q', include_history: true } },
        'ask_expert',
      ],
      ['bad_request', delegate('borrow', 'expert'), 'delegate_async'],
      ['conflict', inSession({ profile_name: 'expert' }), 'delegate_async'],
      ['not_found', inSession({ session: 'none' }), 'delegate_async'],
      ['bad_request', inSession({ workspace: 'demo' }), 'delegate_async'],
      ['not_found', inSession({}, { view: { anchor: 'nowhere' } }), 'delegate_async'],
      [
        'bad_request',
        { ...delegate('new', 'expert'), arguments: { target_strategy: 'new' } },
        'delegate_async',
      ],
      ['unknown_primitive', launch(), 'fly'],
      ['unknown_primitive', launch(), '__proto__'],
      ['unknown_primitive', launch(), 'toString'],
      ['not_found', launch({ profile_name: 'nobody' })],
      ['not_found', delegate('reuse', 'nobody'), 'delegate_async'],
      ['not_found', delegate('clone', nobody), 'delegate_async'],
      ['not_found', { ...launch(), project_id: 'nowhere' }],
      ['not_found', { ...launch(), project_id: nobody }],
      ['not_found', { ...launch(), source_agent_id: 'nobody' }],
      ['not_found', launch({ context_box_id: nobody })],
      ['not_found', launch({ context_box_id: 'no id at all' })],
      ['not_found', launch({ context_box_id: [own, nobody] })],
      // Rows of another project.
      ['not_found', { ...launch(), project_id: foreign.projectId }],
      ['not_found', { ...launch(), source_agent_id: foreign.agent_id }],
      ['not_found', delegate('reuse', foreign.agent_id), 'delegate_async'],
      ['not_found', launch({ profile_name: 'foreigner' })],
      ['not_found', launch({ context_box_id: foreign.context_box_id })],
      ['not_found', launch({ context_box_id: foreign.output_box_id })],
      ['not_found', { ...launch(), parent_turn_id: foreign.turn_id }],
      // The calling turn.
      ['bad_request', { ...launch(), parent_turn_id: 'not an id' }],
      ['not_found', { ...launch(), parent_turn_id: nobody }],
      ['turn_ended', { ...launch(), parent_turn_id: made.turn_id }],
      // Actions that this agent is not allowed to do.
      ['delegation_denied', { ...launch(), source_agent_id: made.agent_id }],
    ];
    const unwritable: readonly [code: string, data: unknown, name?: string][] = [
      ['bad_request', launch({ instruction: 'a\u0000b' })],
      ['bad_request', launch({ instruction: 'a\ud800b' })],
      ['bad_request', launch({ 'a\u0000': 1 })],
      ['bad_request', { ...launch(), project_id: 'a\u0000b' }],
      ['bad_request', { ...launch(), idempotency_key: 'a\u0000b' }],
      ['bad_request', { ...launch(), parent_turn_id: `${nobody}\u0000` }],
    ];
    const before = await countRows(s.backend);
    if (kind === 'postgres') {
      // On Postgres such a text cannot even be added to the queue.
      for (const [, data] of unwritable)
        await expect(s.queue.add('launch_principal', data)).rejects.toThrow();
    }
    const asked = kind === 'postgres' ? cases : [...cases, ...unwritable];
    const jobs = await Promise.all(
      asked.map(([, data, name]) =>
        s.queue.add(name ?? 'launch_principal', data, { attempts: 5, backoff: 3_600_000 }),
      ),
    );
    const ended = await Promise.all(jobs.map((job) => answerOf(s.queue, job)));
    if (kind === 'redis') {
      // The name of a job is also outside text, and is stored while the job waits for its answer.
      for (const jobId of ['a\u0000b', `a\u0000${nobody}`]) {
        const job = await s.queue.add('launch_principal', launch({ wait: true }), { jobId, attempts: 5 });
        const { reason, job: failed } = await answerOf(s.queue, job);
        expect(reason).toMatch(/^bad_request: job_id: contains a NUL character or a lone surrogate/);
        expect(failed.attemptsMade).toBe(1);
      }
    }
    const found = ended.map(({ reason = 'answered', job }, index) => [
      /^(\w+): \S/.exec(reason)?.[1] ?? reason,
      job.attemptsMade,
      JSON.stringify(asked[index]?.[1])?.slice(0, 150),
    ]);
    expect(found).toEqual(asked.map(([code, data]) => [code, 1, JSON.stringify(data)?.slice(0, 150)]));
    expect(await countRows(s.backend)).toEqual(before);
  });

  test('does not fail a job because of a temporary failure, whatever the option attempts says', async () => {
    await using s = await scene(kind);
    let runs = 0;
    s.door.runtime.registerHandler('unsteady', {
      description: 'Succeeds in the end.',
      input: z.strictObject({}),
      handle: async (_input, { tx }) => {
        runs += 1;
        // More often than a submission is retried without its door.
        if (runs < 8) await tx.query({ text: "do $$ begin raise 'race' using errcode = '40001'; end $$" });
        return { runs };
      },
    });
    s.door.runtime.registerHandler('broken', {
      description: 'Never succeeds.',
      input: z.strictObject({}),
      handle: async () => {
        throw new TypeError('a bug\u0000\ud800');
      },
    });
    s.door.serve();
    const data = { project_id: 'default', arguments: {} };
    const { job, answer } = await ask(s.queue, 'unsteady', data, { attempts: 1 });
    expect([answer, job.attemptsMade]).toEqual([{ runs: 8 }, 1]);
    expect((await ask(s.queue, 'broken', data, { attempts: 3 })).reason).toBe(
      'internal_error: a bug\ufffd\ufffd',
    );
  });

  test.each(['cut off', 'stalled'])('answers when the database is back after it was %s', async (fault) => {
    await using backend = await testBackend(kind);
    await using proxy = await tcpProxy(backend.database.url);
    await using s = await scene(kind, { databaseUrl: proxy.url }, backend);
    s.door.serve(2);
    await s.program().work();
    // The connections are open, so the fault affects them and not their opening.
    expect((await ask(s.queue, 'launch_principal', launch())).reason).toBeUndefined();
    if (fault === 'stalled') proxy.stall();
    else await proxy.cut();
    const bad = launch({ surprise: 1 });
    const jobs = [launch(), launch({ wait: true }), launch({ profile_name: 'nobody' }), bad].map((data) =>
      s.queue.add('launch_principal', data, { attempts: 1 }),
    );
    const [receipt, waiting, refused, wrong] = await Promise.all(jobs);
    if (fault === 'cut off') {
      await s.door.logged('door.retry');
      expect(proxy.brokenCount).toBeGreaterThan(0);
    } else {
      await waitFor(async () => (await s.queue.getActiveCount()) === 2, { message: 'both slots are taken' });
    }
    const held = await Promise.all(
      [receipt, waiting, refused].map((job) => s.queue.getJobState(job?.id ?? '')),
    );
    expect(held).not.toContain('failed');
    expect(await turnCount(backend)).toBe(1);
    await proxy.restore();
    const answerTo = async (job: Job | undefined): Promise<Answered> => answerOf(s.queue, job as Job);
    expect((await answerTo(receipt)).answer).toMatchObject({ status: 'accepted' });
    expect((await answerTo(waiting)).answer).toEqual(success('The answer to life is 42'));
    expect((await answerTo(refused)).reason).toMatch(/^not_found: /);
    expect((await answerTo(wrong)).reason).toMatch(/^bad_request: /);
    expect(await turnCount(backend)).toBe(3);
  });

  test('fails a job once when its handler does not answer before its deadline, and frees the connection', async () => {
    await using s = await scene(kind);
    const program = s.program({ handlerTimeoutMs: 1_000 });
    let runs = 0;
    program.runtime.registerHandler('stuck', {
      description: 'Never answers.',
      input: z.strictObject({}),
      handle: async (_input, { tx }) => {
        runs++;
        await tx.query({ text: 'select 1' });
        return new Promise(() => undefined);
      },
    });
    program.serve();
    const data = { project_id: 'default', arguments: {} };
    const job = await s.queue.add('stuck', data, { attempts: 5, backoff: 3_600_000 });
    const { reason, job: failed } = await answerOf(s.queue, job);
    expect(reason).toMatch(/^handler_timeout: The handler of stuck /);
    expect(failed.attemptsMade).toBe(1);
    expect(runs).toBe(1);
    const { pool } = program.runtime;
    await waitFor(() => pool.idleCount === pool.totalCount, { message: 'its connection is free', ...SOON });
    expect(program.log.filter(({ event }) => event === 'door.retry')).toEqual([]);
  });

  test.each<[string, string, RegExp]>([
    ['names a missing table', 'select from no_such_table', /no_such_table/],
    ['exceeds its own limit', 'set local statement_timeout = 20; select pg_sleep(10)', /statement timeout/],
  ])('fails a job once when its handler %s', async (_title, text, expected) => {
    await using s = await scene(kind);
    const program = s.program();
    let runs = 0;
    program.runtime.registerHandler('wrong', {
      description: 'Runs a statement.',
      input: z.strictObject({}),
      handle: async (_input, { tx }) => {
        runs++;
        await tx.query({ text });
        return null;
      },
    });
    program.serve();
    const job = await s.queue.add('wrong', { project_id: 'default', arguments: {} }, { attempts: 1 });
    expect((await answerOf(s.queue, job)).reason).toMatch(expected);
    expect(runs).toBe(1);
    expect(program.log.filter(({ event }) => event === 'door.retry')).toEqual([]);
  });

  test('keeps a job whose primitive lacks a table of the kernel while the schema belongs to another build', async () => {
    await using s = await scene(kind);
    const program = s.program();
    let runs = 0;
    program.runtime.registerHandler('early', {
      description: 'Runs a statement.',
      input: z.strictObject({}),
      handle: async (_input, { tape }) => {
        runs++;
        await tape('notes');
        return 'found';
      },
    });
    const { pool } = s.backend.database;
    await pool.query(
      'insert into boxcar.schema_version (version, name, checksum, min_compatible) select version + 1, name, checksum, min_compatible from boxcar.schema_version order by version desc limit 1',
    );
    await program.runtime.tape('notes');
    await pool.query('alter table boxcar.boxes rename to boxes_later');
    program.serve();
    const job = await s.queue.add('early', { project_id: 'default', arguments: {} }, { attempts: 1 });
    await program.logged('door.retry');
    await pool.query('alter table boxcar.boxes_later rename to boxes');
    expect((await answerOf(s.queue, job)).answer).toBe('found');
    expect(runs).toBeGreaterThan(1);
  });

  test('fails a job once when its handler lets its transaction wait until the server has ended it', async () => {
    await using s = await scene(kind);
    const program = s.program();
    using _limits = limitByLease(program.runtime.pool, 1_000);
    let runs = 0;
    program.runtime.registerHandler('idles', {
      description: 'Waits.',
      input: z.strictObject({}),
      handle: async (_input, { tx }) => {
        runs++;
        const { rows } = await tx.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' });
        await waitFor(
          async () =>
            (
              await s.backend.database.pool.query('select from pg_stat_activity where pid = $1', [
                rows[0]?.pid,
              ])
            ).rowCount === 0,
          { message: 'the server has ended it', ...SOON },
        );
        await tx.query({ text: 'select 1' });
        return null;
      },
    });
    program.serve();
    const job = await s.queue.add('idles', { project_id: 'default', arguments: {} }, { attempts: 1 });
    expect((await answerOf(s.queue, job)).reason).toMatch(/^transaction_idle: /);
    expect(runs).toBe(1);
  });

  test('accepts a job once when the answer to its commit was lost', async () => {
    await using backend = await testBackend(kind);
    await using proxy = await tcpProxy(backend.database.url);
    await using s = await scene(kind, { databaseUrl: proxy.url }, backend);
    s.door.serve();
    const first = await ask(s.queue, 'launch_principal', launch());
    expect(first.reason).toBeUndefined();
    // The database answers the door's reads but not its write.
    const write = await holdWrite(backend);
    const job = await s.queue.add('launch_principal', launch(), { attempts: 1 });
    await write.waits();
    proxy.stallAnswers();
    await write.letGo();
    await waitFor(async () => (await turnCount(backend)) === 2, { message: 'the write is committed' });
    expect(await s.queue.getJobState(job.id ?? '')).toBe('active');
    proxy.breakOnce();
    await proxy.restore();
    const { answer } = await answerOf(s.queue, job);
    const { rows } = await backend.database.pool.query<{ id: string }>(
      'select id from boxcar.turns order by id desc',
    );
    expect(answer).toMatchObject({ status: 'accepted', turn_id: rows[0]?.id });
    expect(rows.length).toBe(2);
  });

  test.each(['question', 'answer'])(
    'neither fails nor repeats a job when its queue fails while the job is being completed (%s lost)',
    async (lost) => {
      await using backend = await testBackend(kind);
      await using proxy = await tcpProxy(backend.connection.url);
      await using s = await scene(kind, { connection: { ...backend.connection, url: proxy.url } }, backend);
      let runs = 0;
      let letGo = (): void => undefined;
      const released = new Promise<void>((settle) => {
        letGo = settle;
      });
      s.door.runtime.registerHandler('held', {
        description: 'Answers when it is let go.',
        input: z.strictObject({}),
        handle: async () => {
          runs += 1;
          await released;
          return { runs };
        },
      });
      (await s.door.warm()).serve();
      const job = await s.queue.add('held', { project_id: 'default', arguments: {} }, { attempts: 1 });
      await waitFor(() => runs === 1, { message: 'the handler runs' });
      if (lost === 'question') proxy.stall();
      else proxy.stallAnswers();
      letGo();
      await waitFor(async () => ((await countRows(backend)).operations ?? 0) === 1, {
        message: 'it is accepted',
      });
      if (lost === 'answer') {
        await standsAs(s.queue, job, 'completed');
      }
      proxy.breakOnce();
      expect(proxy.brokenCount).toBeGreaterThan(0);
      await proxy.restore();
      expect((await answerOf(s.queue, job)).answer).toEqual({ runs: 1 });
      // The door continues.
      const next = await ask(s.queue, 'held', { project_id: 'default', arguments: {} });
      expect(next.answer).toEqual({ runs: 2 });
    },
  );

  test('closes after its jobs in progress, and loses no job that it is just receiving', async () => {
    await using s = await scene(kind);
    let letGo = (): void => undefined;
    const released = new Promise<void>((settle) => {
      letGo = settle;
    });
    let runs = 0;
    const held = {
      description: 'Answers when it is let go.',
      input: z.strictObject({}),
      handle: async () => {
        runs += 1;
        await released;
        return { runs };
      },
    };
    const first = s.program();
    first.runtime.registerHandler('held', held);
    first.serve(2);
    const data = { project_id: 'default', arguments: {} };
    const inHand = await s.queue.add('held', data);
    await waitFor(() => runs === 1, { message: 'the handler runs' });
    const closed = first.close();
    const later = await s.queue.add('held', data);
    letGo();
    await closed;
    expect((await answerOf(s.queue, inHand)).answer).toEqual({ runs: 1 });
    expect(await s.queue.getJobState(later.id ?? '')).toBe('waiting');
    s.door.runtime.registerHandler('held', held);
    s.door.serve();
    expect((await answerOf(s.queue, later)).answer).toEqual({ runs: 2 });
  });

  test('fails no job because its own runtime was closed: another process answers the job', async () => {
    await using s = await scene(kind);
    const handled = (handle: () => Promise<JsonValue>) => ({
      description: 'Answers.',
      input: z.strictObject({}),
      handle,
    });
    const first = s.program();
    const closing = async (): Promise<never> => {
      await first.runtime.close();
      throw new Error('What it used is closed.');
    };
    first.runtime.registerHandler('asked', handled(closing));
    first.serve();
    const job = await s.queue.add('asked', { project_id: 'default', arguments: {} });
    await waitFor(() => first.runtime.isClosed, { message: 'the runtime is closed' });
    expect(() => first.serve()).toThrow(/The runtime is closed\./);
    s.door.runtime.registerHandler(
      'asked',
      handled(async () => ({ by: 'another' })),
    );
    s.door.serve();
    expect((await answerOf(s.queue, job)).answer).toEqual({ by: 'another' });
  });
});

const delegate = (strategy: string, target: string) => ({
  project_id: 'default',
  arguments: { target_strategy: strategy, target_ref: target, instruction: 'do' },
});

function nested(depth: number): Record<string, JsonValue> {
  let value: JsonValue = 1;
  for (let n = 0; n < depth; n += 1) value = [value];
  return launch({ instruction: 'deep', result_fields: value });
}

/** A second project with a profile, an agent, its boxes and an open turn. */
async function foreignProject(
  backend: TestBackend,
  runtime: Runtime,
): Promise<Receipt & { projectId: string }> {
  const [projectId, operatorId, anchorId] = [newId<'project'>(), newId<'agent'>(), newId<'card'>()];
  const { pool } = backend.database;
  await pool.query(
    `insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id)
     select $1, $2, type, role, content, content_hash, size_bytes, token_estimate, author_id from boxcar.cards where type = 'tape.anchor' limit 1`,
    [anchorId, projectId],
  );
  await pool.query(
    "insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values ($1, 'elsewhere', $2, $3)",
    [projectId, operatorId, anchorId],
  );
  await pool.query("insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')", [
    operatorId,
    projectId,
  ]);
  const profile = {
    name: 'foreigner',
    instructions: 'You are elsewhere.',
    model: 'scripted',
    script: [{ say: 'foreign' }],
    worker_target: 'elsewhere',
  };
  await runtime.applyProfile(profile, { projectId });
  const receipt = await runtime.submit(
    'launch_principal',
    { profile_name: 'foreigner', instruction: 'wait here' },
    { projectId },
  );
  return { ...(receipt as unknown as Receipt), projectId };
}
