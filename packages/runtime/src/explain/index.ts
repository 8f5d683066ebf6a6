export type {
  BoxHop,
  BudgetCut,
  CardOrigin,
  CardPlace,
  FirstPlace,
  Named,
  ReadRight,
} from './card-origin.js';
export type { ExplainedMessage, ExplainedOmission, ExplainedTool, StepExplanation } from './explain-step.js';
export type { Finding } from './rebuild.js';
export {
  explainStep,
  type ModelOption,
  type SelectorsOption,
  type StepChoice,
  TurnPrompts,
  why,
} from './turn-prompts.js';
export type { WhyAnswer, WhyHead, WhyHint, WhyPart, WhyPlace } from './why.js';
