import { type AgentId, type BoxId, type InheritedBox, KernelError, type LeafRange } from '@boxcar/kernel';
import { type LoadedRange, loadBoxes, loadSnapshot } from '@boxcar/store';
import type { HandlerTools } from './handler.js';

/** A view shows a context's inherited cards first, then the parent line, then the packed arguments. */
const placeOf = ({ rule }: LoadedRange): number =>
  rule === 'pack_arguments' ? 2 : rule === 'parent' ? 1 : 0;

/**
 * What an agent sees, as boxes to inherit: the state of its last anchor, then its tape since, with each turn's context in
 * its place. Calls of an open step are left out: nobody has answered them yet.
 *
 * @throws KernelError `box_not_authorized` when the caller may not read the agent's tape.
 */
export async function takeSnapshot(
  tools: Pick<HandlerTools, 'db' | 'ctx'>,
  agentId: AgentId,
  options: { readonly argument: string; readonly isFull: boolean },
): Promise<readonly InheritedBox[]> {
  const { projectId, source } = tools.ctx;
  const actor = { projectId, actorId: source.agentId };
  const entries = await loadSnapshot(tools.db, agentId, { ...actor, isFull: options.isFull });
  const first = entries[0];
  if (first === undefined) return [];
  if (!first.is_readable) {
    throw new KernelError('box_not_authorized', {
      message: `arguments.${options.argument}: agent ${source.agentId} may not see what agent ${agentId} sees.`,
      details: { agent_id: agentId, box_id: first.tape_id, source_agent_id: source.agentId },
    });
  }
  const contextIds = new Set(
    entries.flatMap((entry) =>
      [entry.context_box_id, options.isFull ? null : entry.early_context_box_id].filter((id) => id !== null),
    ),
  );
  const contexts = await loadBoxes(tools.db, [...contextIds], actor);
  const parts: InheritedBox[] = [];
  const add = (boxId: BoxId, ranges: readonly LeafRange[]): void => {
    if (ranges.length > 0)
      parts.push({ argument: options.argument, boxId, rule: 'snapshot', box: { boxId, ranges } });
  };

  let open:
    | {
        positions: number[];
        cardIds: LeafRange['cardIds'][number][];
        tokens: number[];
        skip: number[];
        from: number;
        to: number;
      }
    | undefined;
  const close = (): void => {
    if (open !== undefined) add(first.tape_id, [{ source: first.tape_id, native: true, ...open }]);
    open = undefined;
  };
  const addContext = (boxId: BoxId | null): void => {
    if (boxId === null) return;
    close();
    // In the order the model saw it: a clone's prompt begins with the bytes of its source's.
    const ranges = contexts.get(boxId)?.ranges ?? [];
    add(
      boxId,
      ranges.toSorted((a, b) => placeOf(a) - placeOf(b)),
    );
  };

  const isBootstrap = first.last_anchor_position === 1;
  let needsEarlyContext = !options.isFull;
  for (const entry of entries) {
    if (entry.position === null) continue;
    // Entries before the anchor are only there because their step reaches over it; the anchor itself carries the state.
    if (needsEarlyContext && entry.position > first.last_anchor_position) {
      addContext(first.early_context_box_id);
      needsEarlyContext = false;
    }
    if (entry.context_box_id !== null) addContext(entry.context_box_id);
    if (entry.card_id === null || (entry.kind === 'anchor' && isBootstrap && entry.position === 1)) continue;
    open ??= { positions: [], cardIds: [], tokens: [], skip: [], from: entry.position, to: entry.position };
    open.to = entry.position;
    if (entry.is_open) {
      open.skip.push(entry.position);
    } else {
      open.positions.push(entry.position);
      open.cardIds.push(entry.card_id);
      open.tokens.push(entry.tokens);
    }
  }
  close();
  return parts;
}
