/** Waits that are over: timers, selectors that no worker has, leftovers of budgets, and providers. */
import type { Ring, TurnId } from '@boxcar/kernel';
import {
  findDueWaits,
  findLeftovers,
  findOverdueProviders,
  findProviderWaiters,
  findUnselected,
  type LockLimit,
  SELECTOR_PATIENCE_MS,
  type UnselectedTurn,
  wakeDue,
  wakeForLeftovers,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { endAndAnnounce, endWaiting } from '../end/index.js';
import { selectorUnknown } from '../pack/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** Wakes turns that wait for a provider, as far as there is room. */
export type WakeProvider = (
  provider: string,
  options: { readonly wakeOnly?: readonly TurnId[]; readonly now?: Date | undefined } & LockLimit,
) => Promise<void>;

export class DueWaits {
  readonly #runtime: RuntimeCore;
  readonly #rows: SweepContext['rows'];
  readonly #wakeGate: WakeProvider;

  constructor(context: SweepContext, wakeProvider: WakeProvider) {
    this.#runtime = context.runtime;
    this.#rows = context.rows;
    this.#wakeGate = wakeProvider;
  }

  /** `wakeGate` rings the turns itself, so there are no rings to return. */
  async #wakeProvider(
    provider: string,
    options: Clock & LockLimit & { readonly wakeOnly?: readonly TurnId[] },
  ): Promise<readonly Ring[]> {
    await this.#wakeGate(provider, options);
    return [];
  }

  async wake(clock: Clock): Promise<void> {
    const { pool } = this.#runtime;
    const rings = await this.#rows.orAlone('due_waits', clock, {
      all: () => wakeDue(pool, clock),
      find: () => findDueWaits(pool, clock),
      alone: (wait) => wakeDue(pool, { ...clock, turnIds: [wait.turn_id] }),
    });
    this.#runtime.ring(rings);
    await this.#rows.each('due_waits', clock, {
      rows: await findUnselected(pool, clock),
      key: 'turn_id',
      work: (turn, limit) => this.#endUnselected(turn, limit),
    });
    // The id of an account is the id of a run or a turn, and a note of `due_waits` would end that turn.
    await this.#rows.each('left_budgets', clock, {
      rows: await findLeftovers(pool, clock),
      key: 'id',
      work: async (account, limit) => this.#runtime.ring(await wakeForLeftovers(pool, account, limit)),
    });
    for (const provider of await findOverdueProviders(pool, clock))
      await this.#rows.orAlone('due_waits', clock, {
        all: () => this.#wakeProvider(provider, { ...clock, lockMs: this.#rows.lockMs }),
        find: () => findProviderWaiters(pool, provider, clock),
        alone: (wait, limit) =>
          this.#wakeProvider(provider, { ...clock, ...limit, wakeOnly: [wait.turn_id] }),
      });
  }

  /** For a minute no living worker has had the selector. */
  async #endUnselected(turn: UnselectedTurn, limit: LockLimit): Promise<void> {
    const { turn_id, step_count, selector: name, selector_version: version } = turn;
    const what = `makes the prompts of this turn, and for ${SELECTOR_PATIENCE_MS / 1000} s no worker of its pool had it`;
    const body = selectorUnknown({ name, version }, what).toJSON();
    const error = { ...body, details: { ...body.details, turn_id, step: step_count + 1 } };
    await endAndAnnounce(this.#runtime, limit, (tx) => endWaiting(tx, turn, { status: 'failed', error }));
  }
}
