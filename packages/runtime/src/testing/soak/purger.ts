/** Purges under load: runs that ended a while ago, and tapes without writers. */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText, KernelError } from '@boxcar/kernel';
import { purgeRuns, purgeTapes, readClock } from '@boxcar/store';
import type pg from 'pg';
import type { Accepted } from './load.js';

/** The time that runs are kept after their end. */
const AGE_MS = 5_000;
const EVERY_MS = 1_000;
/** Small, so that many batches run under load. */
const BATCH_SIZE = 20;

export class Purger {
  /** Errors, except those of an unavailable server. */
  readonly broken: string[] = [];
  /** Runs that were removed. */
  removed = 0;
  readonly #pool: pg.Pool;
  readonly #checked = new Set<string>();
  readonly #findWrong: (accepted: readonly Accepted[]) => Promise<string[]>;

  /** @param findWrong - Finds problems of ended turns. It is called before these turns may be purged. */
  constructor(pool: pg.Pool, findWrong: (accepted: readonly Accepted[]) => Promise<string[]>) {
    this.#pool = pool;
    this.#findWrong = findWrong;
  }

  /** The submissions that must still be checked after everything has ended. */
  unchecked(accepted: readonly Accepted[]): readonly Accepted[] {
    return accepted.filter(({ turnId }) => !this.#checked.has(turnId));
  }

  async run(accepted: () => readonly Accepted[], isOn: () => boolean): Promise<void> {
    while (isOn()) {
      await delay(EVERY_MS);
      try {
        await this.#purge(accepted());
      } catch (error) {
        const isAway = error instanceof KernelError && error.code === 'database_unavailable';
        if (!isAway) this.broken.push(errorText(error));
      }
    }
  }

  async #purge(accepted: readonly Accepted[]): Promise<void> {
    const before = new Date((await readClock(this.#pool)).getTime() - AGE_MS);
    const { rows } = await this.#pool
      .query<{ id: string }>('select id from boxcar.turns where id = any ($1::uuid[]) and ended_at < $2', [
        this.unchecked(accepted).map(({ turnId }) => turnId),
        before,
      ])
      .catch((cause: unknown) => {
        throw new KernelError('database_unavailable', { message: 'The server is away.', cause });
      });
    const ended = new Set(rows.map(({ id }) => id));
    const old = this.unchecked(accepted).filter(({ turnId }) => ended.has(turnId));
    this.broken.push(...(await this.#findWrong(old)));
    for (const { turnId } of old) this.#checked.add(turnId);
    const report = await purgeRuns(this.#pool, { before, batchSize: BATCH_SIZE });
    this.removed += report.removed.runs;
    await purgeTapes(this.#pool, { before });
  }
}
