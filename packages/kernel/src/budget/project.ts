/** Limits of a whole project. */
import { z } from 'zod';
import { pricesSchema } from '../model/index.js';
import { budgetSchema } from './budget.js';

const whole = (max: number): z.ZodInt => z.int().min(1).max(max);

export const projectLimitsSchema = z.strictObject({
  /** Maximum depth of a tree of turns. */
  max_depth: whole(1_000).optional(),
  /** The most turns that one primitive may create; no primitive accepts more tasks than this. */
  max_fan_out: whole(20_000).optional(),
  /**
   * New turns begin only while fewer turns of the project are dispatched or running. A turn that returns from a wait is
   * not delayed, because it has begun.
   */
  max_concurrent: whole(100_000).optional(),
  /** Budget of each run submitted from outside without a budget of its own. */
  run_budget: budgetSchema.optional(),
  /** Prices that take precedence over all others. */
  prices: pricesSchema.optional(),
});
export type ProjectLimits = z.infer<typeof projectLimitsSchema>;
