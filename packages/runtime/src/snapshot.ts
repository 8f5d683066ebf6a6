import { type AgentId, type BoxId, type InheritedBox, KernelError, type LeafRange } from '@boxcar/kernel';
import {
  type LoadedBox,
  type LoadedRange,
  loadBoxes,
  loadSnapshots,
  type SnapshotEntry,
} from '@boxcar/store';
import type { HandlerTools } from './handler.js';

/** A view shows a context's inherited cards first, then the parent line, then the packed arguments. */
const placeOf = ({ rule }: LoadedRange): number =>
  rule === 'pack_arguments' ? 2 : rule === 'parent' ? 1 : 0;

export interface SnapshotWish {
  readonly agentId: AgentId;
  readonly isFull: boolean;
  /** The argument that names the agent, for the manifest. */
  readonly argument: string;
  /** The same as errors call it, where it stands in a list. */
  readonly field?: string;
}

const keyOf = ({ agentId, isFull, argument }: SnapshotWish): string => `${agentId} ${isFull} ${argument}`;

/**
 * What agents see, as boxes to inherit: the state of the last anchor, then the tape since, with each turn's context in
 * its place. Calls of an open step are left out: nobody has answered them yet. Of an agent that the caller neither is nor has
 * launched, contexts that the caller may not read are left out. Two statements, however many agents; the same wish again is the
 * same snapshot.
 *
 * @throws KernelError `box_not_authorized` when the caller may not read an agent's tape.
 */
export async function takeSnapshots(
  tools: Pick<HandlerTools, 'db' | 'ctx'>,
  wishes: readonly SnapshotWish[],
): Promise<readonly (readonly InheritedBox[])[]> {
  const { projectId, source } = tools.ctx;
  const actor = { projectId, actorId: source.agentId };
  const distinct = [...new Map(wishes.map((wish) => [keyOf(wish), wish])).values()];
  const loaded = await loadSnapshots(tools.db, distinct, actor);
  const contextIds = new Set<BoxId>();
  distinct.forEach(({ agentId, isFull, argument, field = argument }, index) => {
    const entries = loaded[index] ?? [];
    const [first] = entries;
    if (first !== undefined && !first.is_readable) {
      throw new KernelError('box_not_authorized', {
        message: `arguments.${field}: agent ${source.agentId} may not see what agent ${agentId} sees.`,
        details: {
          field: `arguments.${field}`,
          agent_id: agentId,
          box_id: first.tape_id,
          source_agent_id: source.agentId,
        },
      });
    }
    for (const entry of entries)
      for (const id of [entry.context_box_id, isFull ? null : entry.early_context_box_id])
        if (id !== null) contextIds.add(id);
  });
  const contexts = await loadBoxes(tools.db, [...contextIds], actor);
  const readable = new Map([...contexts].filter(([, box]) => box.isReadable));
  const snapshots = new Map(
    distinct.map((wish, index) => {
      const entries = loaded[index] ?? [];
      const isOwn = wish.agentId === source.agentId || entries[0]?.is_ward === true;
      return [keyOf(wish), assemble(entries, isOwn ? contexts : readable, { ...wish, rule: 'snapshot' })];
    }),
  );
  return wishes.map((wish) => snapshots.get(keyOf(wish)) ?? []);
}

/** Entries of a tape as boxes to inherit, each context in its place; one that is not among `contexts` is left out. */
export function assemble(
  entries: readonly SnapshotEntry[],
  contexts: ReadonlyMap<BoxId, LoadedBox>,
  options: Pick<SnapshotWish, 'argument' | 'isFull'> & {
    /** `snapshot`: the history of the agent that is to read it. */
    readonly rule: 'inherit' | 'snapshot';
  },
): readonly InheritedBox[] {
  const [first] = entries;
  if (first === undefined) return [];
  const parts: InheritedBox[] = [];
  const add = (boxId: BoxId, ranges: readonly LeafRange[]): void => {
    if (ranges.length > 0)
      parts.push({ argument: options.argument, boxId, rule: options.rule, box: { boxId, ranges } });
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
  let last = 0;
  for (const entry of entries) {
    if (entry.position === null) continue;
    // A segment is read from its first position to its last. Entries that are missing here may not be read.
    if (entry.position > last + 1) close();
    last = entry.position;
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
  // The anchor is the last entry.
  if (needsEarlyContext) addContext(first.early_context_box_id);
  close();
  return parts;
}
