export { type BoxCard, type BoxEntry, type BoxGrantLine, type BoxReport, inspectBox } from './box-report.js';
export {
  type Counted,
  type DirectFacts,
  probeDirectConnection,
  readServerFacts,
  readWorkFacts,
  type ServerFacts,
  type TargetFacts,
  type WorkFacts,
} from './doctor.js';
export {
  type BoxRight,
  type BoxRow,
  type ExplainedTurn,
  loadTurnRows,
  rightKey,
  type SourcedCard,
  type StepRow,
  type StoredCard,
  type StoredEntry,
  type TurnRows,
} from './explain.js';
export {
  type CallLine,
  type CardLine,
  type EvidenceLine,
  inspectTurn,
  type StepLine,
  type TurnLine,
  type TurnReport,
  type Usage,
} from './inspect.js';
export type { Invariant } from './invariant.js';
export {
  INVARIANTS,
  type InvariantOptions,
  type InvariantReport,
  inspectInvariants,
  invariantStatement,
} from './invariants.js';
export { loadWaitFacts } from './stuck.js';
export { loadTree, type OpenCall, type TreeBatch, type TreeNode, type TurnTree } from './tree.js';
