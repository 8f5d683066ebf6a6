import { setTimeout as delay } from 'node:timers/promises';
import type { Doorbell, DoorbellSubscription, Ring } from '@boxcar/kernel';
import { queueBackends, tcpProxy, waitFor } from '@boxcar/testkit';
import type { JobsOptions } from 'bullmq';
import { describe, expect, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { newId } from '../lib/new-id.js';
import { type QueuePlace, queuePlaces, type TestBackend, testBackend } from '../testing/queue-backend.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from './doorbell-bullmq.js';
import { InProcessDoorbell } from './doorbell-in-process.js';
import type { QueueConnection } from './job-queue.js';
import { openQueues } from './queues.js';

const newRing = (workerTarget = '', epoch = 1): Ring => ({ turnId: newId<'turn'>(), epoch, workerTarget });
const keyOf = (ring: Ring): string => `${ring.turnId}-${ring.epoch}`;

/**
 * Settles like `work`; late work fails the test. The limit is far above any promised limit, so a slow machine passes.
 */
async function inTime<T>(work: Promise<T>, what: string): Promise<T> {
  const late = new AbortController();
  try {
    return await Promise.race([
      work,
      delay(8_000, undefined, { signal: late.signal }).then(() => {
        throw new Error(`${what} did not come back`);
      }),
    ]);
  } finally {
    late.abort();
  }
}

/** A listener that holds each ring until it is let go. */
class Listener {
  readonly heard: string[] = [];
  readonly errors: unknown[] = [];
  readonly #held = new Map<string, () => void>();
  #isHolding: boolean;
  hasRoom = true;
  readonly refused: string[] = [];
  mostInHand = 0;

  constructor(options: { readonly isHolding?: boolean } = {}) {
    this.#isHolding = options.isHolding ?? false;
  }

  readonly handle = async (ring: Ring): Promise<void> => {
    this.heard.push(keyOf(ring));
    if (!this.#isHolding) return;
    const released = new Promise<void>((release) => this.#held.set(keyOf(ring), release));
    this.mostInHand = Math.max(this.mostInHand, this.#held.size);
    await released;
    this.#held.delete(keyOf(ring));
  };
  readonly onError = (error: unknown): void => void this.errors.push(error);
  readonly admit = (ring: Ring): boolean => {
    if (!this.hasRoom) this.refused.push(keyOf(ring));
    return this.hasRoom;
  };

  get inHand(): number {
    return this.#held.size;
  }

  letGo(): void {
    for (const release of this.#held.values()) release();
  }

  letAllGo(): void {
    this.#isHolding = false;
    this.letGo();
  }

  async listen(
    doorbell: Doorbell,
    options: { workerTarget?: string; concurrency?: number } = {},
  ): Promise<DoorbellSubscription & AsyncDisposable> {
    const subscription = await doorbell.listen({
      workerTarget: options.workerTarget ?? '',
      concurrency: options.concurrency ?? 1,
      admit: this.admit,
      handle: this.handle,
      onError: this.onError,
    });
    return {
      pause: () => subscription.pause(),
      resume: () => subscription.resume(),
      close: () => subscription.close(),
      // A test that failed must not wait for the rings it held.
      [Symbol.asyncDispose]: () => {
        this.letAllGo();
        return subscription.close();
      },
    };
  }

  heardAll(...rings: readonly Ring[]): Promise<boolean> {
    return waitFor(() => rings.every((ring) => this.heard.includes(keyOf(ring))), {
      message: `${rings.length} rings are heard`,
    });
  }
}

const openBullMq = (connection: QueueConnection): BullMqDoorbell =>
  new BullMqDoorbell(openQueues(connection), silentLog);

interface Opened extends AsyncDisposable {
  readonly doorbell: Doorbell;
  /** The backend that holds the rings; absent when this process holds them. */
  readonly backend?: TestBackend;
}

async function openOn(kind: 'in process' | QueuePlace): Promise<Opened> {
  if (kind === 'in process') {
    const doorbell = new InProcessDoorbell();
    return { doorbell, [Symbol.asyncDispose]: () => doorbell.close() };
  }
  const backend = await testBackend(kind);
  const doorbell = openBullMq(backend.connection);
  const close = async (): Promise<void> => {
    await doorbell.close();
    await backend.close();
  };
  return { doorbell, backend, [Symbol.asyncDispose]: close };
}

describe.each(['in process', ...queuePlaces()] as const)('a doorbell on %s', (kind) => {
  test('delivers a ring once, however often it is rung before and while it is answered', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [ring, last] = [newRing(), newRing()];
    const next = { ...ring, epoch: 2 };
    await doorbell.ring([ring, ring]);
    await doorbell.ring([ring]);
    const listener = new Listener({ isHolding: true });
    await using _subscription = await listener.listen(doorbell);
    await listener.heardAll(ring);
    await doorbell.ring([ring]);
    await doorbell.ring([next, last]);
    listener.letAllGo();
    // Rings are delivered one at a time and in order, so an earlier ring has arrived when the last one arrives.
    await listener.heardAll(last);
    expect(listener.heard).toEqual([ring, next, last].map(keyOf));
  });

  test('delivers rings only to listeners of their target', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [common, special] = [newRing(), newRing('gpu')];
    const [pool, gpu] = [new Listener(), new Listener()];
    await using _first = await pool.listen(doorbell);
    await doorbell.ring([special, common]);
    await pool.heardAll(common);
    await using _second = await gpu.listen(doorbell, { workerTarget: 'gpu' });
    await gpu.heardAll(special);
    expect([pool.heard, gpu.heard]).toEqual([[keyOf(common)], [keyOf(special)]]);
  });

  test('delivers no more rings at once than the concurrency allows', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const rings = Array.from({ length: 12 }, () => newRing());
    const listener = new Listener({ isHolding: true });
    await using _subscription = await listener.listen(doorbell, { concurrency: 3 });
    await doorbell.ring(rings);
    while (listener.heard.length < rings.length) {
      await waitFor(() => listener.inHand >= 3 || listener.heard.length === rings.length, {
        message: 'the worker has taken three rings',
      });
      // The queue has answered twice since then: a fourth ring would have arrived.
      await doorbell.findLost(rings);
      await doorbell.findLost(rings);
      listener.letGo();
    }
    listener.letAllGo();
    expect(listener.mostInHand).toBe(3);
    expect(new Set(listener.heard).size).toBe(rings.length);
  });

  test('reports a ring as lost only when neither a queue nor a listener has it', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [answered, active, waiting, never] = [newRing(), newRing(), newRing(), newRing()];
    const everything = [answered, active, waiting, never];
    await doorbell.ring([answered]);
    const listener = new Listener();
    await using first = await listener.listen(doorbell);
    await listener.heardAll(answered);
    await first.close();
    const holder = new Listener({ isHolding: true });
    await using _second = await holder.listen(doorbell);
    await doorbell.ring([active]);
    await holder.heardAll(active);
    await doorbell.ring([waiting]);
    expect(await doorbell.findLost(everything)).toEqual([answered, never]);
    expect(await doorbell.findLost([])).toEqual([]);
    holder.letAllGo();
    await holder.heardAll(waiting);
    await waitFor(async () => (await doorbell.findLost(everything))?.length === 4, {
      message: 'all rings are answered',
    });
  });

  test('continues after a handler has thrown, and reports the error', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [bad, good] = [newRing(), newRing()];
    const listener = new Listener();
    const subscription = await doorbell.listen({
      workerTarget: '',
      concurrency: 1,
      handle: async (ring) => {
        await listener.handle(ring);
        if (keyOf(ring) === keyOf(bad)) throw new Error('the handler broke');
      },
      onError: listener.onError,
    });
    await doorbell.ring([bad, good]);
    await listener.heardAll(good);
    await subscription.close();
    expect(listener.errors.map(String)).toEqual(['Error: the handler broke']);
    expect(listener.heard).toEqual([bad, good].map(keyOf));
  });

  test.each([0, 7])(
    'gives a ring of priority %i at once to another listener when the first one has no room',
    async (priority) => {
      await using opened = await openOn(kind);
      const { doorbell } = opened;
      const [full, idle] = [new Listener(), new Listener()];
      full.hasRoom = false;
      await using first = await full.listen(doorbell, { concurrency: 3 });
      await using second = await idle.listen(doorbell);
      // Repeats until a ring was delivered to the listener without room.
      for (let count = 0; count < 100 && full.refused.length === 0; count++) {
        const ring = { ...newRing(), priority };
        await doorbell.ring([ring]);
        await waitFor(() => idle.heard.includes(keyOf(ring)), {
          message: 'the idle listener has the ring',
          // Without a notice, a listener of BullMQ checks its queue after five seconds.
          deadlineMs: 3_500,
        });
      }
      expect(full.refused).not.toEqual([]);
      expect(full.heard).toEqual([]);
      expect(new Set(idle.heard).size).toBe(idle.heard.length);
      full.hasRoom = true;
      first.resume();
      await second.close();
      const next = newRing();
      await doorbell.ring([next]);
      await full.heardAll(next);
    },
  );

  test('keeps a ring until its only listener has room for it', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const rings = [newRing(), { ...newRing(), priority: 1 }, { ...newRing(), priority: 2 }];
    const listener = new Listener();
    listener.hasRoom = false;
    await using subscription = await listener.listen(doorbell, { concurrency: 2 });
    await doorbell.ring(rings);
    await waitFor(() => listener.refused.length > 0, { message: 'a ring is refused' });
    expect(await doorbell.findLost(rings)).toEqual([]);
    // The listener may have asked for a second ring while the first was delivered, but not for more.
    expect(listener.refused.length).toBeLessThanOrEqual(2);
    expect(listener.heard).toEqual([]);
    listener.hasRoom = true;
    subscription.resume();
    await listener.heardAll(...rings);
    expect(listener.heard).toHaveLength(3);
  });

  test('delivers rings by their priority, and rings of equal priority in order', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [last, second, third, first] = [9, 3, 3, 0].map((priority) => ({ ...newRing(), priority }));
    const rings = [last, second, third, first].flatMap((ring) => ring ?? []);
    for (const ring of rings) await doorbell.ring([ring]);
    expect(await doorbell.findLost(rings)).toEqual([]);
    const listener = new Listener();
    await using _subscription = await listener.listen(doorbell);
    await listener.heardAll(...rings);
    expect(listener.heard).toEqual(
      [first, second, third, last].flatMap((ring) => (ring ? [keyOf(ring)] : [])),
    );
  });

  test('raises rings to priority 0, after the rings that already have it', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const waiting = [0, 0, 3, 8, 8].map((priority) => ({ ...newRing(), priority }));
    const [first, second, third, fourth, last] = waiting as [Ring, Ring, Ring, Ring, Ring];
    for (const ring of waiting) await doorbell.ring([ring]);
    const unknown = { ...newRing(), priority: 8 };
    await doorbell.raise([last, first, unknown]);
    await doorbell.raise([last, first, unknown]);
    expect(await doorbell.findLost([...waiting, unknown])).toEqual([unknown]);
    const listener = new Listener();
    await using _subscription = await listener.listen(doorbell);
    await listener.heardAll(...waiting);
    expect(listener.heard).toEqual([first, second, last, third, fourth].map(keyOf));
  });

  test('keeps the order of rings of equal priority when its listener has no room for a ring', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const rings = Array.from({ length: 6 }, () => ({ ...newRing(), priority: 8 }));
    for (const ring of rings) await doorbell.ring([ring]);
    const listener = new Listener();
    listener.hasRoom = false;
    await using subscription = await listener.listen(doorbell);
    await waitFor(() => listener.refused.length > 0, { message: 'a ring is refused' });
    listener.hasRoom = true;
    subscription.resume();
    await listener.heardAll(...rings);
    expect(listener.heard).toEqual(rings.map(keyOf));
  });

  test('stops delivery when a subscription is closed, and the close waits for the ring in progress', async () => {
    await using opened = await openOn(kind);
    const { doorbell } = opened;
    const [held, later] = [newRing(), newRing()];
    const listener = new Listener({ isHolding: true });
    await using subscription = await listener.listen(doorbell, { concurrency: 2 });
    await doorbell.ring([held]);
    await listener.heardAll(held);
    const order: string[] = [];
    const closed = subscription.close().then(() => order.push('closed'));
    await doorbell.ring([later]);
    // Two answers of the queue later the subscription is still open for the ring in progress, and for no other ring.
    expect(await doorbell.findLost([held, later])).toEqual([]);
    expect(await doorbell.findLost([held, later])).toEqual([]);
    order.push('let go');
    listener.letAllGo();
    await closed;
    expect(order).toEqual(['let go', 'closed']);
    expect(listener.heard).toEqual([keyOf(held)]);
    const next = new Listener();
    await using _other = await next.listen(doorbell);
    await next.heardAll(later);
  });
});

