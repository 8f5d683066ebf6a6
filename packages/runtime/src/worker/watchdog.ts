/**
 * Ends the process when its event loop is held for half a lease: the thread charges the turn whose tool holds it with one loss and
 * hands the others back, which nothing on the held loop can do. Rule: docs/turns.md, "A held event loop".
 */
import { url as inspectorUrl } from 'node:inspector';
import { Worker as Thread } from 'node:worker_threads';
import type { WorkerId } from '@boxcar/kernel';
import { BLOCKED_WORKER } from '@boxcar/store';
import type { Log } from '../log.js';
import { type RunningCall, watchEntries } from './call-scope.js';

/** The exit code of a process whose event loop was held. */
const BLOCKED_EXIT_CODE = 4;

const TICKS_PER_LEASE = 40;
const SLOT_BYTES = 1_024;

export interface Watchdog {
  /** The worker whose turns are handed back. */
  watch(workerId: WorkerId): void;
  stop(): Promise<void>;
}

/** @returns Undefined while a debugger is attached, which holds the loop on purpose. */
export function startWatchdog(options: {
  readonly leaseMs: number;
  readonly directUrl: string;
  readonly log: Log;
}): Watchdog | undefined {
  if (inspectorUrl() !== undefined) return undefined;
  // The count of ticks, and the length of what is in the slot.
  const ticks = new Int32Array(new SharedArrayBuffer(8));
  const slot = new Uint8Array(new SharedArrayBuffer(SLOT_BYTES));
  const encoder = new TextEncoder();
  const unwatch = watchEntries((call: RunningCall | undefined) => {
    const bytes = call === undefined ? undefined : encoder.encode(JSON.stringify(call));
    if (bytes !== undefined && bytes.length <= SLOT_BYTES) slot.set(bytes);
    Atomics.store(ticks, 1, bytes === undefined || bytes.length > SLOT_BYTES ? 0 : bytes.length);
  });
  const timer = setInterval(
    () => Atomics.add(ticks, 0, 1),
    Math.max(options.leaseMs / TICKS_PER_LEASE, 1),
  ).unref();
  const { leaseMs, directUrl } = options;
  const thread = new Thread(new URL('../../watchdog-thread.js', import.meta.url), {
    workerData: { ticks, slot, leaseMs, directUrl, exitCode: BLOCKED_EXIT_CODE, sql: BLOCKED_WORKER },
  });
  thread.unref();
  thread.on('error', (error) => options.log('warn', 'worker.not_watched', { error: error.message }));
  return {
    watch: (workerId) => thread.postMessage({ workerId }),
    stop: async () => {
      unwatch();
      clearInterval(timer);
      await thread.terminate();
    },
  };
}
