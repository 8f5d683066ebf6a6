/**
 * Requests for approval whose time is over, and decisions whose turn was not woken because a process died before it
 * could do so.
 */
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
    // Before the turns: a turn that waits for a handoff then has its answer, and is not read again.
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
