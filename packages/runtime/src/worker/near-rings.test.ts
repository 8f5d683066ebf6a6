import { AsyncLocalStorage } from 'node:async_hooks';
import { randomUUID } from 'node:crypto';
import type { Model, ProjectId, Ring, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { type OpenRuntime, openRuntime } from '../open.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { NearRings } from './near-rings.js';
import { createWorker, type Worker, type WorkerOptions } from './worker.js';

/** No sweep repeats a ring, and no heartbeat is needed after the first ones. */
const CALM = { sweepMs: 3_600_000, lostRingMs: 3_600_000, heartbeatMs: 50, concurrency: 1 };
const CHILDREN = 30;

const request = new AsyncLocalStorage<string>();

/** A process: a runtime with its rings to the queue, and the turns that its model is asked for. */
class Process {
  readonly opened: OpenRuntime;
  /** The turns that were put into the queue. */
  readonly rung: TurnId[] = [];
  /** The turns whose model was called, in the order of the calls. */
  readonly asked: TurnId[] = [];
  /** The rings of the queue that came while no slot was free for them. */
  readonly refused: TurnId[] = [];
  /** What the models saw of the asynchronous contexts of callers. */
  readonly seen: unknown[] = [];
  readonly #workers: Worker[] = [];
  readonly #held = new Map<TurnId, () => void>();
  isHolding = false;

  constructor(backend: TestBackend) {
    const router = createModelRouter({});
    const model: Model = {
      ...router,
      generate: async (asked, options) => {
        this.seen.push(request.getStore());
        this.asked.push(asked.turn.turnId);
        if (this.isHolding && asked.tools.length === 0)
          await new Promise<void>((settle) => this.#held.set(asked.turn.turnId, settle));
        return router.generate(asked, options);
      },
    };
    this.opened = openRuntime({ ...backend.urls, model });
    const { doorbell } = this.opened.runtime;
    const ring = doorbell.ring.bind(doorbell);
    doorbell.ring = async (rings: readonly Ring[]) => {
      this.rung.push(...rings.map(({ turnId }) => turnId));
      await ring(rings);
    };
    const listen = doorbell.listen.bind(doorbell);
    doorbell.listen = (options) =>
      listen({
        ...options,
        admit: (one) => {
          const isAdmitted = options.admit?.(one) ?? true;
          if (!isAdmitted) this.refused.push(one.turnId);
          return isAdmitted;
        },
      });
  }

  get runtime() {
    return this.opened.runtime;
  }

  async work(options: WorkerOptions = {}): Promise<Worker> {
    const worker = await createWorker(this.runtime, { ...CALM, ...options });
    this.#workers.push(worker);
    return worker;
  }

  /** Waits until its worker keeps rings. A ring of an unknown turn shows it. */
  async untilAlone(): Promise<void> {
    const keeps = (): boolean =>
      [...this.runtime.localWorkers].some(
        (worker) => worker.keep([{ turnId: newId<'turn'>(), epoch: 1, workerTarget: '' }]).length === 0,
      );
    await waitFor(keeps, { message: 'the worker is alone' });
  }

  async launch(profile_name: string, instruction = 'go'): Promise<TurnId> {
    const { answer } = await this.runtime.accept('launch_principal', { profile_name, instruction });
    return (answer as { turn_id: TurnId }).turn_id;
  }

  async untilHeld(): Promise<TurnId> {
    return waitFor(() => [...this.#held.keys()][0], { message: 'a turn is held' });
  }

  async release(): Promise<void> {
    const turnId = await this.untilHeld();
    this.#held.get(turnId)?.();
    this.#held.delete(turnId);
  }

  letAllGo(): void {
    this.isHolding = false;
    for (const go of this.#held.values()) go();
    this.#held.clear();
  }

  async close(): Promise<void> {
    this.letAllGo();
    for (const worker of this.#workers) await worker.close({ graceMs: 1_000 });
    await this.opened.close();
  }
}

describe.each(queueBackends())('with queues on %s, rings of a process with a worker', (kind) => {
  let backend: TestBackend;
  let own: Process;
  let other: Process;

  beforeEach(async () => {
    backend = await testBackend(kind);
    own = new Process(backend);
    other = new Process(backend);
    for (const target of ['', 'gpu'])
      await own.runtime.applyProfile({
        name: `leaf${target}`,
        instructions: 'Answer.',
        model: 'scripted',
        worker_target: target,
        script: [{ say: 'leaf {{instruction}}' }],
      });
    await own.runtime.applyProfile({
      name: 'forks',
      instructions: 'Fork.',
      model: 'scripted',
      script: [
        {
          calls: [
            {
              tool: 'fork_join',
              arguments: {
                tasks: Array.from({ length: CHILDREN }, (_, n) => ({
                  target_strategy: 'new',
                  target_ref: 'leaf',
                  instruction: `task ${n}`,
                })),
              },
            },
          ],
        },
        { say: 'joined' },
      ],
      tools: ['fork_join'],
      delegation_policy: { target_profiles: null },
    });
  });

  afterEach(async () => {
    await own.close();
    await other.close();
    await checkInvariants(backend.database.pool);
    await backend.close();
  });

  /** Waits until each worker has renewed its lease twice: it then knows which other workers live. */
  const beats = async (): Promise<void> => {
    const leases = async (): Promise<readonly string[]> => {
      const { rows } = await backend.database.pool.query<{ at: string }>(
        'select lease_until::text as at from boxcar.workers',
      );
      return rows.map(({ at }) => at);
    };
    for (let n = 0; n < 3; n++) {
      const before = await leases();
      await waitFor(async () => (await leases()).every((at) => !before.includes(at)), {
        message: 'each worker renews its lease',
      });
    }
  };
  /** Waits for three sweeps that have found something. */
  const untilSwept = async (): Promise<void> => {
    const sweeps = async (): Promise<string> => {
      const { rows } = await backend.database.pool.query<{ at: string }>(
        'select max(lease_until)::text as at from boxcar.sweeper',
      );
      return rows[0]?.at ?? '';
    };
    for (let n = 0; n < 3; n++) {
      const before = await sweeps();
      await waitFor(async () => (await sweeps()) !== before, { message: 'a sweep has begun' });
    }
  };
  const end = (turnId: TurnId) => own.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

  test('stay in it while no other worker lives: a join uses no job for its children', async () => {
    await own.work({ concurrency: 4 });
    await own.untilAlone();
    expect(await end(await own.launch('forks'))).toMatchObject({ status: 'success', result: 'joined' });
    expect(own.rung).toEqual([]);
    const { rows } = await backend.database.pool.query(
      "select count(*)::int as ended from boxcar.turns where status = 'success'",
    );
    expect(rows).toEqual([{ ended: 1 + CHILDREN }]);
  });

  test('go to the queue for a target that the worker does not serve', async () => {
    await own.work();
    await own.untilAlone();
    const ring = { turnId: newId<'turn'>(), epoch: 1, workerTarget: 'gpu' };
    own.runtime.ring([ring]);
    await waitFor(() => own.rung.length > 0, { message: 'the turn of the other target is rung' });
    expect(own.rung).toEqual([ring.turnId]);
  });

  test('are not repeated by the sweep of a worker of another target', async () => {
    own.isHolding = true;
    await other.work({ targets: ['gpu'], sweepMs: 20, lostRingMs: 500 });
    await own.work();
    await beats();
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 4; n++) turnIds.push(await own.launch('leaf', `${n}`));
    const held = await own.untilHeld();
    await untilSwept();
    own.letAllGo();
    for (const turnId of turnIds) await end(turnId);
    expect(other.rung).toEqual([]);
    const { rows } = await backend.database.pool.query<{ epoch: number }>(
      'select distinct epoch from boxcar.turns where id <> $1',
      [held],
    );
    expect(rows).toEqual([{ epoch: 1 }]);
  });

  test('go to the queue beyond a fixed number', async () => {
    own.isHolding = true;
    await own.work();
    await own.untilAlone();
    const turnId = await own.launch('leaf');
    await own.untilHeld();
    own.runtime.ring(
      Array.from({ length: 1_500 }, () => ({ turnId: newId<'turn'>(), epoch: 1, workerTarget: '' })),
    );
    await waitFor(() => own.rung.length >= 500, { message: 'rings go to the queue' });
    expect(own.rung.length).toBeLessThanOrEqual(501);
    own.letAllGo();
    await end(turnId);
  });

  test('go to the queue when another worker starts, and the two share the turns', async () => {
    own.isHolding = true;
    await own.work();
    await own.untilAlone();
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 5; n++) turnIds.push(await own.launch('leaf', `${n}`));
    const held = await own.untilHeld();
    expect(own.rung).toEqual([]);
    await other.work();
    // The only slot of the first worker is taken all the time.
    for (const turnId of turnIds) if (turnId !== held) await end(turnId);
    expect(other.asked.toSorted()).toEqual(turnIds.filter((turnId) => turnId !== held).toSorted());
    own.letAllGo();
    await end(held);
  });

  test('go to the queue when the worker closes', async () => {
    own.isHolding = true;
    const worker = await own.work();
    await own.untilAlone();
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 4; n++) turnIds.push(await own.launch('leaf', `${n}`));
    await own.untilHeld();
    expect(own.rung).toEqual([]);
    await worker.close({ graceMs: 0 });
    await other.work();
    for (const turnId of turnIds) expect(await end(turnId)).toMatchObject({ status: 'success' });
  });

  test('are not repeated by the sweep while they wait', async () => {
    own.isHolding = true;
    await own.work({ sweepMs: 20, lostRingMs: 1 });
    await own.untilAlone();
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 4; n++) turnIds.push(await own.launch('leaf', `${n}`));
    await own.untilHeld();
    await untilSwept();
    expect(own.rung).toEqual([]);
    own.letAllGo();
    for (const turnId of turnIds) await end(turnId);
  });

  test('are raised by the sweep, so that first turns of other projects cannot always pass them', async () => {
    own.isHolding = true;
    await own.work({ sweepMs: 20, lostRingMs: 1 });
    await own.untilAlone();
    const running = await own.launch('leaf', 'running');
    await own.untilHeld();
    const oldest = await own.launch('leaf', 'oldest');
    await untilSwept();
    const [projectId, operatorId] = [randomUUID(), randomUUID()];
    await backend.database.pool.query(
      `with p as (insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
         select $1, 'new', $2, bootstrap_card_id from boxcar.projects limit 1)
       insert into boxcar.agents (id, project_id, name) values ($2, $1, 'operator')`,
      [projectId, operatorId],
    );
    const leaf = { name: 'leaf', instructions: 'Answer.', model: 'scripted', script: [{ say: 'leaf' }] };
    await own.runtime.applyProfile(leaf, { projectId });
    const launched = await own.runtime.accept(
      'launch_principal',
      { profile_name: 'leaf', instruction: 'go' },
      { projectId },
    );
    await own.release();
    await waitFor(() => own.asked.length === 2, { message: 'the next turn begins' });
    expect(own.asked).toEqual([running, oldest]);
    expect(own.rung).toEqual([]);
    own.letAllGo();
    await own.runtime.waitForTurn((launched.answer as { turn_id: TurnId }).turn_id, {
      timeoutMs: 60_000,
      projectId: projectId as ProjectId,
    });
  });

  test('do not keep a turn of another process from its slot', async () => {
    own.isHolding = true;
    await own.work();
    await own.untilAlone();
    const near: TurnId[] = [];
    for (let n = 0; n < 4; n++) near.push(await own.launch('leaf', `${n}`));
    await own.untilHeld();
    const far = await other.launch('leaf', 'of another process');
    await waitFor(() => own.refused.includes(far), {
      message: 'the turn of the other process waits for a slot',
    });
    let ends = 0;
    for (; !own.asked.includes(far); ends++) {
      const before = own.asked.length;
      await own.release();
      await waitFor(() => own.asked.length > before, { message: 'the next turn begins' });
    }
    expect(ends).toBeLessThanOrEqual(2);
    own.letAllGo();
    for (const turnId of [...near, far]) await end(turnId);
  });

  test('stay in it when its direct connection is replaced: its own notice is not another worker', async () => {
    const { pool } = backend.database;
    const lockedAt = async () =>
      (await pool.query<{ at: string }>('select locked_at::text as at from boxcar.workers')).rows[0]?.at;
    own.isHolding = true;
    await own.work();
    await own.untilAlone();
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 4; n++) turnIds.push(await own.launch('leaf', `${n}`));
    await own.untilHeld();
    const before = await lockedAt();
    await pool.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where application_name = 'boxcar-worker' and datname = current_database()`,
    );
    await waitFor(
      async () => {
        const now = await lockedAt();
        return now !== undefined && now !== before;
      },
      { message: 'the worker has its lock again' },
    );
    await beats();
    expect(own.rung).toEqual([]);
    own.letAllGo();
    for (const turnId of turnIds) await end(turnId);
  });

  test('keep their places when they go to the queue', async () => {
    const queues = openQueues(backend.connection);
    let clock = 1_800_000_000_000;
    const doorbell = new BullMqDoorbell(queues, silentLog, () => clock);
    let sending: Promise<void> | undefined;
    const near = new NearRings({
      targets: [''],
      isStale: () => false,
      send: (rings) => {
        sending = doorbell.ring(rings);
      },
      now: () => clock,
    });
    near.renewed(false, performance.now());
    const ringOf = (priority: number): Ring => ({
      turnId: newId<'turn'>(),
      epoch: 1,
      workerTarget: '',
      priority,
    });
    const [old, raised, far, young] = [ringOf(8), ringOf(8), ringOf(1), ringOf(1)];
    near.keep([old, raised]);
    await near.raise([raised]);
    clock += 50_000;
    await doorbell.ring([far]);
    clock += 10_000;
    near.keep([young]);
    near.meet();
    await sending;
    const order: TurnId[] = [];
    const subscription = await doorbell.listen({
      workerTarget: '',
      concurrency: 1,
      handle: async ({ turnId }) => void order.push(turnId),
      onError: () => undefined,
    });
    await waitFor(() => order.length === 4, { message: 'all rings are delivered' });
    await subscription.close();
    await doorbell.close();
    expect(order).toEqual([raised, old, far, young].map(({ turnId }) => turnId));
  });

  test('do not show the model the asynchronous context of the code that rings', async () => {
    own.isHolding = true;
    await own.work();
    await own.untilAlone();
    const turnIds = await request.run('of a request', () =>
      Promise.all(Array.from({ length: 3 }, (_, n) => own.launch('leaf', `${n}`))),
    );
    await own.untilHeld();
    expect(own.rung).toEqual([]);
    own.letAllGo();
    for (const turnId of turnIds) await end(turnId);
    expect(own.seen).toEqual(turnIds.map(() => undefined));
  });
});
