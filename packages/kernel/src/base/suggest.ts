const FARTHEST = 3;

/**
 * The edit distance: letters to add, remove, change or swap until both words are equal; `Infinity` beyond `limit`. It
 * compares only prefixes whose lengths differ by at most `limit`. So the work grows with the longer word, and words of
 * very different lengths cost nothing.
 */
function distance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) > limit) return Infinity;
  let before: number[] = [];
  let last = Array.from({ length: Math.min(limit, b.length) + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row: number[] = i <= limit ? [i] : [];
    for (let j = Math.max(1, i - limit); j <= Math.min(b.length, i + limit); j++) {
      const replaced = (last[j - 1] ?? Infinity) + (a[i - 1] === b[j - 1] ? 0 : 1);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      row[j] = Math.min(
        replaced,
        (last[j] ?? Infinity) + 1,
        (row[j - 1] ?? Infinity) + 1,
        isSwap ? (before[j - 2] ?? Infinity) + 1 : Infinity,
      );
    }
    before = last;
    last = row;
  }
  return last[b.length] ?? Infinity;
}

const plain = (text: string): string => text.toLowerCase().replaceAll(/[-_ ]/g, '');

/** The known word that was probably meant; undefined when no word is near. */
export function suggest(word: string, known: readonly string[]): string | undefined {
  // A text this long is not a mistyped word.
  if (word.length > 100) return undefined;
  const wanted = plain(word);
  let best: { readonly word: string; readonly steps: number } | undefined;
  for (const candidate of known) {
    const near = Math.min(FARTHEST, Math.floor(Math.max(word.length, candidate.length) / 3));
    const limit = Math.min(near, (best?.steps ?? Infinity) - 1);
    if (limit < 0) continue;
    const steps = distance(wanted, plain(candidate), limit);
    if (steps <= limit) best = { word: candidate, steps };
  }
  return best?.word;
}
