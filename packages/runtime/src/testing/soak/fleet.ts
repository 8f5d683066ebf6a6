import { type NodeChild, spawnNode, type TcpProxy, tcpProxy } from '@boxcar/testkit/standalone';
import type { WorkerOptions } from '../../worker/worker.js';
import type { WorkerProcessOptions } from '../worker-process.js';
import type { Random } from './random.js';

/** Short, so that a death is noticed soon. */
const QUICK: WorkerOptions = {
  leaseMs: 2_000,
  heartbeatMs: 200,
  sweepMs: 200,
  lostRingMs: 500,
  concurrency: 10,
};
const STARTS = { deadlineMs: 60_000 };
const MAX_STARTS = 10;
/** How much of the last output of a worker is shown in messages, in characters. */
const TAIL = 1_000;

/** The longest time that other processes wait for a worker that is stopped or cut off. */
export const WORKER_LIMIT_MS = (QUICK.leaseMs ?? 0) + 2_000;
/** Longer than the lease, and mostly longer than the limit, so that a lock that is held too long is noticed. */
const STOP_MS = [WORKER_LIMIT_MS - 1_000, 2 * WORKER_LIMIT_MS] as const;

/** The connections of a worker that are silenced. */
export type SilentPart = 'pool' | 'direct' | 'all';

const IS_PART: Readonly<Record<SilentPart, (hello: string) => boolean>> = {
  pool: (hello) => /\0boxcar\0/.test(hello),
  direct: (hello) => /\0boxcar-/.test(hello),
  all: () => true,
};

interface Member {
  readonly child: NodeChild;
  /** The proxy through which only this worker reaches Postgres. */
  readonly postgres: TcpProxy;
  /** A worker that cannot reach the database for longer than its lease may end. */
  mayEnd: boolean;
}

/**
 * Workers of the pool, each in a separate process. Workers that are killed, or that end while they are cut off, are
 * replaced.
 */
export class Fleet {
  /** Workers that ended although they were not killed or cut off. */
  readonly deaths: string[] = [];
  readonly #options: WorkerProcessOptions;
  readonly #workers = new Set<Member>();
  readonly #stopped = new Set<Member>();
  readonly #starting = new Set<Promise<unknown>>();

  constructor(options: WorkerProcessOptions) {
    this.#options = { ...options, worker: QUICK };
  }

  async start(count: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.#startOne()));
  }

  /** Starts a worker. Repeats the start while a server is unavailable. */
  async #startOne(): Promise<void> {
    const postgres = await tcpProxy(this.#options.databaseUrl);
    const options = { ...this.#options, databaseUrl: postgres.url };
    for (let attempt = 1; ; attempt += 1) {
      const child = spawnNode(new URL('../worker-process.ts', import.meta.url), [JSON.stringify(options)]);
      try {
        await child.line(/^ready /, STARTS);
      } catch (error) {
        await child.kill();
        if (attempt === MAX_STARTS) throw error;
        continue;
      }
      const member: Member = { child, postgres, mayEnd: false };
      this.#workers.add(member);
      void child.exited.then(async ({ code, signal }) => {
        const isOurs = this.#workers.delete(member);
        await postgres.close();
        if (!isOurs) return;
        if (member.mayEnd) this.#replace();
        else this.deaths.push(`a worker ended with ${signal ?? code}: ${child.stderr.slice(-TAIL)}`);
      });
      return;
    }
  }

  #take(random: Random): Member | undefined {
    return random.pick([...this.#workers].filter((member) => !this.#stopped.has(member)));
  }

  #replace(): void {
    const starting: Promise<unknown> = this.start(1)
      .catch((error: Error) => this.deaths.push(error.message))
      .finally(() => this.#starting.delete(starting));
    this.#starting.add(starting);
  }

  /** Kills a random worker without warning and starts another in the background. */
  async kill(random: Random): Promise<void> {
    const victim = this.#take(random);
    if (victim === undefined) return;
    this.#workers.delete(victim);
    await victim.child.kill('SIGKILL');
    this.#replace();
  }

  /** Stops a random worker beyond its lease, then continues it. */
  async freeze(random: Random, wait: (ms: number) => Promise<void>): Promise<void> {
    const victim = this.#take(random);
    if (victim === undefined) return;
    this.#stopped.add(victim);
    process.kill(victim.child.pid, 'SIGSTOP');
    try {
      await wait(random.between(...STOP_MS));
    } finally {
      this.#stopped.delete(victim);
      process.kill(victim.child.pid, 'SIGCONT');
    }
  }

  /**
   * Silences the Postgres connections of a random worker: they stay open, but no data gets through. New connections are
   * silent too.
   */
  async silence(part: SilentPart, random: Random, wait: (ms: number) => Promise<void>): Promise<void> {
    const victim = this.#take(random);
    if (victim === undefined) return;
    victim.mayEnd = true;
    this.#stopped.add(victim);
    victim.postgres.stall(IS_PART[part]);
    try {
      await wait(random.between(...STOP_MS));
    } finally {
      this.#stopped.delete(victim);
      if (this.#workers.has(victim)) await victim.postgres.restore();
    }
  }

  /** Waits until the replacements of killed workers have started. */
  async isWhole(): Promise<void> {
    await Promise.all(this.#starting);
  }

  async close(): Promise<void> {
    await this.isWhole();
    const workers = [...this.#workers];
    this.#workers.clear();
    await Promise.all(workers.map(({ child }) => child.kill('SIGKILL')));
  }
}
