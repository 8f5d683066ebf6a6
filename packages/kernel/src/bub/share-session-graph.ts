/** One session graph for each tape of a folder. */
import { toName } from '../base/index.js';
import { parseSessionGraph } from './tape-folder.js';

/** What `next` leads to from `id`, itself included. */
function reach(id: string, next: ReadonlyMap<string, readonly string[]>): ReadonlySet<string> {
  const found = new Set([id]);
  for (const one of found) for (const other of next.get(one) ?? []) found.add(other);
  return found;
}

/**
 * The session graph of a folder as one for each of its tapes: the first has it as it is, each other the lines of what it comes from and of
 * what was forked from it. Joined again they are the graph; to keep it whole with each tape would square its size.
 *
 * @param ids - The tapes by the names that they have in the folder.
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
