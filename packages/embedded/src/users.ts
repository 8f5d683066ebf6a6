/**
 * Who uses a server. Several processes may share one; the last to leave stops it.
 *
 * There is no lock, because a lock held by a process killed with -9 must be broken by guessing. Instead each side writes
 * before it looks:
 *
 * U1. A process joins by writing `users/<id>`, then waits for every live `leaving/<id>` to go.
 * U2. A process leaves by removing its `users/<id>`, writing `leaving/<id>`, then looking for other users; it stops the
 *     server only when there are none, and removes `leaving/<id>` last.
 *
 * Whatever the order, the joiner sees the leaver or the leaver sees the joiner. Files of dead processes are removed by
 * whoever meets them; an id holds the start time of its process, so a reused process id does not revive it.
 */
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { isAlive, startOf } from './process.js';

let handles = 0;

export class Membership {
  readonly #folder: string;
  readonly #id: string;

  private constructor(folder: string, id: string) {
    this.#folder = folder;
    this.#id = id;
  }

  /** U1, its first half; call `othersHaveLeft` before looking for a running server. */
  static join(folder: string): Membership {
    handles += 1;
    const id = `${process.pid}.${startOf(process.pid)}.${handles}`;
    for (const kind of ['users', 'leaving']) mkdirSync(join(folder, kind), { recursive: true, mode: 0o700 });
    writeFileSync(join(folder, 'users', id), '', { mode: 0o600 });
    return new Membership(folder, id);
  }

  /** Waits until no live process is about to stop the server. */
  async othersHaveLeft(): Promise<void> {
    while (liveIds(this.#folder, 'leaving').some((id) => id !== this.#id)) await delay(10);
  }

  /** Leaves for good. When nobody else is left, `stopServer` runs before a newcomer may start one. */
  async leave(stopServer: () => Promise<void>): Promise<void> {
    if (this.#beginLeaving()) {
      try {
        await stopServer();
      } finally {
        this.#endLeaving();
      }
    }
  }

  /** The same for the last moments of a process, when nothing can be awaited: `stopServer` only sends the signal. */
  leaveNow(stopServer: () => void): void {
    if (this.#beginLeaving()) {
      stopServer();
      this.#endLeaving();
    }
  }

  #beginLeaving(): boolean {
    rmSync(join(this.#folder, 'users', this.#id), { force: true });
    writeFileSync(join(this.#folder, 'leaving', this.#id), '', { mode: 0o600 });
    if (liveIds(this.#folder, 'users').length === 0) return true;
    this.#endLeaving();
    return false;
  }

  #endLeaving(): void {
    rmSync(join(this.#folder, 'leaving', this.#id), { force: true });
  }
}

/** Whether any live process uses the server of this folder. */
export function hasUsers(folder: string): boolean {
  return liveIds(folder, 'users').length > 0;
}

function liveIds(folder: string, kind: 'users' | 'leaving'): string[] {
  let ids: string[];
  try {
    ids = readdirSync(join(folder, kind));
  } catch {
    return [];
  }
  return ids.filter((id) => {
    const [pid = '', start = ''] = id.split('.');
    if (isAlive(Number(pid)) && startOf(Number(pid)) === start) return true;
    rmSync(join(folder, kind, id), { force: true });
    return false;
  });
}
