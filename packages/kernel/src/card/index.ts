export type {
  Asked,
  ContextBoxDraft,
  ExpandedBox,
  LeafRange,
  Segment,
  SegmentCut,
  SegmentRule,
  ShownMarks,
} from './box.js';
export {
  buildCard,
  CARD_TYPES,
  type Card,
  type CardContent,
  type CardDraft,
  type CardInput,
  type ContentOf,
  cardInputSchema,
  contentSchema,
  estimateTokens,
  type Field,
  fieldsSchema,
  MAX_CARD_BYTES,
  type NewCard,
  parseCardInput,
  ROLES,
  type Role,
} from './card.js';
export type { Message, MessageToolCall, ToolSchema } from './message.js';
export {
  describeProviderData,
  type ProviderData,
  type ProviderDataFacts,
  type ProviderPart,
  providerDataBytes,
  readProviderData,
  toProviderCallId,
} from './provider-data.js';
export { checkResult } from './result-fields.js';
