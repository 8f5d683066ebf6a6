/**
 * A step is paid before its model call. It is paid in memory from the turn's allotment, which only the holder can
 * spend. If the allotment is too small, a transaction asks the accounts above. Rules: kernel/budget/budget.ts.
 */
import {
  answerTokensOf,
  type BudgetHit,
  costOf,
  dearestOf,
  findShortfall,
  type ModelPrice,
  type ModelUsage,
  needOf,
  needsPrice,
  type Profile,
  type Spent,
} from '@boxcar/kernel';
import { chargeLost, type Purse, topUp } from '@boxcar/store';
import type pg from 'pg';
import type { HeldTurn } from './held-turn.js';

export type Payment =
  | { readonly outcome: 'paid' }
  | { readonly outcome: 'fenced' }
  /** The turn is suspended until the account is raised. */
  | { readonly outcome: 'paused' }
  | { readonly outcome: 'exceeded'; readonly hit: BudgetHit; readonly next?: string }
  /** The cost of the turn is limited, and this worker knows no price for its model. */
  | { readonly outcome: 'unpriced'; readonly accountId: string };

type PricedProfile = Pick<Profile, 'model' | 'limits' | 'model_settings'>;

/** The limit of a profile belongs to no budget that can be raised. */
const PROFILE_ADVICE =
  'It is limits.tokens of the profile: apply a profile with a higher limit, or ask for less.';

export class StepBudget {
  readonly #pool: pg.Pool;
  readonly #held: HeldTurn;
  readonly #profile: PricedProfile;
  readonly #price: ModelPrice | undefined;
  #purse: Purse;

  constructor(
    pool: pg.Pool,
    held: HeldTurn,
    of: { readonly purse: Purse; readonly profile: PricedProfile; readonly price: ModelPrice | undefined },
  ) {
    this.#pool = pool;
    this.#held = held;
    this.#purse = of.purse;
    this.#profile = of.profile;
    this.#price = of.price;
  }

  /** Pays for one attempt at a step, or returns the reason why it cannot be paid. */
  async pay(call: {
    readonly promptTokens: number;
    readonly step: number;
    readonly attempt: number;
  }): Promise<Payment> {
    const { turn, holderId } = this.#held;
    const need = needOf({
      promptTokens: call.promptTokens,
      answerTokens: answerTokensOf(this.#profile),
      price: this.#price,
    });
    const of = { turnId: turn.turnId, epoch: turn.epoch, holderId, need };
    if (call.attempt > 1) {
      const usage = { input_tokens: call.promptTokens, output_tokens: need.tokens - call.promptTokens };
      const spent = await chargeLost(this.#pool, {
        ...of,
        step: call.step,
        attempt: call.attempt,
        usage: {
          ...usage,
          ...(this.#price === undefined ? {} : { cost_micros: need.costMicros }),
          estimated: true,
          lost: true,
        },
      });
      if (spent === undefined) return { outcome: 'fenced' };
      this.#purse = { ...this.#purse, spentTokens: spent.tokens, spentCostMicros: spent.costMicros };
    }
    const cap = this.#profile.limits.tokens;
    if (cap !== undefined && this.#purse.spentTokens + need.tokens > cap) {
      const used = this.#purse.spentTokens;
      const hit = { accountId: turn.turnId, kind: 'tokens' as const, limit: cap, used, needed: need.tokens };
      return { outcome: 'exceeded', hit, next: PROFILE_ADVICE };
    }
    if (this.#purse.budgetId === null) return { outcome: 'paid' };
    const isUnpriced = this.#price === undefined && needsPrice(this.#profile.model);
    if (isUnpriced && this.#purse.allotment.costMicros !== null)
      return { outcome: 'unpriced', accountId: this.#purse.budgetId };
    if (
      findShortfall(this.#purse.allotment, this.#spent(call.step - 1), need) === undefined &&
      !this.#mayBeOver
    )
      return { outcome: 'paid' };
    const answer = await topUp(this.#pool, {
      ...of,
      projectId: turn.projectId,
      runId: turn.runId,
      mayPause: this.#profile.limits.on_budget === 'pause',
    });
    switch (answer.outcome) {
      case 'granted':
        this.#purse = answer.purse;
        return { outcome: 'paid' };
      case 'refused':
        return { outcome: 'exceeded', hit: answer.hit };
      default:
        return answer;
    }
  }

  /** On this machine's clock, which only decides whether the account is asked. */
  get #mayBeOver(): boolean {
    const { deadlineAt } = this.#held.turn;
    return deadlineAt !== null && deadlineAt.getTime() <= Date.now();
  }

  #spent(steps: number): Spent {
    return { tokens: this.#purse.spentTokens, costMicros: this.#purse.spentCostMicros, steps };
  }

  /**
   * The usage of the paid attempt, for its commit.
   *
   * @param options.isLost - True when the real usage is not known: `usage` is the reserved amount.
   */
  spend(
    usage: ModelUsage,
    { isLost = false }: { readonly isLost?: boolean } = {},
  ): { readonly tokens: number; readonly costMicros: number } {
    const price = isLost && this.#price !== undefined ? dearestOf(this.#price) : this.#price;
    const used = {
      tokens: usage.inputTokens + usage.outputTokens,
      costMicros: price === undefined ? 0 : costOf(price, usage),
    };
    this.#purse = {
      ...this.#purse,
      spentTokens: this.#purse.spentTokens + used.tokens,
      spentCostMicros: this.#purse.spentCostMicros + used.costMicros,
    };
    return used;
  }
}
