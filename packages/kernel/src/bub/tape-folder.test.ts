import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { shareSessionGraph } from './share-session-graph.js';
import {
  FilePaths,
  fileStem,
  formatManifest,
  formatSessionGraph,
  hashedStem,
  isFilePath,
  joinSessionGraphs,
  parseManifest,
  parseSessionGraph,
  type TapeFolderManifest,
} from './tape-folder.js';

describe('a manifest', () => {
  const manifest: TapeFolderManifest = {
    version: 1,
    tapes: [
      {
        id: 'a__b',
        file: 'main.jsonl',
        head_id: 9,
        parent: null,
        anchors: { 'session/start': 1 },
        archived: false,
      },
      {
        id: 'fork',
        file: 'fork.jsonl',
        head_id: 12,
        parent: { tape: 'a__b', entry: 9 },
        anchors: {},
        archived: true,
      },
    ],
  };

  test('is read as it was written', () => {
    expect(parseManifest(formatManifest(manifest))).toEqual(manifest);
    expect(formatManifest(manifest)).toMatch(/^\{\n {2}"version": 1,\n/);
  });

  test('that is broken is refused with the name of its field', () => {
    expect(() => parseManifest('{')).toThrow('The manifest is not valid JSON.');
    expect(() => parseManifest('{"version":1,"tapes":[{"id":""}]}')).toThrow(KernelError);
  });

  test.each([
    ['{"version":2,"tapes":[]}', 'has version 2', 'manifest.version'],
    ['{"tapes":{"main":{"file":"main.jsonl"}}}', 'has no `version`', 'manifest.version'],
    ['{"version":1,"tapes":{"main":{}}}', 'has an object as `tapes`', 'manifest.tapes'],
    ['{"version":1}', 'has no `tapes`', 'manifest.tapes'],
    ['[]', 'is a list', 'manifest'],
  ])('of another form is refused with its form and the next step: %s', (text, found, field) => {
    expect(() => parseManifest(text)).toThrow(
      expect.objectContaining({
        code: 'bad_request',
        message: expect.stringMatching(/^manifest\.json has another form: it .* move it out of the folder/),
        details: { field },
      }),
    );
    expect(() => parseManifest(text)).toThrow(found);
  });
});

describe('a session graph', () => {
  const child = {
    session_id: 'p-fork-1234abcd',
    parent_session_id: 'p',
    from_anchor: 'phase/ü',
    created_at: '2026-02-21T12:00:00+00:00',
    status: 'active',
  };

  test('is written as the original writes it, and read back', () => {
    const text = formatSessionGraph([child]);
    expect(text).toBe(
      '{"session_id": "p-fork-1234abcd", "parent_session_id": "p", "from_anchor": "phase/ü", ' +
        '"created_at": "2026-02-21T12:00:00+00:00", "status": "active"}\n',
    );
    expect(parseSessionGraph(text)).toEqual([child]);
  });

  test('takes the last line about a session, in the place of the first line about it', () => {
    const graph = `${formatSessionGraph([child])}{"session_id":"root"}\n${formatSessionGraph([{ ...child, status: 'done' }])}`;
    expect(parseSessionGraph(graph)).toEqual([
      { ...child, status: 'done' },
      { session_id: 'root', parent_session_id: null, from_anchor: null, created_at: null, status: 'active' },
    ]);
  });

  test.each([
    ['{"session_id": "a\\u0000"}', 'has a NUL or half a character'],
    ['{"session_id": "a", "status": " "}', 'has a `status` that is blank'],
    ['{"session_id": "a", "created_at": "soon"}', 'has no ISO `created_at`'],
  ])('with a value that cannot be stored is refused: %s', (text, message) => {
    expect(() => parseSessionGraph(text)).toThrow(`Line 1 ${message}`);
  });

  test('with a broken line is refused with the number of the line', () => {
    expect(() => parseSessionGraph('{"session_id":"a"}\n{"parent_session_id":"a"}\n')).toThrow(
      'Line 2 has no `session_id`.',
    );
    expect(() => parseSessionGraph('nonsense')).toThrow('Line 1 is not valid JSON.');
  });
});

describe('a file of a tape folder', () => {
  test.each([
    ['archived/main_2026-02-21_001.jsonl', true],
    ['a.bak', true],
    ['..a/b', true],
    ['../a.jsonl', false],
    ['archived/../../a.jsonl', false],
    ['/a.jsonl', false],
    ['a//b.jsonl', false],
    ['a\\b.jsonl', false],
    ['C:a.jsonl', false],
    ['a\u0000.jsonl', false],
    ['a\n.jsonl', false],
    ['a. ', false],
    ['', false],
    ['Manifest.json', false],
    ['manifest.JSON/a.jsonl', false],
    ['Archived', false],
    ['archived.jsonl', true],
    [`${'x'.repeat(201)}`, false],
    [`${'a/'.repeat(8)}b`, false],
  ])('with the path %j is accepted: %s', (path, isAllowed) => {
    expect(isFilePath(path)).toBe(isAllowed);
  });

  test('is distinguished from others as every file system does, and is never also a folder of another', () => {
    const paths = new FilePaths();
    expect(paths.take('a/B.jsonl')).toBe(true);
    for (const path of ['a/b.jsonl', 'A/B.JSONL', 'a', 'a/b.jsonl/c']) expect(paths.take(path)).toBe(false);
    expect(paths.take('a/c\u0301')).toBe(true);
    expect(paths.take('a/\u0107')).toBe(false);
  });

  test('is distinguished quickly from many others', { timeout: 5_000 }, () => {
    const paths = new FilePaths();
    for (let n = 0; n < 30_000; n += 1) expect(paths.take(`archived/main_${n}.jsonl`) || n).toBe(true);
  });

  test('has a stem that is a valid path for every name of a tape', () => {
    for (const name of ['..', '.', 'a/b', 'CON*', 'x'.repeat(512), '\u{1F600}'.repeat(100), 'a\ud800']) {
      for (const stem of [fileStem(name), hashedStem(name)]) {
        expect(isFilePath(`${stem}.jsonl`), stem).toBe(true);
        expect(stem).not.toContain('/');
      }
    }
    expect(fileStem('ab12__cd34')).toBe('ab12__cd34');
  });
});

describe('session graphs of several tapes', () => {
  const line = (id: string, status: string): string =>
    formatSessionGraph([
      { session_id: id, parent_session_id: 'p', from_anchor: null, created_at: null, status },
    ]);

  test('are joined without repeated lines, and a single graph stays unchanged', () => {
    const [a, b] = [line('a', 'active'), line('b', 'active')];
    expect(joinSessionGraphs([{ id: 'a', text: `${a}\n ${b.trimEnd()}` }])).toBe(`${a}\n ${b.trimEnd()}`);
    expect(
      joinSessionGraphs([
        { id: 'a', text: a + b },
        { id: 'b', text: b + a },
      ]),
    ).toBe(a + b);
    const log = a + line('a', 'done') + a;
    expect(
      joinSessionGraphs([
        { id: 'a', text: log },
        { id: 'b', text: log },
      ]),
    ).toBe(log);
  });

  test('are joined quickly, even when there are many', { timeout: 5_000 }, () => {
    const graphs = Array.from({ length: 10_000 }, (_, n) => ({ id: `s${n}`, text: line(`s${n}`, 'active') }));
    const root = { id: 'p', text: graphs.map(({ text }) => text).join('') };
    expect(joinSessionGraphs([root, ...graphs])).toBe(root.text);
  });

  test('are divided: the first gets all sessions, every other gets its ancestors and descendants, in their order', () => {
    const of = (id: string, parent: string | null, status = 'active'): string =>
      formatSessionGraph([
        { session_id: id, parent_session_id: parent, from_anchor: null, created_at: null, status },
      ]);
    const lines = [of('root', null), of('a', 'root'), of('b', 'root'), of('a', 'root', 'done'), of('c', 'a')];
    const text = `\n${lines.join('')}`;
    expect(shareSessionGraph(text, ['a'])).toEqual([text]);
    const shared = shareSessionGraph(text, ['b', 'a', 'c', 'root', 'unknown']);
    const [root, a, , done, c] = lines;
    expect(shared).toEqual([text, `${root}${a}${done}${c}`, `${root}${a}${done}${c}`, lines.join(''), '']);
    expect(joinSessionGraphs(['b', 'a', 'c'].map((id, n) => ({ id, text: shared[n] ?? '' })))).toBe(
      lines.join(''),
    );
    expect(() => shareSessionGraph('{', ['a', 'b'])).toThrow(/not valid JSON/);
  });

  test('end with the state that a tape’s own graph gives for the tape', () => {
    const [active, done] = [line('a', 'active'), line('a', 'done')];
    const joined = joinSessionGraphs([
      { id: 'b', text: active },
      { id: 'a', text: done + active },
      { id: 'c', text: done },
    ]);
    expect(parseSessionGraph(joined)).toMatchObject([{ session_id: 'a', status: 'active' }]);
    expect(
      joinSessionGraphs([
        { id: 'a', text: done },
        { id: 'b', text: active },
      ]),
    ).toBe(done + active + done);
  });
});
