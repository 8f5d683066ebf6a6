/** What may be set for a project as a whole. */
import { z } from 'zod';
import { pricesSchema } from '../model/index.js';
import { budgetSchema } from './budget.js';

const whole = (max: number): z.ZodInt => z.int().min(1).max(max);

export const projectLimitsSchema = z.strictObject({
  /** The deepest that a tree of turns may become. */
  max_depth: whole(1_000).optional(),
  /** The most turns that one primitive may make; none takes more tasks than this. */
  max_fan_out: whole(20_000).optional(),
  /**
   * New turns begin only while fewer of the project are dispatched or running. A turn that comes back from a wait is not held up:
   * it has begun.
   */
  max_concurrent: whole(100_000).optional(),
  /** Limits of each run from outside that gives none of its own. */
  run_budget: budgetSchema.optional(),
  /** Prices that come before all others. */
  prices: pricesSchema.optional(),
});
export type ProjectLimits = z.infer<typeof projectLimitsSchema>;
