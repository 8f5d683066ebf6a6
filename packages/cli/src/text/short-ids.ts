/** The minimum number of digits that id lookups require (`findTurnId`). */
const SHORTEST = 8;

/**
 * Prefixes that distinguish ids, all of the same length: the shortest of at least eight digits that is unique among `ids`. Commands
 * accept them. For a prefix that other rows share, a command lists the matching ids.
 *
 * @returns The prefix of each id.
 */
export function shortIds(ids: readonly string[]): ReadonlyMap<string, string> {
  const whole = [...new Set(ids)];
  const cutTo = (length: number): Map<string, string> =>
    new Map(whole.map((id) => [id, id.slice(0, length).replace(/-$/, '')]));
  const longest = Math.max(SHORTEST, ...whole.map((id) => id.length));
  for (let length = SHORTEST; length < longest; length++) {
    const cut = cutTo(length);
    if (new Set(cut.values()).size === whole.length) return cut;
  }
  return cutTo(longest);
}
