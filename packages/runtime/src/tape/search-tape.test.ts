import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { searchAnswer } from '../tool/tape-tools.js';
import type { EntryInput } from './entry-input.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `tape-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('reader', [{ say: 'done' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

const messages = (...texts: string[]): EntryInput[] => texts.map((content) => ({ kind: 'message', content }));
const found = async (tape: Tape, query: string): Promise<readonly number[]> =>
  (await tape.search(query)).map(({ record }) => record.position);

describe('a search', () => {
  test('finds words with typos, the newest of equal texts, exact matches first', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(
      messages(
        'The database migration is done',
        'migration of a database',
        'something else',
        'The database migration is done',
        'matching 100% of_it',
      ),
    );
    const found = async (query: string): Promise<unknown> =>
      (await tape.search(query)).map(({ record, match }) => [record.position, match]);
    expect(await found('Database Migration')).toEqual([
      [6, 'exact'],
      [4, 'near'],
    ]);
    expect(await found('databse migrtion')).toEqual([
      [6, 'near'],
      [4, 'near'],
    ]);
    expect(await found('100% of_it')).toEqual([[7, 'exact']]);
    expect(await found('100_ of%it')).toEqual([[7, 'near']]);
    expect(await found('1%0 x_y')).toEqual([]);
    await tape.append(messages('a third database migration'));
    expect(await found('database migration')).toMatchObject([
      [8, 'exact'],
      [6, 'exact'],
      [4, 'near'],
    ]);
    expect(await tape.search('database migration', { limit: 1 })).toHaveLength(1);
    expect(await tape.search('session')).toEqual([]);
    expect(await tape.search('session', { kinds: ['event'] })).toHaveLength(1);
    expect(await found('')).toEqual([]);
  });

  test('does not find erased entries, erased before or after the first search', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(messages('secret one', 'secret two'));
    const cards = await h.rows<{ card_id: string }>(
      'select card_id from boxcar.tape_entries where box_id = $1 and position > 2 order by position',
      [tape.boxId],
    );
    const erase = (index: number) =>
      h.rows('select * from boxcar.erase_cards(array[$1]::uuid[], $2)', [cards[index]?.card_id, 'asked to']);
    await erase(0);
    expect((await tape.search('secret')).map(({ record }) => record.position)).toEqual([4]);
    await erase(1);
    expect(await tape.search('secret')).toEqual([]);
    expect(
      await h.rows('select words from boxcar.tape_words where box_id = $1 and card_id = any ($2)', [
        tape.boxId,
        cards.map(({ card_id }) => card_id),
      ]),
    ).toEqual([{ words: null }, { words: null }]);
  });

  test('gives the same result with and without an index: surrogate pairs, NUL, lone surrogates', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(messages('before 𠀀𠀁𠀂𠀃𠀄 behind', 'Straße', 'ΟΔΟΣ'));
    // Words are not split in the middle of a character; otherwise no part of the word would be found.
    expect(await found(tape, 'behind 𠀀𠀁𠀂𠀃𠀄')).toEqual([3]);
    expect(await found(tape, 'behind 𠀀𠀁x𠀃𠀄')).toEqual([3]);
    expect(await found(tape, 'STRASSE')).toEqual([4]);
    expect(await found(tape, 'οδοσ')).toEqual([5]);
    expect(await found(tape, 'before\0behind')).toEqual([3]);
    expect(await found(tape, '\ud800')).toEqual([]);
    expect(await found(tape, 'before '.repeat(20_000))).toEqual([3]);
  });

  test('reads a fork through its line, as far as a grant reaches, and leaves nothing out for readers with more rights', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(messages('needle one', 'needle two'));
    const { tape: fork } = await tape.forkTape();
    await fork.append(messages('needle three'));
    await tape.append(messages('needle four'));
    expect(await found(fork, 'needle')).toEqual([5, 4, 3]);
    expect(await found(tape, 'needle')).toEqual([5, 4, 3]);
    const made = await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'reader' });
    const reader = (made as { agent_id: string }).agent_id;
    const grants = async (box: string, upto: number) =>
      h.rows(
        `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source) values ($1, $2, $3, 'read', $4, 'test')
         on conflict (agent_id, box_id, mode) do update set upto_position = $4`,
        [tape.projectId, reader, box, upto],
      );
    const late = await h.runtime.tape(fresh());
    await late.append(messages('needle one', 'needle two', 'needle three'));
    await grants(late.boxId, 4);
    const theirs = await h.runtime.tape({ box: late.boxId }, { as: reader });
    expect(await found(theirs, 'needle')).toEqual([4, 3]);
    expect(await found(late, 'needle')).toEqual([5, 4, 3]);
    await h.rows('update boxcar.grants set expires_at = now() where agent_id = $1', [reader]);
    await expect(found(theirs, 'needle')).rejects.toMatchObject({ code: 'box_not_authorized' });
  });

  test('by several readers at once writes the words of a long tape once, without a gap', async () => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(messages(...Array.from({ length: 1_100 }, (_, at) => `word${at % 7}`)));
    const answers = await Promise.all(Array.from({ length: 4 }, () => found(tape, 'word3')));
    for (const answer of answers) expect(answer).toEqual(answers[0]);
    expect(
      await h.rows(
        'select count(*)::int as n, max(position) as last from boxcar.tape_words where box_id = $1',
        [tape.boxId],
      ),
    ).toEqual([{ n: 1_102, last: 1_102 }]);
  });
});

