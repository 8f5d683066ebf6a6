import { type BoxId, KernelError, selectRecords, type TurnId } from '@boxcar/kernel';
import { inspectBox } from '@boxcar/store/report';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { TapeSource } from './import-source.js';
import type { ImportOptions } from './import-tape.js';
import type { Tape } from './tape.js';
import type { TapeTarget } from './tape-types.js';

let h: Harness;
let n = 0;
const fresh = (): string => `file-${++n}`;

beforeAll(async () => {
  h = await harness();
});

afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

/**
 * Lines as the original writes them: with gaps, without dates and with old dates, and with kinds that the original itself does not know.
 */
const LINES = [
  '{"id": 1, "kind": "anchor", "payload": {"name": "session/start", "state": {"owner": "human"}}, "meta": {}}',
  '{"id": 2, "kind": "event", "payload": {"name": "handoff", "data": {"name": "session/start", "state": {"owner": "human"}}}, "meta": {}}',
  '{"id": 3, "kind": "message", "payload": {"role": "user", "content": "Wie h\\u00f6rt es auf?"}, "meta": {"run_id": "run-1"}, "date": "2026-02-21T12:00:00.123456+00:00"}',
  '{"id": 7, "kind": "tool_call", "payload": {"calls": [{"id": "c1", "type": "function", "function": {"name": "fs.read", "arguments": "{\\"path\\": \\"a\\"}"}}, {"id": "c2", "type": "function", "function": {"name": "fs.read", "arguments": "{}"}}]}, "meta": {}, "timestamp": 1771675200.25}',
  '{"id": 8, "kind": "tool_result", "payload": {"results": ["text", {"x": 1.0}]}, "meta": {}}',
  '{"id": 20, "kind": "note", "payload": {"by": "a plugin"}, "meta": {"context": false}, "extra": [1, 2]}',
  '{"id": 21, "kind": "anchor", "payload": {"name": "phase/2", "state": {"summary": "secret words", "n": 1.50}}, "meta": {}}',
  '{"id": 22, "kind": "event", "payload": {"name": "handoff", "data": {"name": "phase/2", "state": {"summary": "secret words", "n": 1.50}}}, "meta": {}}',
  '{"id": 23, "kind": "message", "payload": {"role": "assistant", "content": "So."}, "meta": {}}',
];

const load = (
  name: TapeTarget,
  lines: readonly string[] | TapeSource,
  options: ImportOptions = {},
): ReturnType<Harness['runtime']['importTape']> =>
  h.runtime.importTape(name, 'main' in lines ? lines : { main: { lines: () => lines } }, options);

async function linesOf(tape: Tape): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of tape.export()) lines.push(line);
  return lines;
}

test('info of a file with run events reports the tokens of the last event that has them, also in a fork', async () => {
  const run = (id: number, data: unknown): string =>
    JSON.stringify({ id, kind: 'event', payload: { name: 'run', data }, meta: { run_id: 'r' } });
  const used = (total_tokens: unknown): object => ({
    status: 'ok',
    usage: { prompt_tokens: 1, total_tokens },
  });
  const name = fresh();
  await load(name, [run(1, used(700)), run(2, used(1234)), run(3, { status: 'error' })]);
  await load(name, [run(4, used('many')), run(5, 'x'), ...LINES.slice(2, 3)], { append: true });
  const tape = await h.runtime.tape(name);
  expect((await tape.info()).last_token_usage).toBe(1234);
  const fork = await tape.forkTape();
  expect((await fork.tape.info()).last_token_usage).toBe(1234);
  await fork.discard();
});

