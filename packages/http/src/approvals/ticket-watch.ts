/** Reports when tickets are decided, by any process. One query per interval serves all waiting callers. */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText, type TicketId } from '@boxcar/kernel';
import type { Runtime } from '@boxcar/runtime';
import { findPending } from '@boxcar/store';

const LOOK_MS = 250;

/** Polls tickets while at least one caller waits. */
export class TicketWatch {
  readonly #runtime: Pick<Runtime, 'pool' | 'log'>;
  readonly #waiting = new Map<TicketId, Set<() => void>>();
  #isLooking = false;

  constructor(runtime: Pick<Runtime, 'pool' | 'log'>) {
    this.#runtime = runtime;
  }

  /** Resolves when the ticket has been decided, has expired or does not exist, and when the signal fires. */
  async settled(ticketId: TicketId, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    const waiting = this.#waiting.get(ticketId) ?? new Set();
    this.#waiting.set(ticketId, waiting);
    let stop: () => void = () => undefined;
    const settled = new Promise<void>((resolve) => {
      stop = resolve;
    });
    waiting.add(stop);
    signal.addEventListener('abort', stop, { once: true });
    if (!this.#isLooking) void this.#look();
    await settled;
    signal.removeEventListener('abort', stop);
    waiting.delete(stop);
    if (waiting.size === 0) this.#waiting.delete(ticketId);
  }

  async #look(): Promise<void> {
    this.#isLooking = true;
    while (this.#waiting.size > 0) {
      try {
        const asked = [...this.#waiting.keys()];
        const pending = new Set(await findPending(this.#runtime.pool, asked));
        for (const id of asked) if (!pending.has(id)) for (const tell of this.#waiting.get(id) ?? []) tell();
      } catch (error) {
        // The database is unreachable: the callers continue to wait.
        this.#runtime.log('warn', 'http.tickets_not_read', { error: errorText(error) });
      }
      await delay(LOOK_MS, undefined, { ref: false });
    }
    this.#isLooking = false;
  }
}