describe("a model's search", () => {
  const line = (kind: string, payload: object, meta: object = {}): string =>
    JSON.stringify({ id: 1, kind, payload, meta });
  const call = (id: string, name: string): string =>
    line('tool_call', { calls: [{ id, type: 'function', function: { name, arguments: '{}' } }] });
  const result = (id: string, text: string): string =>
    line('tool_result', { results: [text] }, { tool_call_ids: [id] });
  const load = async (lines: readonly string[]): Promise<Tape> => {
    const name = fresh();
    await h.runtime.importTape(name, { main: { lines: () => lines } });
    return h.runtime.tape(name);
  };
  const firstLine = async (tape: Tape, query: string, limit?: number): Promise<string | undefined> =>
    (await searchAnswer(tape, { query, ...(limit === undefined ? {} : { limit }) })).split('\n')[0];
  const answers = (count: number): readonly string[] =>
    Array.from({ length: count }, (_, n) => [
      call(`c${n}`, 'tape.search'),
      result(`c${n}`, `[tape.search]: 1 matches (0 filtered)\n{"content":"a lost needle ${n}"}`),
    ]).flat();

  test.each([71, 600])('finds earlier messages before %i answers of earlier searches', async (count) => {
    const tape = await load([line('message', { role: 'user', content: 'a lost needle' }), ...answers(count)]);
    expect(await firstLine(tape, 'needle')).toBe(`[tape.search]: 1 matches (${count} filtered)`);
    // Near matches are not counted as filtered, because they may not contain the words.
    expect(await firstLine(tape, 'neeedle')).toBe('[tape.search]: 1 matches (0 filtered)');
    // Programs find all entries.
    expect(await tape.search('lost needle', { limit: 500 })).toHaveLength(Math.min(count + 1, 500));
  });

  test('finds entries that only look like an answer of a search', async () => {
    const said = '[tape.search]: 1 matches (0 filtered)';
    const tape = await load([
      line('message', { role: 'user', content: `What does ${said} with needle mean?` }),
      call('a', 'read_file'),
      result('a', `${said}\nneedle in a file`),
      call('b', 'tape.search'),
      result('b', `${said}\nneedle in an answer`),
      result('c', `${said}\nneedle in the answer of nobody`),
    ]);
    const answer = await searchAnswer(tape, { query: 'needle' });
    expect(
      answer.split('\n').map((text) => JSON.parse(text.startsWith('{') ? text : 'null')?.content),
    ).toEqual([
      undefined,
      { results: [`${said}\nneedle in the answer of nobody`] },
      { results: [`${said}\nneedle in a file`] },
      { role: 'user', content: `What does ${said} with needle mean?` },
    ]);
    expect(answer.split('\n')[0]).toBe('[tape.search]: 3 matches (1 filtered)');
    expect(await firstLine(tape, 'needle', 1)).toBe('[tape.search]: 1 matches (0 filtered)');
  });
});
