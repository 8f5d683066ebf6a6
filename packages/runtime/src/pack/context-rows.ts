/** Rows of contexts and views in the kernel's form. */
import { type BoxId, type ContextCard, KernelError, toReference, type ViewRows } from '@boxcar/kernel';
import { type ExpandedCard, type LoadedView, THIS_BUILD } from '@boxcar/store';

const RULES: Readonly<Record<ExpandedCard['rule'], ContextCard['rule']>> = {
  pack_arguments: 'argument',
  parent: 'parent',
  inherit: 'inherited',
  create_box: 'inherited',
  snapshot: 'inherited',
  digest: 'inherited',
};

export const toContextCard = ({
  card,
  rule,
  native,
  isReference,
  isExpandable,
}: Omit<ExpandedCard, 'sizeBytes'>): ContextCard => ({
  card: isReference ? toReference(card) : card,
  rule: RULES[rule],
  ...(native ? { native: true } : {}),
  ...(isExpandable ? { isExpandable: true } : {}),
});

/**
 * Converts the rows of a view to the kernel's form.
 *
 * @param kinds - The kinds of entries and contents that this build can read.
 * @throws KernelError `unsupported_format` for any other kind.
 */
export function toRows(
  view: LoadedView,
  kinds: ReadonlySet<string> = THIS_BUILD.kinds,
): Omit<ViewRows, 'turn' | 'profile'> {
  for (const { kind, card } of view.entries) {
    if (!kinds.has(kind)) throw unsupported('tape entry', kind);
    if (card !== null && !kinds.has(card.content.kind)) throw unsupported('card', card.content.kind, card.id);
  }
  const contexts = new Map<BoxId, ContextCard[]>();
  for (const [boxId, cards] of view.contexts) {
    for (const { card, rule } of cards) {
      if (!kinds.has(card.content.kind)) throw unsupported('card', card.content.kind, card.id);
      if (RULES[rule] === undefined) throw unsupported('packing rule', rule, card.id);
    }
    contexts.set(boxId, cards.map(toContextCard));
  }
  return { entries: view.entries, lastAnchorPosition: view.lastAnchorPosition, contexts };
}

const unsupported = (what: string, kind: string, cardId?: string): KernelError =>
  new KernelError('unsupported_format', {
    message: `This build does not know a ${what} of kind '${kind}'${cardId === undefined ? '' : ` (card ${cardId})`}.`,
    details: { kind, ...(cardId === undefined ? {} : { card_id: cardId }) },
  });
