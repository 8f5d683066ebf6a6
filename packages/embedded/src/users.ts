/**
 * Who uses a server. Several processes may share one; the last to leave stops it.
 *
 * There is no lock, because a lock held by a process killed with -9 must be broken by guessing. Instead each side writes
 * before it looks:
 *
 * U1. A process joins by writing `users/<id>`, then waits, for a bounded time, until every live `leaving/<id>` is removed.
 * U2. A process leaves by removing its `users/<id>`, writing `leaving/<id>`, then looking for other users; it stops the
 *     server only when there are none, and removes `leaving/<id>` last.
 *
 * Whatever the order, the joiner sees the leaver or the leaver sees the joiner. Any process removes the files of dead processes
 * that it finds. An id contains the start time of its process, so that a reused process id does not revive it. It also contains the
 * PID namespace: outside of that namespace it is unknown whether the process lives, and its files are left alone.
 */
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import { describeProcess, isAlive, pidNamespace, startOf } from './process.js';

/** A process leaves within this time, even if the server stops slowly; see `stopServer`. */
export const LEAVE_DEADLINE_MS = 30_000;
const SAY_AFTER_MS = 1_000;

/** The end of the ids of keepers. */
const KEEPER = 'keeper';

let handles = 0;

export class Membership {
  readonly #folder: string;
  /** Unique among the processes of this machine, also in time. */
  readonly id: string;

  private constructor(folder: string, id: string) {
    this.#folder = folder;
    this.id = id;
  }

  /** U1, its first half; call `othersHaveLeft` before looking for a running server. */
  static join(folder: string): Membership {
    handles += 1;
    return Membership.#write(folder, `${process.pid}.${startOf(process.pid)}.${handles}.${pidNamespace()}`);
  }

  /** The same for a keeper (keep.ts), by itself or by the process that has started it. */
  static joinKeeper(folder: string, pid: number): Membership {
    return Membership.#write(folder, `${pid}.${startOf(pid)}.0.${pidNamespace()}.${KEEPER}`);
  }

  static #write(folder: string, id: string): Membership {
    for (const kind of ['users', 'leaving']) mkdirSync(join(folder, kind), { recursive: true, mode: 0o700 });
    writeFileSync(join(folder, 'users', id), '', { mode: 0o600 });
    return new Membership(folder, id);
  }

  /**
   * Waits until no live process is about to stop the server.
   *
   * @throws KernelError `database_in_use` naming the process that is still leaving at the deadline.
   */
  async othersHaveLeft(options: {
    readonly deadlineMs: number;
    readonly log?: (line: string) => void;
  }): Promise<void> {
    const since = performance.now();
    let isSaid = false;
    for (;;) {
      const [other] = liveIds(this.#folder, 'leaving').filter((id) => id !== this.id);
      if (other === undefined) return;
      const pid = Number(other.split('.', 1)[0]);
      const waitedMs = performance.now() - since;
      if (waitedMs >= options.deadlineMs) {
        throw new KernelError('database_in_use', {
          message: `The ${describeProcess(pid)} has been leaving the embedded Postgres of ${this.#folder} for ${Math.round(waitedMs / 1000)} s and may still stop it; end that process.`,
          details: { folder: this.#folder, pid },
        });
      }
      if (!isSaid && waitedMs >= SAY_AFTER_MS) {
        isSaid = true;
        options.log?.(`waiting for ${describeProcess(pid)}, which is leaving the embedded Postgres`);
      }
      await delay(10);
    }
  }

  /** Whether no other process uses the server, as far as can be seen from here. */
  isAlone(): boolean {
    return readIds(this.#folder, 'users').every(
      (id) => id === this.id || (isVisible(id) && !liveIds(this.#folder, 'users').includes(id)),
    );
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
    // Deleted under it: nobody else can find the server.
    if (!existsSync(this.#folder)) return true;
    rmSync(join(this.#folder, 'users', this.id), { force: true });
    writeFileSync(join(this.#folder, 'leaving', this.id), '', { mode: 0o600 });
    if (liveIds(this.#folder, 'users').length === 0) return true;
    this.#endLeaving();
    return false;
  }

  #endLeaving(): void {
    rmSync(join(this.#folder, 'leaving', this.id), { force: true });
  }
}

/** The ids in use: of live processes, and of those that are not visible from here. */
export function usersOf(folder: string): ReadonlySet<string> {
  const unseen = readIds(folder, 'users').filter((id) => !isVisible(id));
  return new Set([...unseen, ...liveIds(folder, 'users')]);
}

const isKeeper = (id: string): boolean => id.endsWith(`.${KEEPER}`);

/** The process ids of the live keepers of a folder. */
export const keepersOf = (folder: string): readonly number[] =>
  liveIds(folder, 'users')
    .filter(isKeeper)
    .map((id) => Number(id.split('.', 1)[0]));

/** Whether a live process of this PID namespace other than a keeper uses the server. */
export const hasOtherUsers = (folder: string): boolean =>
  liveIds(folder, 'users').some((id) => !isKeeper(id));

/** Whether a live process uses the server of this folder, or a process that is not visible from here may use it. */
export function hasUsers(folder: string): boolean {
  return usersOf(folder).size > 0;
}

function readIds(folder: string, kind: 'users' | 'leaving'): string[] {
  try {
    return readdirSync(join(folder, kind));
  } catch {
    return [];
  }
}

/** Whether the process of an id is in the PID namespace of this process. */
const isVisible = (id: string): boolean => [undefined, '', pidNamespace()].includes(id.split('.')[3]);

/** The live ids of this PID namespace. A server in another namespace is never joined or stopped from this one. */
function liveIds(folder: string, kind: 'users' | 'leaving'): string[] {
  return readIds(folder, kind).filter((id) => {
    if (!isVisible(id)) return false;
    const [pid = '', start = ''] = id.split('.');
    if (isAlive(Number(pid)) && startOf(Number(pid)) === start) return true;
    rmSync(join(folder, kind, id), { force: true });
    return false;
  });
}
