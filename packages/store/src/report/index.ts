export { type BoxCard, type BoxEntry, type BoxGrantLine, type BoxReport, inspectBox } from './box-report.js';
export { rightKey } from './box-rights.js';
export { type Followed, readMarks } from './change-marks.js';
export {
  type Counted,
  type DirectFacts,
  probeDirectConnection,
  readServerFacts,
  readWorkFacts,
  type ServerFacts,
  type WorkFacts,
} from './doctor.js';
export { loadTurnRows } from './explain.js';
export { inspectTurn } from './inspect.js';
export {
  INVARIANTS,
  type InvariantOptions,
  type InvariantReport,
  inspectInvariants,
  invariantStatement,
} from './invariants.js';
export { type ProjectNumber, readProjectNumbers } from './project-numbers.js';
export { loadWaitFacts } from './stuck.js';
export { loadTree, type TreeBatch, type TreeNode, type TurnTree } from './tree.js';
export {
  findReadableContext,
  readRunTurns,
  seesTurn,
} from './turn-reads.js';
export type {
  CallLine,
  EvidenceLine,
  StepLine,
  TurnLine,
  TurnReport,
} from './turn-report.js';
export type {
  BoxRow,
  SourcedCard,
  StepRow,
  StoredCard,
  StoredEntry,
  TurnRows,
} from './turn-rows.js';