describe('a tape file', () => {
  test('is exported again byte for byte, and its tape is like any other', async () => {
    const name = fresh();
    const { boxId } = await load(name, LINES);
    const tape = await h.runtime.tape(name);
    expect(tape.boxId).toBe(boxId);
    expect(await linesOf(tape)).toEqual(LINES);
    expect(await tape.info()).toMatchObject({ entries: 11, anchors: 2, last_anchor: 'phase/2' });
    expect((await tape.fromLastAnchor()).map(({ kind }) => kind)).toEqual(['event', 'message']);
    expect(await tape.messages({ strictBub: true, anchor: null })).toMatchObject([
      { role: 'assistant', content: '[Anchor created: session/start]: {"owner": "human"}' },
      { role: 'user', content: 'Wie hört es auf?' },
      { role: 'assistant', tool_calls: [{ id: 'c1' }, { id: 'c2' }] },
      { role: 'tool', content: 'text', tool_call_id: 'c1' },
      { role: 'tool', content: '{"x": 1.0}', tool_call_id: 'c2' },
      { role: 'assistant', content: '[Anchor created: phase/2]: {"summary": "secret words", "n": 1.5}' },
      { role: 'assistant', content: 'So.' },
    ]);
    // Lines without a date get the date 1970.
    const dated = await tape.query().betweenDates('2026-01-01', '2026-12-31').all();
    expect(dated.map(({ kind }) => kind)).toEqual(['message', 'tool_call', 'tool_call']);
    await tape.append([{ kind: 'message', content: 'more' }]);
    expect((await linesOf(tape)).slice(0, -1)).toEqual(LINES);
    expect(JSON.parse((await linesOf(tape)).at(-1) ?? '')).toMatchObject({ id: 24, kind: 'message' });
  });

  test('without an anchor is a tape without an anchor: its last slice is the whole tape', async () => {
    const name = fresh();
    await load(name, LINES.slice(2, 5));
    const tape = await h.runtime.tape(name);
    expect(await tape.info()).toMatchObject({ entries: 5, anchors: 0, last_anchor: null });
    expect(await tape.fromLastAnchor()).toHaveLength(5);
    expect(await linesOf(tape)).toEqual(LINES.slice(2, 5));
    // The tape as the context of a turn.
    await h.profile('reader', [{ say: 'done' }]);
    const worker = await h.worker();
    const { context_box_id: context } = (await h.runtime.submit('launch_principal', {
      profile_name: 'reader',
      instruction: 'Read.',
      context_box_id: tape.boxId,
      wait: true,
    })) as { context_box_id: BoxId };
    await worker.close();
    const { segments } = await inspectBox(h.database.pool, context, { project: 'default' });
    expect(segments.filter(({ source }) => source === tape.boxId)).toMatchObject([{ count: 5 }]);
    await tape.handoff('first');
    expect(await tape.info()).toMatchObject({
      anchors: 1,
      last_anchor: 'first',
      entries_since_last_anchor: 1,
    });
  });

  test.each<[string, readonly string[], string, number]>([
    ['broken', [...LINES, '{"id": 1'], 'Line 10 is not valid JSON.', 10],
    ['with a card that is too large', [...LINES, bigLine()], 'Line 10: ', 10],
    [
      'with a bad line after many good lines',
      [...many(1_200), '', 'x'],
      'Line 1202 is not valid JSON.',
      1_202,
    ],
  ])(
    '%s is refused with the number of its line, and nothing is imported',
    async (_what, lines, message, line) => {
      const name = fresh();
      await expect(load(name, lines)).rejects.toMatchObject({
        message: expect.stringContaining(message),
        details: { line },
      });
      await expect(h.runtime.tape(name, { create: false })).rejects.toMatchObject({ code: 'not_found' });
      // The same lines cannot be appended to an existing tape either.
      const tape = await h.runtime.tape(name);
      await expect(load(name, lines, { append: true })).rejects.toBeInstanceOf(KernelError);
      expect((await tape.info()).entries).toBe(2);
    },
  );

  test('that cannot be read or is empty is refused with its name', async () => {
    const lost = { name: 'lost.jsonl', lines: () => failing() };
    await expect(load(fresh(), { main: lost })).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining('lost.jsonl: cannot be read: gone.'),
    });
    await expect(load(fresh(), { main: { name: 'e', lines: () => ['', ' '] } })).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining('e: There are no lines.'),
    });
  });

  test('is imported into an existing tape only by appending after its entries', async () => {
    const tape = await h.runtime.tape(fresh());
    const { name } = await tape.info();
    await expect(load(name ?? '', LINES)).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'tape' },
    });
    expect(await load({ box: tape.boxId }, LINES, { append: true })).toMatchObject({
      boxId: tape.boxId,
      first: 3,
      last: 13,
      lines: 9,
    });
    expect((await linesOf(tape)).slice(2)).toEqual(LINES);
    expect(await tape.info()).toMatchObject({ anchors: 3, last_anchor: 'phase/2', last_anchor_position: 11 });
    await expect(
      load(name ?? '', { main: { lines: () => LINES }, sessionGraph: '' }, { append: true }),
    ).rejects.toMatchObject({ code: 'bad_request' });
  });

  test('of any length takes the same statements for each chunk, in one transaction', async () => {
    const name = fresh();
    const seen: number[] = [];
    const statements = await statementsOf(h.database, () =>
      load(name, many(1_600), { onProgress: (lines) => seen.push(lines) }),
    );
    expect(seen).toEqual([500, 1_000, 1_500, 1_600]);
    expect(statements.filter((text) => text.startsWith('begin'))).toHaveLength(1);
    const staged = statements.filter((text) => text.includes('insert into pg_temp.boxcar_import'));
    expect(staged).toHaveLength(4);
    expect(statements.filter((text) => text.includes('insert into boxcar.tape_entries'))).toHaveLength(1);
    expect(statements.length - staged.length).toBeLessThan(15);
    const tape = await h.runtime.tape(name);
    const reads = await statementsOf(h.database, async () => {
      expect(await linesOf(tape)).toEqual(many(1_600));
    });
    expect(reads).toHaveLength(5);
  });
});

