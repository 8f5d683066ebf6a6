import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decidePurge, type PurgeReference } from './purge.js';

const ref = (from: string | null, to: string): PurgeReference => ({
  from,
  to,
  cause: 'segment',
  holder: `box of ${from ?? 'another'}`,
});
const ids = (runs: readonly { readonly run_id: string }[]): string[] =>
  runs.map(({ run_id }) => run_id).sort();

describe('a purge', () => {
  test('removes each run to which nothing refers', () => {
    expect(decidePurge(['a', 'b'], [])).toEqual({ groups: [['a'], ['b']], kept: [] });
  });

  test('keeps runs to which a kept run refers, directly or through others, and gives the reference as the reason', () => {
    const { groups, kept } = decidePurge(
      ['a', 'b', 'c', 'd'],
      [ref(null, 'a'), ref('a', 'b'), ref('c', 'b')],
    );
    expect(kept).toEqual([
      { run_id: 'a', cause: 'segment', holder: 'box of another' },
      { run_id: 'b', cause: 'segment', holder: 'box of a' },
    ]);
    expect(groups).toEqual([['c'], ['d']]);
  });

  test('removes runs that refer to each other together', () => {
    const { groups } = decidePurge(['a', 'b', 'c', 'd'], [ref('a', 'b'), ref('b', 'a'), ref('c', 'b')]);
    expect(groups).toEqual([['a', 'b', 'c'], ['d']]);
  });

  test('never leaves a reference to a removed run, never divides a group, and keeps nothing without a reason', () => {
    const run = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f');
    const reference = fc.tuple(fc.option(run), run).map(([from, to]) => ref(from, to));
    fc.assert(
      fc.property(fc.array(reference, { maxLength: 12 }), (references) => {
        const { groups, kept } = decidePurge(['a', 'b', 'c', 'd', 'e', 'f'], references);
        const gone = new Set(groups.flat());
        expect([...gone, ...ids(kept)].sort()).toEqual(['a', 'b', 'c', 'd', 'e', 'f']);
        for (const { from, to } of references) {
          if (from === null || !gone.has(from)) expect(gone.has(to)).toBe(false);
          else if (gone.has(to)) expect(groups.find((group) => group.includes(from))).toContain(to);
        }
        for (const { run_id } of kept) expect(references.some(({ to }) => to === run_id)).toBe(true);
      }),
    );
  });
});
