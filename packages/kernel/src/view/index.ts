export { checkMessages } from './check-messages.js';
export {
  bodyBytes,
  carryCompaction,
  compactionMetadata,
  EXPAND_TOOL,
  mayBeReferred,
  mayBeReferredInContext,
  mayExpand,
  readCompaction,
  toReference,
} from './compaction.js';
export { bindProfile, type ContextCard, resultFieldsOf, type ViewRows } from './context.js';
export { hashCall, hashContext, TurnNews } from './loop-guard.js';
export {
  foldManifest,
  type MessageOrigin,
  type OmissionReason,
  type SelectorRef,
  type StoredManifest,
  type ViewNotice,
  type ViewSource,
} from './manifest.js';
export { messageParts, type PartField, type PartRule } from './parts.js';
export { isHidden } from './prompt.js';
export { PromptHasher, promptHash, toolsetHash } from './prompt-hash.js';
export {
  nameSelector,
  type Select,
  type SelectorCard,
  type SelectorEntry,
  selectorEntries,
  selectorFailed,
  selectView,
} from './selector.js';
export { findSteps } from './steps.js';
export { agentsIn, buildView, type View } from './view.js';
