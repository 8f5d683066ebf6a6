export { PackingStrategies } from './budget.js';
export { candidatesOf, cutDraft } from './candidates.js';
export {
  decideListedBox,
  decidePacking,
  draftPacking,
  type InheritedBox,
  isOverBudget,
  MAX_CONTEXT_CARDS,
  type Packing,
  type PackingDraft,
  sealPacking,
} from './draft.js';
export {
  assertHandover,
  budgetStrategySchema,
  budgetTokensSchema,
  decideNamedBoxes,
  decideTargetProfile,
  type Handover,
  type HandoverInput,
  type HandoverNotice,
  handoverNotices,
  hasBudgetForStrategy,
  instructionHandover,
  type NamedBox,
  NEEDS_BUDGET,
  parseHandover,
} from './handover.js';
export type {
  CardFacts,
  PackCandidate,
  PackingChoice,
  PackingCuts,
  PackingOffer,
  PackingStrategy,
} from './strategy.js';
