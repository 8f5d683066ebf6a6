import { KernelError } from '@boxcar/kernel';
import { createPool, handlerScope, insideHandler, refuseNested } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { describe, expect, test, vi } from 'vitest';
import { Batcher, type BatcherOptions, isLockTimeout, LOCKED } from './batcher.js';

/** A batcher that doubles numbers, and the inputs of each of its batches. */
function doubler(options: BatcherOptions & { poison?: number; failure?: Error } = {}) {
  const batches: (readonly number[])[] = [];
  const gates: (() => void)[] = [];
  let isHeld = false;
  const batcher = new Batcher<number, number>(async (inputs) => {
    batches.push(inputs);
    if (isHeld) await new Promise<void>((resolve) => gates.push(resolve));
    if (options.poison !== undefined && inputs.includes(options.poison))
      throw options.failure ?? new Error('poison');
    return inputs.map((input) => input * 2);
  }, options);
  return {
    batcher,
    batches,
    hold: () => {
      isHeld = true;
    },
    release: () => {
      isHeld = false;
      for (const open of gates.splice(0)) open();
    },
  };
}
const range = (n: number): number[] => Array.from({ length: n }, (_none, index) => index);
const addAll = (batcher: Batcher<number, number>, inputs: readonly number[]) =>
  Promise.allSettled(inputs.map((input) => batcher.add(input)));

