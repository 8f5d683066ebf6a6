import { AUTO_HANDOFF_ANCHOR, isJsonObject, type TapeRecord } from '@boxcar/kernel';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { compact } from '../testing/compact.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { TapeFork } from './fork.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `fork-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'done' }]);
});

afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const say = (tape: Tape, content: string) => tape.append([{ kind: 'message', content }]);
const textOf = ({ payload }: TapeRecord): unknown =>
  typeof payload.content === 'string' ? payload.content : payload.name;
const texts = async (tape: Tape): Promise<unknown[]> => (await tape.query().all()).map(textOf);

/** The tape of an agent, with or without a queued turn. */
async function agentTape(
  isBusy: boolean,
): Promise<{ tape: Tape; agent: string; turnId: string | undefined }> {
  const agent = fresh();
  await h.runtime.submit('provision_agent', { action: 'create', agent_id: agent, profile_name: 'writer' });
  const args = { target_strategy: 'reuse', target_ref: agent, instruction: 'go' };
  const receipt = isBusy ? await h.runtime.submit('delegate_async', args) : undefined;
  const turnId = isJsonObject(receipt) ? String(receipt.turn_id) : undefined;
  return { tape: await h.runtime.tape({ agent }), agent, turnId };
}

const cancel = (turnId: string | undefined) => h.runtime.submit('cancel', { turn_id: turnId ?? '' });

describe('a fork', () => {
  test('is merged at the end of its block: its entries, their origin, and a receipt', async () => {
    const tape = await h.runtime.tape(fresh());
    await say(tape, 'before');
    let id = '';
    {
      await using fork = await tape.forkTape();
      id = fork.id;
      await say(fork.tape, 'within');
      await fork.tape.handoff('phase', { state: { summary: 's' } });
      await say(tape, 'meanwhile');
      expect(await texts(tape)).toEqual(['session/start', 'handoff', 'before', 'meanwhile']);
      expect(await texts(fork.tape)).toEqual([
        'session/start',
        'handoff',
        'before',
        'within',
        'phase',
        'handoff',
      ]);
    }
    const records = await tape.query().all();
    expect(records.map(textOf)).toEqual([
      'session/start',
      'handoff',
      'before',
      'meanwhile',
      'within',
      'phase',
      'handoff',
      'fork/merge',
    ]);
    expect(records.slice(4, 7).map(({ meta }) => meta.merged_from)).toEqual(
      [4, 5, 6].map((entry) => ({ tape: id, entry })),
    );
    expect(records[7]?.payload).toEqual({
      name: 'fork/merge',
      data: { fork: id, entries: 3, first: 5, last: 7, replaced: false },
    });
    expect(await tape.info()).toMatchObject({ entries: 8, anchors: 2, last_anchor: 'phase' });
    expect(await tape.forks()).toMatchObject([
      { fork_id: id, status: 'merged', receipt: { merged: 3, first: 5, last: 7, event: 8 } },
    ]);
    const [card, ...copies] = await h.rows<{ card_id: string }>(
      'select distinct card_id from boxcar.tape_entries where box_id = $1 and position = 4 or box_id = $2 and position = 5',
      [id, tape.boxId],
    );
    expect(card?.card_id).toBeTruthy();
    expect(copies).toEqual([]);
  });

  test('is merged once, however often and in however many processes the merge is requested', async () => {
    const tape = await h.runtime.tape(fresh());
    const fork = await tape.forkTape();
    await say(fork.tape, 'x');
    const handles = await Promise.all([1, 2, 3].map(() => tape.openFork(fork.id)));
    const receipts = await Promise.all([fork, ...handles].map((handle) => handle.merge()));
    for (const receipt of [...receipts, await fork.merge()]) expect(receipt).toEqual(receipts[0]);
    expect(await texts(tape)).toEqual(['session/start', 'handoff', 'x', 'fork/merge']);
    await expect(fork.discard()).rejects.toMatchObject({ code: 'fork_closed' });
    await expect(say(fork.tape, 'y')).rejects.toMatchObject({ code: 'fork_closed' });
    await expect(fork.tape.reset()).rejects.toMatchObject({ code: 'fork_closed' });
  });

  test('that is not merged leaves nothing on the tape', async () => {
    const tape = await h.runtime.tape(fresh());
    let id = '';
    {
      await using fork = await tape.forkTape({ mergeBack: false });
      id = fork.id;
      await say(fork.tape, 'draft');
    }
    expect(await texts(tape)).toEqual(['session/start', 'handoff']);
    expect(await tape.forks({ status: 'discarded' })).toMatchObject([{ fork_id: id }]);
    const fork = await tape.openFork(id);
    await expect(fork.merge()).rejects.toMatchObject({ code: 'fork_closed' });
    expect(await fork.discard()).toMatchObject({ status: 'discarded', merged: 0 });
    expect(await texts(await h.runtime.tape({ box: id }))).toEqual(['session/start', 'handoff', 'draft']);
  });

  test('whose block throws is still merged, unless it is set to be discarded in that case', async () => {
    const broken = (tape: Tape): Promise<never> =>
      say(tape, 'half').then(() => Promise.reject(new Error('broken')));
    const tape = await h.runtime.tape(fresh());
    await expect(tape.inFork(broken)).rejects.toThrow('broken');
    expect(await texts(tape)).toContain('half');
    const careful = await h.runtime.tape(fresh());
    await expect(careful.inFork(broken, { onError: 'discard' })).rejects.toThrow('broken');
    expect(await texts(careful)).toEqual(['session/start', 'handoff']);
    const { value, receipt } = await careful.inFork(
      async (inner) => {
        await say(inner, 'whole');
        return 7;
      },
      { onError: 'discard' },
    );
    expect([value, receipt.merged]).toEqual([7, 1]);
    {
      await using fork = await careful.forkTape({ onError: 'discard' });
      await say(fork.tape, 'never merged by its block');
    }
    expect(await texts(careful)).toEqual(['session/start', 'handoff', 'whole', 'fork/merge']);
  });

  test('of a tape whose agent is busy stays open, reports so, and can be merged later', async () => {
    const { tape, turnId } = await agentTape(true);
    const fork = await tape.forkTape();
    await say(fork.tape, 'late');
    await expect(fork[Symbol.asyncDispose]()).rejects.toMatchObject({
      code: 'tape_busy',
      details: { fork_id: fork.id, turn_id: turnId },
    });
    expect(fork.status).toBe('open');
    await cancel(turnId);
    expect(await fork.merge()).toMatchObject({ status: 'merged', merged: 1 });
  });

  test('and a turn at the same moment follow one after the other, with nothing in between', async () => {
    for (let round = 0; round < 4; round += 1) {
      const { tape, agent } = await agentTape(false);
      const forks = await Promise.all([1, 2].map(() => tape.forkTape()));
      for (const [index, fork] of forks.entries())
        await fork.tape.append([0, 1].map((i) => ({ kind: 'message', content: `${index}.${i}` }) as const));
      const args = { target_strategy: 'reuse', target_ref: agent, instruction: 'go' };
      const [first, second] = await Promise.allSettled([
        ...forks.map((fork) => fork.merge()),
        h.runtime.submit('delegate_async', args),
      ]);
      const merged = [first, second].filter((end) => end?.status === 'fulfilled').length;
      for (const end of [first, second])
        if (end?.status === 'rejected') expect(end.reason).toMatchObject({ code: 'tape_busy' });
      expect(await tape.forks({ status: 'merged' })).toHaveLength(merged);
      const words = (await texts(tape)).slice(2);
      expect(words).toHaveLength(3 * merged);
      for (let at = 0; at < words.length; at += 3)
        expect(words.slice(at, at + 3)).toSatisfy(
          ([one, two, end]: readonly string[]) =>
            end === 'fork/merge' && ['0.0 0.1', '1.0 1.1'].includes(`${one} ${two}`),
        );
    }
  });

  test('that was reset takes the place of the tape at its merge, also as the tape of its agent', async () => {
    const { tape, agent } = await agentTape(false);
    await say(tape, 'old');
    const before = tape.boxId;
    const fork = await tape.forkTape();
    await fork.tape.reset();
    await say(fork.tape, 'anew');
    expect(await texts(tape)).toEqual(['session/start', 'handoff', 'old']);
    const { turn_id: turnId } = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agent,
      instruction: 'go',
    })) as { turn_id: string };
    await expect(fork.merge()).rejects.toMatchObject({ code: 'tape_busy' });
    await cancel(turnId);
    expect(await fork.merge()).toMatchObject({ replaced: true, merged: 3, parent: fork.tape.boxId });
    const now = await h.runtime.tape({ agent });
    expect(await texts(now)).toEqual(['session/start', 'handoff', 'anew', 'fork/merge']);
    expect(await now.info()).toMatchObject({ incarnation: 2 });
    expect((await texts(await h.runtime.tape({ box: before }))).slice(0, 3)).toEqual([
      'session/start',
      'handoff',
      'old',
    ]);
  });

  test('of a tape that was reset since is merged into the next tape', async () => {
    const name = fresh();
    const tape = await h.runtime.tape(name);
    const fork = await tape.forkTape();
    await say(fork.tape, 'kept');
    await tape.reset();
    await fork.merge();
    expect(await texts(await h.runtime.tape(name))).toEqual([
      'session/start',
      'handoff',
      'kept',
      'fork/merge',
    ]);
    const [old] = await tape.forks();
    expect(old).toMatchObject({ fork_id: fork.id, status: 'merged' });

    const { tape: theirs } = await agentTape(false);
    const left = await theirs.forkTape();
    await say(left.tape, 'left open');
    await theirs.reset();
    await theirs.reset();
    expect((await (await theirs.openFork(left.id)).merge()).parent).toBe(theirs.boxId);
    expect(await texts(theirs)).toEqual(['session/start', 'handoff', 'left open', 'fork/merge']);
    await expect(theirs.openFork(fork.id)).rejects.toMatchObject({ code: 'not_found' });
  });

  test('within a fork is merged into that fork, and no longer after that fork has ended', async () => {
    const tape = await h.runtime.tape(fresh());
    const outer = await tape.forkTape();
    const inner = await outer.tape.forkTape();
    const late = await outer.tape.forkTape();
    await say(inner.tape, 'deep');
    await inner.merge();
    await outer.merge();
    expect(await texts(tape)).toEqual(['session/start', 'handoff', 'deep', 'fork/merge', 'fork/merge']);
    await expect(late.merge()).rejects.toMatchObject({ code: 'fork_closed' });
    expect(await late.discard()).toMatchObject({ status: 'discarded' });
  });

  test('is merged by agents that may append to the tape, and ended by the agent that opened it', async () => {
    const { agent } = await agentTape(false);
    const tape = await h.runtime.tape(fresh());
    await say(tape, 'seen');
    await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: agent, mode: 'read' });
    const theirs = await h.runtime.tape({ box: tape.boxId }, { as: agent });
    const fork = await theirs.forkTape();
    await say(fork.tape, 'mine');
    await expect(fork.merge()).rejects.toMatchObject({ code: 'box_not_authorized' });
    await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: agent, mode: 'append' });
    const foreign = await tape.forkTape();
    await expect(theirs.openFork(foreign.id)).rejects.toMatchObject({ code: 'box_not_authorized' });
    await fork.merge();
    expect(await texts(tape)).toEqual(['session/start', 'handoff', 'seen', 'mine', 'fork/merge']);
  });

  test.each([
    [{ onError: 'retry' }, 'onError'],
    [{ key: ' ' }, 'key'],
    [{ turnId: 'x' }, 'turnId'],
  ])('with %j is refused', async (options, field) => {
    const tape = await h.runtime.tape(fresh());
    await expect(tape.forkTape(options as object)).rejects.toMatchObject({
      code: 'bad_request',
      details: { field },
    });
    expect(await tape.forks()).toEqual([]);
  });
});

describe('a fork of any history', () => {
  /** Entries of the flat tape, and the places where it is forked: at any entry, at any depth. */
  const histories = fc.array(
    fc.record({
      kind: fc.constantFrom('message', 'anchor', 'compaction', 'event', 'fork', 'noise'),
      n: fc.nat(3),
    }),
    { maxLength: 16 },
  );
  const viewOf = async ({ boxId }: Tape): Promise<unknown> =>
    (
      await h.rows(
        'select head_position, last_anchor_position, anchor_count, view_position, view_anchor_position from boxcar.boxes where id = $1',
        [boxId],
      )
    )[0];

  /** A tape with all entries, and a tape that was forked at each place that the history names. */
  async function play(history: readonly { readonly kind: string; readonly n: number }[]) {
    const flat = await h.runtime.tape(fresh());
    const root = await h.runtime.tape(fresh());
    const forks: TapeFork[] = [];
    const at = (): Tape => forks.at(-1)?.tape ?? root;
    for (const { kind, n: name } of history) {
      if (kind === 'fork') forks.push(await at().forkTape());
      // Later entries of a parent have no effect on its fork.
      else if (kind === 'noise') await forks.at(-2)?.tape.append([{ kind: 'event', name: 'noise' }]);
      else
        for (const tape of [flat, at()]) {
          // Only turns compact, and turns never write to a fork that is merged.
          if (kind === 'compaction' && forks.length === 0)
            await compact(h.database.pool, tape, { keepFrom: 2 });
          else if (kind === 'event') await tape.append([{ kind: 'event', name: `e${name}` }]);
          else if (kind === 'message') await say(tape, `m${name}`);
          else await tape.handoff(`a${name}`, { state: { name } });
        }
    }
    return { flat, root, forks, last: at() };
  }

  test('reads like the flat tape at any depth, and a merge of every level gives that tape', async () => {
    await fc.assert(
      fc.asyncProperty(histories, async (history) => {
        const { flat, root, forks, last } = await play(history);
        const read = async (tape: Tape) => ({
          all: (await tape.query().all()).map(({ position, kind, payload }) => ({ position, kind, payload })),
          messages: await tape.messages(),
          strict: await tape.messages({ anchor: null, strictBub: true }),
          anchors: (await tape.anchors()).map(({ name, position }) => [name, position]),
          info: { ...(await tape.info()), name: null, box_id: null, last_token_usage: null },
          view: await viewOf(tape),
        });
        expect(await read(last)).toEqual(await read(flat));
        for (const fork of forks.toReversed()) {
          const receipt = await fork.merge();
          const { entries } = await root.info();
          expect(await fork.merge()).toEqual(receipt);
          expect((await root.info()).entries).toBe(entries);
        }
        const isOurs = (text: unknown): boolean => text !== 'fork/merge' && text !== 'noise';
        expect((await texts(root)).filter(isOurs)).toEqual((await texts(flat)).filter(isOurs));
      }),
      { numRuns: 12 },
    );
  });

  test('that is merged in any order appends its entries once to its source, or is refused when the source has ended', async () => {
    await fc.assert(
      fc.asyncProperty(histories, fc.infiniteStream(fc.nat(9)), async (history, picks) => {
        const { forks } = await play(history);
        const left = [...forks];
        while (left.length > 0) {
          const [fork] = left.splice((picks.next().value ?? 0) % left.length, 1);
          if (fork === undefined) break;
          const outer = forks[forks.indexOf(fork) - 1];
          const parent = outer?.tape;
          const before = parent === undefined ? undefined : await texts(parent);
          const own = await h.rows<{ n: number }>(
            'select (head_position - fork_position)::int as n from boxcar.boxes where id = $1',
            [fork.id],
          );
          if (outer !== undefined && !left.includes(outer)) {
            await expect(fork.merge()).rejects.toMatchObject({ code: 'fork_closed' });
            expect(await texts(outer.tape)).toEqual(before);
            await fork.discard();
          } else {
            const { merged, first, last: end } = await fork.merge();
            expect([merged, (end ?? 0) - (first ?? 1) + 1]).toEqual([own[0]?.n, merged]);
            if (parent !== undefined)
              expect((await texts(parent)).length).toBe((before?.length ?? 0) + merged + 1);
          }
        }
      }),
      { numRuns: 8 },
    );
  });

  test('that an agent may read in part begins where a tape of that part would begin', async () => {
    const { agent } = await agentTape(false);
    await fc.assert(
      fc.asyncProperty(histories, fc.double({ min: 0, max: 1, noNaN: true }), async (history, part) => {
        const { last: tape } = await play(history);
        const records = await tape.query().all();
        const upto = Math.max(1, Math.round(records.length * part));
        await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: agent, mode: 'read' });
        await h.rows('update boxcar.grants set upto_position = $2 where box_id = $1', [tape.boxId, upto]);
        const fork = await (await h.runtime.tape({ box: tape.boxId }, { as: agent })).forkTape();
        const anchors = records.slice(0, upto).filter(({ kind }) => kind === 'anchor');
        const begin = anchors.at(-1);
        expect(await viewOf(fork.tape)).toEqual({
          head_position: upto,
          last_anchor_position: begin?.position,
          anchor_count: anchors.length,
          view_position: begin?.payload.name === AUTO_HANDOFF_ANCHOR ? 2 : begin?.position,
          view_anchor_position: null,
        });
        expect((await texts(fork.tape)).length).toBe(upto);
      }),
      { numRuns: 8 },
    );
  });
});

test('a fork takes the same statements and rows for any content of the tape', async () => {
  const tape = await h.runtime.tape(fresh());
  const rows = async (): Promise<number> =>
    (await h.rows<{ n: number }>('select count(*)::int as n from boxcar.tape_entries'))[0]?.n ?? 0;
  const cost = async (): Promise<readonly [number, number]> => {
    const before = await rows();
    const { length } = await statementsOf(h.database, () => tape.forkTape());
    return [length, (await rows()) - before];
  };
  const small = await cost();
  for (let i = 0; i < 3; i += 1)
    await tape.append(Array.from({ length: 200 }, (_, i) => ({ kind: 'event', name: `e${i}` }) as const));
  expect(await cost()).toEqual(small);
  expect(small[1]).toBe(0);
});
