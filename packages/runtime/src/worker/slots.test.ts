import type { Doorbell, Model } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { openQueues } from '../queue/queues.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import { Place, type SlotQueue, Slots } from './slots.js';

/** A queue with a fixed supply of rings that asks for a slot for each ring until it is paused. */
class Queue {
  rings: number;
  isPaused = false;
  taken = 0;
  #slots: SlotQueue | undefined;

  constructor(rings: number) {
    this.rings = rings;
  }

  async join(slots: Slots): Promise<this> {
    await slots.join(async (queue) => {
      this.#slots = queue;
      return { pause: () => this.pause(), resume: () => this.resume() };
    });
    return this;
  }

  pause(): void {
    this.isPaused = true;
  }

  resume(): void {
    this.isPaused = false;
    this.bring();
  }

  bring(): void {
    while (!this.isPaused && this.rings > 0) {
      if (this.#slots?.admit() !== true) {
        this.isPaused = true;
        return;
      }
      this.rings--;
      this.taken++;
    }
    if (this.rings === 0) this.#slots?.empty();
  }
}

describe('the slots of a worker', () => {
  test('that become free are given to the queues in rotation', async () => {
    const slots = new Slots(2);
    const [long, short] = [await new Queue(100).join(slots), await new Queue(3).join(slots)];
    long.bring();
    short.bring();
    expect([long.taken, short.taken, slots.free]).toEqual([2, 0, 0]);
    for (let ends = 0; ends < 6; ends++) slots.release();
    expect([long.taken, short.taken, slots.free]).toEqual([5, 3, 0]);
    slots.release();
    expect(long.taken).toBe(6);
  });

  test('are free only while there is memory for a view', async () => {
    let hasRoom = false;
    const slots = new Slots(2, () => hasRoom);
    const queue = await new Queue(3).join(slots);
    queue.bring();
    expect([queue.taken, queue.isPaused, slots.take()]).toEqual([0, true, false]);
    slots.offer();
    expect(queue.taken).toBe(0);
    hasRoom = true;
    slots.offer();
    expect([queue.taken, slots.free]).toEqual([2, 0]);
  });

  test('are given to its own rings only while every queue is empty', async () => {
    const slots = new Slots(2);
    const [first, second] = [await new Queue(1).join(slots), await new Queue(0).join(slots)];
    // It is not yet known whether the queues have rings.
    expect(slots.takeOwn()).toBe(false);
    first.bring();
    second.bring();
    expect(slots.takeOwn()).toBe(true);
    expect(slots.takeOwn()).toBe(false);
    first.rings = 1;
    first.bring();
    expect(first.isPaused).toBe(true);
    slots.release();
    expect([first.taken, slots.free]).toEqual([2, 0]);
  });

  test('are not reserved for a queue that does not answer', async () => {
    const slots = new Slots(1);
    const [silent, busy] = [await new Queue(1).join(slots), await new Queue(9).join(slots)];
    busy.bring();
    silent.bring();
    expect([busy.isPaused, silent.isPaused]).toEqual([true, true]);
    // Its ring was taken by another process, and the queue does not report that it is empty.
    silent.rings = 0;
    silent.resume = () => undefined;
    slots.release();
    slots.release();
    await waitFor(() => busy.taken >= 2, { message: 'the other queue gets the slot' });
  });
});

