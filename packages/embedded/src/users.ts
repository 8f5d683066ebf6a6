/**
 * The users of a server. Several processes may share a server; the last one to leave stops it.
 *
 * This protocol needs no lock, because the lock of a process that was killed with -9 could only be broken by guessing. Instead each side
 * writes before it looks:
 *
 * U1. A process joins by writing `users/<id>`. It then waits, for a bounded time, until every live `leaving/<id>` is removed.
 * U2. A process leaves by removing its `users/<id>`, writing `leaving/<id>`, and then looking for other users. It stops the server only
 *     when it finds no other user, and removes `leaving/<id>` last.
 *
 * In any order of events, the joining process sees the leaving one or the leaving process sees the joining one. Any process removes the
 * files of dead processes that it finds. An id contains the start time of its process, so that a reused process id does not revive it. It
 * also contains the PID namespace: processes outside of that namespace cannot tell whether the process lives, and leave its files alone.
 */
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import { describeProcess, isAlive, pidNamespace, startOf } from './process.js';

/** A process leaves within this time, even if the server stops slowly; see `stopServer`. */
export const LEAVE_DEADLINE_MS = 30_000;
const SAY_AFTER_MS = 1_000;

/** The end of a keeper's id. */
const KEEPER = 'keeper';

let handles = 0;

export class Membership {
  readonly #folder: string;
  /** Unique among all past and present processes of this machine. */
  readonly id: string;

  private constructor(folder: string, id: string) {
    this.#folder = folder;
    this.id = id;
  }

  /** The first half of U1. Call `othersHaveLeft` before looking for a running server. */
  static join(folder: string): Membership {
    handles += 1;
    return Membership.#write(folder, `${process.pid}.${startOf(process.pid)}.${handles}.${pidNamespace()}`);
  }

  /** The same for a keeper (keep.ts). The keeper or the process that has started it makes this call. */
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

  /** Whether no other process uses the server, as far as this process can see. */
  isAlone(): boolean {
    return readIds(this.#folder, 'users').every(
      (id) => id === this.id || (isVisible(id) && !liveIds(this.#folder, 'users').includes(id)),
    );
  }

  /** Leaves permanently. When no other users remain, `stopServer` runs before a joining process may start a server. */
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
    // The folder was deleted, so no other process can find the server.
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

/** The ids in use: ids of live processes, and ids of processes that are not visible from here. */
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
