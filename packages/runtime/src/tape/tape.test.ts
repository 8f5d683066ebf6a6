import { ENTRY_KINDS, KernelError, selectRecords, type TapeQuery, type TapeRecord } from '@boxcar/kernel';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { onPool, type TapeConnection } from './connection.js';
import type { EntryInput } from './entry-input.js';
import { openTape } from './open-tape.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `tape-${++n}`;

beforeAll(async () => {
  h = await harness();
  // No worker serves this profile, so its turns stay queued.
  await h.profile('queued', [{ say: 'done' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

test('a tape with a new name begins with its bootstrap entries, and is the same tape the next time', async () => {
  const name = fresh();
  const tape = await h.runtime.tape(name);
  expect(await tape.anchors()).toMatchObject([
    { position: 1, name: 'session/start', state: { owner: 'human' } },
  ]);
  expect((await h.runtime.tape(name)).boxId).toBe(tape.boxId);
  expect(await tape.info()).toMatchObject({
    name,
    entries: 2,
    anchors: 1,
    last_anchor: 'session/start',
    entries_since_last_anchor: 1,
    last_token_usage: null,
  });
  await expect(h.runtime.tape(fresh(), { create: false })).rejects.toMatchObject({ code: 'not_found' });
});

test('a handoff writes its anchor and its event next to each other, at the returned positions', async () => {
  const tape = await h.runtime.tape(fresh());
  expect(await tape.append([{ kind: 'message', content: 'hello' }])).toEqual({
    first: 3,
    last: 3,
    isRepeated: false,
  });
  const made = await tape.handoff('phase/one', { state: { summary: 'done' }, dedupKey: 'one' });
  const entries = (await tape.query().all()).slice(-2);
  expect(made).toEqual({ anchor: 4, event: 5, entries, isRepeated: false });
  expect(made.entries).toMatchObject([
    { position: 4, kind: 'anchor', payload: { name: 'phase/one', state: { summary: 'done' } } },
    {
      position: 5,
      kind: 'event',
      payload: { name: 'handoff', data: { name: 'phase/one', state: { summary: 'done' } } },
    },
  ]);
  const again = await tape.handoff('phase/one', { state: { summary: 'done' }, dedupKey: 'one' });
  expect(again).toEqual({ ...made, isRepeated: true });
  expect(await tape.anchors()).toMatchObject([
    { name: 'session/start' },
    { position: 4, name: 'phase/one', state: { summary: 'done' } },
  ]);
  expect(await tape.info()).toMatchObject({
    entries: 5,
    anchors: 2,
    last_anchor: 'phase/one',
    entries_since_last_anchor: 1,
  });
  expect(await tape.fromLastAnchor()).toMatchObject([
    {
      position: 5,
      kind: 'event',
      payload: { name: 'handoff', data: { name: 'phase/one', state: { summary: 'done' } } },
    },
  ]);
});

const messages = (...texts: string[]): EntryInput[] => texts.map((content) => ({ kind: 'message', content }));
const positions = (records: readonly TapeRecord[]): number[] => records.map(({ position }) => position);
const agentOf = async (): Promise<{
  readonly agent_id: string;
  readonly turn_id: string;
  readonly output_box_id: string;
}> => {
  const receipt = await h.runtime.submit('launch_principal', { profile_name: 'queued', instruction: 'go' });
  return receipt as unknown as { agent_id: string; turn_id: string; output_box_id: string };
};
/** An agent without a turn. */
const idle = async (): Promise<string> => {
  const made = await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'queued' });
  return (made as { agent_id: string }).agent_id;
};

describe('a slice of a tape', () => {
  const names = ['one', 'two', 'none'];
  const name = fc.constantFrom(...names);
  const days = ['2026-01-01', '2026-01-02', '2026-01-03'];
  const entry: fc.Arbitrary<EntryInput> = fc.oneof(
    fc.constantFrom<EntryInput>(
      { kind: 'message', content: 'Hello' },
      { kind: 'message', role: 'assistant', content: { a: 'HELLO' } },
    ),
    fc
      .constantFrom('one', 'two')
      .map((anchor): EntryInput => ({ kind: 'anchor', name: anchor, state: { hello: 1 } })),
    fc.constant<EntryInput>({ kind: 'event', name: 'handoff', data: { name: 'x' } }),
    fc.constant<EntryInput>({ kind: 'system', content: 'be quiet', meta: { note: 'hello' } }),
    fc.constantFrom(...days).map(
      (day): EntryInput => ({
        kind: 'draft',
        createdAt: `${day}T12:00:00.123456Z`,
        draft: { kind: 'event', card: null, payload: { name: 'dated' }, anchorName: null, meta: null },
      }),
    ),
  );
  const query: fc.Arbitrary<TapeQuery> = fc.record({
    slice: fc.oneof(
      fc.constant({ kind: 'all' } as const),
      fc.constant({ kind: 'after_last' } as const),
      name.map((anchor) => ({ kind: 'after', anchor }) as const),
      fc.tuple(name, fc.option(name)).map(([start, end]) => ({ kind: 'between', start, end }) as const),
    ),
    from: fc.option(
      fc.constantFrom(...days).map((day) => `${day}T12:00:00.000000Z`),
      { freq: 3 },
    ),
    until: fc.option(
      fc.constantFrom(...days).map((day) => `${day}T12:00:00.123456Z`),
      { freq: 3 },
    ),
    text: fc.option(fc.constantFrom('hello', 'QUIET', 'nothing'), { freq: 3 }),
    kinds: fc.subarray([...ENTRY_KINDS], { maxLength: 3 }),
    limit: fc.option(fc.nat(5)),
  });

  /** The answer of the work, or its error message. */
  const ask = async (
    work: () => readonly TapeRecord[] | Promise<readonly TapeRecord[]>,
  ): Promise<unknown> => {
    try {
      return await work();
    } catch (error) {
      if (error instanceof KernelError) return error.toJSON();
      throw error;
    }
  };

  test('equals the result of the query over all entries in memory', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(entry, { minLength: 1, maxLength: 15 }),
        fc.array(query, { minLength: 10, maxLength: 10 }),
        async (entries, queries) => {
          const tape = await h.runtime.tape(fresh());
          await tape.append(entries);
          const all = await tape.query().all();
          for (const asked of queries)
            expect(await ask(() => tape.select(asked))).toEqual(await ask(() => selectRecords(all, asked)));
        },
      ),
      { numRuns: 10 },
    );
  });

  test('between anchors is after the latest start and before the first end after it', async () => {
    const tape = await h.runtime.tape(fresh());
    for (const step of ['a', 'b', 'a']) await tape.handoff(step);
    await tape.append(messages('m'));
    await tape.handoff('b');
    expect(positions(await tape.betweenAnchors('a', 'b'))).toEqual([8, 9]);
    expect(positions(await tape.betweenAnchors('a', 'b', { kinds: ['message'] }))).toEqual([9]);
    expect(positions(await tape.betweenAnchors('session/start'))).toEqual([2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    expect(positions(await tape.afterAnchor('a'))).toEqual([8, 9, 10, 11]);
    expect(positions(await tape.afterAnchor('a', { kinds: ['message', 'anchor'] }))).toEqual([9, 10]);
    expect(positions(await tape.fromLastAnchor({ kinds: ['message'] }))).toEqual([]);
    expect(positions(await tape.fromLastAnchor({ kinds: ['event'] }))).toEqual([11]);
    await tape.handoff('b');
    expect(positions(await tape.betweenAnchors('a', 'b'))).toEqual([8, 9]);
  });

  test.each<[string, (tape: Tape) => Promise<unknown>, string]>([
    ['after an anchor that does not exist', (tape) => tape.afterAnchor('no'), "Anchor 'no' was not found."],
    [
      'between an anchor and its next occurrence that does not exist',
      (tape) => tape.betweenAnchors('phase', 'phase'),
      "Anchor 'phase' was not found.",
    ],
    [
      'between a start that does not exist and an end',
      (tape) => tape.betweenAnchors('no', 'phase'),
      "Anchor 'no' was not found.",
    ],
    ['after a name with NUL', (tape) => tape.afterAnchor('phase\0'), "Anchor 'phase\0' was not found."],
  ])('%s is not found, and the error has the name of the anchor', async (_what, read, message) => {
    const tape = await h.runtime.tape(fresh());
    await tape.handoff('phase');
    const before = await tape.info();
    await expect(read(tape)).rejects.toMatchObject({
      code: 'not_found',
      message: expect.stringContaining(message),
    });
    expect(await tape.info()).toEqual(before);
  });

  test.each<[string, (tape: Tape) => unknown]>([
    ['with reversed dates', (tape) => tape.query().betweenDates('2026-01-02', '2026-01-01').all()],
    ['with an invalid date', (tape) => tape.query().betweenDates('', '2026-01-01').all()],
    ['with a negative limit', (tape) => tape.query().limit(-1).all()],
    ['of a search in reversed dates', (tape) => tape.search('x', { start: '2026-01-02', end: '2026-01-01' })],
    ['with a negative number of matches', (tape) => tape.search('x', { limit: -1 })],
    ['with an empty key', (tape) => tape.handoff('x', { dedupKey: '' })],
    ['with a key longer than an index entry', (tape) => tape.handoff('x', { dedupKey: 'k'.repeat(4_000) })],
    ['with a negative number of anchors', (tape) => tape.anchors({ limit: -1 })],
    ['with an anchor without a name', (tape) => tape.handoff('')],
    ['with a name that contains NUL', (tape) => tape.handoff('a\0b')],
    ['with a state that is not an object', (tape) => tape.handoff('x', { state: 'text' })],
  ])('%s is refused, and the tape stays unchanged', async (_what, work) => {
    const tape = await h.runtime.tape(fresh());
    await expect((async () => work(tape))()).rejects.toMatchObject({ code: 'bad_request' });
    expect((await tape.info()).entries).toBe(2);
  });
});

test('a name longer than an index entry is found, and is distinguished from a name with the same beginning', async () => {
  const tape = await h.runtime.tape(fresh());
  const long = Array.from({ length: 4_000 }, (_, at) =>
    String.fromCharCode(0x4e00 + ((at * 7919) % 20_000)),
  ).join('');
  await tape.handoff(`${long}a`);
  await tape.handoff(`${long}b`);
  expect(positions(await tape.afterAnchor(`${long}a`))).toEqual([4, 5, 6]);
});

test('a name with a lone surrogate does not find the anchor with a replacement character', async () => {
  const tape = await h.runtime.tape(fresh());
  await tape.handoff('phase\ufffd');
  await expect(tape.messages({ anchor: 'phase\ud800' })).rejects.toMatchObject({ code: 'not_found' });
});

test('an error in a query is reported by a rejected promise, and not by an exception before', async () => {
  const tape = await h.runtime.tape(fresh());
  const wrong: (() => Promise<unknown>)[] = [
    () => tape.query().limit(-1).all(),
    () => tape.query().betweenDates('', '2026-02-21').all(),
    () => tape.query().kinds('').all(),
    () => tape.query().afterAnchor('absent').all(),
    () => tape.fromLastAnchor({ kinds: 5 as never }),
    () => tape.afterAnchor('absent', { kinds: 5 as never }),
    () => tape.betweenAnchors('absent', 'absent', { kinds: 5 as never }),
  ];
  for (const ask of wrong) {
    const answer = ask();
    expect(answer).toBeInstanceOf(Promise);
    await expect(answer).rejects.toThrow();
  }
});

test('messages begin with the state of the anchor, except in the format of the original program', async () => {
  const tape = await h.runtime.tape(fresh());
  await tape.handoff('phase', { state: { zeta: ['é', 1.5], a: null } });
  await tape.append([...messages('go'), { kind: 'message', role: 'assistant', content: 'done' }]);
  const said = [
    { role: 'user', content: 'go' },
    { role: 'assistant', content: 'done' },
  ];
  expect(await tape.messages()).toEqual([
    { role: 'assistant', content: '[Anchor created: phase]: {"zeta": ["é", 1.5], "a": null}' },
    ...said,
  ]);
  expect(await tape.messages({ strictBub: true })).toEqual(said);
  expect(await tape.messages({ anchor: 'phase', strictBub: true })).toEqual(said);
  const whole = await tape.messages({ anchor: null, strictBub: true });
  expect(whole.map(({ content }) => content)).toEqual([
    '[Anchor created: session/start]: {"owner": "human"}',
    '[Anchor created: phase]: {"zeta": ["é", 1.5], "a": null}',
    'go',
    'done',
  ]);
  expect(await tape.messages({ anchor: null })).toHaveLength(4);
  expect(await tape.messages({ select: async (records) => records.slice(-1) })).toHaveLength(2);
  await tape.append([{ kind: 'message', content: 'hidden', meta: { context: false } }]);
  const seen: string[] = [];
  await tape.messages({
    select: (records) => {
      seen.push(...records.map(({ payload }) => String(payload.content)));
      return records;
    },
  });
  expect(seen).not.toContain('hidden');
  await expect(tape.messages({ anchor: 'no' })).rejects.toMatchObject({ code: 'not_found' });
});

describe('a tape that an agent uses', () => {
  test('is read up to the last position of the grant, as if that were the head', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(messages('one'));
    const reader = await idle();
    await expect(
      h.runtime.tape(tapeName(tape), { as: reader }).then((mine) => mine.info()),
    ).rejects.toMatchObject({ code: 'box_not_authorized' });
    await h.rows(
      "insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source) values ($1, $2, $3, 'read', 3, 'test')",
      [tape.projectId, reader, tape.boxId],
    );
    await tape.handoff('later', { state: { secret: true } });
    const mine = await h.runtime.tape({ box: tape.boxId }, { as: reader });
    expect(await mine.info()).toMatchObject({
      entries: 3,
      anchors: 1,
      last_anchor: 'session/start',
      entries_since_last_anchor: 2,
    });
    expect(positions(await mine.query().all())).toEqual([1, 2, 3]);
    expect(positions(await mine.fromLastAnchor())).toEqual([2, 3]);
    expect(await mine.anchors()).toHaveLength(1);
    expect(await mine.search('secret', { kinds: [] })).toEqual([]);
    await expect(mine.afterAnchor('later')).rejects.toMatchObject({ code: 'not_found' });
    await expect(mine.append(messages('no'))).rejects.toMatchObject({ code: 'box_not_authorized' });
    await expect(mine.reset()).rejects.toMatchObject({ code: 'box_not_authorized' });
  });

  test('gets entries by a grant to append without a right to read, and the entries name their author', async () => {
    const tape = await h.runtime.tape(fresh());
    const writer = await idle();
    const mine = await h.runtime.tape({ box: tape.boxId }, { as: writer });
    await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: writer, mode: 'append' });
    expect(await mine.append(messages('by grant'))).toMatchObject({ first: 3 });
    await expect(mine.info()).rejects.toMatchObject({ code: 'box_not_authorized' });
    expect(
      await h.rows('select author_id from boxcar.tape_entries where box_id = $1 and position = 3', [
        tape.boxId,
      ]),
    ).toEqual([{ author_id: writer }]);
    await h.rows('update boxcar.grants set expires_at = now() where agent_id = $1', [writer]);
    await expect(mine.append(messages('too late'))).rejects.toMatchObject({ code: 'box_not_authorized' });
  });
});

