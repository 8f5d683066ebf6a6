/** Requests for approval whose time is over, and decisions whose turn nothing has woken, since a process has died in between. */
import { errorText } from '@boxcar/kernel';
import { closeAnswered, findLeftTickets, findUnwoken, wakeDecided } from '@boxcar/store';
import { expireDue } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import type { Clock } from './sweep-rows.js';

export class LeftApprovals {
  readonly #runtime: RuntimeCore;

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
  }

  async act(clock: Clock): Promise<void> {
    const { pool, handoffs, log } = this.#runtime;
    const expired = await expireDue(this.#runtime, clock);
    // Before the turns: what waits for a handoff has its answer then, and is not looked at again.
    for (const id of await findLeftTickets(pool, clock))
      await handoffs.decided(id).catch((error: unknown) => {
        log('warn', 'approval.not_woken', { ticket_id: id, error: errorText(error) });
      });
    const left = await findUnwoken(pool, clock);
    const turnIds = [...new Set([...expired.turnIds, ...left])];
    this.#runtime.ring(await wakeDecided(pool, turnIds, { skipsLocked: true }));
    await closeAnswered(pool, clock);
  }
}
