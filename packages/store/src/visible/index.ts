export {
  edgeEntriesOf,
  entriesOf,
  entryAt,
  type LineRange,
  lastAnchorOf,
  lineEntriesOf,
  partsOf,
  viewStartAt,
} from './ancestry.js';
export { hiddenContext, isHidden, isLent } from './hidden-contexts.js';
export { type KnownTape, type KnownTapes, knownParameter, UNKNOWN_PART } from './known-tapes.js';
export {
  findViewStarts,
  type HiddenView,
  heldView,
  heldViewPosition,
  type ViewStart,
  type ViewWish,
  viewAnchorOf,
  viewPositionOf,
} from './turn-views.js';
