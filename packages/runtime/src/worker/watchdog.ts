/**
 * Ends the process when its event loop is blocked for half a lease. Nothing on a blocked loop can act, so a thread
 * does. It charges the turn whose code blocks the loop with one loss, or notes the job, and hands the other turns back.
 * One thread watches for all workers of the process, because all of them end with it. The thread does the same when
 * such code ends the process by `process.exit`.
 * Rule: docs/reference/turns.md, "A held event loop".
 */
import { url as inspectorUrl } from 'node:inspector';
import { Worker as Thread } from 'node:worker_threads';
import type { WorkerId } from '@boxcar/kernel';
import { BLOCKED_WORKER } from '@boxcar/store';
import type { Log } from '../lib/index.js';
import { codeAtExit, type RunningCode, watchEntries } from '../lib/index.js';

/** The exit code of a process whose event loop was blocked. */
const BLOCKED_EXIT_CODE = 4;

const TICKS_PER_LEASE = 40;
const SLOT_BYTES = 1_024;
/** How long the end of the process waits for the thread. */
const EXIT_WAIT_MS = 5_000;

interface WatchedWorker {
  readonly workerId: WorkerId;
  readonly leaseMs: number;
  readonly directUrl: string;
}

export interface Watchdog {
  /** Sets the worker whose turns are handed back. */
  watch(workerId: WorkerId): void;
  stop(): Promise<void>;
}

/** The thread, and the shared memory that it reads. */
class WatchdogThread {
  // The count of ticks, the length of the content of the slot, and 1 while the end of the process waits.
  readonly #ticks = new Int32Array(new SharedArrayBuffer(12));
  readonly #slot = new Uint8Array(new SharedArrayBuffer(SLOT_BYTES));
  readonly #encoder = new TextEncoder();
  readonly #workers = new Map<symbol, WatchedWorker>();
  readonly #thread: Thread;
  readonly #unwatch: () => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Log) {
    this.#unwatch = watchEntries((code) => this.#show(code));
    this.#thread = new Thread(new URL('../../watchdog-thread.js', import.meta.url), {
      workerData: { ticks: this.#ticks, slot: this.#slot, exitCode: BLOCKED_EXIT_CODE, sql: BLOCKED_WORKER },
    });
    this.#thread.unref();
    process.on('exit', this.#onExit);
    this.#thread.on('error', (error) => log('warn', 'worker.not_watched', { error: error.message }));
  }

  #show(code: RunningCode | undefined): void {
    const bytes = code === undefined ? undefined : this.#encoder.encode(JSON.stringify(code));
    const length = bytes === undefined || bytes.length > SLOT_BYTES ? 0 : bytes.length;
    if (bytes !== undefined && length > 0) this.#slot.set(bytes);
    Atomics.store(this.#ticks, 1, length);
  }

  /**
   * Runs in the scope of the code that called `process.exit`. At this time only the thread can still do asynchronous
   * work.
   */
  readonly #onExit = (): void => {
    const code = codeAtExit();
    if (code === undefined) return;
    this.#show(code);
    Atomics.store(this.#ticks, 2, 1);
    Atomics.wait(this.#ticks, 2, 1, EXIT_WAIT_MS);
  };

  set(key: symbol, worker: WatchedWorker): void {
    this.#workers.set(key, worker);
    this.#tell();
  }

  /** @returns True when no watched worker is left. */
  remove(key: symbol): boolean {
    if (this.#workers.delete(key)) this.#tell();
    return this.#workers.size === 0;
  }

  #tell(): void {
    const workers = [...this.#workers.values()];
    clearInterval(this.#timer);
    const tickMs = Math.min(...workers.map(({ leaseMs }) => leaseMs)) / TICKS_PER_LEASE;
    if (workers.length > 0)
      this.#timer = setInterval(() => Atomics.add(this.#ticks, 0, 1), Math.max(tickMs, 1)).unref();
    this.#thread.postMessage({ workers });
  }

  async end(): Promise<void> {
    this.#unwatch();
    process.off('exit', this.#onExit);
    clearInterval(this.#timer);
    await this.#thread.terminate();
  }
}

let shared: WatchdogThread | undefined;

/** @returns Undefined while a debugger is attached, because it blocks the loop on purpose. */
export function startWatchdog(options: {
  readonly leaseMs: number;
  readonly directUrl: string;
  readonly log: Log;
}): Watchdog | undefined {
  if (inspectorUrl() !== undefined) return undefined;
  const { leaseMs, directUrl, log } = options;
  const key = Symbol('worker');
  let thread: WatchdogThread | undefined;
  return {
    watch: (workerId) => {
      thread ??= shared ??= new WatchdogThread(log);
      thread.set(key, { workerId, leaseMs, directUrl });
    },
    stop: async () => {
      if (thread?.remove(key) !== true) return;
      if (shared === thread) shared = undefined;
      await thread.end();
    },
  };
}