describe.each(['in process', ...queueBackends()] as const)(
  'a doorbell on %s that is asked for lost rings',
  (kind) => {
    test('reports a ring as lost when a listener holds it longer than allowed', async () => {
      await using opened = await openOn(kind);
      const { doorbell } = opened;
      const [held, waiting] = [newRing(), newRing()];
      const listener = new Listener({ isHolding: true });
      await using _subscription = await listener.listen(doorbell, { concurrency: 1 });
      await doorbell.ring([held]);
      await listener.heardAll(held);
      await doorbell.ring([waiting]);
      expect(await doorbell.findLost([held, waiting])).toEqual([]);
      expect(await doorbell.findLost([held, waiting], { takenMs: 3_600_000 })).toEqual([]);
      expect(await doorbell.findLost([held, waiting], { takenMs: 0 })).toEqual([held]);
      listener.letAllGo();
    });
  },
);

describe.each(queueBackends())('the BullMQ doorbell on %s', (kind) => {
  test('reports a ring as lost when its job was removed, or is hidden by a finished job with the same id', async () => {
    await using opened = await openOn(kind);
    const { doorbell, backend } = opened;
    const queue = backend?.queue('boxcar-turns');
    const [removed, swallowed, delayed, prioritized] = [newRing(), newRing(), newRing(), newRing()];
    const add = (ring: Ring, options: JobsOptions) =>
      queue?.add('turn', { turn_id: ring.turnId, epoch: ring.epoch }, { jobId: keyOf(ring), ...options });
    await add(swallowed, { removeOnComplete: false });
    const listener = new Listener();
    await using subscription = await listener.listen(doorbell);
    await listener.heardAll(swallowed);
    await subscription.close();
    expect(await queue?.getJobState(keyOf(swallowed))).toBe('completed');

    await add(delayed, { delay: 3_600_000 });
    await add(prioritized, { priority: 3 });
    // On a busy machine a ring arrives after the time limit of `ring`.
    const arrived = (ring: Ring) =>
      waitFor(async () => (await queue?.getJobState(keyOf(ring))) !== 'unknown', {
        message: 'the ring has arrived',
      });
    await doorbell.ring([removed, swallowed]);
    await arrived(removed);
    await queue?.remove(keyOf(removed));
    await queue?.pause();
    const paused = newRing();
    await doorbell.ring([paused]);
    await arrived(paused);
    const everything = [removed, swallowed, delayed, prioritized, paused];
    expect(await doorbell.findLost(everything)).toEqual([removed, swallowed]);
  });

  test('delivers a ring again that was held by a process that died', async () => {
    await using opened = await openOn(kind);
    const { doorbell, backend } = opened;
    const ring = newRing();
    await doorbell.ring([ring]);
    await backend?.takeAndDie('boxcar-turns');
    // No listener has the ring, and the queue cannot know that yet.
    expect(await doorbell.findLost([ring])).toEqual([]);
    const listener = new Listener();
    await using _subscription = await listener.listen(doorbell);
    await waitFor(() => listener.heard.includes(keyOf(ring)), {
      message: 'the ring is brought again',
      deadlineMs: 60_000,
    });
    expect(listener.heard).toEqual([keyOf(ring)]);
  });

  test('sends many rings in parts of 100, and continues with the next part when a part is never answered', async () => {
    await using opened = await openOn(kind);
    const { backend } = opened;
    if (backend === undefined) throw new Error('no queue');
    const parts: number[] = [];
    const queues = openQueues(backend.connection);
    const log: { event: string; rings: unknown }[] = [];
    const doorbell = new BullMqDoorbell(
      {
        ...queues,
        queue: <D>(name: string) => {
          const queue = queues.queue<D>(name);
          return {
            ...queue,
            addBulk: async (jobs: Parameters<typeof queue.addBulk>[0]) => {
              parts.push(jobs.length);
              // The second part is never answered.
              return parts.length === 2 ? new Promise(() => undefined) : queue.addBulk(jobs);
            },
          };
        },
      },
      (_level, event, fields = {}) => void log.push({ event, rings: fields.rings }),
    );
    const rings = Array.from({ length: 250 }, () => newRing());
    await doorbell.ring(rings);
    expect(parts).toEqual([100, 100, 50]);
    expect(log).toContainEqual({ event: 'doorbell.ring_lost', rings: 100 });
    expect(await doorbell.findLost(rings)).toEqual(expect.arrayContaining(rings.slice(100, 200)));
    await doorbell.close();
  });

  test('does not touch jobs that are not rings', async () => {
    await using opened = await openOn(kind);
    const { doorbell, backend } = opened;
    const queue = backend?.queue('boxcar-turns');
    for (const data of [null, 7, {}, { turn_id: 'x', epoch: 1 }, { turn_id: newId<'turn'>(), epoch: '1' }]) {
      await queue?.add('turn', data);
    }
    const ring = newRing();
    await doorbell.ring([ring]);
    const listener = new Listener();
    await using _subscription = await listener.listen(doorbell);
    await listener.heardAll(ring);
    expect([listener.heard, listener.errors]).toEqual([[keyOf(ring)], []]);
    expect(await queue?.getFailedCount()).toBe(0);
  });

  test('wakes delayed jobs at the queue door, and names jobs that no longer exist', async () => {
    await using opened = await openOn(kind);
    const { doorbell, backend } = opened;
    const queue = backend?.queue(PRIMITIVES_QUEUE);
    await queue?.add('x', {}, { jobId: 'asleep', delay: 3_600_000 });
    await queue?.add('x', {}, { jobId: 'awake' });
    expect(await doorbell.knock(['asleep', 'awake', 'gone'])).toEqual(['gone']);
    expect(await queue?.getJobState('asleep')).toBe('waiting');
  });

  test('stops asking a queue that does not answer the first part', async () => {
    await using opened = await openOn(kind);
    const { backend } = opened;
    if (backend === undefined) throw new Error('no queue');
    let asked = 0;
    const queues = openQueues(backend.connection);
    const doorbell = new BullMqDoorbell(
      {
        ...queues,
        queue: <D>(name: string) => ({
          ...queues.queue<D>(name),
          getJobState: () => {
            asked += 1;
            return new Promise<string>(() => undefined);
          },
        }),
      },
      silentLog,
    );
    const rings = Array.from({ length: 200 }, () => newRing());
    expect(await doorbell.knock(rings.map(keyOf))).toBeUndefined();
    expect(asked).toBe(50);
    await doorbell.raise(rings);
    expect(asked).toBe(100);
    await doorbell.close();
  });

  test('keeps the order of raised rings, and calls a slow queue slow, not unreachable', async () => {
    await using opened = await openOn(kind);
    const { backend } = opened;
    if (backend === undefined) throw new Error('no queue');
    const queues = openQueues(backend.connection);
    const log: string[] = [];
    let answerMs = 0;
    const slow = new BullMqDoorbell(
      {
        ...queues,
        queue: <D>(name: string) => {
          const known = queues.queue<D>(name);
          return {
            ...known,
            getJob: async (jobId: string) => {
              const job = await known.getJob(jobId);
              return (
                job && {
                  ...job,
                  promote: () => job.promote(),
                  changePriority: async (how: { readonly priority: number }) => {
                    // The first of two requests at once is answered last.
                    await delay(answerMs === 0 ? 10 - raised : answerMs);
                    raised += 1;
                    await job.changePriority(how);
                  },
                }
              );
            },
          };
        },
      },
      (_level, event) => void log.push(event),
    );
    let raised = 0;
    const rings = Array.from({ length: 10 }, () => ({ ...newRing(), priority: 8 }));
    for (const ring of rings) await slow.ring([ring]);
    await slow.raise(rings.slice(0, 5));
    // Two seconds are enough for some of the rest.
    answerMs = 900;
    await inTime(slow.raise(rings.slice(5)), 'raise');
    expect(log).toEqual([]);
    expect(raised).toBeGreaterThan(5);
    expect(raised).toBeLessThan(10);
    await slow.close();
    const listener = new Listener();
    await using _subscription = await listener.listen(opened.doorbell);
    await listener.heardAll(...rings);
    expect(listener.heard).toEqual(rings.map(keyOf));
  });

  test('wakes the other jobs when another process moves a job at the same time', async () => {
    await using opened = await openOn(kind);
    const { backend } = opened;
    if (backend === undefined) throw new Error('no queue');
    const queue = backend.queue(PRIMITIVES_QUEUE);
    await queue.add('x', {}, { jobId: 'asleep', delay: 3_600_000 });
    const queues = openQueues(backend.connection);
    const doorbell = new BullMqDoorbell(
      {
        ...queues,
        queue: <D>(name: string) => {
          const known = queues.queue<D>(name);
          return {
            ...known,
            getJob: async (jobId: string) => {
              await (await known.getJob(jobId))?.promote();
              return known.getJob(jobId);
            },
          };
        },
      },
      silentLog,
    );
    expect(await doorbell.knock(['asleep', 'gone'])).toEqual(['gone']);
    expect(await queue.getJobState('asleep')).toBe('waiting');
    await doorbell.close();
  });

  test.each(['cut off', 'stalled'])(
    'returns from ring in time, and cannot report lost rings, when the queue is %s',
    async (fault) => {
      await using backend = await testBackend(kind);
      await using proxy = await tcpProxy(backend.connection.url);
      const doorbell = openBullMq({ ...backend.connection, url: proxy.url });
      const listener = new Listener();
      const [before, meanwhile, after] = [newRing(), newRing(), newRing()];
      await using subscription = await listener.listen(doorbell);
      await doorbell.ring([before]);
      await listener.heardAll(before);

      const connections = proxy.connectionCount;
      if (fault === 'stalled') proxy.stall();
      else await proxy.cut();
      expect(connections).toBeGreaterThan(0);
      await inTime(doorbell.ring([meanwhile, newRing('gpu'), newRing('other')]), 'a ring');
      const asked = [doorbell.findLost([meanwhile]), doorbell.findLost([]), doorbell.knock(['some', 'job'])];
      expect(await inTime(Promise.all(asked), 'a question')).toEqual([undefined, undefined, undefined]);
      expect(listener.heard).toEqual([keyOf(before)]);

      await proxy.restore();
      await waitFor(() => doorbell.findLost([meanwhile]), { message: 'the queue answers again' });
      await doorbell.ring([after]);
      await listener.heardAll(after);
      await inTime(subscription.close(), 'closing the subscription');
      await inTime(doorbell.close(), 'closing the doorbell');
    },
  );

  test('listens and rings once the server is available, when it was away at the start', async () => {
    await using backend = await testBackend(kind);
    await using proxy = await tcpProxy(backend.connection.url);
    await proxy.cut();
    const doorbell = openBullMq({ ...backend.connection, url: proxy.url });
    const listener = new Listener();
    await inTime(listener.listen(doorbell), 'listening');
    const asked = [doorbell.ring([newRing()]), doorbell.findLost([]), doorbell.knock(['some'])];
    expect(await inTime(Promise.all(asked), 'a question')).toEqual([undefined, undefined, undefined]);

    await proxy.restore();
    await waitFor(() => doorbell.findLost([]), { message: 'the queue answers' });
    const ring = newRing();
    await doorbell.ring([ring]);
    await listener.heardAll(ring);
    await waitFor(async () => (await doorbell.knock(['gone']))?.length === 1, {
      message: 'a knock is answered',
    });
    await doorbell.close();
  });

  test('closes in time when the server is away, with a ring in progress', async () => {
    await using backend = await testBackend(kind);
    await using proxy = await tcpProxy(backend.connection.url);
    const doorbell = openBullMq({ ...backend.connection, url: proxy.url });
    const listener = new Listener({ isHolding: true });
    await using subscription = await listener.listen(doorbell);
    const ring = newRing();
    await doorbell.ring([ring]);
    await listener.heardAll(ring);
    await proxy.cut();
    const closed = subscription.close();
    listener.letAllGo();
    await inTime(closed, 'closing the subscription');
    await inTime(doorbell.close(), 'closing the doorbell');
  });
});