const many = (count: number): readonly string[] =>
  Array.from(
    { length: count },
    (_, index) =>
      `{"id": ${index + 1}, "kind": "message", "payload": {"role": "user", "content": "${index}"}, "meta": {}}`,
  );
const bigLine = (): string =>
  `{"id": 99, "kind": "message", "payload": {"role": "user", "content": "${'x'.repeat(2 ** 20)}"}, "meta": {}}`;
// biome-ignore lint/correctness/useYield: it fails before its first line.
async function* failing(): AsyncGenerator<string> {
  throw Object.assign(new Error('gone'), { code: 'ENOENT' });
}

test('a folder of several incarnations and a session graph is exported again as it was', async () => {
  const name = fresh();
  const sessionGraph =
    `{"session_id": "${name}", "parent_session_id": "p", "from_anchor": "a", "created_at": "2026-02-21", "status":"active"}\n` +
    `{"session_id": "${name}", "status": "odd spacing" ,"x":1}\n`;
  const archived = [many(3), LINES.slice(0, 3)];
  const file = (lines: readonly string[]) => ({ lines: () => lines });
  expect(await load(name, { main: file(LINES), archived: archived.map(file), sessionGraph })).toMatchObject({
    archived: 2,
  });
  const tape = await h.runtime.tape(name);
  expect(await tape.info()).toMatchObject({ incarnation: 3 });
  const folder = await tape.folder();
  expect(folder).toMatchObject({ id: name, parent: null, sessionGraph });
  expect(
    await Promise.all(
      folder.archived.map(async ({ boxId }) => linesOf(await h.runtime.tape({ box: boxId }))),
    ),
  ).toEqual(archived);
  await tape.reset();
  expect((await tape.folder()).archived).toHaveLength(3);
});

test('a reset carries the imported session graph along, and so does a fork that was reset and replaces the tape', async () => {
  const name = fresh();
  const sessionGraph = `{"session_id": "${name}", "parent_session_id": "p", "from_anchor": null, "status":"active" }\n`;
  await load(name, { main: { lines: () => LINES }, sessionGraph });
  const tape = await h.runtime.tape(name);
  await tape.reset();
  expect((await tape.folder()).sessionGraph).toBe(sessionGraph);
  const fork = await tape.forkTape();
  await fork.tape.reset();
  expect(await fork.merge()).toMatchObject({ replaced: true });
  expect((await tape.info()).incarnation).toBe(3);
  expect((await tape.folder()).sessionGraph).toBe(sessionGraph);
});

test('a folder takes the same number of statements for any number of incarnations', async () => {
  const tape = await h.runtime.tape(fresh());
  const cost = async (): Promise<number> => {
    const statements = await statementsOf(h.database, () => tape.folder());
    return statements.length;
  };
  const before = await cost();
  for (let times = 0; times < 4; times += 1) await tape.reset();
  expect(await cost()).toBe(before);
  expect((await tape.folder()).archived).toHaveLength(4);
});

test('a folder lists the incarnations that its reader may read', async () => {
  const tape = await h.runtime.tape(fresh());
  const [first] = [tape.boxId];
  await tape.reset();
  const second = tape.boxId;
  await tape.reset();
  const [reader] = await h.rows<{ id: string }>(
    "insert into boxcar.agents (id, project_id, name) select gen_random_uuid(), id, 'reader-of-folders' from boxcar.projects where name = 'default' returning id",
  );
  for (const box of [second, tape.boxId])
    await h.runtime.submit('grant_box', { box_id: box, grantee: reader?.id ?? '', mode: 'read' });
  const theirs = await h.runtime.tape({ box: tape.boxId }, { as: reader?.id ?? '' });
  expect((await theirs.folder()).archived.map(({ boxId }) => boxId)).toEqual([second]);
  expect((await tape.folder()).archived.map(({ boxId }) => boxId)).toEqual([first, second]);
});

