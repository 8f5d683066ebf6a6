/** The options of a worker, and its states. */
import { checkDuration, checkWholeNumber, KernelError, WORKER_TARGET } from '@boxcar/kernel';

export interface WorkerOptions {
  /** Number of concurrent turns. Default 10. */
  readonly concurrency?: number;
  /** Worker targets that it serves; `''` is the default pool. */
  readonly targets?: readonly string[];
  /** How long it holds its turns without a renewal. Default 10,000. */
  readonly leaseMs?: number;
  readonly heartbeatMs?: number;
  readonly sweepMs?: number;
  /**
   * After how long the sweep checks a dispatched turn that no worker claimed. Default 2,000, or half the lease if that
   * is less.
   */
  readonly lostRingMs?: number;
  /** How long turns may take to reach their next commit when the worker closes. Default 10,000. */
  readonly graceMs?: number;
  /** Approximate limit for prompt contents in memory, in bytes; above it, claims wait. Default 64 MiB. */
  readonly viewBytes?: number;
  /** False: it takes turns only from the queue, even turns that its own turns or its process dispatch. Default true. */
  readonly takesOwnRings?: boolean;
  /** True: a tool that blocks the event loop for half a lease ends the process (`watchdog.ts`). Default false. */
  readonly watchdog?: boolean;
}

/** The states of a worker, which only the worker itself changes. Their meaning: `worker.ts`. */
export type WorkerState = 'starting' | 'running' | 'draining' | 'closed';

/** The largest number that the rows can hold: the window of a target is four times the concurrency of its workers. */
const MAX_CONCURRENCY = 1_000_000;

/** @throws KernelError `bad_config` naming the option. */
function checkOptions(options: Required<WorkerOptions>): void {
  const code = 'bad_config';
  checkWholeNumber(options.concurrency, 'concurrency', { min: 1, max: MAX_CONCURRENCY, code });
  checkWholeNumber(options.viewBytes, 'viewBytes', { min: 0, max: Number.MAX_SAFE_INTEGER, code });
  for (const field of ['leaseMs', 'heartbeatMs', 'sweepMs', 'lostRingMs'] as const)
    checkDuration(options[field], field, { code });
  checkDuration(options.graceMs, 'graceMs', { code, allowsZero: true });
  for (const target of options.targets)
    if (typeof target !== 'string' || !WORKER_TARGET.test(target))
      throw new KernelError(code, {
        message: `targets: '${String(target).slice(0, 80)}' is not a worker target: lower-case letters, digits, - and _ only, 64 at most.`,
        details: { field: 'targets' },
      });
}

/** Adds the defaults to the options. @throws KernelError `bad_config` naming the option. */
export function completeOptions(options: WorkerOptions): Required<WorkerOptions> {
  const leaseMs = options.leaseMs ?? 10_000;
  const complete = {
    concurrency: options.concurrency ?? 10,
    targets: options.targets ?? [''],
    leaseMs,
    heartbeatMs: options.heartbeatMs ?? Math.max(Math.floor(leaseMs / 4), 50),
    sweepMs: options.sweepMs ?? 1_000,
    lostRingMs: options.lostRingMs ?? Math.min(2_000, Math.ceil(leaseMs / 2)),
    graceMs: options.graceMs ?? 10_000,
    viewBytes: options.viewBytes ?? 64 * 1024 * 1024,
    takesOwnRings: options.takesOwnRings ?? true,
    watchdog: options.watchdog ?? false,
  };
  checkOptions(complete);
  return complete;
}
