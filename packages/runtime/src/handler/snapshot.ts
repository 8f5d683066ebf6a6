import {
  type AgentId,
  type BoxId,
  type CardId,
  type InheritedBox,
  KernelError,
  type LeafRange,
  readCompaction,
} from '@boxcar/kernel';
import {
  type LoadedBox,
  type LoadedRange,
  loadBoxes,
  loadSnapshots,
  type SnapshotEntry,
} from '@boxcar/store';
import type { HandlerTools } from './handler.js';

/** The order of a view: a context's inherited cards, then the parent line, then the packed arguments. */
const placeOf = ({ rule }: LoadedRange): number =>
  rule === 'pack_arguments' ? 2 : rule === 'parent' ? 1 : 0;

export interface SnapshotWish {
  readonly agentId: AgentId;
  readonly isFull: boolean;
  /** The argument that names the agent, for the manifest. */
  readonly argument: string;
  /** How errors name the argument, when it is in a list. */
  readonly field?: string;
}

const keyOf = ({ agentId, isFull, argument }: SnapshotWish): string => `${agentId} ${isFull} ${argument}`;

/**
 * The views of agents, as boxes to inherit: the state of the last anchor, then the tape since that anchor, with each turn's
 * context in its place.
 *
 * Calls of an open step are left out, because they have no answers yet. When the caller is neither the agent nor its launcher,
 * contexts that the caller may not read are left out. There are two statements for any number of agents; equal wishes share a
 * snapshot.
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
      const mayReadAll = isOwn || source.isOperator;
      return [
        keyOf(wish),
        assemble(entries, isOwn ? contexts : readable, { ...wish, rule: 'snapshot', mayReadAll }),
      ];
    }),
  );
  return wishes.map((wish) => snapshots.get(keyOf(wish)) ?? []);
}

interface OpenRange {
  readonly positions: number[];
  readonly cardIds: CardId[];
  readonly tokens: number[];
  readonly skip: number[];
  readonly references: number[];
  readonly summaries: number[];
  readonly from: number;
  to: number;
}

const EMPTY_RANGE = (): Omit<OpenRange, 'from' | 'to'> => ({
  positions: [],
  cardIds: [],
  tokens: [],
  skip: [],
  references: [],
  summaries: [],
});

/** The view that begins with a compaction: its entries in the order of the view, and how their cards are shown. */
interface Seen {
  readonly entries: readonly SnapshotEntry[];
  readonly references: ReadonlySet<CardId>;
  readonly leftOut: ReadonlySet<CardId>;
  /** The summary, when the inheriting agent may read the cards that it summarizes. */
  readonly summary: CardId | undefined;
  readonly isOfOpenTurn: boolean;
}

/**
 * The view of an agent whose last anchor is a compaction, as the agent sees it (compaction.ts, X1). Undefined for other agents.
 */
function readSeen(
  entries: readonly SnapshotEntry[],
  { mayReadAll = false }: { readonly mayReadAll?: boolean },
): Seen | undefined {
  const anchor = entries.find(({ compaction }) => compaction != null);
  const compaction = anchor?.compaction == null ? undefined : readCompaction(anchor.compaction);
  if (anchor?.compaction == null || anchor.position === null || compaction === undefined) return undefined;
  const { position: at } = anchor;
  const from = Math.min(compaction.keepFrom ?? at, at);
  const placeIn = ({ position, card_id }: SnapshotEntry): number => {
    if (position === null || position < from) return 0;
    if (position === at) return 1;
    return compaction.summary !== null && card_id === compaction.summary && position > at ? 2 : 3;
  };
  return {
    entries: entries.toSorted((a, b) => placeIn(a) - placeIn(b)),
    references: new Set(compaction.references),
    leftOut: new Set(compaction.leftOut),
    // The summary gives its reader a right to read the summarized cards. A packer that may not read all that the agent saw, or
    // the entries before a session's fork, must not give that right. Only a summary by the kernel gives such a right.
    summary:
      mayReadAll && anchor.compaction.is_by_kernel && !anchor.compaction.is_hidden
        ? (compaction.summary ?? undefined)
        : undefined,
    isOfOpenTurn: anchor.compaction.is_of_open_turn,
  };
}

/**
 * A range of a compacted context: without the cards that the compaction left out, and with marks at cards that it shows as
 * references.
 */
function asSeen(range: LeafRange, { references, leftOut }: Seen): LeafRange {
  const kept = range.cardIds.flatMap((id, index) => (leftOut.has(id) ? [] : [index]));
  const at = <T>(list: readonly T[]): readonly T[] => kept.map((index) => list[index] as T);
  const positions = at(range.positions);
  const gone = range.positions.filter((_position, index) => leftOut.has(range.cardIds[index] as CardId));
  const marked = new Set(range.references);
  for (const index of kept)
    if (references.has(range.cardIds[index] as CardId)) marked.add(range.positions[index] as number);
  return {
    ...range,
    positions,
    cardIds: at(range.cardIds),
    tokens: at(range.tokens),
    skip: [...range.skip, ...gone].sort((a, b) => a - b),
    references: [...marked].sort((a, b) => a - b),
  };
}