test.each([
  ['session_id', 513, 'file'],
  ['parent_session_id', 4_000, 'file'],
  ['from_anchor', 4_097, 'file'],
])('a session graph with a %s of %i characters is refused with its line and field', async (field, length) => {
  const name = fresh();
  // The text must not repeat, because Postgres compresses repetitions.
  const long = Array.from({ length }, (_, at) => String.fromCharCode(0x4e00 + ((at * 7919) % 20_000))).join(
    '',
  );
  const line = JSON.stringify({
    session_id: name,
    parent_session_id: 'p',
    from_anchor: 'a',
    status: 'active',
    [field]: long,
  });
  const text = `{"session_id":"x"}\n${line}`;
  await expect(load(name, { main: { lines: () => LINES }, sessionGraph: text })).rejects.toMatchObject({
    code: 'bad_request',
    message: expect.stringContaining(`session_graph.jsonl: Line 2 has a \`${field}\` of more than`),
    details: { line: 2, field },
  });
  await expect(h.runtime.tape(name, { create: false })).rejects.toMatchObject({ code: 'not_found' });
});

test('names of the maximum length are accepted', async () => {
  const long = (length: number): string =>
    Array.from({ length }, (_, at) => String.fromCharCode(0x4e00 + ((at * 7919) % 20_000))).join('');
  const name = long(512);
  const sessionGraph = JSON.stringify({
    session_id: name,
    parent_session_id: long(511),
    from_anchor: long(4_096),
  });
  const anchor = JSON.stringify({ id: 1, kind: 'anchor', payload: { name: long(4_096) }, meta: {} });
  await load(name, { main: { lines: () => [anchor] }, sessionGraph });
  expect(await h.runtime.sessions.get(name)).toMatchObject({
    parent_session_id: long(511),
    from_anchor: long(4_096),
  });
  expect(await (await h.runtime.tape(name)).afterAnchor(long(4_096))).toEqual([]);
});

