export { appendAutoHandoff, draftAutoHandoff } from './auto-handoff.js';
export { planCompaction } from './compaction-plan.js';
export {
  answerTokensOf,
  type ContextLimits,
  contextLimitsOf,
  findAnswerFinding,
  toldLimitOf,
} from './context-limit.js';
export { readCardPage, readSummaryPage } from './expand-page.js';
export {
  AUTO_HANDOFF_ANCHOR,
  isContextOverflow,
  MAX_AUTO_HANDOFFS,
} from './overflow.js';
