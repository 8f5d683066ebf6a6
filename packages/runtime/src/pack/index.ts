export { toContextCard, toRows } from './context-rows.js';
export { HandoverPacker, type PackedContext, type PackLimits, type PackRequest } from './packer.js';
export type { ContextSpec } from './plan.js';
export type {
  CountTokens,
  PackPreview,
  PreviewCard,
  PreviewMessage,
  PreviewOptions,
  PreviewSum,
} from './preview.js';
export { type Selector, Selectors, selectorUnknown } from './selectors.js';
