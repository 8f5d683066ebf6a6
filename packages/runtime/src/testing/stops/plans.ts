/** What the process under fault does when it stops. */
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

/** Names of profiles and models are shared: scenarios of one list that mean something else by one name are not run together. */
export const STOP_PLANS: readonly StopPlan[] = [
  SWEEP_PLAN,
  TAPE_PLAN,
  ...WORKED.map((scenario): StopPlan => ({ scenario, role: 'worker' })),
  ...CALLED.map((scenario): StopPlan => ({ scenario, role: 'caller' })),
];

/** For a worker in a process of its own, which knows profiles and none of the tools and models of tests. */
export const SIGNAL_PLANS: readonly StopPlan[] = [
  SWEEP_PLAN,
  ...[delegations, nestedForkJoin, tapeCommands, cancelTree, budgetRaised, retries].map(
    (scenario): StopPlan => ({ scenario, role: 'worker' }),
  ),
];
