/** Requests for approval whose time is over, and decisions whose turn nothing has woken, since a process has died in between. */
import { closeAnswered, findUnwoken, wakeDecided } from '@boxcar/store';
import { expireDue } from '../approval/index.js';
import type { RuntimeCore } from '../core/index.js';
import type { Clock } from './sweep-rows.js';

export class LeftApprovals {
  readonly #runtime: RuntimeCore;

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
  }

  async act(clock: Clock): Promise<void> {
    const { pool } = this.#runtime;
    const expired = await expireDue(this.#runtime, clock);
    const left = await findUnwoken(pool, clock);
    const turnIds = [...new Set([...expired, ...left])];
    this.#runtime.ring(await wakeDecided(pool, turnIds, { skipsLocked: true }));
    await closeAnswered(pool, clock);
  }
}
