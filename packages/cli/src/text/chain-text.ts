/** The handoffs of one root as lines for a terminal: the sources, their targets, and the compensations. */
import { toLine } from '@boxcar/host/base';
import type { HandoffOutline } from '@boxcar/kernel';
import { shortIds } from './short-ids.js';
import { formatDuration, formatTable } from './text.js';

/** `2. hotel on openai`, `undo 1: flight`. */
function labelOf({ mode, hop, target_agent, platform }: HandoffOutline): string {
  const place = hop === null ? '' : mode === 'compensate' ? `undo ${hop}: ` : `${hop}. `;
  return `${place}${target_agent}${platform === 'agdd' ? '' : ` on ${platform}`}`;
}

/** For a failed handoff the error says more than the phase. */
const phaseOf = ({ phase, error }: HandoffOutline): string =>
  phase === 'failed' ? (error?.code ?? phase) : phase;

const takenOf = ({ created_at, ended_at }: HandoffOutline): string =>
  formatDuration(Math.max((ended_at ?? new Date()).getTime() - created_at.getTime(), 0));

/** Each handoff followed by the handoffs below it, in the order of their creation. */
function inOrder(handoffs: readonly HandoffOutline[]): readonly HandoffOutline[] {
  const below = new Map<string | null, HandoffOutline[]>();
  for (const handoff of handoffs) {
    const siblings = below.get(handoff.parent_handoff_id) ?? [];
    siblings.push(handoff);
    below.set(handoff.parent_handoff_id, siblings);
  }
  const known = new Set(handoffs.map(({ handoff_id }) => handoff_id));
  const roots = handoffs.filter(({ parent_handoff_id: id }) => id === null || !known.has(id));
  const ordered: HandoffOutline[] = [];
  const open = roots.toReversed();
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    ordered.push(next);
    open.push(...(below.get(next.handoff_id) ?? []).toReversed());
  }
  return ordered;
}

/** @param handoffs - The handoffs of one root, the oldest first. */
export function describeChain(handoffs: readonly HandoffOutline[]): string {
  const short = shortIds(handoffs.map(({ handoff_id }) => handoff_id));
  return formatTable(
    [{ title: 'handoff' }, { title: 'phase', max: 20 }, { title: 'took', align: 'right' }, { title: 'to' }],
    inOrder(handoffs).map((handoff) => [
      short.get(handoff.handoff_id) ?? handoff.handoff_id,
      phaseOf(handoff),
      takenOf(handoff),
      `${'  '.repeat(handoff.depth)}${toLine(labelOf(handoff))}`,
    ]),
    { keepSpace: true },
  );
}
