import type { Ring } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { hasRedisCluster, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Log, silentLog } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { type OpenRuntime, openRuntime } from '../open.js';
import { clusterPrefix } from '../queue/connect-cluster.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { checkInvariants } from '../testing/invariants.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { createWorker, type Worker } from '../worker/worker.js';

const SOON = { deadlineMs: 60_000 };
const TARGETS = ['', 'gpu'];
/** A key of the queue, to determine its slot. */
const keyOf = (queue: string): string => `${clusterPrefix('boxcar', queue)}:${queue}:meta`;

/** A doorbell for a target that no worker serves, so that only the queue delivers its rings. */
class Bell implements AsyncDisposable {
  readonly doorbell: BullMqDoorbell;
  readonly #target: string;
  readonly #heard = new Set<string>();

  constructor(backend: TestBackend, target: string) {
    this.doorbell = new BullMqDoorbell(openQueues(backend.connection), silentLog);
    this.#target = target;
  }

  newRing(): Ring {
    return { turnId: newId<'turn'>(), epoch: 1, workerTarget: this.#target };
  }

  async listen(): Promise<void> {
    await this.doorbell.listen({
      workerTarget: this.#target,
      concurrency: 5,
      handle: async ({ turnId }) => void this.#heard.add(turnId),
      onError: () => undefined,
    });
  }

  /** Repeats lost rings, as the sweep does. */
  async untilHeard(rings: readonly Ring[]): Promise<void> {
    await waitFor(
      async () => {
        const missing = rings.filter(({ turnId }) => !this.#heard.has(turnId));
        const lost = (await this.doorbell.findLost(missing)) ?? [];
        await this.doorbell.ring(lost);
        return missing.length === 0;
      },
      { message: `all rings for ${this.#target} are heard`, ...SOON },
    );
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.doorbell.close();
  }
}

/** Callers and workers are separate runtimes, so each turn needs a ring. */
class Place {
  readonly backend: TestBackend;
  readonly caller: OpenRuntime;
  readonly pool: OpenRuntime;
  readonly events: string[] = [];
  worker!: Worker;

  private constructor(backend: TestBackend) {
    const log: Log = (_level, event) => void this.events.push(event);
    this.backend = backend;
    const model = createModelRouter({ scripted: {} });
    this.caller = openRuntime({ ...backend.urls, model, log });
    this.pool = openRuntime({ ...backend.urls, model, log });
  }

  static async open(): Promise<Place> {
    const place = new Place(await testBackend('cluster'));
    for (const target of TARGETS)
      await place.caller.runtime.applyProfile({
        name: `echo${target}`,
        instructions: 'Answer.',
        model: 'scripted',
        worker_target: target,
        script: [{ say: 'done {{instruction}}' }],
      });
    place.worker = await createWorker(place.pool.runtime, {
      targets: TARGETS,
      sweepMs: 200,
      lostRingMs: 500,
    });
    return place;
  }

  get cluster() {
    if (this.backend.cluster === undefined) throw new Error('the queues are not on a cluster');
    return this.backend.cluster;
  }

  async launch(instruction: string, target = ''): Promise<string> {
    const { answer } = await this.caller.runtime.accept('launch_principal', {
      profile_name: `echo${target}`,
      instruction,
    });
    return (answer as { turn_id: string }).turn_id;
  }

  /** Launches turns of both targets and waits for their ends. */
  async runTurns(name: string, count: number): Promise<void> {
    const ids = await Promise.all(
      Array.from({ length: count }, (_, n) => this.launch(`${name} ${n}`, TARGETS[n % TARGETS.length])),
    );
    const ends = await Promise.all(
      ids.map((id) => this.caller.runtime.waitForTurn(id, { timeoutMs: 60_000 })),
    );
    expect(ends.map(({ status }) => status)).toEqual(ids.map(() => 'success'));
  }

  openBell(target: string): Bell {
    return new Bell(this.backend, target);
  }

  /** The events since the last call of this method. */
  takeEvents(): string[] {
    return this.events.splice(0);
  }

  async close(): Promise<void> {
    await this.worker.close({ graceMs: 1_000 });
    await this.caller.close();
    await this.pool.close();
    await this.backend.close();
  }
}

describe.runIf(hasRedisCluster())('queues on a cluster of three masters', () => {
  let place: Place;
  beforeAll(async () => {
    place = await Place.open();
  });
  afterAll(async () => {
    await checkInvariants(place.backend.database.pool);
    await place.close();
  });

  /** On a busy machine a queue may answer too late for a ring, which the sweep then repeats. In that case the turns are run again. */
  const ringsArrive = (name: string, turns: number): Promise<unknown> =>
    waitFor(
      async () => {
        place.takeEvents();
        await place.runTurns(name, turns);
        return !place.takeEvents().includes('doorbell.ring_lost');
      },
      { message: `rings reach the cluster: ${name}`, ...SOON },
    );

  test('turns of two targets end, and their rings arrive', async () => {
    await ringsArrive('first', 40);
  });

  test('the queues of a target and of the doors are on separate nodes', async () => {
    const owners = await Promise.all(
      ['boxcar-turns', 'boxcar-turns-gpu', 'boxcar-primitives'].map((queue) =>
        place.cluster.ownerOf(keyOf(queue)),
      ),
    );
    expect(new Set(owners.map(({ url }) => url)).size).toBeGreaterThan(1);
    const tools = await Promise.all(
      ['boxcar-primitives', 'boxcar-tool-results', 'boxcar-tools-x'].map((queue) =>
        place.cluster.ownerOf(keyOf(queue)),
      ),
    );
    expect(new Set(tools.map(({ url }) => url)).size).toBe(1);
  });

  test('a primitive that a BullMQ client submits is answered when its turn has ended', async () => {
    const door = place.pool.serveQueueDoor();
    const queue = place.backend.queue('boxcar-primitives');
    const { id = '' } = await queue.add('ask_expert', {
      project_id: 'default',
      arguments: { expert_profile: 'echogpu', question: 'life' },
    });
    const job = await waitFor(
      async () => {
        const now = await queue.getJob(id);
        return now?.finishedOn === undefined ? undefined : now;
      },
      { message: 'the job has ended', ...SOON },
    );
    expect(job.failedReason).toBeUndefined();
    expect(job.returnvalue).toMatchObject({ status: 'success' });
    await door.close();
  });

  test('rings are heard or reported as lost while the slot of their queue moves', async () => {
    await using bell = place.openBell('moving');
    await bell.listen();
    const rung: Ring[] = [];
    for (let round = 0; round < 4; round += 1) {
      const rings = Array.from({ length: 50 }, () => bell.newRing());
      rung.push(...rings);
      await Promise.all([bell.doorbell.ring(rings), place.cluster.moveSlotOf(keyOf('boxcar-turns-moving'))]);
    }
    await bell.untilHeard(rung);
  });

  test('turns end while the slots of their queues move to other nodes', async () => {
    let isMoving = true;
    const running = (async () => {
      for (let round = 0; isMoving; round += 1) await place.runTurns(`moved ${round}`, 10);
    })();
    for (const queue of ['boxcar-turns', 'boxcar-turns-gpu', 'boxcar-turns', 'boxcar-turns-gpu']) {
      const before = await place.cluster.ownerOf(keyOf(queue));
      await place.cluster.moveSlotOf(keyOf(queue));
      expect((await place.cluster.ownerOf(keyOf(queue))).url).not.toBe(before.url);
    }
    isMoving = false;
    await running;
    await ringsArrive('after the move', 20);
  });

  test('without one of its masters turns end through the rows, and through the queue once the master is back', async () => {
    await using bell = place.openBell('away');
    await bell.listen();
    const node = await place.cluster.ownerOf(keyOf('boxcar-turns-away'));
    await node.stop();
    await place.cluster.untilWhole(false);
    await place.runTurns('without a master', 20);
    expect(place.takeEvents()).toContain('doorbell.ring_lost');

    await node.start();
    await place.cluster.untilWhole(true);
    await ringsArrive('again', 4);
    const ring = bell.newRing();
    await bell.doorbell.ring([ring]);
    await bell.untilHeard([ring]);
  });
});