describe('names are compared in NFC', () => {
  const [nfc, nfd] = ['caf\u00e9', 'cafe\u0301'];

  test('for tapes, anchors and sessions, in every spelling', async () => {
    const suffix = fresh();
    const tape = await h.runtime.tape(`${nfd}-${suffix}`);
    expect((await h.runtime.tape(`${nfc}-${suffix}`, { create: false })).boxId).toBe(tape.boxId);
    expect((await tape.info()).name).toBe(`${nfc}-${suffix}`);
    await tape.handoff(nfd, { state: { one: 1 } });
    await tape.handoff(nfc, { state: { two: 2 } });
    for (const name of [nfc, nfd]) {
      expect((await tape.afterAnchor(name)).map(({ position }) => position)).toEqual([6]);
      expect((await tape.betweenAnchors('session/start', name)).map(({ position }) => position)).toEqual([2]);
      const ref = `tape://default/${encodeURIComponent(`${name}-${suffix}`)}/anchor/${encodeURIComponent(name)}`;
      expect(await h.runtime.resolveTapeRef(ref)).toMatchObject({ boxId: tape.boxId, position: 5 });
    }
    expect((await tape.query().kinds('event').all()).at(1)?.payload).toMatchObject({
      data: { state: { one: 1 } },
    });
    await h.profile('forker', [{ say: 'done' }]);
    const session = await tape.forkSession(`${nfd}-s-${suffix}`, { fromAnchor: nfd, profile: 'forker' });
    expect(session.name).toBe(`${nfc}-s-${suffix}`);
    for (const form of [nfc, nfd]) {
      expect(await h.runtime.sessions.get(`${form}-s-${suffix}`)).toMatchObject({ from_anchor: nfc });
      expect(await h.runtime.sessions.getChildren(`${form}-${suffix}`)).toHaveLength(1);
      await h.runtime.sessions.setStatus(`${form}-s-${suffix}`, form);
      expect((await h.runtime.tape({ agent: `${form}-s-${suffix}` })).boxId).toBe(session.tape.boxId);
      const sourceAgentId = `${form}-s-${suffix}`;
      expect(await h.runtime.submit('tape.handoff', { name: form }, { sourceAgentId })).toBe(
        `anchor added: ${form}`,
      );
      await expect(tape.forkSession(`${form}-s-${suffix}`, { profile: 'forker' })).rejects.toMatchObject({
        code: 'agent_exists',
      });
    }
    expect(
      await h.runtime.submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: `${nfd}-s-${suffix}`,
        instruction: 'x',
      }),
    ).toMatchObject({ agent_id: session.agentId });
  });

  test('and found when an older build has stored them in their original spelling', async () => {
    const suffix = fresh();
    const tape = await h.runtime.tape(`x-${suffix}`);
    await tape.append([{ kind: 'message', content: 'precious' }]);
    await h.profile(`p-${suffix}`, [{ say: 'done' }]);
    const made = (await h.runtime.submit('provision_agent', {
      action: 'create',
      agent_id: `x-${suffix}`,
      profile_name: `p-${suffix}`,
    })) as { agent_id: string };
    const session = await tape.forkSession(`s-${suffix}`, { profile: `p-${suffix}` });
    // Builds before NFC stored names as they were given.
    const old = `${nfd}-${suffix}`;
    await h.rows('update boxcar.boxes set tape_name = $1 where id = $2', [old, tape.boxId]);
    await h.rows('update boxcar.agents set name = $1 where id = $2', [old, made.agent_id]);
    await h.rows('update boxcar.agents set name = $1 where id = $2', [`${old}-s`, session.agentId]);
    await h.rows('update boxcar.sessions set name = $1, parent_session_id = $2 where id = $3', [
      `${old}-s`,
      old,
      session.tape.boxId,
    ]);
    await h.rows('update boxcar.profiles set name = $1 where name = $2', [`${old}-p`, `p-${suffix}`]);
    await h.rows(
      `with head as (update boxcar.boxes set head_position = head_position + 1, last_anchor_position = head_position + 1, view_position = head_position + 1, anchor_count = anchor_count + 1 where id = $1 returning id, head_position)
       insert into boxcar.tape_entries (box_id, position, kind, card_id, anchor_name, author_id)
       select h.id, h.head_position, 'anchor', p.bootstrap_card_id, $2, 'author' from head h, boxcar.projects p where p.name = 'default'`,
      [tape.boxId, nfd],
    );
    await tape.append([{ kind: 'message', content: 'after' }]);
    for (const form of [nfc, nfd]) {
      const name = `${form}-${suffix}`;
      const found = await h.runtime.tape(name);
      expect(found.boxId).toBe(tape.boxId);
      expect((await found.afterAnchor(form))[0]).toMatchObject({ payload: { content: 'after' } });
      const ref = `tape://default/${encodeURIComponent(name)}/anchor/${encodeURIComponent(form)}`;
      expect(await h.runtime.resolveTapeRef(ref)).toMatchObject({ boxId: tape.boxId, position: 4 });
      expect((await h.runtime.tape({ agent: name })).boxId).not.toBe(tape.boxId);
      expect(await h.runtime.submit('tape.handoff', { name: 'x' }, { sourceAgentId: name })).toBe(
        'anchor added: x',
      );
      expect(
        await h.runtime.submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: name,
          instruction: 'x',
        }),
      ).toMatchObject({ agent_id: made.agent_id });
      expect(
        await h.runtime.submit('launch_principal', { profile_name: `${name}-p`, instruction: 'x' }),
      ).toMatchObject({ status: 'accepted' });
      expect(await h.runtime.sessions.get(`${name}-s`)).toMatchObject({ session_id: `${old}-s` });
      expect(await h.runtime.sessions.getChildren(name)).toHaveLength(1);
      await h.runtime.sessions.setStatus(`${name}-s`, 'done');
      const line = JSON.stringify({
        id: 1,
        kind: 'message',
        payload: { role: 'user', content: form },
        meta: {},
      });
      const append = () =>
        h.runtime.importTape(name, { main: { lines: () => [line] } }, { append: true, dedupKey: name });
      expect(await append()).toMatchObject({ boxId: tape.boxId, isRepeated: false });
      expect(await append()).toMatchObject({ boxId: tape.boxId, isRepeated: true });
      await expect(found.forkSession(name, { profile: `${name}-p` })).rejects.toMatchObject({
        code: 'agent_exists',
      });
    }
    // When there are two tapes, each is found by its own spelling.
    const other = await h.runtime.tape(`y-${suffix}`);
    await h.rows('update boxcar.boxes set tape_name = $1 where id = $2', [`${nfc}-${suffix}`, other.boxId]);
    expect((await h.runtime.tape(`${nfc}-${suffix}`)).boxId).toBe(other.boxId);
    expect((await h.runtime.tape(old)).boxId).toBe(tape.boxId);
  });

  test('for imported tapes, whose lines are exported unchanged', async () => {
    const suffix = fresh();
    const lines = [
      { id: 1, kind: 'anchor', payload: { name: nfd, state: { secret: 'words' } }, meta: {} },
      {
        id: 2,
        kind: 'event',
        payload: { name: 'handoff', data: { name: nfd, state: { secret: 'words' } } },
        meta: {},
      },
      { id: 3, kind: 'message', payload: { role: 'user', content: 'x' }, meta: {} },
    ].map((line) => JSON.stringify(line));
    const graph = {
      session_id: `${nfd}-${suffix}`,
      parent_session_id: `${nfd}-p`,
      from_anchor: nfd,
      status: 'active',
    };
    const sessionGraph = `${JSON.stringify(graph)}\n`;
    await load(`${nfc}-${suffix}`, { main: { lines: () => lines }, sessionGraph });
    const tape = await h.runtime.tape(`${nfd}-${suffix}`, { create: false });
    expect(await linesOf(tape)).toEqual(lines);
    expect((await tape.folder()).sessionGraph).toBe(sessionGraph);
    for (const name of [nfc, nfd]) expect(await tape.afterAnchor(name)).toHaveLength(2);
    expect(await h.runtime.sessions.get(`${nfd}-${suffix}`)).toMatchObject({
      parent_session_id: `${nfc}-p`,
      from_anchor: nfc,
    });
    // The event is read with the state of its anchor, and without a state after that is erased.
    const stored = await h.rows(
      "select payload from boxcar.tape_entries where box_id = $1 and kind = 'event'",
      [tape.boxId],
    );
    expect(JSON.stringify(stored)).not.toContain('words');
  });
});

