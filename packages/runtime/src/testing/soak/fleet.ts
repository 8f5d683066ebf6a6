import { type NodeChild, spawnNode } from '@boxcar/testkit/standalone';
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
/** The end of what a worker said, where it matters. */
const TAIL = 1_000;

/** Workers of the pool, each a process of its own. Those that are killed are replaced. */
export class Fleet {
  /** Workers that ended although nobody killed them. */
  readonly deaths: string[] = [];
  readonly #options: WorkerProcessOptions;
  readonly #workers = new Set<NodeChild>();
  readonly #stopped = new Set<NodeChild>();
  readonly #starting = new Set<Promise<unknown>>();

  constructor(options: WorkerProcessOptions) {
    this.#options = { ...options, worker: QUICK };
  }

  async start(count: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.#startOne()));
  }

  /** As whoever runs workers does: one that cannot start, because a server is away, is started again. */
  async #startOne(): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      const child = spawnNode(new URL('../worker-process.ts', import.meta.url), [
        JSON.stringify(this.#options),
      ]);
      try {
        await child.line(/^ready /, STARTS);
      } catch (error) {
        await child.kill();
        if (attempt === MAX_STARTS) throw error;
        continue;
      }
      this.#workers.add(child);
      void child.exited.then(({ code, signal }) => {
        if (!this.#workers.delete(child)) return;
        this.deaths.push(`a worker ended with ${signal ?? code}: ${child.stderr.slice(-TAIL)}`);
      });
      return;
    }
  }

  #take(random: Random): NodeChild | undefined {
    return random.pick([...this.#workers].filter((child) => !this.#stopped.has(child)));
  }

  /** Kills one without warning and starts another in the background. */
  async kill(random: Random): Promise<void> {
    const victim = this.#take(random);
    if (victim === undefined) return;
    this.#workers.delete(victim);
    await victim.kill('SIGKILL');
    const starting: Promise<unknown> = this.start(1)
      .catch((error: Error) => this.deaths.push(error.message))
      .finally(() => this.#starting.delete(starting));
    this.#starting.add(starting);
  }

  /** Stops one beyond its lease, and lets it go on then. */
  async freeze(random: Random, wait: (ms: number) => Promise<void>): Promise<void> {
    const victim = this.#take(random);
    if (victim === undefined) return;
    this.#stopped.add(victim);
    process.kill(victim.pid, 'SIGSTOP');
    try {
      await wait((QUICK.leaseMs ?? 0) * 1.5);
    } finally {
      this.#stopped.delete(victim);
      process.kill(victim.pid, 'SIGCONT');
    }
  }

  /** Those that take the place of killed ones are there. */
  async isWhole(): Promise<void> {
    await Promise.all(this.#starting);
  }

  async close(): Promise<void> {
    await this.isWhole();
    const workers = [...this.#workers];
    this.#workers.clear();
    await Promise.all(workers.map((child) => child.kill('SIGKILL')));
  }
}
