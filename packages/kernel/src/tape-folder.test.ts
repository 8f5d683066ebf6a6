import { describe, expect, test } from 'vitest';
import { KernelError } from './errors.js';
import {
  formatManifest,
  formatSessionGraph,
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

  test('that is broken is refused by its field', () => {
    expect(() => parseManifest('{')).toThrow('The manifest is no JSON.');
    expect(() => parseManifest('{"version":1,"tapes":[{"id":""}]}')).toThrow(KernelError);
  });

  test.each([
    ['{"version":2,"tapes":[]}', 'has version 2', 'manifest.version'],
    ['{"tapes":{"main":{"file":"main.jsonl"}}}', 'has no `version`', 'manifest.version'],
    ['{"version":1,"tapes":{"main":{}}}', 'has an object as `tapes`', 'manifest.tapes'],
    ['{"version":1}', 'has no `tapes`', 'manifest.tapes'],
    ['[]', 'is a list', 'manifest'],
  ])('of another form is named, with what to do: %s', (text, found, field) => {
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

  test('takes the last line of a session, in the place of its first', () => {
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
  ])('with what cannot be kept is refused: %s', (text, message) => {
    expect(() => parseSessionGraph(text)).toThrow(`Line 1 ${message}`);
  });

  test('with a broken line is refused by its number', () => {
    expect(() => parseSessionGraph('{"session_id":"a"}\n{"parent_session_id":"a"}\n')).toThrow(
      'Line 2 has no `session_id`.',
    );
    expect(() => parseSessionGraph('nonsense')).toThrow('Line 1 is no JSON.');
  });
});
