export {
  decidePurge,
  type KeptRun,
  type PurgeReference,
} from './purge.js';
export type { BatchCause, NamedTurn, NamedWorker, WaitAdvice, WaitCause } from './wait-cause.js';
export { explainWait, type WaitReport } from './wait-chain.js';
export { findWaitCycles, type WaitCycle, type WaitingTurn } from './wait-cycles.js';
export type { WaitFacts } from './wait-facts.js';
export type { WaitLink } from './wait-links.js';