const findBox = async (name: string): Promise<string> => (await h.runtime.tape(name)).boxId;
const tapeName = (tape: Tape): { readonly box: string } => ({ box: tape.boxId });

describe('a reset of a tape', () => {
  test('begins the next incarnation with the same name, and leaves the earlier one unchanged', async () => {
    const name = fresh();
    const tape = await h.runtime.tape(name);
    const other = await h.runtime.tape(name);
    await tape.append(messages('old'));
    const old = await h.runtime.tape({ box: tape.boxId });
    const before = await old.query().all();
    const { archived } = await tape.reset({ archive: true });
    expect(archived).toMatch(/^tape:\/\//);
    expect(await tape.info()).toMatchObject({ name, incarnation: 2, entries: 2, anchors: 1 });
    expect(await tape.anchors()).toMatchObject([
      { name: 'session/start', state: { owner: 'human', archived } },
    ]);
    expect(await tape.query().kinds('event').all()).toMatchObject([
      { payload: { name: 'handoff', data: { name: 'session/start', state: { owner: 'human', archived } } } },
    ]);
    expect(await old.query().all()).toEqual(before);
    await expect(old.append(messages('no'))).rejects.toMatchObject({ code: 'tape_conflict' });
    // A program that holds the tape by name uses the new incarnation.
    expect(await other.append(messages('new'))).toMatchObject({ first: 3 });
    expect(other.boxId).toBe(tape.boxId);
    await tape.reset();
    expect(await tape.info()).toMatchObject({ incarnation: 3, last_anchor: 'session/start' });
    expect((await tape.anchors())[0]?.state).toEqual({ owner: 'human' });
  });

  test("is refused while a turn of the tape's agent is queued, and succeeds when the turn has ended", async () => {
    const { agent_id: agent, turn_id: turnId, output_box_id: boxId } = await agentOf();
    const tape = await h.runtime.tape({ agent });
    await expect(tape.reset()).rejects.toMatchObject({ code: 'tape_busy', details: { turn_id: turnId } });
    await h.runtime.submit('cancel', { turn_id: turnId });
    await tape.reset();
    expect(tape.boxId).not.toBe(boxId);
    expect((await h.runtime.tape({ agent })).boxId).toBe(tape.boxId);
    const next = await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agent,
      instruction: 'again',
    });
    expect(next).toMatchObject({ output_box_id: tape.boxId });
    await expect(tape.reset()).rejects.toMatchObject({ code: 'tape_busy' });
  });

  test('by an agent that was the owner when it asked, and no longer is, is refused', async () => {
    const [owner, next] = [await idle(), await idle()];
    const name = fresh();
    const { boxId } = await h.runtime.tape(name, { as: owner });
    const pool = onPool(h.database.pool);
    const late: TapeConnection = {
      ...pool,
      reset: async (request) => {
        await h.rows('update boxcar.boxes set owner_agent_id = $2, maker_agent_id = $2 where id = $1', [
          boxId,
          next,
        ]);
        return pool.reset(request);
      },
    };
    const tape = await openTape(late, name, { as: owner });
    await expect(tape.reset()).rejects.toMatchObject({ code: 'box_not_authorized' });
    expect(await findBox(name)).toBe(boxId);
  });

  test('returns the archived head of the old tape, whatever is appended in the last moment', async () => {
    const name = fresh();
    const other = await h.runtime.tape(name);
    const pool = onPool(h.database.pool);
    let rounds = 0;
    const late: TapeConnection = {
      ...pool,
      reset: async (request) => {
        rounds += 1;
        if (rounds === 1) await other.append(messages('in the last moment'));
        return pool.reset(request);
      },
    };
    const tape = await openTape(late, name);
    const { archived } = await tape.reset({ archive: true });
    expect(archived).toMatch(/\/entry\/3\?head=3$/);
    expect(await tape.anchors()).toMatchObject([{ state: { archived } }]);
  });

  test('and a submission to its agent follow one after the other: the turn is on the new tape, or the reset is refused', async () => {
    const agent = await idle();
    for (let round = 0; round < 4; round += 1) {
      const tape = await h.runtime.tape({ agent });
      const [reset, submitted] = await Promise.allSettled([
        tape.reset(),
        h.runtime.submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: agent,
          instruction: 'race',
        }),
      ]);
      const { boxId } = await h.runtime.tape({ agent });
      if (submitted.status === 'fulfilled') {
        const { output_box_id: output, turn_id: turnId } = submitted.value as {
          output_box_id: string;
          turn_id: string;
        };
        expect(output).toBe(boxId);
        await h.runtime.submit('cancel', { turn_id: turnId });
      } else {
        expect(submitted.reason).toMatchObject({ code: 'tape_conflict' });
        expect(reset.status).toBe('fulfilled');
      }
      if (reset.status === 'rejected') expect(reset.reason).toMatchObject({ code: 'tape_busy' });
    }
  });
});
