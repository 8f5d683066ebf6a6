/** Requests for approval whose time is over, and decisions whose turn nothing has woken, since a process has died in between. */
import { closeAnswered, expireDueTickets, findLeftTickets, findUnwoken, wakeDecided } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Clock } from './sweep-rows.js';

export class LeftApprovals {
  readonly #runtime: RuntimeCore;

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
  }

  async act(clock: Clock): Promise<void> {
    const { pool, log } = this.#runtime;
    const expired = await expireDueTickets(pool, clock);
    for (const { id } of expired) log('info', 'approval.updated', { ticket_id: id, status: 'expired' });
    // Before the turns: what waits for a handoff has its answer then, and is not looked at again.
    const tickets = new Set([...expired.map(({ id }) => id), ...(await findLeftTickets(pool, clock))]);
    for (const id of tickets) await this.#runtime.handoffs.decided(id);
    const turns = expired.flatMap(({ turnId }) => (turnId === null ? [] : [turnId]));
    const left = await findUnwoken(pool, clock);
    this.#runtime.ring(await wakeDecided(pool, [...new Set([...turns, ...left])]));
    await closeAnswered(pool, clock);
  }
}
