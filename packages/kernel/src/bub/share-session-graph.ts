/** Divides the session graph of a folder among its tapes. */
import { toName } from '../base/index.js';
import { parseSessionGraph } from './tape-folder.js';

/** All ids that are reachable from `id` along `next`, including `id`. */
function reach(id: string, next: ReadonlyMap<string, readonly string[]>): ReadonlySet<string> {
  const found = new Set([id]);
  for (const one of found) for (const other of next.get(one) ?? []) found.add(other);
  return found;
}

/**
 * Divides the session graph of a folder into one graph for each of its tapes. The first tape keeps the whole graph;
 * every other tape has the lines of its own session, its ancestors and its descendants. Joined again, these graphs are
 * the whole graph. Keeping the whole graph with each tape would square its size.
 *
 * @param ids - The tapes by their names in the folder.
 * @throws KernelError `bad_request`.
 */
export function shareSessionGraph(text: string, ids: readonly string[]): readonly string[] {
  if (ids.length < 2) return ids.map(() => text);
  const texts = text.split('\n').filter((line) => line.trim() !== '');
  const lines = texts.flatMap((line) =>
    parseSessionGraph(line).map(({ session_id: id, parent_session_id: parent }) => ({ id, parent, line })),
  );
  const byId = new Map<string, { readonly index: number; readonly line: string }[]>();
  const parents = new Map<string, string[]>();
  const children = new Map<string, string[]>();
  const push = <T>(map: Map<string, T[]>, key: string, value: T): void => {
    const list = map.get(key);
    if (list === undefined) map.set(key, [value]);
    else list.push(value);
  };
  for (const [index, { id, parent, line }] of lines.entries()) {
    push(byId, id, { index, line });
    if (parent === null) continue;
    push(parents, id, parent);
    push(children, parent, id);
  }
  return ids.map((id, n) => {
    if (n === 0) return text;
    const name = toName(id);
    return [...new Set([...reach(name, parents), ...reach(name, children)])]
      .flatMap((one) => byId.get(one) ?? [])
      .sort((a, b) => a.index - b.index)
      .map(({ line }) => `${line}\n`)
      .join('');
  });
}