test('a fork is exported with its whole line, as far as its reader may read', async () => {
  const name = fresh();
  await load(name, LINES);
  const { boxId: parent } = await h.runtime.tape(name);
  // The fork is in the middle of a line with two results.
  const [fork] = await h.rows<{ id: string }>(
    `insert into boxcar.boxes (id, project_id, kind, maker_agent_id, incarnation, head_position, last_anchor_position, view_position, anchor_count,
       parent_box_id, fork_position, line_boxes, line_ends, fork_status)
     select gen_random_uuid(), b.project_id, 'tape', b.maker_agent_id, 1, 6, 1, 1, 1, b.id, 6, array[b.id], array[6], 'open'
     from boxcar.boxes b where b.id = $1 returning id`,
    [parent],
  );
  const tape = await h.runtime.tape({ box: fork?.id ?? '' });
  await tape.append([{ kind: 'message', content: 'own' }]);
  const lines = await linesOf(tape);
  expect(lines.slice(0, 4)).toEqual(LINES.slice(0, 4));
  expect(lines.slice(4).map((line) => JSON.parse(line).payload)).toEqual([
    { results: ['text'] },
    { role: 'user', content: 'own' },
  ]);
  const { sessionGraph, ...folder } = await tape.folder();
  expect(folder).toEqual({ id: tape.boxId, parent: { tape: name, entry: 6 }, archived: [] });
  expect(JSON.parse(sessionGraph)).toMatchObject({ parent_session_id: name, status: 'active' });

  const [reader] = await h.rows<{ id: string }>(
    "insert into boxcar.agents (id, project_id, name) select gen_random_uuid(), id, 'reader-1' from boxcar.projects where name = 'default' returning id",
  );
  const read = async () => linesOf(await h.runtime.tape(name, { as: reader?.id ?? '', create: false }));
  await expect(read()).rejects.toMatchObject({ code: 'box_not_authorized' });
  await h.runtime.submit('grant_box', { box_id: parent, grantee: reader?.id ?? '', mode: 'read' });
  expect(await read()).toEqual(LINES);
});

test('a session graph is made from the tape itself when none was imported', async () => {
  const tape = await h.runtime.tape(fresh());
  const { sessionGraph, id } = await tape.folder();
  expect(JSON.parse(sessionGraph)).toEqual({
    session_id: id,
    parent_session_id: null,
    from_anchor: null,
    created_at: expect.stringMatching(/\+00:00$/),
    status: 'active',
  });
});

