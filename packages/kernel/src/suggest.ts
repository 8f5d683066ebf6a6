/** Letters to add, take away, change or swap until one word is the other. */
function distance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1];
      const steps = [
        (last[j] ?? 0) + 1,
        (row[j - 1] ?? 0) + 1,
        (last[j - 1] ?? 0) + (isSame ? 0 : 1),
        ...(i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
          ? [(before[j - 2] ?? 0) + 1]
          : []),
      ];
      row.push(Math.min(...steps));
    }
    before = last;
    last = row;
  }
  return last[b.length] ?? 0;
}

const FARTHEST = 3;

/** The known word that was probably meant; undefined when none is near. */
export function suggest(word: string, known: readonly string[]): string | undefined {
  // Nobody mistypes a whole page.
  if (word.length > 100) return undefined;
  const plain = (text: string): string => text.toLowerCase().replaceAll(/[-_ ]/g, '');
  let best: { readonly word: string; readonly steps: number } | undefined;
  for (const candidate of known) {
    const steps = distance(plain(word), plain(candidate));
    const isNear = steps <= Math.min(FARTHEST, Math.floor(Math.max(word.length, candidate.length) / 3));
    if (isNear && steps < (best?.steps ?? Infinity)) best = { word: candidate, steps };
  }
  return best?.word;
}
