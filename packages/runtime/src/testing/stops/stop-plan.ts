import type { Client, Scenario, Watcher } from '../faults/scenario.js';
import type { Stage } from '../faults/stage.js';
import type { TestBackend } from '../queue-backend.js';

/** Operations of a healthy program while another process is stopped. */
export interface Beside {
  readonly client: Client;
  readonly watcher: Watcher;
}

/** For the preparation before a stop: the plan decides which process works, and it may change rows. */
export interface Beforehand extends Beside {
  readonly helper: Stage;
  readonly backend: TestBackend;
}

/** Work during which one process stops. */
export interface StopPlan {
  readonly scenario: Scenario;
  /**
   * The process that stops. `worker`: it runs the turns and sweeps, and others submit. `caller`: it submits, and others run
   * the turns.
   */
  readonly role: 'worker' | 'caller';
  /** Runs before the stopping process exists, so that its first sweep finds work. */
  readonly before?: (beforehand: Beforehand) => Promise<unknown>;
  /**
   * Work of another caller on the same rows while this caller is stopped. The stopped caller continues the scenario after it wakes. Without
   * `beside`, the other caller repeats the unanswered submission under the same key and continues the scenario.
   */
  readonly beside?: (beside: Beside) => Promise<unknown>;
}

export const nameOf = ({ scenario, role }: StopPlan): string => `${scenario.name} (${role})`;
