import type { JsonValue, ToolCallId, TurnId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { createPool, limitByLease } from '@boxcar/store';
import { spawnNode, statementProxy, tcpProxy, waitFor } from '@boxcar/testkit';
import type { Job, Processor } from 'bullmq';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { QueueDoor } from '../door/door-job.js';
import { createToolResultsDoor } from '../door/tool-results-door.js';
import type { Log } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { type OpenRuntime, openRuntime } from '../open.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { Runtime } from '../runtime.js';
import { Sweeper } from '../sweep/sweeper.js';
import { statementsOf } from '../testing/count-statements.js';
import { EFFECTS_TABLE, registerFaultyTools } from '../testing/faulty.js';
import { checkInvariants } from '../testing/invariants.js';
import { type QueuePlace, queuePlaces, type TestBackend, testBackend } from '../testing/queue-backend.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';
import { createWorker, type Worker, type WorkerOptions } from '../worker/worker.js';
import { OutsideCalls } from './queue-tool-calls.js';
import { ToolQueue } from './tool-queue.js';

const RESULTS = 'boxcar-tool-results';
const SOON = { deadlineMs: 60_000 };
const SWEEPING: WorkerOptions = { sweepMs: 50, lostRingMs: 500 };

/** Makes the calls of its instruction, a list of `[tool, arguments]`, and delivers their results. */
const caller: ScriptedFunction = ({ turn, messages }, { call }) => {
  if (turn.step === 1)
    return {
      toolCalls: (JSON.parse(String(turn.instruction)) as [string, JsonValue][]).map(([tool, args], index) =>
        call(tool, args, `call_${index}`),
      ),
    };
  const answers = messages.flatMap((message) => (message.role === 'tool' ? [message.content] : []));
  return { text: `[${answers.join(',')}]` };
};

const parameters = {
  type: 'object',
  properties: { key: { type: 'string' } },
  required: ['key'],
  additionalProperties: false,
};
const declared = (name: string, rest: Record<string, JsonValue> = {}) => ({
  name,
  description: `The tool ${name}.`,
  parameters,
  target: name.replaceAll('_', '-'),
  ...rest,
});

interface CallRow extends Record<string, unknown> {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly status: string;
  readonly sent_at: Date | null;
  readonly look_at: Date | null;
  readonly content: { status: string; result?: JsonValue; error?: { code: string; message: string } } | null;
  readonly metadata: { sanitized?: boolean } | null;
}

interface Launched {
  readonly turnId: string;
  readonly call: CallRow;
}

/** A worker of the pool with its door, and the tool workers that a test starts outside it. */
class Place {
  readonly backend: TestBackend;
  readonly opened: OpenRuntime;
  readonly log: { event: string; fields: Readonly<Record<string, unknown>> }[] = [];
  worker!: Worker;
  #isByHand = false;
  #door: QueueDoor | undefined;
  readonly #outside: { close(force?: boolean): Promise<void> }[] = [];

  private constructor(backend: TestBackend) {
    const write: Log = (_level, event, fields = {}) => void this.log.push({ event, fields });
    this.backend = backend;
    this.opened = openRuntime({
      ...backend.urls,
      model: createModelRouter({ scripted: { functions: { caller } } }),
      log: write,
    });
  }

  static async open(kind: QueuePlace): Promise<Place> {
    const place = new Place(await testBackend(kind));
    await place.sweep();
    place.openDoor();
    return place;
  }

  /** Works and sweeps with the timers that each test starts with. */
  async sweep(): Promise<void> {
    await this.#work(SWEEPING);
  }

  /** For the rest of the test no timer starts a sweep. */
  async sweepByHand(): Promise<void> {
    await this.#work({ sweepMs: 3_600_000, lostRingMs: 60_000 });
    this.#isByHand = true;
  }

  async #work(options: WorkerOptions): Promise<void> {
    await this.worker?.close();
    this.worker = await createWorker(this.opened.runtime, options);
  }

  openDoor(): void {
    this.#door ??= this.opened.serveToolResultsDoor();
  }

  async closeDoor(): Promise<void> {
    await this.#door?.close();
    this.#door = undefined;
  }

  /** A tool worker that uses only BullMQ, until the end of the test. */
  serve(target: string, processor: Processor, options: Parameters<TestBackend['worker']>[2] = {}) {
    const worker = this.backend.worker(`boxcar-tools-${target}`, processor, options);
    this.#outside.push(worker);
    return worker;
  }

  async endTest(): Promise<void> {
    await Promise.all(this.#outside.splice(0).map((worker) => worker.close(true)));
    this.openDoor();
    if (this.#isByHand) await this.sweep();
    this.#isByHand = false;
  }

  async profile(name: string, tools: readonly unknown[], rest: Record<string, unknown> = {}): Promise<void> {
    await this.opened.runtime.applyProfile({
      name,
      instructions: 'You call tools.',
      model: 'scripted:caller',
      tools,
      ...rest,
    });
  }

  async launch(profile: string, calls: readonly [string, JsonValue][], rest: object = {}): Promise<string> {
    const { answer } = await this.opened.runtime.accept('launch_principal', {
      profile_name: profile,
      instruction: JSON.stringify(calls),
      ...rest,
    });
    return (answer as { turn_id: string }).turn_id;
  }

  async calls(turnId: string): Promise<CallRow[]> {
    const { rows } = await this.backend.database.pool.query<CallRow>(
      `select k.*, c.content, c.metadata from boxcar.tool_calls k left join boxcar.cards c on c.id = k.result_card_id
       where k.turn_id = $1 order by k.ordinal`,
      [turnId],
    );
    return rows;
  }

  /** Starts a turn with one call. Waits until the call was sent and no worker holds the turn. */
  async start(name: string, rest: Record<string, JsonValue> = {}, launch: object = {}): Promise<Launched> {
    await this.profile(name, [declared(name, rest)]);
    const turnId = await this.launch(name, [[name, { key: 'k' }]], launch);
    await this.suspended(turnId);
    const [call] = await this.calls(turnId);
    if (call === undefined) throw new Error('the turn has no call');
    return { turnId, call };
  }

  suspended(turnId: string): Promise<unknown> {
    return waitFor(async () => (await this.opened.runtime.getTurn(turnId)).status === 'suspended', {
      message: `turn ${turnId} is suspended`,
      ...SOON,
    });
  }

  /** The results of the calls, as the model saw them. */
  async results(turnId: string): Promise<{ status: string; result?: JsonValue; error?: { code: string } }[]> {
    const end = await this.opened.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    expect(end.status).toBe('success');
    return (await this.calls(turnId)).map((call) => call.content ?? { status: 'none' });
  }

  queue(target: string) {
    return this.backend.queue(`boxcar-tools-${target}`);
  }

  /** The answers that came too late. */
  async evidence(turnId: string): Promise<unknown[]> {
    const { rows } = await this.backend.database.pool.query(
      'select tool_call_id, body from boxcar.evidence where turn_id = $1 order by id',
      [turnId],
    );
    return rows;
  }

  /** Answers at the door of tool workers, and waits for the door's reply. */
  async answer(data: unknown): Promise<JsonValue> {
    const queue = this.backend.queue(RESULTS);
    const { id = '' } = await queue.add('result', data);
    const job: Job = await waitFor(
      async () => {
        const now = await queue.getJob(id);
        return now?.finishedOn === undefined ? undefined : now;
      },
      { message: `the answer ${id} has been read`, ...SOON },
    );
    return job.failedReason === undefined ? (job.returnvalue as JsonValue) : job.failedReason;
  }

  async overdue(column: 'deadline_at' | 'look_at', callId: string): Promise<void> {
    await this.backend.database.pool.query(
      `update boxcar.tool_calls set ${column} = now() - interval '1 second' where id = $1`,
      [callId],
    );
  }

  jobGone(target: string, callId: string): Promise<unknown> {
    return waitFor(async () => (await this.queue(target).getJobState(callId)) === 'unknown', {
      message: `job ${callId} is gone`,
      ...SOON,
    });
  }

  async close(): Promise<void> {
    await this.closeDoor();
    await this.worker.close({ graceMs: 1_000 });
    await this.opened.close();
    await this.backend.close();
  }
}

describe.each(queuePlaces())('a call of a queue tool, queues on %s', (kind) => {
  let place: Place;
  beforeAll(async () => {
    place = await Place.open(kind);
  });
  afterEach(() => place.endTest());
  afterAll(async () => {
    await checkInvariants(place.backend.database.pool);
    await place.close();
  });

  test('is a job that occupies no worker, and the returned value of its worker is the result', async () => {
    const { turnId, call } = await place.start('look_up');
    expect(place.worker.activeCount).toBe(0);
    const queue = place.queue('look-up');
    const job = await waitFor(() => queue.getJob(call.id), { message: 'the job stands in its queue' });
    expect([job.name, job.data]).toEqual([
      'look_up',
      { tool_call_id: call.id, turn_id: turnId, name: 'look_up', arguments: { key: 'k' } },
    ]);
    place.serve('look-up', async ({ data }) => ({ found: data.arguments.key }));
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: { found: 'k' } }]);
    await place.jobGone('look-up', call.id);
    expect(await place.backend.queue(RESULTS).getJobState(`call-${call.id}`)).toBe('unknown');
  });

  test('is answered when its job has ended, with success or failure, without a sweep', async () => {
    await place.sweepByHand();
    const returned = await place.start('bell');
    const thrown = await place.start('bell_broken');
    place.serve('bell', async () => 'rung');
    place.serve('bell-broken', async () => {
      throw new Error('rung too');
    });
    expect(await place.results(returned.turnId)).toMatchObject([{ status: 'success', result: 'rung' }]);
    expect(await place.results(thrown.turnId)).toMatchObject([{ error: { code: 'tool_failed' } }]);
  });

  test('runs next to other calls of its step, and the turn continues after the last call', async () => {
    await place.profile('many', [declared('many')]);
    place.serve('many', async ({ data }) => data.arguments.key, { concurrency: 5 });
    const keys = Array.from({ length: 20 }, (_value, index) => `key ${index}`);
    const turnId = await place.launch(
      'many',
      keys.map((key) => ['many', { key }]),
    );
    expect((await place.results(turnId)).map((result) => result.result)).toEqual(keys);
  });

  test('is refused for arguments that do not fit its schema, and no job is made', async () => {
    await place.profile('strict', [declared('strict')]);
    const turnId = await place.launch('strict', [
      ['strict', { key: 1 }],
      ['strict', { key: 'k', more: true }],
    ]);
    const results = await place.results(turnId);
    expect(results.map(({ error }) => error?.code)).toEqual([
      'tool_arguments_invalid',
      'tool_arguments_invalid',
    ]);
    expect(results[0]?.error).toMatchObject({ message: expect.stringContaining('key: ') });
    expect(await place.queue('strict').getJobCounts('waiting')).toEqual({ waiting: 0 });
  });

  test.each<[string, () => unknown, object]>([
    ['undefined', () => undefined, { status: 'success', result: null }],
    ['a text', () => 'plain', { status: 'success', result: 'plain' }],
    [
      'more than a card may hold',
      () => 'x'.repeat(1_100_000),
      { status: 'failed', error: { code: 'payload_too_large' } },
    ],
    [
      'a value that JSON cannot express',
      () => ({ n: 1n }),
      { status: 'failed', error: { code: 'tool_failed', message: expect.stringContaining('BigInt') } },
    ],
  ])('has a readable result when its worker returns %s', async (_what, make, expected) => {
    const { turnId } = await place.start('odd');
    place.serve('odd', async () => make());
    expect(await place.results(turnId)).toMatchObject([expected]);
  });

  test('has a readable result when its worker returns characters that Postgres cannot store', async () => {
    const { turnId } = await place.start('nul');
    place.serve('nul', async () => ({ text: 'a\u0000b' }));
    const [result] = await place.results(turnId);
    // On Postgres the queue itself cannot store them, so the job fails.
    if (kind === 'postgres')
      expect(result).toMatchObject({ status: 'failed', error: { code: 'tool_failed' } });
    else {
      expect(result).toMatchObject({ status: 'success', result: { text: 'a\uFFFDb' } });
      expect((await place.calls(turnId))[0]?.metadata).toMatchObject({ sanitized: true });
    }
  });

  test('fails with a readable error when its worker throws', async () => {
    const { turnId, call } = await place.start('throwing');
    place.serve('throwing', async () => {
      throw new Error('no such customer');
    });
    expect(await place.results(turnId)).toMatchObject([
      {
        status: 'failed',
        error: {
          code: 'tool_failed',
          message: expect.stringContaining('throwing: no such customer'),
          details: { tool_call_id: call.id },
        },
      },
    ]);
  });

  test('is given to another worker when its own worker has died, and is reported as unknown when it may not run again', async () => {
    const safe = await place.start('mortal', { retry: 'safe' });
    const never = await place.start('mortal_once');
    for (const target of ['mortal', 'mortal-once']) {
      await waitFor(async () => (await place.queue(target).getJobCounts('waiting')).waiting === 1, {
        message: 'the job waits',
      });
      await place.backend.takeAndDie(`boxcar-tools-${target}`);
    }
    const quick = { lockDuration: 500, stalledInterval: 100 };
    place.serve('mortal', async () => 'answered', quick);
    place.serve('mortal-once', async () => 'never run', { ...quick, maxStalledCount: 0 });
    expect(await place.results(safe.turnId)).toMatchObject([{ status: 'success', result: 'answered' }]);
    expect(await place.results(never.turnId)).toMatchObject([
      { status: 'failed', error: { code: 'outcome_unknown' } },
    ]);
  });

  test('is sent again from its row when its queue was lost, unless it may not run again', async () => {
    const safe = await place.start('flushed', { retry: 'safe' });
    const never = await place.start('flushed_once');
    const unsent = await place.start('flushed_early');
    await waitFor(async () => (await place.calls(never.turnId))[0]?.sent_at, { message: 'it was sent' });
    await waitFor(async () => (await place.calls(unsent.turnId))[0]?.sent_at, { message: 'it was sent' });
    // The same state as after a worker's death between the commit and the sending. No sweep checks the call before its queue is
    // lost.
    await place.backend.database.pool.query(
      "update boxcar.tool_calls set sent_at = null, look_at = now() + interval '1 hour' where id = $1",
      [unsent.call.id],
    );
    for (const target of ['flushed', 'flushed-once', 'flushed-early'])
      await place.queue(target).obliterate({ force: true });
    for (const { call } of [safe, never, unsent]) await place.overdue('look_at', call.id);
    expect(await place.results(never.turnId)).toMatchObject([
      { status: 'failed', error: { code: 'outcome_unknown' } },
    ]);
    place.serve('flushed', async () => 'sent again');
    place.serve('flushed-early', async () => 'sent again');
    for (const { turnId } of [safe, unsent])
      expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'sent again' }]);
  });

  test('that may run once and was marked while the database went away is sent when the database is back', async () => {
    await place.sweepByHand();
    // The door would answer the call when its job is removed.
    await place.closeDoor();
    const { turnId, call } = await place.start('marked');
    await waitFor(() => place.queue('marked').getJob(call.id), { message: 'it was sent' });
    // Restores the state before the call was sent.
    await place.queue('marked').obliterate({ force: true });
    const { database, connection } = place.backend;
    await database.pool.query('update boxcar.tool_calls set sent_at = null where id = $1', [call.id]);
    await using proxy = await statementProxy(database.url);
    const pool = createPool({ connectionString: proxy.url, max: 2 });
    // The pool retries for one second.
    limitByLease(pool, 2_000);
    const queue = new ToolQueue(openQueues(connection), () => undefined);
    const outside = new OutsideCalls(
      { pool, limits: {}, log: () => undefined, ring: (rings) => place.opened.runtime.ring(rings) },
      queue,
    );
    try {
      const row = await outside.load(call.id);
      if (row === null) throw new Error('no call');
      proxy.arm({ at: 1, when: 'after', scope: 'process' });
      // Nothing is sent to a queue that does not answer in time, and the call is not marked.
      while (!proxy.isDead)
        await outside
          .send([{ ...row, arguments: { key: 'k' } }])
          .catch((error: unknown) => expect(error).toMatchObject({ code: 'database_unavailable' }));
      expect((await place.calls(turnId))[0]?.sent_at).not.toBeNull();
      expect(await place.queue('marked').getJob(call.id)).toBeUndefined();
      proxy.arm();
      const sweep = () => outside.sweep({ now: new Date(Date.now() + 600_000) });
      const isSent = async () => {
        await sweep();
        return place.queue('marked').getJob(call.id);
      };
      await waitFor(isSent, { message: 'it is sent', ...SOON });
      place.serve('marked', async () => 'once');
      const isAnswered = async () => {
        await sweep();
        return (await place.calls(turnId))[0]?.status === 'success';
      };
      await waitFor(isAnswered, { message: 'it is answered', ...SOON });
      expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'once' }]);
    } finally {
      await pool.end();
    }
  });

  test('that may run once is run once when the queue is lost and the result of its sending is unknown', async () => {
    const { connection } = place.backend;
    const queues = openQueues(connection);
    const flow = queues.flow();
    // The answer of the queue is lost, as when a connection breaks after the command.
    const deaf = new ToolQueue(
      {
        ...queues,
        flow: () => ({
          ...flow,
          addBulk: async (jobs) => {
            await flow.addBulk(jobs);
            throw new Error('the answer was lost');
          },
        }),
      },
      () => undefined,
    );
    const { pool, limits } = place.opened.runtime;
    const outside = new OutsideCalls(
      { pool, limits, log: () => undefined, ring: (rings) => place.opened.runtime.ring(rings) },
      deaf,
    );
    await place.sweepByHand();
    // The door would answer the call when its job is removed.
    await place.closeDoor();
    const { turnId, call } = await place.start('unsure');
    // A mark is made before the job is added.
    await waitFor(() => place.queue('unsure').getJob(call.id), { message: 'it was sent' });
    // Restores the state before the call was sent.
    await place.queue('unsure').obliterate({ force: true });
    await pool.query('update boxcar.tool_calls set sent_at = null where id = $1', [call.id]);
    const row = await outside.load(call.id);
    if (row === null) throw new Error('no call');
    const sent = await waitFor(
      async () => {
        // Nothing is sent to a queue that does not answer in time. A call that is already marked is not sent again.
        await outside.send([{ ...row, arguments: { key: 'k' } }]);
        return place.queue('unsure').getJob(call.id);
      },
      { message: 'it was sent again', ...SOON },
    );
    expect(sent?.data).toMatchObject({ tool_call_id: call.id });
    let runs = 0;
    place.serve('unsure', async () => {
      runs += 1;
      // The tool runs for longer than its queue exists.
      await new Promise<void>(() => undefined);
    });
    await waitFor(() => runs === 1, { message: 'the tool is at work', ...SOON });
    await place.queue('unsure').obliterate({ force: true });
    place.serve('unsure', async () => {
      runs += 1;
    });
    const own = new OutsideCalls(
      { pool, limits, log: () => undefined, ring: (rings) => place.opened.runtime.ring(rings) },
      new ToolQueue(queues, () => undefined),
    );
    await own.sweep({ now: new Date(Date.now() + 3_000) });
    expect(await place.results(turnId)).toMatchObject([
      { status: 'failed', error: { code: 'outcome_unknown' } },
    ]);
    expect(runs).toBe(1);
    await queues.close();
  });

  test('that may run once is marked when a check finds its job, and is sent only by the process that marked it', async () => {
    await place.sweepByHand();
    const { turnId, call } = await place.start('found');
    const { pool, limits } = place.opened.runtime;
    // A mark is made before the job is added.
    await waitFor(() => place.queue('found').getJob(call.id), { message: 'it was sent' });
    // The state that a process leaves when it dies between sending and marking, as older builds did.
    await pool.query('update boxcar.tool_calls set sent_at = null where id = $1', [call.id]);
    const queues = openQueues(place.backend.connection);
    const outside = new OutsideCalls(
      { pool, limits, log: () => undefined, ring: (rings) => place.opened.runtime.ring(rings) },
      new ToolQueue(queues, () => undefined),
    );
    const row = await outside.load(call.id);
    if (row === null) throw new Error('no call');
    await outside.sweep({ now: new Date(Date.now() + 3_000) });
    expect((await place.calls(turnId))[0]?.sent_at).not.toBeNull();
    await place.queue('found').obliterate({ force: true });
    // This process read the call before it was marked, like a process that was paused in between.
    await outside.send([{ ...row, arguments: { key: 'k' } }]);
    expect(await place.queue('found').getJob(call.id)).toBeUndefined();
    await outside.sweep({ now: new Date(Date.now() + 60_000) });
    expect(await place.results(turnId)).toMatchObject([
      { status: 'failed', error: { code: 'outcome_unknown' } },
    ]);
    await queues.close();
  });

  test.each(['safe', 'never'] as const)(
    'is sent once when the worker that sent it dies and another worker takes its turn over (%s)',
    async (retry) => {
      const { runtime } = place.opened;
      const { database, urls } = place.backend;
      const name = `taken_over_${retry}`;
      const hold = `hold_${retry}`;
      if (!runtime.tools.has(hold)) {
        await database.pool.query(EFFECTS_TABLE.replace('create table', 'create table if not exists'));
        registerFaultyTools(runtime, { effects: database.pool, print: () => undefined });
      }
      await place.profile(name, [hold, declared(name, { retry })], {
        model: 'scripted',
        script: [
          {
            calls: [
              { tool: hold, arguments: {} },
              { tool: name, arguments: { key: 'k' } },
            ],
          },
          { say: 'done' },
        ],
      });
      await place.worker.close();
      await using child = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
        JSON.stringify({
          ...urls,
          effectsUrl: database.url,
          worker: { leaseMs: 1_000, heartbeatMs: 200, sweepMs: 100 },
        } satisfies WorkerProcessOptions),
      ]);
      await child.line(/^ready /, { deadlineMs: 90_000 });
      const turnId = await place.launch(name, []);
      await child.line(new RegExp(`^tool ${hold} `), SOON);
      const queue = place.queue(name.replaceAll('_', '-'));
      await waitFor(async () => (await queue.getJobCounts('waiting')).waiting === 1, {
        message: 'the job waits',
        ...SOON,
      });
      await child.kill();
      let runs = 0;
      place.serve(name.replaceAll('_', '-'), async () => {
        runs += 1;
        return 'once';
      });
      await place.sweep();
      const [held, outside] = await place.results(turnId);
      expect(outside).toMatchObject({ status: 'success', result: 'once' });
      expect(held?.error?.code).toBe(retry === 'safe' ? undefined : 'outcome_unknown');
      expect(runs).toBe(1);
    },
  );

  test('is answered by the sweep when its notice was lost', async () => {
    await place.closeDoor();
    const { turnId, call } = await place.start('silent');
    place.serve('silent', async () => 'heard');
    await waitFor(async () => (await place.queue('silent').getJobState(call.id)) === 'completed', {
      message: 'the job has ended',
      ...SOON,
    });
    await place.backend.queue(RESULTS).obliterate({ force: true });
    await place.overdue('look_at', call.id);
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'heard' }]);
    await place.jobGone('silent', call.id);
  });

  test('is answered at the door once: later answers are duplicates that change nothing', async () => {
    const { turnId, call } = await place.start('desk');
    // The job is sent after the commit that the turn's status shows. A job that is added after the answer would stay in the
    // queue.
    await waitFor(async () => (await place.queue('desk').getJobState(call.id)) !== 'unknown', {
      message: 'the job is there',
      ...SOON,
    });
    const recorded = { status: 'recorded', tool_call_id: call.id, call_status: 'success' };
    const duplicate = { ...recorded, status: 'duplicate' };
    expect(await place.answer({ tool_call_id: call.id, project_id: 'default', result: { n: 1 } })).toEqual(
      recorded,
    );
    expect(await place.answer({ tool_call_id: call.id, error: 'too late' })).toEqual(duplicate);
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: { n: 1 } }]);
    expect(await place.answer({ tool_call_id: call.id, result: 2 })).toEqual(duplicate);
    // The job has no use any more and is removed.
    await place.jobGone('desk', call.id);
    const answers = await Promise.all(
      Array.from({ length: 3 }, async () => (await place.start('desk')).call).map(async (row, index) => {
        const { id, turn_id } = await row;
        const said = await Promise.all([1, 2, 3].map((n) => place.answer({ tool_call_id: id, result: n })));
        const [result] = await place.results(turn_id);
        expect([1, 2, 3]).toContain(result?.result);
        return [index, said.map((one) => (one as { status: string }).status).sort()];
      }),
    );
    expect(answers).toEqual([0, 1, 2].map((index) => [index, ['duplicate', 'duplicate', 'recorded']]));
  });

  test('is answered at the door with any answer of its tool', async () => {
    const failed = await place.start('desk_failed');
    await place.answer({
      tool_call_id: failed.call.id,
      error: { code: 'crm_down', message: 'later, please', details: { n: 1 } },
    });
    expect(await place.results(failed.turnId)).toMatchObject([
      { status: 'failed', error: { code: 'crm_down', message: 'later, please', details: { n: 1 } } },
    ]);
    const huge = await place.start('desk_huge');
    expect(await place.answer({ tool_call_id: huge.call.id, result: 'x'.repeat(1_100_000) })).toMatchObject({
      status: 'recorded',
      call_status: 'failed',
    });
    expect(await place.results(huge.turnId)).toMatchObject([{ error: { code: 'payload_too_large' } }]);
    const empty = await place.start('desk_empty');
    await place.answer({ tool_call_id: empty.call.id, status: 'failed' });
    expect(await place.results(empty.turnId)).toMatchObject([{ error: { code: 'tool_failed' } }]);
  });

  test('refuses answers at the door for a call that is not open, with a code', async () => {
    await place.profile('asker', ['ask_expert'], { delegation_policy: { target_profiles: null } });
    await place.profile('held', [declared('held')]);
    const outer = await place.launch('asker', [
      ['ask_expert', { expert_profile: 'held', question: JSON.stringify([['held', { key: 'k' }]]) }],
    ]);
    await place.suspended(outer);
    const [primitive] = await place.calls(outer);
    const inner = await waitFor(
      async () =>
        (
          await place.backend.database.pool.query<{ id: string }>(
            'select k.id from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id where t.parent_turn_id = $1',
            [outer],
          )
        ).rows[0]?.id,
      { message: 'the expert calls its tool', ...SOON },
    );
    const unknown = newId<'tool_call'>();
    const refused = await Promise.all(
      [
        { tool_call_id: unknown, result: 1 },
        { tool_call_id: 'nonsense', result: 1 },
        { tool_call_id: inner, project_id: 'another', result: 1 },
        { tool_call_id: primitive?.id, result: 1 },
        { result: 1 },
        { tool_call_id: inner, status: 'success', error: 'both' },
        { tool_call_id: inner, status: 'perhaps' },
        { tool_call_id: inner, result: 1, extra: 1 },
        { tool_call_id: inner, error: { text: 'no message' } },
        { ended: unknown },
        { ended: inner, more: 1 },
        [1, 2],
        'text',
      ].map((data) => place.answer(data)),
    );
    expect(refused.map((reason) => String(reason).split(':')[0])).toEqual([
      'not_found',
      'not_found',
      'not_found',
      'tool_not_queued',
      ...Array.from({ length: 5 }, () => 'bad_request'),
      'not_found',
      ...Array.from({ length: 3 }, () => 'bad_request'),
    ]);
    expect(await place.answer({ tool_call_id: inner, result: 'fits' })).toMatchObject({ status: 'recorded' });
    expect((await place.results(outer))[0]).toMatchObject({ status: 'success' });
  });

  test('is answered later when its worker says so, and is no longer checked', async () => {
    const { turnId, call } = await place.start('patient', { retry: 'safe' });
    place.serve('patient', async () => ({ answer: 'later' }));
    await waitFor(async () => (await place.calls(turnId))[0]?.look_at === null, {
      message: 'the call rests',
      ...SOON,
    });
    await place.answer({ tool_call_id: call.id, result: 'at last' });
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'at last' }]);
  });

  test('ends at its deadline as tool_timeout; its job is removed, and a late answer changes nothing', async () => {
    const { turnId, call } = await place.start('slow', { timeout_seconds: 3600 });
    await waitFor(() => place.queue('slow').getJob(call.id), { message: 'the job stands in its queue' });
    await place.overdue('deadline_at', call.id);
    expect(await place.results(turnId)).toMatchObject([
      { status: 'timeout', error: { code: 'tool_timeout' } },
    ]);
    await place.jobGone('slow', call.id);
    expect(await place.answer({ tool_call_id: call.id, result: 'late' })).toEqual({
      status: 'duplicate',
      tool_call_id: call.id,
      call_status: 'timeout',
    });
  });

  test('is reported as not served until a worker has taken it', async () => {
    const { turnId, call } = await place.start('unserved', { timeout_seconds: 3600 });
    await waitFor(() => place.queue('unserved').getJob(call.id), { message: 'the job stands in its queue' });
    const { outside } = place.opened.runtime;
    const targets = async (lateMs: number): Promise<readonly string[] | undefined> =>
      (await outside?.findUnserved(lateMs))?.map(({ target, ids }) => `${target} ${ids.join()}`);
    expect(await targets(3_600_000)).toEqual([]);
    expect(await targets(0)).toEqual([`unserved ${call.id}`]);
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    place.serve('unserved', () => held.then(() => 'done'));
    await waitFor(async () => (await place.queue('unserved').getJobState(call.id)) === 'active', {
      message: 'a worker has the job',
      ...SOON,
    });
    expect(await targets(0)).toEqual([]);
    release();
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'done' }]);
  });

  test('is not changed by a worker that returns after the deadline', async () => {
    const { turnId, call } = await place.start('late', { timeout_seconds: 3600 });
    let release = (): void => undefined;
    const released = new Promise<void>((settle) => {
      release = settle;
    });
    let isInHand = false;
    place.serve('late', async () => {
      isInHand = true;
      await released;
      return 'late';
    });
    await waitFor(() => isInHand, { message: 'the job has been taken', ...SOON });
    await place.overdue('deadline_at', call.id);
    const timedOut = [{ status: 'timeout', error: { code: 'tool_timeout' } }];
    expect(await place.results(turnId)).toMatchObject(timedOut);
    release();
    await place.jobGone('late', call.id);
    expect(await place.results(turnId)).toMatchObject(timedOut);
    expect(await place.evidence(turnId)).toEqual([
      { tool_call_id: call.id, body: { status: 'success', result: 'late' } },
    ]);
  });

  test('is canceled with its turn: the next sweep removes its job, and a later answer is evidence', async () => {
    await place.sweepByHand();
    const { turnId, call } = await place.start('stopped', {}, { deadline_seconds: 3600 });
    await waitFor(() => place.queue('stopped').getJob(call.id), { message: 'the job stands in its queue' });
    await place.opened.runtime.submit('cancel', { turn_id: turnId });
    await place.opened.runtime.outside?.sweep();
    expect((await place.calls(turnId))[0]).toMatchObject({ status: 'canceled' });
    await place.jobGone('stopped', call.id);
    for (const result of [1, 2])
      expect(await place.answer({ tool_call_id: call.id, result })).toMatchObject({ status: 'duplicate' });
    expect(await place.evidence(turnId)).toEqual([
      { tool_call_id: call.id, body: { status: 'success', result: 1 } },
    ]);
  });

  test('is canceled when its turn has ended: an answer is refused, and the job is removed', async () => {
    await place.sweepByHand();
    const sweeper = new Sweeper(place.opened.runtime, {
      lostRingMs: 60_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });
    const { turnId, call } = await place.start('orphan', {}, { deadline_seconds: 3600 });
    await waitFor(() => place.queue('orphan').getJob(call.id), { message: 'the job stands in its queue' });
    await place.backend.database.pool.query(
      "update boxcar.turns set deadline_at = now() - interval '1 second' where id = $1",
      [turnId],
    );
    await sweeper.sweep();
    expect((await place.opened.runtime.getTurn(turnId)).status).toBe('timeout');
    // The text is for an external worker, which cannot start a turn.
    expect(await place.answer({ tool_call_id: call.id, result: 1 })).toBe(
      `turn_ended: The turn of tool call ${call.id} has ended, so nothing waits for this result. Drop the call and do not send it again; its first late result is kept as evidence of the turn.`,
    );
    expect(await place.evidence(turnId)).toEqual([
      { tool_call_id: call.id, body: { status: 'success', result: 1 } },
    ]);
    await sweeper.sweep();
    expect((await place.calls(turnId))[0]).toMatchObject({
      status: 'canceled',
      content: { error: { code: 'turn_ended' } },
    });
    await place.jobGone('orphan', call.id);
    expect(await place.answer({ tool_call_id: call.id, result: 1 })).toMatchObject({
      status: 'duplicate',
      call_status: 'canceled',
    });
  });

  test('costs the sweep the same statements for many calls as for one call', async () => {
    await place.profile('crowd', [declared('crowd', { retry: 'safe', timeout_seconds: 3600 })]);
    const look = async (n: number): Promise<number> => {
      const turnId = await place.launch(
        'crowd',
        Array.from({ length: n }, (_value, index) => ['crowd', { key: String(index) }]),
      );
      await place.suspended(turnId);
      await waitFor(async () => (await place.queue('crowd').getJobCounts('waiting')).waiting === n, {
        message: 'the jobs stand in their queue',
        ...SOON,
      });
      const worker = place.serve('crowd', async () => 'done', { concurrency: 20 });
      // The bells are closed, so only this sweep brings the results.
      await waitFor(async () => (await place.queue('crowd').getJobCounts('completed')).completed === n, {
        message: 'the jobs have ended',
        ...SOON,
      });
      await worker.close();
      const now = new Date(Date.now() + 3_000);
      const sent = await statementsOf(
        place.backend.database,
        () => place.opened.runtime.outside?.sweep({ now }) ?? Promise.resolve(),
      );
      await place.results(turnId);
      return sent.filter((text) => /boxcar\.tool_calls/.test(text) && !/boxcar\.steps/.test(text)).length;
    };
    await place.closeDoor();
    await place.sweepByHand();
    const one = await look(1);
    expect(await look(60)).toBe(one);
  });

  test('does not delay a sweep when another session has locked it', async () => {
    await place.sweepByHand();
    await place.closeDoor();
    const done = await place.start('locked_done');
    const gone = await place.start('locked_gone', { retry: 'safe' });
    const unsent = await place.start('locked_unsent');
    for (const { call } of [done, unsent])
      await waitFor(async () => (await place.calls(call.turn_id))[0]?.sent_at, { message: 'it was sent' });
    place.serve('locked-done', async () => 'done');
    await waitFor(async () => (await place.queue('locked-done').getJobCounts('completed')).completed === 1, {
      message: 'its job has ended',
      ...SOON,
    });
    for (const target of ['locked-gone', 'locked-unsent'])
      await place.queue(target).obliterate({ force: true });
    const { pool, url } = place.backend.database;
    await pool.query('update boxcar.tool_calls set sent_at = null where id = $1', [unsent.call.id]);
    const all = [done, gone, unsent];
    for (const { call } of all) await place.overdue('look_at', call.id);
    const stranger = new pg.Client({ connectionString: url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.tool_calls where id = any ($1) for update', [
      all.map(({ call }) => call.id),
    ]);
    const sweeper = new Sweeper(place.opened.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });
    const startedAt = performance.now();
    await sweeper.sweep();
    // With the default limit, each locked row would block for 15 seconds.
    expect(performance.now() - startedAt).toBeLessThan(6_000);
    await stranger.end();
    for (const target of ['locked-gone', 'locked-unsent']) place.serve(target, async () => 'sent again');
    for (const { turnId, call } of all)
      await waitFor(
        async () => {
          await place.overdue('look_at', call.id);
          await sweeper.sweep();
          return (await place.calls(turnId))[0]?.status === 'success';
        },
        { message: `${call.id} is answered`, ...SOON },
      );
    expect(place.log.filter(({ event }) => event === 'sweep.part_failed')).toEqual([]);
  });

  // The nodes of a cluster announce their own addresses, so a client would bypass a proxy.
  test.skipIf(kind === 'cluster').each(['stalled', 'cut off'] as const)(
    'is neither settled nor lost while its queue is %s, and is sent when the queue is back',
    async (fault) => {
      const { connection } = place.backend;
      await using proxy = await tcpProxy(connection.url);
      const queues = openQueues({ ...connection, url: proxy.url });
      const lost: string[] = [];
      const queue = new ToolQueue(queues, (_level, event) => void lost.push(event));
      const { pool, limits } = place.opened.runtime;
      const outside = new OutsideCalls(
        { pool, limits, log: () => undefined, ring: (rings) => place.opened.runtime.ring(rings) },
        queue,
      );
      await place.sweepByHand();
      const { turnId, call } = await place.start('away', { retry: 'safe' });
      await waitFor(() => place.queue('away').getJob(call.id), { message: 'the job stands in its queue' });
      await place.backend.queue(RESULTS).obliterate({ force: true });
      await place.queue('away').obliterate({ force: true });
      expect(await queue.getJobStates([{ id: call.id, target: 'away' }])).toEqual([{ state: 'gone' }]);
      if (fault === 'stalled') proxy.stall();
      else await proxy.cut();
      const now = new Date(Date.now() + 3_000);
      await outside.sweep({ now });
      await outside.send([
        {
          id: call.id,
          turn_id: call.turn_id,
          name: 'away',
          target: 'away',
          retry: 'safe',
          arguments: { key: 'k' },
        },
      ]);
      await outside.forget([{ id: newId<'tool_call'>(), target: 'away' }]);
      expect(lost).toEqual(expect.arrayContaining(['tools.unreachable', 'tools.jobs_lost']));
      expect((await place.calls(turnId))[0]).toMatchObject({ status: 'pending' });
      await proxy.restore();
      await waitFor(
        async () => {
          await outside.sweep({ now });
          return place.queue('away').getJob(call.id);
        },
        { message: 'the job stands in its queue again', ...SOON },
      );
      place.serve('away', async ({ data }) => data.arguments);
      expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: { key: 'k' } }]);
      await queues.close();
    },
  );

  test('is answered at the door when the database is back after an interruption', async () => {
    const { urls } = place.backend;
    await using proxy = await tcpProxy(urls.databaseUrl);
    const { turnId, call } = await place.start('outage');
    await place.closeDoor();
    const log: string[] = [];
    const pool = createPool({ connectionString: proxy.url, max: 2 });
    const queues = openQueues(place.backend.connection);
    const runtime = new Runtime({
      pool,
      directUrl: proxy.url,
      doorbell: new BullMqDoorbell(queues, () => undefined),
      toolQueue: new ToolQueue(queues, () => undefined),
      model: createModelRouter({}),
      log: (_level, event) => void log.push(event),
    });
    await proxy.cut();
    const door = createToolResultsDoor(runtime, queues);
    const answered = place.answer({ tool_call_id: call.id, result: 'kept' });
    await waitFor(() => log.includes('door.retry'), { message: 'the door has met the outage', ...SOON });
    await proxy.restore();
    expect(await answered).toMatchObject({ status: 'recorded' });
    expect(await place.results(turnId)).toMatchObject([{ status: 'success', result: 'kept' }]);
    await door.close();
    await runtime.close();
    await pool.end();
  });
});

