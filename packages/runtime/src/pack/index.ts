export { toContextCard, toRows } from './context-rows.js';
export type { BoxRequest, CardsRequest, GrantRequest } from './make-boxes.js';
export {
  type InstructionRequest,
  makeResolved,
  makeSnapshot,
  type PackedContext,
  type PackRequest,
} from './make-contexts.js';
export type { Made, PackIo, PackLimits } from './pack-io.js';
export { type HandlerPacker, HandoverPacker } from './packer.js';
export type { ContextSpec } from './plan.js';
export type {
  CountTokens,
  PackPreview,
  PreviewCard,
  PreviewMessage,
  PreviewOptions,
  PreviewSum,
} from './preview-types.js';
export { type Selector, Selectors, selectorUnknown } from './selectors.js';