describe('a turn that waits for another turn', () => {
  const noop = (): void => undefined;
  const { signal: running } = new AbortController();
  /** Work that stays pending until it is released. */
  const pending = () => {
    let letGo = noop;
    const done = new Promise<void>((settle) => {
      letGo = settle;
    });
    return { work: () => done, letGo };
  };

  test('lends its slot, and continues when it has the next slot', async () => {
    const slots = new Slots(1);
    expect(slots.take()).toBe(true);
    const place = new Place(slots, noop);
    const child = pending();
    let isBack = false;
    const waiting = place.whileWaiting(child.work, running).then(() => {
      isBack = true;
    });
    expect(slots.take()).toBe(true);
    child.letGo();
    await new Promise(setImmediate);
    expect([isBack, slots.free]).toEqual([false, 0]);
    slots.release();
    await waiting;
    expect(slots.free).toBe(0);
    place.leave();
    expect(slots.free).toBe(1);
  });

  test('lends its slot once, however many waits it has at the same time and later', async () => {
    const slots = new Slots(2);
    slots.take();
    const place = new Place(slots, noop);
    const children = [pending(), pending()];
    const waits = children.map(({ work }) => place.whileWaiting(work, running));
    expect(slots.free).toBe(2);
    for (const { letGo } of children) letGo();
    await Promise.all(waits);
    expect(slots.free).toBe(1);
    await place.whileWaiting(() => Promise.resolve(), running);
    expect(slots.free).toBe(1);
    await expect(place.whileWaiting(() => Promise.reject(new Error('failed')), running)).rejects.toThrow(
      'failed',
    );
    expect(slots.free).toBe(1);
    place.leave();
    expect(slots.free).toBe(2);
  });

  test('ends without a slot when it is aborted, also while it waits for a slot', async () => {
    const slots = new Slots(1);
    for (const isWaitingForSlot of [false, true]) {
      slots.take();
      const place = new Place(slots, noop);
      const controller = new AbortController();
      const child = pending();
      const waiting = place.whileWaiting(child.work, controller.signal);
      // The slot is taken by the ring of the next epoch, which waits for the end of this run.
      expect(slots.take()).toBe(true);
      if (!isWaitingForSlot) controller.abort();
      child.letGo();
      await new Promise(setImmediate);
      controller.abort();
      await waiting;
      place.leave();
      expect(slots.free).toBe(0);
      slots.release();
      expect(slots.free).toBe(1);
    }
  });

  test('gives back no slot twice when it ends meanwhile', async () => {
    const slots = new Slots(1);
    slots.take();
    const place = new Place(slots, noop);
    const child = pending();
    const waiting = place.whileWaiting(child.work, running);
    place.leave();
    expect(slots.free).toBe(1);
    child.letGo();
    await waiting;
    expect(slots.free).toBe(1);
  });

  test('leaves the slot to others when it ends while it waits for a slot', async () => {
    const slots = new Slots(1);
    slots.take();
    const place = new Place(slots, noop);
    const child = pending();
    const waiting = place.whileWaiting(child.work, running);
    slots.take();
    child.letGo();
    await new Promise(setImmediate);
    place.leave();
    await waiting;
    slots.release();
    expect(slots.free).toBe(1);
  });
});

interface Stage extends AsyncDisposable {
  readonly h: Harness;
  /** Turns whose models wait for `letGo`, in the order of their starts. */
  readonly held: string[];
  /** Turns whose rings were refused because the worker had no slot. */
  readonly refused: string[];
  letGo(): void;
  start(profile: string): Promise<string>;
}

async function openStage(kind: 'in process' | ReturnType<typeof queueBackends>[number]): Promise<Stage> {
  const backend = kind === 'in process' ? undefined : await testBackend(kind);
  const doorbell: Doorbell =
    backend === undefined
      ? new InProcessDoorbell()
      : new BullMqDoorbell(openQueues(backend.connection), silentLog);
  const refused: string[] = [];
  const listen = doorbell.listen.bind(doorbell);
  doorbell.listen = (options) =>
    listen({
      ...options,
      admit: (ring) => {
        const isAdmitted = options.admit?.(ring) ?? true;
        if (!isAdmitted) refused.push(ring.turnId);
        return isAdmitted;
      },
    });
  const held: string[] = [];
  let waiting: (() => void)[] = [];
  const router = createModelRouter({});
  const model: Model = {
    ...router,
    generate: async (request, options) => {
      held.push(request.turn.turnId);
      await new Promise<void>((settle) => waiting.push(settle));
      return router.generate(request, options);
    },
  };
  const h = await harness({ doorbell, model });
  await h.profile('common', [{ say: 'done' }]);
  await h.profile('gpu', [{ say: 'done' }], { worker_target: 'gpu' });
  const letGo = (): void => {
    for (const settle of waiting.splice(0)) settle();
  };
  return {
    h,
    held,
    refused,
    letGo,
    start: async (profile) => {
      const receipt = await h.runtime.submit('launch_principal', {
        profile_name: profile,
        instruction: 'go',
      });
      return (receipt as { turn_id: string }).turn_id;
    },
    [Symbol.asyncDispose]: async () => {
      waiting = new Proxy(waiting, {
        get: (of, key) => (key === 'push' ? (settle: () => void) => settle() : Reflect.get(of, key)),
      });
      letGo();
      await h[Symbol.asyncDispose]();
      await backend?.close();
    },
  };
}

