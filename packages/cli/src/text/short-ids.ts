/** The digits that resolvers of ids ask for at least (`findTurnId`). */
const SHORTEST = 8;

/**
 * Beginnings by which ids are told apart, all of one length: the shortest from eight digits on that is unique among `ids`.
 * Commands accept them; one that other rows share is answered with the ids that fit.
 *
 * @returns The beginning of each id.
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
