export {
  decidePurge,
  type KeptRun,
  type PurgeCause,
  type PurgeDecision,
  type PurgeReference,
} from './purge.js';
export {
  explainWait,
  type WaitFacts,
  type WaitFactsCall,
  type WaitFactsTurn,
  type WaitReport,
} from './wait-chain.js';
export { findWaitCycles, type WaitCycle, type WaitingTurn } from './wait-cycles.js';
export type { WaitLink, WaitLinkKind } from './wait-links.js';
