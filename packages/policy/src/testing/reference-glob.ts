/** A second matcher for tests: a regular expression, made as Python's `fnmatch` makes one. Slow patterns are the caller's to avoid. */

const quote = (text: string): string =>
  [...text].map((one) => `\\u{${one.codePointAt(0)?.toString(16)}}`).join('');

/** The inside of a set, in the terms of regular expressions; undefined for one that nothing is in. */
function referenceSet(inside: string): string | undefined {
  const members: string[] = [];
  let rest = inside;
  while (rest !== '') {
    const [, first = '', last = ''] = /^(.)-(.)/su.exec(rest) ?? [];
    if (first === '') {
      const [single = ''] = rest;
      members.push(quote(single));
      rest = rest.slice(single.length);
      continue;
    }
    if ((first.codePointAt(0) ?? 0) <= (last.codePointAt(0) ?? 0))
      members.push(`${quote(first)}-${quote(last)}`);
    rest = rest.slice(first.length + 1 + last.length);
  }
  return members.length === 0 ? undefined : members.join('');
}

export function referenceMatches(pattern: string, text: string): boolean {
  const source = pattern.replace(
    /\[(!?)(\]?[^\]]*)\]|[\s\S]/gu,
    (part: string, bang: string | undefined, inside: string | undefined) => {
      if (part === '*') return '.*';
      if (part === '?') return '.';
      if (inside === undefined || inside === '') return quote(part);
      const set = referenceSet(inside);
      if (set === undefined) return bang === '!' ? '.' : '(?!)';
      return `[${bang === '!' ? '^' : ''}${set}]`;
    },
  );
  return new RegExp(`^(?:${source})$`, 'su').test(text);
}
