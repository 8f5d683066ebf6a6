/** How a view describes itself: the sources of its messages, the omitted cards, and the reasons. */
import type { BoxId, CardId } from '../base/index.js';
import { canonicalJson, type JsonValue, sha256 } from '../base/index.js';

export type ContextRule = 'argument' | 'inherited' | 'parent';

/** Messages without a card; their texts are fixed. */
export type ViewNotice = 'context' | 'continue' | 'steps_left' | 'not_available';

/**
 * Where a message comes from. `from` and `to` are positions, both included: on the tape, or in the stored order of a
 * context box (from 1). The last anchor's state has a tape source at the anchor's position.
 */
export type ViewSource =
  | {
      readonly kind: 'profile';
      /** The context limit stated to the agent, if any. */
      readonly contextLimit?: number;
    }
  | { readonly kind: 'notice'; readonly notice: ViewNotice }
  /** The turn's selector made the message. */
  | { readonly kind: 'selector' }
  | { readonly kind: 'tape'; readonly from: number; readonly to: number }
  | {
      readonly kind: 'context';
      readonly boxId: BoxId;
      readonly rule: ContextRule;
      readonly from: number;
      readonly to: number;
    };

/** The exact origin of one message. */
export interface MessageOrigin {
  readonly source: ViewSource;
  readonly cardIds: readonly CardId[];
  /** The message shows a reference to its card instead of the card's words. */
  readonly isReference?: true;
}

/**
 * Why a card is not in a prompt. Its metadata hide it. It was shown before. It is older than the last anchor. It is the
 * bootstrap anchor. It is a result whose call is hidden or not shown before it. It is a thought without words or calls.
 * It is a deliverable that repeats the text before it. A compaction has replaced its words by a reference.
 *
 * For a card that is shown, the provider's attachment can be left out: another model or another agent reads the prompt,
 * or the prompt does not show all of the card's step. `not_selected`: the turn's selector does not show the card, or
 * does not show it unchanged.
 */
export type OmissionReason =
  | 'hidden'
  | 'duplicate'
  | 'before_anchor'
  | 'bootstrap'
  | 'orphan_result'
  | 'turn_not_begun'
  | 'call_hidden'
  | 'blank'
  | 'repeated'
  | 'referenced'
  | 'summarized'
  | 'other_agent'
  | 'other_model'
  | 'step_split'
  | 'not_selected';

export interface Omission {
  readonly source: ViewSource;
  readonly cardId: CardId;
  readonly reason: OmissionReason;
}

/** The selector that made a prompt. */
export type SelectorRef = {
  readonly name: string;
  readonly version: string;
};

export type ManifestRange = ViewSource & { readonly first: number; readonly count: number };
export type OmittedRange = ViewSource & { readonly reason: OmissionReason };

/**
 * The manifest uses ranges, so that its size grows with the number of turns, not of cards. `messages` covers every
 * message once and in order. It is plain JSON. To get the exact origin of each message, build the view again.
 */
export type ViewManifest = {
  readonly v: 1;
  /** Position of the last anchor; `head` is the position of the last entry read. */
  readonly anchor: number;
  readonly head: number;
  readonly messages: readonly ManifestRange[];
  readonly omitted: readonly OmittedRange[];
  /** Absent when the prompt is the view as it is. */
  readonly selector?: SelectorRef;
  /**
   * The names of agents that the messages show, by id; absent when all are shown by their ids. The names are needed to
   * build the prompt again.
   */
  readonly names?: Readonly<Record<string, string>>;
};

/**
 * One line for the messages of earlier turns of a conversation. It covers the tape from `from` to `to`, where each
 * turn's start represents its context, minus the cards omitted there. All of these rows are sealed, so the line can be
 * derived from them; `hash` verifies the result against the lines of the full manifest.
 */
export type EarlierRange = {
  readonly kind: 'earlier';
  readonly from: number;
  readonly to: number;
  readonly first: number;
  readonly count: number;
  /** How many lines of the full manifest this line replaces: messages; `omitted` counts the omissions. */
  readonly lines: number;
  readonly omitted: number;
  /** sha256 over the RFC 8785 text of `{ messages, omitted }`, the lines that this line replaces. */
  readonly hash: string;
};

/**
 * The stored form: the full manifest, or, for a long conversation, one with a single line for everything before the
 * turn.
 */
