/**
 * The worker of `boxcar dev`, and how it is replaced.
 *
 * D1  A worker is a separate process: loaded code cannot be unloaded, and a plugin may crash its process.
 * D2  The new worker is ready before the old worker is asked to stop. When the new worker does not get ready, the old one continues.
 * D3  A worker that ends by itself is started again, with growing pauses while it keeps ending.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { ErrorBody } from '@boxcar/kernel';
import { z } from 'zod';
import { type Child, GIVEN_UP_MS, startChild } from './child.js';

const RESTART_MIN_MS = 500;
const RESTART_MAX_MS = 10_000;
/** A worker that ran this long counts as stable. */
const STABLE_MS = 10_000;

const failureSchema = z.object({
  error: z.object({
    code: z.string(),
    message: z.string(),
    details: z.record(z.string(), z.unknown()).default({}),
  }),
});
const eventSchema = z.looseObject({ event: z.string() });

/** A message of a child, sent as a line of JSON. */
export type Said =
  | { readonly kind: 'event'; readonly event: string; readonly fields: Readonly<Record<string, unknown>> }
  | { readonly kind: 'failure'; readonly failure: ErrorBody };

/** Parses a line as a message; undefined when it is other output. */
export function parseSaid(line: string): Said | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  const failed = failureSchema.safeParse(value);
  if (failed.success) return { kind: 'failure', failure: failed.data.error };
  const happened = eventSchema.safeParse(value);
  if (!happened.success) return undefined;
  const { event, ...fields } = happened.data;
  return { kind: 'event', event, fields };
}

export interface SupervisorOptions {
  readonly args: () => readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly graceMs: number;
  readonly onSaid: (said: Said) => void;
  /** Receives the output of plugins and of the runtime. */
  readonly onWords: (line: string) => void;
  /** Called when the worker has ended by itself and will be started again. */
  readonly onExit: () => void;
}

export class WorkerSupervisor {
  readonly #options: SupervisorOptions;
  #current: Child | undefined;
  readonly #leaving = new Set<Promise<void>>();
  #isStopping = false;
  #pauseMs = RESTART_MIN_MS;
  readonly #stop = new AbortController();

  constructor(options: SupervisorOptions) {
    this.#options = options;
  }

  get isRunning(): boolean {
    return this.#current?.isRunning === true;
  }

  /**
   * Starts a new worker, and then stops the previous one.
   *
   * @param giveUp - Ends the wait for the new worker.
   * @returns False: the new worker did not get ready, and the previous one continues.
   */
  async exchange(giveUp: AbortSignal = this.#stop.signal): Promise<boolean> {
    let ready: (isReady: boolean) => void = () => undefined;
    const isReady = new Promise<boolean>((settle) => {
      ready = settle;
    });
    const startedAt = performance.now();
    const child = startChild([...this.#options.args(), '--json'], {
      env: this.#options.env,
      onLine: (_from, line) => {
        const what = parseSaid(line);
        if (what === undefined) return this.#options.onWords(line);
        if (what.kind === 'event' && what.event === 'worker.ready') ready(true);
        this.#options.onSaid(what);
      },
    });
    void child.exited.then(() => {
      ready(false);
      if (this.#current !== child || this.#isStopping) return;
      this.#options.onExit();
      if (performance.now() - startedAt > STABLE_MS) this.#pauseMs = RESTART_MIN_MS;
      void this.#restart();
    });
    const abort = (): void => ready(false);
    for (const signal of [this.#stop.signal, giveUp]) signal.addEventListener('abort', abort, { once: true });
    if (giveUp.aborted) abort();
    const wasReady = await isReady;
    for (const signal of [this.#stop.signal, giveUp]) signal.removeEventListener('abort', abort);
    if (!wasReady) {
      await child.stop(0, GIVEN_UP_MS);
      return false;
    }
    const before = this.#current;
    this.#current = child;
    if (before !== undefined) {
      const left = before.stop(this.#options.graceMs).finally(() => this.#leaving.delete(left));
      this.#leaving.add(left);
    }
    return true;
  }

  async #restart(): Promise<void> {
    const pauseMs = this.#pauseMs;
    this.#pauseMs = Math.min(pauseMs * 2, RESTART_MAX_MS);
    await delay(pauseMs, undefined, { signal: this.#stop.signal }).catch(() => undefined);
    // The worker was replaced meanwhile, because a file was saved.
    if (this.#isStopping || this.isRunning) return;
    if (!(await this.exchange()) && !this.#isStopping && !this.isRunning) await this.#restart();
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#stop.abort();
    await Promise.all([this.#current?.stop(this.#options.graceMs), ...this.#leaving]);
  }
}
