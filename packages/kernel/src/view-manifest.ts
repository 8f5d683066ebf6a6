/** What a view says about itself: which sources gave which messages, and what was left out and why. */
import type { BoxId, CardId } from './ids.js';

export type ContextRule = 'argument' | 'inherited' | 'parent';

/** Messages that no card carries; their texts are fixed. */
export type ViewNotice = 'context' | 'continue' | 'steps_left' | 'not_available';

/**
 * Where a message comes from. `from` and `to` are positions, both included: on the tape, or in the stored order of a
 * context box (from 1). The last anchor's state is a tape source at the anchor's position.
 */
export type ViewSource =
  | { readonly kind: 'profile' }
  | { readonly kind: 'notice'; readonly notice: ViewNotice }
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
}

/**
 * Why a card is not in a prompt: hidden by its metadata; shown before; older than the last anchor; an anchor that is
 * not the last, or the bootstrap one; a result whose call is unknown or hidden; a thought without words or calls; a
 * deliverable that repeats the text before it.
 */
export type OmissionReason =
  | 'hidden'
  | 'duplicate'
  | 'before_anchor'
  | 'anchor'
  | 'orphan_result'
  | 'call_hidden'
  | 'blank'
  | 'repeated';

export interface Omission {
  readonly source: ViewSource;
  readonly cardId: CardId;
  readonly reason: OmissionReason;
}

export type ManifestRange = ViewSource & { readonly first: number; readonly count: number };
export type OmittedRange = ViewSource & { readonly reason: OmissionReason };

/**
 * The stored form: ranges, so that its size follows the number of turns, not of cards. `messages` covers every message
 * once and in order. Plain JSON; the exact origin of each message comes from building the view again.
 */
export type ViewManifest = {
  readonly v: 1;
  /** Position of the last anchor, and of the last entry read. */
  readonly anchor: number;
  readonly head: number;
  readonly messages: readonly ManifestRange[];
  readonly omitted: readonly OmittedRange[];
};

/** `next` right behind `last` as one source, or undefined when they do not touch. */
function joinSources(last: ViewSource, next: ViewSource): ViewSource | undefined {
  if (last.kind === 'tape' && next.kind === 'tape') {
    return next.from === last.to + 1 ? { ...last, to: next.to } : undefined;
  }
  if (last.kind === 'context' && next.kind === 'context') {
    const isSameList = last.boxId === next.boxId && last.rule === next.rule;
    return isSameList && next.from === last.to + 1 ? { ...last, to: next.to } : undefined;
  }
  return undefined;
}

export function buildManifest(
  range: { readonly anchor: number; readonly head: number },
  origins: readonly MessageOrigin[],
  omissions: readonly Omission[],
): ViewManifest {
  const messages: ManifestRange[] = [];
  for (const [index, { source }] of origins.entries()) {
    const last = messages.at(-1);
    const joined = last === undefined ? undefined : joinSources(last, source);
    if (last === undefined || joined === undefined) messages.push({ ...source, first: index, count: 1 });
    else messages[messages.length - 1] = { ...joined, first: last.first, count: last.count + 1 };
  }
  const omitted: OmittedRange[] = [];
  for (const { source, reason } of omissions) {
    const last = omitted.at(-1);
    const joined = last?.reason === reason ? joinSources(last, source) : undefined;
    if (joined === undefined) omitted.push({ ...source, reason });
    else omitted[omitted.length - 1] = { ...joined, reason };
  }
  return { v: 1, ...range, messages, omitted };
}