export type StoredManifest =
  | ViewManifest
  | (Omit<ViewManifest, 'v' | 'messages'> & {
      readonly v: 2;
      readonly messages: readonly (ManifestRange | EarlierRange)[];
    });

/** A view's manifest, and where the turn begins in it. */
export interface FoldableView {
  readonly manifest: ViewManifest;
  /** Index of the turn's first message. */
  readonly firstMessage: number;
  /** Position of the turn's `turn.started` on the tape; undefined when it is before the view. */
  readonly startPosition: number | undefined;
  readonly contextBoxId: BoxId;
}

/** A manifest with fewer lines about earlier turns is stored unchanged. */
const FOLDED_FROM = 16;

/**
 * Returns the form in which a manifest is stored. Its size depends on the turn's own input, not on the length of the
 * conversation.
 */
export function foldManifest(view: FoldableView): StoredManifest {
  const { manifest, firstMessage, startPosition = 0, contextBoxId } = view;
  // A selector's omissions follow from its code, not from the rows before the turn.
  if (startPosition <= manifest.anchor || manifest.selector !== undefined) return manifest;
  const isEarlier = (source: ViewSource): boolean =>
    source.kind === 'tape' ? source.to < startPosition : 'boxId' in source && source.boxId !== contextBoxId;
  const from = manifest.messages[0]?.kind === 'profile' ? 1 : 0;
  const after = manifest.messages.findIndex(({ first, count }) => first + count > firstMessage);
  const messages = manifest.messages.slice(from, after === -1 ? undefined : after);
  const omitted = manifest.omitted.filter(isEarlier);
  const [begin] = messages;
  const end = messages.at(-1);
  if (begin === undefined || end === undefined || messages.length + omitted.length < FOLDED_FROM)
    return manifest;
  const line: EarlierRange = {
    kind: 'earlier',
    from: [...messages, ...omitted].reduce(
      (least, source) => (source.kind === 'tape' ? Math.min(least, source.from) : least),
      manifest.anchor,
    ),
    to: startPosition - 1,
    first: begin.first,
    count: end.first + end.count - begin.first,
    lines: messages.length,
    omitted: omitted.length,
    hash: sha256(canonicalJson({ messages, omitted } as unknown as JsonValue)),
  };
  return {
    ...manifest,
    v: 2,
    messages: [...manifest.messages.slice(0, from), line, ...manifest.messages.slice(from + messages.length)],
    omitted: manifest.omitted.filter((range) => !isEarlier(range)),
  };
}

/** True when `next` continues the same list directly after position `to`. */
function isBehind(last: ViewSource, to: number, next: ViewSource): boolean {
  if (last.kind === 'tape') return next.kind === 'tape' && next.from === to + 1;
  if (last.kind !== 'context' || next.kind !== 'context') return false;
  return last.boxId === next.boxId && last.rule === next.rule && next.from === to + 1;
}

interface OpenRange {
  readonly source: ViewSource;
  readonly reason: OmissionReason | undefined;
  readonly first: number;
  to: number;
  count: number;
}

function compact(
  items: readonly { readonly source: ViewSource; readonly reason?: OmissionReason }[],
): readonly OpenRange[] {
  const ranges: OpenRange[] = [];
  let last: OpenRange | undefined;
  let first = 0;
  for (const { source, reason } of items) {
    const to = 'to' in source ? source.to : 0;
    if (last !== undefined && last.reason === reason && isBehind(last.source, last.to, source)) {
      last.to = to;
      last.count += 1;
    } else {
      last = { source, reason, first, to, count: 1 };
      ranges.push(last);
    }
    first += 1;
  }
  return ranges;
}

const sourceOf = ({ source, to }: OpenRange): ViewSource => ('to' in source ? { ...source, to } : source);

export function buildManifest(
  range: { readonly anchor: number; readonly head: number },
  origins: readonly MessageOrigin[],
  {
    omissions,
    names = new Map(),
  }: { readonly omissions: readonly Omission[]; readonly names?: ReadonlyMap<string, string> },
): ViewManifest {
  const messages = compact(origins).map((open) => ({
    ...sourceOf(open),
    first: open.first,
    count: open.count,
  }));
  const omitted = compact(omissions).flatMap((open) =>
    open.reason === undefined ? [] : [{ ...sourceOf(open), reason: open.reason }],
  );
  const shown = names.size === 0 ? {} : { names: Object.fromEntries(names) };
  return { v: 1, ...range, messages, omitted, ...shown };
}
