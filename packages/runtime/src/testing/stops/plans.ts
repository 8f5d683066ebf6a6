/** The work of the process under fault. */
import { delegations, overflows, queueTools, tapeCommands, tools } from '../faults/scenarios.js';
import {
  budgetRaised,
  budgetSpent,
  cancelRacingCompletion,
  cancelTree,
  providerRoom,
  raiseRacingPause,
  retries,
} from '../faults/scenarios-ends.js';
import {
  batchDeadline,
  collectLater,
  failFast,
  forkJoin,
  minSuccess,
  nestedForkJoin,
} from '../faults/scenarios-joins.js';
import { handoffs } from '../faults/scenarios-tape.js';
import { notifyParent } from '../faults/scenarios-tapes.js';
import { SWEEP_PLAN } from './plan-sweeps.js';
import { TAPE_PLAN } from './plan-tapes.js';
import type { StopPlan } from './stop-plan.js';

const WORKED = [
  tools,
  delegations,
  forkJoin,
  tapeCommands,
  queueTools,
  overflows,
  cancelTree,
  budgetRaised,
  budgetSpent,
  providerRoom,
  retries,
  batchDeadline,
  failFast,
  minSuccess,
  nestedForkJoin,
  collectLater,
  handoffs,
  notifyParent,
];
const CALLED = [
  delegations,
  cancelTree,
  cancelRacingCompletion,
  budgetRaised,
  raiseRacingPause,
  tapeCommands,
  handoffs,
];

/**
 * Profiles and models of all plans share their names: scenarios that use one name in two meanings cannot be in one list.
 */
export const STOP_PLANS: readonly StopPlan[] = [
  SWEEP_PLAN,
  TAPE_PLAN,
  ...WORKED.map((scenario): StopPlan => ({ scenario, role: 'worker' })),
  ...CALLED.map((scenario): StopPlan => ({ scenario, role: 'caller' })),
];

/**
 * Plans for a worker in a separate process, which has the profiles of a plan but not the tools and models of the tests.
 */
export const SIGNAL_PLANS: readonly StopPlan[] = [
  SWEEP_PLAN,
  ...[delegations, nestedForkJoin, tapeCommands, cancelTree, budgetRaised, retries].map(
    (scenario): StopPlan => ({ scenario, role: 'worker' }),
  ),
];