test('of many with expired deadlines is checked together with them: a silent queue is asked once by one sweep', async () => {
  await using backend = await testBackend('redis');
  await using proxy = await tcpProxy(backend.connection.url);
  const asked: string[] = [];
  const opened = openRuntime({
    databaseUrl: backend.urls.databaseUrl,
    redisUrl: proxy.url,
    model: createModelRouter({}),
    log: (_level, event) => void asked.push(event),
  });
  const { runtime } = opened;
  const out = { name: 'out', description: 'Out.', target: 'out', parameters: { type: 'object' } };
  const calls = Array.from({ length: 60 }, () => ({ tool: 'out', arguments: {} }));
  await runtime.applyProfile({
    name: 'caller',
    instructions: 'Call.',
    model: 'scripted',
    tools: [out],
    script: [{ calls }, { say: 'done' }],
  });
  const worker = await createWorker(runtime, { sweepMs: 3_600_000 });
  const { pool } = backend.database;
  const count = async (text: string): Promise<number> => (await pool.query(text)).rowCount ?? 0;
  for (let n = 0; n < 4; n++)
    await runtime.submit('launch_principal', { profile_name: 'caller', instruction: 'go' });
  const suspended = "select from boxcar.turns where status = 'suspended'";
  await waitFor(async () => (await count(suspended)) === 4, { message: 'all wait', ...SOON });
  const jobs = backend.queue('boxcar-tools-out');
  await waitFor(async () => (await jobs.getJobCounts('waiting')).waiting === 240, {
    message: 'all calls are sent',
    ...SOON,
  });
  await worker.close({ graceMs: 500 });
  await pool.query("update boxcar.tool_calls set deadline_at = now() - interval '1 second'");
  proxy.stall();
  asked.splice(0);
  const sweeper = new Sweeper(runtime, {
    lostRingMs: 600_000_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
  await sweeper.sweep({ now: new Date(Date.now() + 60_000) });
  expect(asked.filter((event) => event === 'tools.unreachable')).toHaveLength(1);
  expect(await count("select from boxcar.tool_calls where status = 'timeout'")).toBe(240);
  await proxy.restore();
  await opened.close();
});