describe('a batcher', () => {
  test('gives each item its own answer', async () => {
    const { batcher, batches } = doubler();
    const settled = await addAll(batcher, range(5));
    expect(settled).toEqual(range(5).map((input) => ({ status: 'fulfilled', value: input * 2 })));
    expect(batches).toEqual([range(5)]);
  });

  test('divides too many items into several batches, in order', async () => {
    const { batcher, batches } = doubler({ maxItems: 2 });
    await addAll(batcher, range(5));
    expect(batches).toEqual([[0, 1], [2, 3], [4]]);
  });

  test('collects the items that arrive during a batch for the next batch', async () => {
    const { batcher, batches, hold, release } = doubler();
    hold();
    const first = batcher.add(1);
    await new Promise((resolve) => setImmediate(resolve));
    const others = [batcher.add(2), batcher.add(3)];
    await new Promise((resolve) => setImmediate(resolve));
    expect(batches).toEqual([[1]]);
    release();
    expect(await Promise.all([first, ...others])).toEqual([2, 4, 6]);
    expect(batches).toEqual([[1], [2, 3]]);
  });

  test('does not wait for the current batch when the next batch is full', async () => {
    const { batcher, batches, hold, release } = doubler({ maxItems: 2, maxInFlight: 2, patienceMs: 60_000 });
    hold();
    const first = batcher.add(0);
    await new Promise((resolve) => setImmediate(resolve));
    const others = addAll(batcher, range(5));
    await new Promise((resolve) => setImmediate(resolve));
    expect(batches).toEqual([[0], [0, 1]]);
    release();
    await first;
    expect((await others).every(({ status }) => status === 'fulfilled')).toBe(true);
    expect(batches.slice(2)).toEqual([[2, 3], [4]]);
  });

  test('does not wait forever for a batch that hangs', async () => {
    const { batcher, batches, hold, release } = doubler({ patienceMs: 1 });
    hold();
    const hanging = batcher.add(1);
    await new Promise((resolve) => setImmediate(resolve));
    const next = batcher.add(2);
    await waitFor(() => batches.length === 2, { message: 'the second batch is under way' });
    expect(batches).toEqual([[1], [2]]);
    release();
    expect(await Promise.all([hanging, next])).toEqual([2, 4]);
  });

  test('fails all items at once when the database is away, without trying them one by one', async () => {
    const failure = new KernelError('database_unavailable');
    const { batcher, batches } = doubler({ poison: 3, failure });
    const settled = await addAll(batcher, range(7));
    expect(settled).toEqual(range(7).map(() => ({ status: 'rejected', reason: failure })));
    expect(batches).toHaveLength(1);
  });

  test.each(range(7))('lets a faulty item fail alone: %i of seven', async (poison) => {
    const { batcher } = doubler({ poison });
    const settled = await addAll(batcher, range(7));
    expect(settled.map(({ status }) => status)).toEqual(
      range(7).map((input) => (input === poison ? 'rejected' : 'fulfilled')),
    );
    // The batcher continues afterwards.
    expect(await batcher.add(100)).toBe(200);
  });

  /** The store's error for a Postgres error. */
  const limit = (code: string) =>
    new KernelError('database_unavailable', { cause: Object.assign(new Error(code), { code }) });

  test.each(['55P03', '57014'])(
    'waits separately for a row that exceeds a limit (%s), while the other items of its batch continue',
    async (code) => {
      const attempts: { readonly inputs: readonly number[]; readonly isPatient: boolean }[] = [];
      let free = (): void => undefined;
      const freed = new Promise<void>((settle) => {
        free = settle;
      });
      const batcher = new Batcher<number, number>(async (inputs, { isPatient, isRepeated }) => {
        attempts.push({ inputs, isPatient });
        expect(isRepeated).toBe(inputs.length === 1);
        if (inputs.includes(3) && !isPatient) throw limit(code);
        if (inputs.includes(3)) await freed;
        return inputs.map((input) => input * 2);
      });
      const answers = range(40).map((input) => batcher.add(input));
      const others = answers.filter((_answer, input) => input !== 3);
      expect(await Promise.all(others)).toEqual(range(40).flatMap((n) => (n === 3 ? [] : [n * 2])));
      expect(attempts).toHaveLength(41);
      expect(attempts.filter(({ isPatient }) => !isPatient).map(({ inputs }) => inputs)).toEqual([range(40)]);
      free();
      expect(await answers[3]).toBe(6);
    },
  );

  /** A batcher whose work leaves out the given locked items, and a record of its tries. */
  function locking(locked: ReadonlySet<number>, options: { readonly wait?: Promise<unknown> } = {}) {
    const tries: (readonly [kind: 'first' | 'probe' | 'in line', inputs: readonly number[]])[] = [];
    const inLine = { now: 0, most: 0 };
    const batcher = new Batcher<number, number>(
      async (inputs, { leavesLocked, isRepeated, isPatient, lockMs }) => {
        expect(isPatient).toBe(false);
        expect(lockMs === undefined).toBe(!isRepeated);
        tries.push([isRepeated ? (leavesLocked ? 'probe' : 'in line') : 'first', inputs]);
        if (!leavesLocked) {
          expect(inputs).toHaveLength(1);
          inLine.most = Math.max(inLine.most, ++inLine.now);
          await (options.wait ?? new Promise((resolve) => setTimeout(resolve, 20)));
          inLine.now -= 1;
          if (inputs.some((input) => locked.has(input))) throw limit('55P03');
        }
        return inputs.map((input) => (locked.has(input) ? LOCKED : input * 2));
      },
      { leavesLocked: true },
    );
    return { batcher, tries, inLine };
  }

  test('tries an item that its batch has left out again at once, and delays no other item', async () => {
    const locked = new Set([3]);
    let give = (): void => undefined;
    const wait = new Promise<void>((settle) => {
      give = settle;
    });
    const { batcher, tries } = locking(locked, { wait });
    const answers = range(7).map((input) => batcher.add(input));
    expect(await Promise.all(answers.toSpliced(3, 1))).toEqual([0, 2, 4, 8, 10, 12]);
    await waitFor(() => tries.length === 3, { message: 'it waits in line' });
    expect(await batcher.add(7)).toBe(14);
    locked.clear();
    give();
    expect(await answers[3]).toBe(6);
    expect(tries).toEqual([
      ['first', range(7)],
      ['probe', [3]],
      ['in line', [3]],
      ['first', [7]],
    ]);
  });

  test('tries items that have left their batches again together, and lets one of them wait for its lock', async () => {
    const locked = new Set(range(41));
    const { batcher, tries, inLine } = locking(locked);
    const answers = range(41).map((input) => batcher.add(input));
    await waitFor(() => tries.filter(([kind]) => kind === 'in line').length > 1, { message: 'they wait' });
    locked.delete(40);
    expect(await answers[40]).toBe(80);
    // As many other items stay locked, and each waits in line for a while.
    expect(tries.filter(([kind]) => kind === 'in line').length).toBeLessThan(41);
    locked.clear();
    expect(await Promise.all(answers)).toEqual(range(41).map((input) => input * 2));
    expect(inLine.most).toBe(1);
    expect(tries.some(([kind, inputs]) => kind === 'probe' && inputs.length > 20)).toBe(true);
  });

  test('gives an item its lock in line although every single try finds the row locked', async () => {
    const kinds: string[] = [];
    const busy = new Batcher<number, number>(
      async (inputs, { leavesLocked }) => {
        kinds.push(leavesLocked ? 'look' : 'in line');
        return inputs.map((input) => (leavesLocked ? LOCKED : input * 2));
      },
      { leavesLocked: true },
    );
    expect(await busy.add(3)).toBe(6);
    expect(kinds).toEqual(['look', 'look', 'in line']);
  });

  test('tries a batch that a lock has stopped once more, and then skips the locked items', async () => {
    const tries: (readonly [boolean, readonly number[]])[] = [];
    const batcher = new Batcher<number, number>(
      async (inputs, { isRepeated, leavesLocked }) => {
        tries.push([isRepeated, inputs]);
        if (!isRepeated) throw limit('55P03');
        return inputs.map((input) =>
          input === 3 && (leavesLocked || tries.length < 5) ? LOCKED : input * 2,
        );
      },
      { leavesLocked: true },
    );
    const answers = range(40).map((input) => batcher.add(input));
    expect(await Promise.all(answers.toSpliced(3, 1))).toHaveLength(39);
    expect(tries.slice(0, 2)).toEqual([
      [false, range(40)],
      [true, range(40)],
    ]);
    expect(await answers[3]).toBe(6);
    expect(tries.slice(2).every(([, inputs]) => inputs.length === 1)).toBe(true);
  });

  test('tries an item that may not wait for locks once more, and then returns it as locked', async () => {
    const { batcher, tries } = locking(new Set([3]));
    const answers = range(4).map((input) => batcher.add(input, { lockedMs: () => 0 }));
    expect(await Promise.all(answers.slice(0, 3))).toEqual([0, 2, 4]);
    const failure = await answers[3]?.catch((error: unknown) => error);
    expect(isLockTimeout(failure)).toBe(true);
    expect(tries).toEqual([
      ['first', range(4)],
      ['probe', [3]],
    ]);
  });

  test('fails an item whose row stays locked with its own error after 15 seconds', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    try {
      const failure = limit('55P03');
      const batcher = new Batcher<number, number>(
        async (inputs) => {
          if (inputs.includes(3)) throw failure;
          return inputs.map((input) => input * 2);
        },
        { leavesLocked: true },
      );
      const startedAt = performance.now();
      let ms: number | undefined;
      const settled = addAll(batcher, range(7));
      void settled.then(() => {
        ms = performance.now() - startedAt;
      });
      await vi.advanceTimersByTimeAsync(14_000);
      expect(ms).toBeUndefined();
      await vi.advanceTimersByTimeAsync(2_000);
      expect(ms).toBeGreaterThanOrEqual(15_000);
      expect((await settled)[3]).toEqual({ status: 'rejected', reason: failure });
      expect((await settled).filter(({ status }) => status === 'rejected')).toHaveLength(1);
    } finally {
      vi.useRealTimers();
    }
  });

  test.each([
    ['loses each race', Object.assign(new Error('could not serialize'), { code: '40001' })],
    ['needs more memory than the server has', limit('53200')],
  ])('fails only the item that %s', async (_what, failure) => {
    const { batcher } = doubler({ poison: 3, failure });
    const settled = await addAll(batcher, range(7));
    expect(settled.filter(({ status }) => status === 'rejected')).toHaveLength(1);
  });

  test('runs the halves of a failed batch at the same time', async () => {
    const { batcher, batches, hold, release } = doubler({ poison: 0 });
    const adding = addAll(batcher, range(4));
    queueMicrotask(hold);
    await waitFor(() => batches.length === 3, { message: 'both halves are under way' });
    release();
    await adding;
    expect(batches.slice(0, 3)).toEqual([range(4), [0, 1], [2, 3]]);
  });

  test('never leaves an item without an answer', async () => {
    const batcher = new Batcher<number, number>(async (inputs) => inputs.slice(1), {
      maxItems: 9,
      maxInFlight: 1,
    });
    const settled = await addAll(batcher, range(3));
    expect(settled.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected']);
  });
});

test('an open transaction of the handler that starts a batch does not make the batch refuse an item', async () => {
  const pool = createPool({ connectionString: 'postgres://127.0.0.1:1/none' });
  const scope = handlerScope(pool, 'nests');
  const batcher = new Batcher<number, number>(
    async (inputs) => {
      refuseNested(pool);
      await new Promise((resolve) => setImmediate(resolve));
      refuseNested(pool);
      return inputs;
    },
    { maxInFlight: 1 },
  );
  const first = insideHandler(scope, () => batcher.add(1));
  scope.isOpen = true;
  const others = range(200).map((input) => batcher.add(input));
  expect(await first).toBe(1);
  expect(await Promise.all(others)).toEqual(range(200));
  // In its own scope the handler is refused; without this error the test would prove nothing.
  expect(() => insideHandler(scope, () => refuseNested(pool))).toThrow(
    expect.objectContaining({ code: 'nested_connection' }),
  );
});
