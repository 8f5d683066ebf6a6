import { isJsonObject } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { Tape } from './tape.js';

let h: Harness;
let sweeper: Sweeper;
let n = 0;
const fresh = (): string => `fork-end-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'done' }]);
  sweeper = new Sweeper(h.runtime, {
    lostRingMs: 600_000_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
});

afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const say = (tape: Tape, content: string) => tape.append([{ kind: 'message', content }]);
const texts = async (tape: Tape): Promise<unknown[]> =>
  (await tape.query().all()).map(({ payload }) =>
    typeof payload.content === 'string' ? payload.content : payload.name,
  );

/** The tape of an agent with a queued turn. */
async function busyTape(): Promise<{ readonly tape: Tape; readonly turnId: string }> {
  const agent = fresh();
  await h.runtime.submit('provision_agent', { action: 'create', agent_id: agent, profile_name: 'writer' });
  const args = { target_strategy: 'reuse', target_ref: agent, instruction: 'go' };
  const receipt = await h.runtime.submit('delegate_async', args);
  return {
    tape: await h.runtime.tape({ agent }),
    turnId: isJsonObject(receipt) ? String(receipt.turn_id) : '',
  };
}

const cancel = (turnId: string) => h.runtime.submit('cancel', { turn_id: turnId });

describe('a fork of a turn', () => {
  test('is found by the turn’s next attempt with its key, can be merged during that turn, and is discarded at the turn’s end', async () => {
    const { tape, turnId } = await busyTape();
    const options = { turnId, key: 'call-1' };
    const fork = await tape.forkTape(options);
    await say(fork.tape, 'first attempt');
    const again = await tape.forkTape(options);
    expect(again.id).toBe(fork.id);
    await say(again.tape, 'second attempt');
    const other = await tape.forkTape({ ...options, key: 'call-2' });
    expect(other.id).not.toBe(fork.id);
    expect(await again.merge()).toMatchObject({ merged: 2 });
    expect((await tape.forkTape(options)).receipt).toMatchObject({ status: 'merged' });
    const ran: string[] = [];
    const { receipt } = await tape.inFork(async () => void ran.push('again'), options);
    expect([receipt.merged, ran]).toEqual([2, []]);

    await cancel(turnId);
    await expect(other.merge()).rejects.toMatchObject({ code: 'fork_closed' });
    await expect(tape.forkTape({ ...options, key: 'call-3' })).rejects.toMatchObject({ code: 'turn_ended' });
  });

  test('is found with its key after any reset: of the tape, or of the fork that has replaced it', async () => {
    const { turnId } = await busyTape();
    const options = { turnId, key: 'call-1' };
    const [first, second] = [await h.runtime.tape(fresh()), await h.runtime.tape(fresh())];
    const open = await first.forkTape(options);
    expect((await second.forkTape(options)).id).not.toBe(open.id);
    await first.reset();
    expect((await first.forkTape(options)).id).toBe(open.id);

    const replacing = await second.forkTape(options);
    await replacing.tape.reset();
    await replacing.merge();
    const again = await second.forkTape(options);
    expect([again.id, again.receipt?.replaced]).toEqual([replacing.id, true]);
  });

  test('that was not ended is discarded by the sweep, and a later merge reports that', async () => {
    const { tape, turnId } = await busyTape();
    const fork = await tape.forkTape({ turnId });
    await sweeper.sweep();
    expect(await tape.forks()).toMatchObject([{ fork_id: fork.id, status: 'open' }]);
    await cancel(turnId);
    await sweeper.sweep();
    expect(await tape.forks()).toMatchObject([{ fork_id: fork.id, status: 'discarded' }]);
    await expect(say(fork.tape, 'late')).rejects.toMatchObject({ code: 'fork_closed' });
    await expect(fork[Symbol.asyncDispose]()).rejects.toMatchObject({ code: 'fork_closed' });
  });
});

test('a block that throws on a busy tape reports both errors, and its fork stays open', async () => {
  const { tape } = await busyTape();
  const block = async (): Promise<never> => {
    await using fork = await tape.forkTape();
    await say(fork.tape, 'half');
    throw new Error('broken');
  };
  await expect(block()).rejects.toMatchObject({
    name: 'SuppressedError',
    error: { code: 'tape_busy' },
    suppressed: { message: 'broken' },
  });
  await expect(tape.inFork(() => Promise.reject(new Error('broken')))).rejects.toMatchObject({
    errors: [{ message: 'broken' }, { code: 'tape_busy' }],
  });
  expect(await tape.forks({ status: 'open' })).toHaveLength(2);
});

test('with merges, discards, appends, resets and a turn at the same moment each fork ends once, and its entries are appended once or not at all', async () => {
  for (let round = 0; round < 4; round += 1) {
    const agent = fresh();
    await h.runtime.submit('provision_agent', { action: 'create', agent_id: agent, profile_name: 'writer' });
    const [tape, writing, resetting] = [
      await h.runtime.tape({ agent }),
      await h.runtime.tape({ agent }),
      await h.runtime.tape({ agent }),
    ];
    const outer = await tape.forkTape();
    const inner = await outer.tape.forkTape();
    if (round % 2 === 1) await outer.tape.reset();
    await say(outer.tape, 'outer');
    await say(inner.tape, 'inner');
    const twice = await tape.openFork(outer.id);
    const [merged, again, ...rest] = await Promise.allSettled([
      outer.merge(),
      twice.merge(),
      round % 3 === 0 ? twice.discard() : inner.merge(),
      say(writing, 'meanwhile'),
      writing.handoff('meanwhile'),
      resetting.reset(),
      inner.merge(),
      h.runtime.submit('delegate_async', { target_strategy: 'reuse', target_ref: agent, instruction: 'go' }),
    ]);
    for (const end of [merged, again, ...rest])
      if (end.status === 'rejected')
        expect(end.reason).toMatchObject({
          code: expect.stringMatching(/^(tape_busy|tape_conflict|fork_closed)$/),
        });
    if (merged.status === 'fulfilled' && again.status === 'fulfilled')
      expect(again.value).toEqual(merged.value);
    const { receipt } = await tape.openFork(outer.id);
    const count = async (text: string): Promise<number> =>
      (await texts(await h.runtime.tape({ box: receipt?.parent ?? tape.boxId }))).filter(
        (one) => one === text,
      ).length;
    expect(await count('outer')).toBe(receipt?.status === 'merged' ? 1 : 0);
    expect(await count('inner')).toBeLessThanOrEqual(1);
  }
});

test('erased entries disappear from the fork that shows them, from the tape with the merge, and from the original lines', async () => {
  const tape = await h.runtime.tape(fresh());
  await say(tape, 'secret before');
  const fork = await tape.forkTape();
  const lines = ['a', 'b'].map(
    (name, index) =>
      `{"id": ${index + 1}, "kind": "message", "payload": {"role": "user", "content":   "secret ${name}"}, "meta": {}}`,
  );
  const main = { lines: () => lines };
  await h.runtime.importTape({ box: fork.tape.boxId }, { main }, { append: true });
  await fork.merge();
  const exported = async (from: Tape): Promise<string> => {
    const out: string[] = [];
    for await (const line of from.export()) out.push(line);
    return out.join('\n');
  };
  expect(await exported(tape)).toContain(lines.join('\n'));
  await h.rows(
    `select boxcar.erase_cards(array(select distinct card_id from boxcar.tape_entries where box_id = any ($1) and position > 2 and card_id is not null), 'asked for')`,
    [[tape.boxId, fork.tape.boxId]],
  );
  for (const one of [tape, fork.tape]) {
    expect(await exported(one)).not.toContain('secret');
    expect((await texts(one)).filter((text) => text === '(erased)')).toHaveLength(3);
  }
});

describe('a fork of a fork', () => {
  test('is merged into the current tape of the outer fork, however often that was reset', async () => {
    const tape = await h.runtime.tape(fresh());
    const outer = await tape.forkTape();
    const first = await outer.tape.forkTape();
    await outer.tape.reset();
    const second = await outer.tape.forkTape();
    await outer.tape.reset();
    for (const [fork, text] of [[second, 'second'] as const, [first, 'first'] as const]) {
      await say(fork.tape, text);
      await fork.merge();
    }
    await outer.merge();
    expect((await texts(tape)).filter((text) => text === 'first' || text === 'second')).toEqual([
      'second',
      'first',
    ]);
  });

  test('can only be discarded when the outer fork has ended, whether it was reset or not', async () => {
    const tape = await h.runtime.tape(fresh());
    const outer = await tape.forkTape();
    const forks = [await outer.tape.forkTape()];
    await outer.tape.reset();
    forks.push(await outer.tape.forkTape());
    await outer.discard();
    for (const fork of forks) {
      await expect(fork.merge()).rejects.toMatchObject({ code: 'fork_closed' });
      expect(await fork.discard()).toMatchObject({ status: 'discarded' });
    }
  });
});