const QUIET = { sweepMs: 3_600_000, heartbeatMs: 1_000 };

describe.each(['in process', ...queueBackends()] as const)('a worker with rings %s', (kind) => {
  test('leaves rings for which it has no slot to an idle worker', async () => {
    await using stage = await openStage(kind);
    const { h, held, letGo, start } = stage;
    await h.worker({ ...QUIET, concurrency: 1, targets: ['', 'gpu'] });
    const long = await start('common');
    await waitFor(() => held.includes(long), { message: 'the worker of both targets is busy' });
    const others = [await start('gpu')];
    await waitFor(() => stage.refused.length > 0, { message: 'the busy worker has given its ring back' });
    expect(held).toEqual([long]);
    await h.worker({ ...QUIET, concurrency: 5, targets: ['gpu'] });
    await waitFor(() => held.length === 2, { message: 'the turn whose ring was given back runs' });
    for (let count = 1; count < 5; count++) {
      const turnId = await start('gpu');
      others.push(turnId);
      // The worker does not sweep, so only the ring can have started the turn.
      await waitFor(() => held.includes(turnId), { message: `turn ${count} of the other target runs` });
    }
    expect(held).toEqual([long, ...others]);
    letGo();
    for (const turnId of [long, ...others])
      expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({
        status: 'success',
      });
    await checkInvariants(h.database.pool);
  });

  test('leaves rings for which it has no memory to an idle worker, and takes rings again once it has memory', async () => {
    await using stage = await openStage(kind);
    const { h, held, letGo, start } = stage;
    // Enough for one view of 100 KB, and not for the view of another turn.
    const full = await h.worker({ ...QUIET, concurrency: 10, viewBytes: 300_000 });
    const receipt = await h.runtime.submit('launch_principal', {
      profile_name: 'common',
      instruction: 'x'.repeat(100_000),
    });
    const large = (receipt as { turn_id: string }).turn_id;
    await waitFor(() => held.includes(large), { message: 'the large turn runs' });
    const refused = await start('common');
    await waitFor(() => stage.refused.includes(refused), {
      message: 'the full worker has given a ring back',
    });
    const idle = await h.worker({ ...QUIET, concurrency: 3 });
    const others = [refused, await start('common'), await start('common')];
    await waitFor(() => others.every((turnId) => held.includes(turnId)), {
      message: 'the other worker runs the other turns',
    });
    expect([full.activeCount, idle.activeCount]).toEqual([1, 3]);
    // The other worker has no slot left.
    const last = await start('common');
    letGo();
    await waitFor(() => held.includes(last), { message: 'the last turn runs' });
    letGo();
    for (const turnId of [large, ...others, last])
      expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('serves its targets in rotation, even if one of them has a long queue', async () => {
    await using stage = await openStage(kind);
    const { h, held, letGo, start } = stage;
    const worker = await h.worker({ ...QUIET, concurrency: 1, targets: ['', 'gpu'] });
    const common: string[] = [];
    for (let count = 0; count < 4; count++) common.push(await start('common'));
    await waitFor(() => held.length === 1, { message: 'the first turn runs' });
    const first = await start('gpu');
    await waitFor(() => stage.refused.includes(first), { message: 'a ring of the other target waits' });
    // Rung only now, because two rings sent at the same time may arrive in either order.
    const gpu = [first, await start('gpu')];
    const all = [...common, ...gpu];
    for (let ends = 1; ends < all.length; ends++) {
      letGo();
      await waitFor(() => held.length === ends + 1, { message: `turn ${ends + 1} runs` });
      expect(worker.activeCount).toBe(1);
    }
    letGo();
    for (const turnId of all) await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    // The first turn of the other target waits for two ends at most, and the second for two more.
    const places = gpu.map((turnId) => held.indexOf(turnId));
    expect(places[0]).toBeLessThanOrEqual(2);
    expect(places[1]).toBeLessThanOrEqual(4);
    expect(new Set(held).size).toBe(all.length);
  });
});