test('an agent’s own tape that is imported elsewhere gives the same messages and the same lines', async () => {
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.object({ at: z.number().optional() }),
    retry: 'safe',
    run: async () => ({ found: [1, 'ü'] }),
  });
  await h.profile(
    'looker',
    [
      {
        say: 'Looking.',
        calls: [
          { tool: 'look', arguments: { at: 1 } },
          { tool: 'look', arguments: {} },
        ],
      },
      { say: 'Done.' },
    ],
    { tools: ['look'] },
  );
  await h.worker();
  const { agent_id: agent, turn_id: turn } = (await h.runtime.submit('launch_principal', {
    profile_name: 'looker',
    instruction: 'Look.',
  })) as unknown as { agent_id: string; turn_id: string };
  await h.runtime.waitForTurn(turn as TurnId);
  const tape = await h.runtime.tape({ agent });
  const lines = await linesOf(tape);
  const name = fresh();
  await load(name, lines);
  const copy = await h.runtime.tape(name);
  expect(await linesOf(copy)).toEqual(lines);
  for (const options of [{}, { strictBub: true, anchor: null }] as const)
    expect(await copy.messages(options)).toEqual(await tape.messages(options));
  expect(await tape.messages({ anchor: null })).toMatchObject([
    { content: '[Anchor created: session/start]: {"owner": "human"}' },
    { role: 'user', content: 'Look.' },
    { role: 'assistant', content: 'Looking.' },
    { tool_calls: [{ function: { name: 'look' } }, { function: { name: 'look' } }] },
    { role: 'tool', content: '{"found": [1, "ü"]}' },
    { role: 'tool', content: '{"found": [1, "ü"]}' },
    { role: 'assistant', content: 'Done.' },
  ]);
});

test('a bootstrap is two lines, the anchor and its event; a file that begins with one line keeps it', async () => {
  const made = await h.runtime.tape(fresh());
  expect((await linesOf(made)).map((line) => JSON.parse(line))).toMatchObject([
    { id: 1, kind: 'anchor', payload: { name: 'session/start', state: { owner: 'human' } } },
    {
      id: 2,
      kind: 'event',
      payload: { name: 'handoff', data: { name: 'session/start', state: { owner: 'human' } } },
    },
  ]);
  const one = [
    '{"id": 1, "kind": "anchor", "payload": {"name": "session/start", "state": {"owner": "human"}}, "meta": {}}',
    '{"id": 2, "kind": "message", "payload": {"role": "user", "content": "Hello"}, "meta": {}}',
  ];
  const name = fresh();
  await load(name, one);
  const read = await h.runtime.tape(name);
  expect(await linesOf(read)).toEqual(one);
  expect(await read.info()).toMatchObject({ entries: 2, anchors: 1, entries_since_last_anchor: 1 });
  for (const tape of [made, read])
    expect(
      (await tape.messages()).filter(({ content }) => String(content).includes('session/start')),
    ).toEqual([]);
});

test('an anchor’s name is not unique: the name means its latest anchor, and all anchors stay', async () => {
  const name = fresh();
  const tape = await h.runtime.tape(name);
  await tape.handoff('phase', { state: { round: 1 } });
  await tape.append([{ kind: 'message', content: 'between' }]);
  await tape.handoff('phase', { state: { round: 2 } });
  await tape.append([{ kind: 'message', content: 'after' }]);
  expect(await tape.anchors()).toMatchObject([
    { name: 'session/start' },
    { position: 3, name: 'phase', state: { round: 1 } },
    { position: 6, name: 'phase', state: { round: 2 } },
  ]);
  expect((await tape.afterAnchor('phase', { kinds: ['message'] })).map(({ position }) => position)).toEqual([
    8,
  ]);
  expect((await tape.betweenAnchors('session/start', 'phase')).map(({ position }) => position)).toEqual([2]);
  expect(await tape.messages({ anchor: 'phase' })).toMatchObject([
    { content: '[Anchor created: phase]: {"round": 2}' },
    { content: 'after' },
  ]);
  const ref = `tape://default/${name}/anchor/phase`;
  expect(await h.runtime.resolveTapeRef(ref)).toMatchObject({ position: 6 });
  expect(await h.runtime.resolveTapeRef(`${ref}?head=5`)).toMatchObject({ position: 3 });
});

