export {
  type BoxGrant,
  type ExpandedCard,
  expandContexts,
  expandShown,
  findCards,
  findContextBoxes,
  findReadableCards,
  inShownPlace,
  type LoadBoxesOptions,
  type LoadedBox,
  type LoadedRange,
  loadBoxes,
  type ShownAs,
  type ShownColumns,
  toShownAs,
} from './boxes.js';
export { loadCardFacts, loadCards } from './card-facts.js';
export { ASKED_COUNT, LEAVES, SEGMENTS, SHOWN_LEAVES, SHOWN_SEGMENTS } from './leaves.js';
export { findReachable, findTurnPolicy } from './reach.js';
export { loadSnapshots, type SnapshotEntry } from './snapshots.js';
