import type { CallGateOptions } from '../core/index.js';

/** What a tool may have of its own, in place of what its runtime has. */
export interface HandoffRules {
  readonly isEnabled: boolean;
  readonly gate: CallGateOptions;
}