test('an erased entry is in no exported line, and the rest of its line stays', async () => {
  const name = fresh();
  await load(name, LINES);
  const tape = await h.runtime.tape(name);
  const cards = await h.rows<{ id: string }>(
    "select card_id as id from boxcar.tape_entries where box_id = $1 and (kind = 'anchor' or kind = 'tool_result') order by position",
    [tape.boxId],
  );
  // The second result of a line with two results, and the last anchor, whose event repeats its state.
  for (const card of [cards[2]?.id, cards[3]?.id])
    await h.rows('select * from boxcar.erase_cards(array[$1]::uuid[], $2)', [card, 'asked to']);
  const lines = await linesOf(tape);
  expect(lines.join('\n')).not.toContain('secret');
  expect(lines.join('\n')).not.toContain('1.0');
  expect(lines.filter((line) => !LINES.includes(line)).map((line) => JSON.parse(line).payload)).toEqual([
    { results: ['text'] },
    { results: ['(erased)'] },
    { name: 'phase/2', state: '(erased)' },
    { name: 'handoff', data: { name: 'phase/2', state: '(erased)' } },
  ]);
  expect(
    await h.rows("select from boxcar.tape_entries where box_id = $1 and meta::text like '%secret%'", [
      tape.boxId,
    ]),
  ).toEqual([]);
});

describe('a requested kind of entry', () => {
  const foreign = [
    '{"id": 1, "kind": "anchor", "payload": {"name": "session/start"}, "meta": {}}',
    '{"id": 2, "kind": "loop.step", "payload": {"step": 1, "words": "a lighthouse"}, "meta": {}}',
    '{"id": 3, "kind": "event", "payload": {"name": "run", "data": {"words": "a lighthouse, too"}}, "meta": {}}',
    '{"id": 4, "kind": "loop.step", "payload": {"step": 2}, "meta": {}}',
    '{"id": 5, "kind": "message", "payload": {"role": "user", "content": "Hello"}, "meta": {}}',
  ];
  const DAY = { from: '1970-01-01T00:00:00.000000Z', until: '2100-01-01T00:00:00.000000Z' };

  test('means the kind of the line: events are only events, and a foreign kind is found', async () => {
    const name = fresh();
    await load(name, foreign);
    const tape = await h.runtime.tape(name);
    const all = await tape.query().all();
    expect(all.map(({ kind }) => kind)).toEqual(['anchor', 'loop.step', 'event', 'loop.step', 'message']);
    for (const kinds of [
      ['event'],
      ['loop.step'],
      ['message', 'loop.step'],
      ['event', 'loop.step'],
      ['absent'],
    ]) {
      const expected = all.filter(({ kind }) => kinds.includes(kind));
      expect(await tape.query().kinds(kinds).all()).toEqual(expected);
      expect(
        await tape
          .query()
          .kinds(...kinds)
          .all(),
      ).toEqual(expected);
      expect(await tape.query().kinds(kinds).limit(1).all()).toEqual(expected.slice(0, 1));
      expect(await tape.fromLastAnchor({ kinds })).toEqual(expected);
      const dated = { ...DAY, slice: { kind: 'all' }, text: null, kinds, limit: null } as const;
      expect(await tape.select(dated)).toEqual(expected);
      expect(selectRecords(all, dated)).toEqual(expected);
    }
  });

  test('does not include a line of calls or results that lists none: such a line is found without kinds', async () => {
    const name = fresh();
    const none = [
      '{"id": 1, "kind": "tool_call", "payload": {"calls": []}, "meta": {}}',
      '{"id": 2, "kind": "tool_result", "payload": {}, "meta": {}}',
    ];
    await load(name, none);
    const tape = await h.runtime.tape(name);
    expect((await tape.query().all()).map(({ kind }) => kind)).toEqual(['tool_call', 'tool_result']);
    expect(await tape.query().kinds(['tool_call', 'tool_result']).all()).toEqual([]);
    expect(await tape.query().kinds(['event']).all()).toEqual([]);
    expect(await linesOf(tape)).toEqual(none);
  });

  test('can also be requested in a search', async () => {
    const name = fresh();
    await load(name, foreign);
    const tape = await h.runtime.tape(name);
    const found = async (...kinds: string[]): Promise<readonly number[]> =>
      (await tape.search('lighthouse', { kinds })).map(({ record }) => record.position);
    expect(await found('loop.step')).toEqual([2]);
    expect(await found('event')).toEqual([3]);
    expect(await found('event', 'loop.step')).toEqual([3, 2]);
    expect(await found()).toEqual([3, 2]);
    expect(await found('message')).toEqual([]);
  });
});
