import { execFileSync } from 'node:child_process';
import type { JsonValue, TurnId } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { claim, releaseTurns } from '@boxcar/store';
import { type NodeChild, type QueueBackend, queueBackends, spawnNode, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { type OpenRuntime, openRuntime } from '../open.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { checkPrompts } from '../testing/check-prompts.js';
import {
  createFaultyModel,
  EFFECTS_TABLE,
  FAULTY_MODELS,
  FAULTY_TOOLS,
  registerFaultyTools,
} from '../testing/faulty.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';
import { createWorker, type WorkerOptions } from './worker.js';

/** Short, so that a death is noticed soon; long enough for a machine that is busy with other tests. */
const QUICK: WorkerOptions = { leaseMs: 2_000, heartbeatMs: 200, sweepMs: 100, lostRingMs: 300 };
const BY_ITSELF = { deadlineMs: 60_000 };
/**
 * A process first compiles its code, which takes a long time on a busy machine. There is no promise about that time.
 */
const STARTS = { deadlineMs: 90_000 };

interface TurnRow {
  readonly status: string;
  readonly epoch: number;
  readonly holder_id: string | null;
}

/** A worker of the pool in a process of its own. */
interface WorkerProcess {
  readonly child: NodeChild;
  readonly id: string;
}

interface Logged {
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

interface LocalWorker {
  readonly log: readonly Logged[];
  readonly printed: readonly string[];
  close(): Promise<void>;
}

const held: ScriptedFunction = () => ({ text: 'not held' });

/** A database, its queues, a program that submits, and workers in processes of their own. */
class Pool implements AsyncDisposable {
  readonly backend: TestBackend;
  readonly submitter: OpenRuntime;
  readonly #workers: WorkerProcess[] = [];
  readonly #closers: (() => Promise<unknown>)[] = [];

  private constructor(backend: TestBackend) {
    this.backend = backend;
    this.submitter = openRuntime({ ...backend.urls, model: createFaultyModel(() => undefined, { held }) });
  }

  static async open(kind: QueueBackend): Promise<Pool> {
    const pool = new Pool(await testBackend(kind));
    await pool.rows(EFFECTS_TABLE);
    const { runtime } = pool.submitter;
    for (const name of [...FAULTY_MODELS, 'held']) {
      await runtime.applyProfile({
        name,
        instructions: `You are ${name}.`,
        model: `scripted:${name}`,
        tools: FAULTY_TOOLS,
      });
    }
    const note = { tool: 'note', arguments: { text: '{{instruction}}' } };
    await runtime.applyProfile({
      name: 'busy',
      instructions: 'You are busy.',
      model: 'scripted',
      tools: ['note', 'ask_expert'],
      delegation_policy: { target_profiles: ['quick'] },
      script: [
        { calls: [note], delayMs: 40 },
        {
          calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'quick', question: 'q' } }],
          delayMs: 40,
        },
        { say: 'done {{instruction}}', delayMs: 40 },
      ],
    });
    await runtime.applyProfile({
      name: 'quick',
      instructions: 'You are quick.',
      model: 'scripted',
      script: [{ say: 'quick {{instruction}}' }],
    });
    return pool;
  }

  async rows<R extends Record<string, unknown>>(text: string, values: unknown[] = []): Promise<R[]> {
    return (await this.backend.database.pool.query<R>(text, values)).rows;
  }

  /** Starts workers concurrently and waits until they take turns. */
  async spawn(count: number, options: Partial<WorkerProcessOptions> = {}): Promise<WorkerProcess[]> {
    const { urls, database } = this.backend;
    const all = { ...urls, effectsUrl: database.url, worker: QUICK, ...options };
    const started = await Promise.all(
      Array.from({ length: count }, async (): Promise<WorkerProcess> => {
        const child = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
          JSON.stringify(all),
        ]);
        const line = await child.line(/^ready /, STARTS);
        return { child, id: line.slice('ready '.length) };
      }),
    );
    this.#workers.push(...started);
    return started;
  }

  /** A worker in this process. */
  async work(options: WorkerOptions = {}, model: ScriptedFunction = held): Promise<LocalWorker> {
    const log: Logged[] = [];
    const printed: string[] = [];
    const print = (line: string): void => void printed.push(line);
    const opened = openRuntime({
      ...this.backend.urls,
      model: createFaultyModel(print, { held: model }),
      log: (_level, event, fields = {}) => void log.push({ event, fields }),
    });
    registerFaultyTools(opened.runtime, { effects: this.backend.database.pool, print });
    const worker = await createWorker(opened.runtime, { ...QUICK, ...options });
    let closing: Promise<void> | undefined;
    const close = (): Promise<void> => {
      closing ??= worker.close({ graceMs: 1_000 }).then(() => opened.close());
      return closing;
    };
    this.#closers.push(close);
    return { log, printed, close };
  }

  async submit(profile: string, instruction: string): Promise<string> {
    const receipt = await this.submitter.runtime.submit('launch_principal', {
      profile_name: profile,
      instruction,
    });
    return (receipt as { turn_id: string }).turn_id;
  }

  submitMany(profile: string, count: number, prefix = ''): Promise<string[]> {
    return Promise.all(Array.from({ length: count }, (_, n) => this.submit(profile, `${prefix}${n + 1}`)));
  }

  async turn(turnId: string): Promise<TurnRow> {
    const [row] = await this.rows<Record<string, unknown> & TurnRow>(
      'select status, epoch, holder_id from boxcar.turns where id = $1',
      [turnId],
    );
    if (row === undefined) throw new Error(`no turn ${turnId}`);
    return row;
  }

  /** The turn's end, read from its row. */
  result(turnId: string): Promise<{ readonly status: string; readonly result: JsonValue }> {
    return this.submitter.runtime.waitForTurn(turnId, { timeoutMs: BY_ITSELF.deadlineMs });
  }

  async unfinished(): Promise<number> {
    const [row] = await this.rows<{ n: number }>(
      'select count(*)::int as n from boxcar.turns where ended_at is null',
    );
    return row?.n ?? 0;
  }

  /** Waits until a worker prints such a line, and returns that worker and the others. */
  async whoPrints(
    pattern: RegExp,
  ): Promise<{ readonly victim: WorkerProcess; readonly others: WorkerProcess[] }> {
    const victim = await waitFor(() => this.#workers.find(({ child }) => pattern.test(child.stdout)), {
      message: `a worker prints ${pattern}`,
      ...BY_ITSELF,
    });
    return { victim, others: this.#workers.filter((worker) => worker !== victim) };
  }

  async close(): Promise<void> {
    for (const { child } of this.#workers) await child[Symbol.asyncDispose]();
    for (const close of this.#closers) await close();
    await this.submitter.close();
    await this.backend.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const note = (text: string): JsonValue => ({ noted: text });

describe.each(queueBackends())('with queues on %s', (kind) => {
  test('a turn whose worker is killed during a model call continues elsewhere from its last committed step', async () => {
    await using pool = await Pool.open(kind);
    await pool.spawn(2);
    const turnId = await pool.submit('hangOnce', 'go');
    const { victim, others } = await pool.whoPrints(new RegExp(`^model ${turnId} 2 1$`, 'm'));
    // On a busy machine a late ring is rung again, under the next epoch.
    const held = await pool.turn(turnId);
    expect(held).toMatchObject({ status: 'running', holder_id: victim.id });
    await victim.child.kill('SIGKILL');

    const end = await pool.result(turnId);
    expect([end.status, JSON.parse(String(end.result))]).toEqual([
      'success',
      [note('before'), note('after')],
    ]);
    expect((await pool.turn(turnId)).epoch).toBeGreaterThan(held.epoch);
    expect(
      await pool.rows('select name, pid from public.effects order by pid = $1 desc', [victim.child.pid]),
    ).toEqual([
      { name: 'note', pid: victim.child.pid },
      { name: 'note', pid: others[0]?.child.pid },
    ]);
    // The call that was lost with its worker stays visible.
    expect(
      await pool.rows(
        'select step, attempt, holder_id, committed_at is not null as is_committed from boxcar.steps order by step, attempt',
      ),
    ).toEqual([
      { step: 1, attempt: 1, holder_id: victim.id, is_committed: true },
      { step: 2, attempt: 1, holder_id: victim.id, is_committed: false },
      { step: 2, attempt: 2, holder_id: others[0]?.id, is_committed: true },
      { step: 3, attempt: 1, holder_id: others[0]?.id, is_committed: true },
    ]);
    await checkInvariants(pool.backend.database.pool);
    // Also the prompt of the step whose first attempt died.
    await checkPrompts(pool.backend.database.pool);
  });

  test('a call whose worker is killed runs again when that is safe, else the model gets an unknown outcome', async () => {
    await using pool = await Pool.open(kind);
    await pool.spawn(2);
    const turnId = await pool.submit('holdTools', 'go');
    const { victim } = await pool.whoPrints(/^tool hold_safe /m);
    await victim.child.line(/^tool hold_never /);
    await victim.child.kill('SIGKILL');

    const end = await pool.result(turnId);
    const [safe, never] = String(end.result).split('\n');
    expect(end.status).toBe('success');
    expect(safe).toContain('"done":"safe"');
    expect(never).toContain('outcome_unknown');
    expect(
      await pool.rows('select name, count(*)::int as runs from public.effects group by name order by name'),
    ).toEqual([
      { name: 'hold_never', runs: 1 },
      { name: 'hold_safe', runs: 2 },
    ]);
    await checkInvariants(pool.backend.database.pool);
  });

  test('a worker that was stopped beyond its lease commits nothing when it wakes', async () => {
    await using pool = await Pool.open(kind);
    await pool.spawn(2);
    const turnId = await pool.submit('stopOnce', 'go');
    const { victim, others } = await pool.whoPrints(new RegExp(`^model ${turnId} 2 1$`, 'm'));
    await waitFor(() => stateOf(victim.child.pid).startsWith('T'), { message: 'the worker is stopped' });

    const end = await pool.result(turnId);
    expect([end.status, JSON.parse(String(end.result))]).toEqual(['success', [note('before')]]);
    const rows = async () => ({
      turn: await pool.turn(turnId),
      tape: await pool.rows('select count(*)::int as n from boxcar.tape_entries'),
      cards: await pool.rows('select count(*)::int as n from boxcar.cards'),
    });
    const before = await rows();
    expect(before.turn.epoch).toBeGreaterThan(1);
    expect(stateOf(victim.child.pid)).toMatch(/^T/);

    process.kill(victim.child.pid, 'SIGCONT');
    await waitFor(() => new RegExp(`"turn.(left|interrupted)".*${turnId}`).test(victim.child.stderr), {
      message: 'the woken worker has left the turn',
    });
    // The answer of the model came first, so the commit of its step was tried and refused.
    expect(victim.child.stderr).toMatch(new RegExp(`"turn.left".*${turnId}.*"fenced"`));
    expect(await rows()).toEqual(before);
    // It works again when it is the only worker.
    await others[0]?.child.kill('SIGTERM');
    const next = await pool.submit('quick', 'again');
    expect(await pool.result(next)).toMatchObject({ status: 'success', result: 'quick again' });
    await checkInvariants(pool.backend.database.pool);
  });

  test('turns end once when all connections to Postgres are cut again and again', async () => {
    await using pool = await Pool.open(kind);
    const workers = await pool.spawn(2, { worker: { ...QUICK, concurrency: 5 } });
    const turnIds = await pool.submitMany('busy', 16);
    const cuts: { readonly cut: number; readonly unfinished: number }[] = [];
    for (let round = 1; round <= 4; round += 1) {
      const [row] = await pool.rows<{ n: number }>(
        `select count(pg_terminate_backend(pid))::int as n from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and application_name <> 'effects'`,
      );
      cuts.push({ cut: row?.n ?? 0, unfinished: await pool.unfinished() });
      const steps = await committedSteps(pool);
      // Work continues between two cuts.
      await waitFor(async () => (await committedSteps(pool)) > steps || (await pool.unfinished()) === 0, {
        message: 'a step is committed',
        ...BY_ITSELF,
      });
    }
    expect(cuts[0]?.unfinished).toBeGreaterThan(0);
    // Each worker has a pool and a direct connection. At later cuts some connections are not open again yet.
    expect(cuts[0]?.cut).toBeGreaterThanOrEqual(4);
    expect(Math.min(...cuts.map(({ cut }) => cut))).toBeGreaterThan(0);
    const ends = await Promise.all(turnIds.map((id) => pool.result(id)));
    expect(ends).toEqual(
      turnIds.map((_id, n) => expect.objectContaining({ status: 'success', result: `done ${n + 1}` })),
    );
    for (const { child } of workers) expect(stateOf(child.pid), child.stderr.slice(-2_000)).not.toBe('');
    expect(await pool.rows('select tool_call_id from public.effects group by 1 having count(*) > 1')).toEqual(
      [],
    );
    await settled(pool);
  });

  test('a worker that is asked to end hands its turns back, and another worker finishes them', async () => {
    await using pool = await Pool.open(kind);
    // Only the hand-over can explain the end: the lease outlives the test.
    await pool.spawn(2, { worker: { ...QUICK, leaseMs: 600_000, heartbeatMs: 500 }, graceMs: 100 });
    const turnId = await pool.submit('hangOnce', 'go');
    const { victim, others } = await pool.whoPrints(new RegExp(`^model ${turnId} 2 1$`, 'm'));
    victim.child.kill('SIGTERM').catch(() => undefined);
    await victim.child.line(/^closed$/);
    expect(await victim.child.exited).toEqual({ code: 0, signal: null });
    const end = await pool.result(turnId);
    expect([end.status, JSON.parse(String(end.result))]).toEqual([
      'success',
      [note('before'), note('after')],
    ]);
    expect(others[0]?.child.stdout).toContain(`model ${turnId} 2 2`);
    expect(await pool.rows('select id from boxcar.workers where lease_until > now()')).toEqual([
      { id: others[0]?.id },
    ]);
    await checkInvariants(pool.backend.database.pool);
  });

  test('a turn whose ring is lost ends once', async () => {
    await using pool = await Pool.open(kind);
    const queue = pool.backend.queue('boxcar-turns');
    // Only the queue delivers turns to this worker: it gets no notice of the submission.
    const worker = await pool.work({ takesOwnRings: false });
    await queue.pause();
    const turnId = await pool.submit('quick', 'go');
    await waitFor(() => queue.getJob(`${turnId}-1`), { message: 'the turn is rung' });
    await queue.remove(`${turnId}-1`);
    await queue.resume();
    expect(await pool.result(turnId)).toMatchObject({ status: 'success', result: 'quick go' });
    expect(worker.log).toContainEqual({ event: 'sweep.rang_again', fields: { turn_ids: [turnId] } });
    expect((await pool.turn(turnId)).epoch).toBeGreaterThan(1);
    await checkInvariants(pool.backend.database.pool);
  });

  test('a turn that is rung many times ends once: before its claim, while it runs, and after its end', async () => {
    await using pool = await Pool.open(kind);
    const queue = pool.backend.queue('boxcar-turns');
    const gate = new Gate();
    const fromTheQueue = { takesOwnRings: false, lostRingMs: 60_000 };
    await Promise.all([pool.work(fromTheQueue, gate.model), pool.work(fromTheQueue, gate.model)]);
    await queue.pause();
    const turnId = await pool.submit('held', 'go');
    const ring = async (count: number): Promise<void> => {
      for (let n = 0; n < count; n += 1) {
        await queue.add('turn', { turn_id: turnId, epoch: 1 }, { removeOnComplete: true });
        await queue.add('turn', { turn_id: turnId, epoch: 0 }, { removeOnComplete: true });
      }
    };
    await ring(5);
    await queue.resume();
    await gate.begun(1);
    await ring(5);
    await waitFor(async () => (await queue.getJobCountByTypes('waiting', 'prioritized')) === 0, {
      message: 'all rings are answered',
    });
    gate.open();
    expect(await pool.result(turnId)).toMatchObject({ status: 'success', result: 'held' });
    await ring(5);
    await waitFor(async () => (await queue.getJobCountByTypes('waiting', 'active')) === 0, {
      message: 'the queue is empty',
    });
    expect(gate.calls).toBe(1);
    expect((await pool.turn(turnId)).epoch).toBe(1);
    await checkInvariants(pool.backend.database.pool);
  });

  test('a turn whose ring is hidden by a finished job with the same id ends once', async () => {
    await using pool = await Pool.open(kind);
    const queue = pool.backend.queue('boxcar-turns');
    // No worker lives, so the turn is queued; the id of its first ring is known nevertheless.
    const turnId = await pool.submit('quick', 'go');
    expect(await pool.turn(turnId)).toMatchObject({ status: 'queued', epoch: 0 });
    const doorbell = new BullMqDoorbell(openQueues(pool.backend.connection), silentLog);
    await doorbell.listen({
      workerTarget: '',
      concurrency: 1,
      handle: async () => undefined,
      onError: () => undefined,
    });
    await queue.add('turn', { turn_id: turnId, epoch: 1 }, { jobId: `${turnId}-1`, removeOnComplete: false });
    await waitFor(async () => (await queue.getJobState(`${turnId}-1`)) === 'completed', {
      message: 'a job is kept',
    });
    await doorbell.close();

    const worker = await pool.work({ takesOwnRings: false });
    expect(await pool.result(turnId)).toMatchObject({ status: 'success', result: 'quick go' });
    expect(worker.log).toContainEqual({ event: 'sweep.rang_again', fields: { turn_ids: [turnId] } });
    expect((await pool.turn(turnId)).epoch).toBeGreaterThan(1);
    expect(await queue.getJobState(`${turnId}-1`)).toBe('completed');
    await checkInvariants(pool.backend.database.pool);
  });
});

test('the valid ring of a turn wins its claim, whatever older rings of the turn arrive with it', async () => {
  await using pool = await Pool.open('postgres');
  const queue = pool.backend.queue('boxcar-turns');
  await pool.work({ takesOwnRings: false });
  await queue.pause();
  const turnId = (await pool.submit('quick', 'go')) as TurnId;
  const { pool: database } = pool.backend.database;
  const holderId = newId<'worker'>();
  const epochs = [0, 1, 1, 0];
  const outcomes = await claim(
    database,
    epochs.map((epoch) => ({ turnId, epoch })),
    holderId,
  );
  expect(outcomes.map(({ outcome }) => outcome)).toEqual(['stale', 'claimed', 'stale', 'stale']);
  await releaseTurns(database, holderId, [{ turnId, epoch: 1 }]);
  await queue.resume();
  expect(await pool.result(turnId)).toMatchObject({ status: 'success', result: 'quick go' });
  await checkInvariants(database);
});

describe.runIf(queueBackends().includes('redis'))('with queues on redis', () => {
  test('all turns end once when Redis is flushed again and again', async () => {
    await using pool = await Pool.open('redis');
    const queue = pool.backend.queue('boxcar-turns');
    const workers = await pool.spawn(2, { worker: { ...QUICK, concurrency: 3 } });
    const turnIds = await pool.submitMany('busy', 40);
    for (let round = 1; round <= 3; round += 1) {
      const steps = await committedSteps(pool);
      // The queue contains rings that can be lost.
      await waitFor(
        async () => {
          const { waiting = 0, prioritized = 0 } = await queue.getJobCounts('waiting', 'prioritized');
          return waiting + prioritized > 0;
        },
        { message: 'rings wait', ...BY_ITSELF },
      );
      expect(await pool.unfinished()).toBeGreaterThan(0);
      await pool.backend.redis?.flush();
      await waitFor(async () => (await committedSteps(pool)) >= steps + 10, {
        message: 'ten steps are committed',
        ...BY_ITSELF,
      });
    }
    expect(workers.map(({ child }) => child.stderr).join('')).toContain('"sweep.rang_again"');
    const ends = await Promise.all(turnIds.map((id) => pool.result(id)));
    expect(ends).toEqual(
      turnIds.map((_id, n) => expect.objectContaining({ status: 'success', result: `done ${n + 1}` })),
    );
    await settled(pool);
  });

  test('turns are accepted and run while Redis is away, and rung again when it is back', async () => {
    await using pool = await Pool.open('redis');
    const [first] = await pool.spawn(2, { worker: { ...QUICK, concurrency: 5 } });
    const before = await pool.submitMany('busy', 8, 'before ');
    await waitFor(async () => (await committedSteps(pool)) > 0, { message: 'work has begun', ...BY_ITSELF });
    await pool.backend.redis?.stop();
    expect(await pool.unfinished()).toBeGreaterThan(0);
    const meanwhile = await pool.submitMany('busy', 8, 'meanwhile ');
    // Redis is still away when the last turn ends: the turns were claimed from the rows.
    const ends = await Promise.all([...before, ...meanwhile].map((id) => pool.result(id)));
    expect(ends.map((end) => end.result)).toEqual(
      ['before', 'meanwhile'].flatMap((when) => Array.from({ length: 8 }, (_, n) => `done ${when} ${n + 1}`)),
    );
    expect(first?.child.stderr).toContain('"doorbell.unreachable"');
    await pool.backend.redis?.start();

    await waitFor(() => pool.submitter.runtime.doorbell.findLost([]), {
      message: 'the doorbell answers again',
    });
    const after = await pool.submit('quick', 'after');
    expect(await pool.result(after)).toMatchObject({ status: 'success', result: 'quick after' });
    await settled(pool);
  });
});

/** A model that answers when it is released. */
class Gate {
  calls = 0;
  #isOpen = false;
  readonly #waiting: (() => void)[] = [];

  readonly model: ScriptedFunction = async () => {
    this.calls += 1;
    if (!this.#isOpen) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return { text: 'held' };
  };

  begun(calls: number): Promise<boolean> {
    return waitFor(() => this.calls >= calls, { message: `the model was called ${calls} times` });
  }

  open(): void {
    this.#isOpen = true;
    for (const release of this.#waiting.splice(0)) release();
  }
}

/** The state of a process according to `ps`, `T` = stopped; empty when the process does not exist. */
function stateOf(pid: number): string {
  try {
    return execFileSync('ps', ['-o', 'stat=', '-p', String(pid)], { encoding: 'utf8' }).trim();
  } catch {
    return '';
  }
}

async function committedSteps(pool: Pool): Promise<number> {
  const [row] = await pool.rows<{ n: number }>(
    'select count(*)::int as n from boxcar.steps where committed_at is not null',
  );
  return row?.n ?? 0;
}

/** Waits for the remaining turns, then checks. */
async function settled(pool: Pool): Promise<void> {
  await waitFor(async () => (await pool.unfinished()) === 0, {
    message: 'all turns have ended',
    ...BY_ITSELF,
  });
  await checkInvariants(pool.backend.database.pool);
}