/** The ranges of a context without the cards that a later range shows as history. */
function inShownPlace(ranges: readonly LoadedRange[]): readonly LoadedRange[] {
  const later = new Set<CardId>();
  for (const { repeats = [], positions, cardIds } of ranges) {
    const repeated = new Set(repeats);
    if (repeated.size === 0) continue;
    for (const [index, id] of cardIds.entries()) if (repeated.has(positions[index] ?? 0)) later.add(id);
  }
  if (later.size === 0) return ranges;
  return ranges.map((range) => {
    const repeated = new Set(range.repeats);
    const isElsewhere = (index: number): boolean =>
      later.has(range.cardIds[index] as CardId) && !repeated.has(range.positions[index] ?? 0);
    const gone = range.positions.filter((_position, index) => isElsewhere(index));
    const stays = <T>(list: readonly T[]): readonly T[] => list.filter((_item, index) => !isElsewhere(index));
    return {
      ...range,
      positions: stays(range.positions),
      cardIds: stays(range.cardIds),
      tokens: stays(range.tokens),
      skip: [...range.skip, ...gone].sort((a, b) => a - b),
    };
  });
}

/** Entries of a tape as boxes to inherit, with each context in its place. Contexts that are not in `contexts` are left out. */
export function assemble(
  entries: readonly SnapshotEntry[],
  contexts: ReadonlyMap<BoxId, LoadedBox>,
  options: Pick<SnapshotWish, 'argument' | 'isFull'> & {
    /** `snapshot`: the history of the agent that will read it. */
    readonly rule: 'inherit' | 'snapshot';
    /** True when the packer may read all that the agent has seen. */
    readonly mayReadAll?: boolean;
  },
): readonly InheritedBox[] {
  const [first] = entries;
  if (first === undefined) return [];
  const parts: InheritedBox[] = [];
  const add = (boxId: BoxId, ranges: readonly LeafRange[]): void => {
    if (ranges.length > 0)
      parts.push({ argument: options.argument, boxId, rule: options.rule, box: { boxId, ranges } });
  };
  const seen = readSeen(entries, options);

  let open: OpenRange | undefined;
  const close = (): void => {
    if (open !== undefined) add(first.tape_id, [{ source: first.tape_id, native: true, ...open }]);
    open = undefined;
  };
  const addContext = (
    boxId: BoxId | null,
    { isOfCompaction = false, isLent = false }: { isOfCompaction?: boolean | undefined; isLent?: boolean },
  ): void => {
    if (boxId === null) return;
    close();
    // The model saw this order: a clone's prompt begins with the same bytes as its source's prompt.
    const ranges = inShownPlace(contexts.get(boxId)?.ranges ?? []).toSorted(
      (a, b) => placeOf(a) - placeOf(b),
    );
    add(
      boxId,
      ranges.map(({ summaries = [], ...range }) => ({
        ...(isOfCompaction && seen !== undefined ? asSeen(range, seen) : range),
        ...(options.mayReadAll === true && !isLent ? { summaries } : {}),
      })),
    );
  };

  const isBootstrap = first.last_anchor_position === 1;
  let needsEarlyContext = !options.isFull;
  let last = 0;
  for (const entry of seen?.entries ?? entries) {
    if (entry.position === null) continue;
    // A segment is read from its first position to its last, so it must not span a gap: a reader may have no right to the entries
    // of a gap.
    if (entry.position !== last + 1) close();
    const hasAnchor = last === first.last_anchor_position || entry.position > first.last_anchor_position;
    last = entry.position;
    // Entries before the anchor are included only because their step extends past the anchor; the anchor itself carries the
    // state.
    if (needsEarlyContext && hasAnchor) {
      addContext(first.early_context_box_id, { isOfCompaction: seen?.isOfOpenTurn });
      needsEarlyContext = false;
    }
    if (entry.context_box_id !== null) addContext(entry.context_box_id, { isLent: entry.is_lent === true });
    if (entry.card_id === null || (entry.kind === 'anchor' && isBootstrap && entry.position === 1)) continue;
    open ??= { ...EMPTY_RANGE(), from: entry.position, to: entry.position };
    open.to = entry.position;
    if (entry.is_open) {
      open.skip.push(entry.position);
      continue;
    }
    open.positions.push(entry.position);
    open.cardIds.push(entry.card_id);
    open.tokens.push(entry.tokens);
    if (seen === undefined || entry.position === first.last_anchor_position) continue;
    if (seen.references.has(entry.card_id)) open.references.push(entry.position);
    if (seen.summary === entry.card_id) open.summaries.push(entry.position);
  }
  // No entry follows the anchor.
  if (needsEarlyContext) addContext(first.early_context_box_id, { isOfCompaction: seen?.isOfOpenTurn });
  close();
  return parts;
}
