/** The contract of adapters, also for adapters in other packages. Not published. */

export { a2aDialect, playQuestions } from './a2a-dialect.js';
export { type AdapterSubject, adapterContract } from './adapter-contract.js';
export { adkDialect } from './adk-dialect.js';
export { everyCard, requestFor, textCard } from './cards.js';
export { anthropicDialect, openaiDialect } from './model-dialects.js';
export {
  type Behaviour,
  type Dialect,
  json,
  openPlatform,
  PLATFORM_KEY,
  type PlatformServer,
  type Reply,
  type ServedRequest,
} from './platform-server.js';
