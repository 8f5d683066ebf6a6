/** Waits for handoffs that no turn serves yet, because they wait for an approval. One statement reads all of them. */
import { type HandoffId, KernelError, startTimer } from '@boxcar/kernel';
import { outsideHandlers, type WaitedHandoff } from '@boxcar/store';

const LOOK_MS = 250;

export interface HandoffWaitsOptions {
  read(ids: readonly HandoffId[]): Promise<readonly WaitedHandoff[]>;
  /** True after the runtime is closed: all waits end then, as waits for turns do. */
  isClosed(): boolean;
}

export class HandoffWaits {
  readonly #options: HandoffWaitsOptions;
  readonly #waiting = new Map<HandoffId, Set<(error?: unknown) => void>>();
  #timer: NodeJS.Timeout | undefined;
  #isReading = false;

  constructor(options: HandoffWaitsOptions) {
    this.#options = options;
  }

  /**
   * Resolves when a turn serves the handoff, when the handoff has ended, or when it does not exist.
   *
   * @throws KernelError `wait_timeout`; `internal_error` when the runtime is closed in the meantime; the signal's reason.
   */
  wait(
    id: HandoffId,
    {
      signal,
      timeoutMs,
    }: { readonly signal?: AbortSignal | undefined; readonly timeoutMs?: number | undefined },
  ): Promise<void> {
    if (signal?.aborted === true) return Promise.reject(signal.reason);
    return new Promise((resolve, reject) => {
      const done = (error?: unknown): void => {
        timer?.clear();
        signal?.removeEventListener('abort', onAbort);
        const all = this.#waiting.get(id);
        all?.delete(done);
        if (all?.size === 0) this.#waiting.delete(id);
        if (this.#waiting.size === 0) this.#stop();
        if (error === undefined) resolve();
        else reject(error);
      };
      const onAbort = (): void => done(signal?.reason ?? new Error('aborted'));
      const timer =
        timeoutMs === undefined
          ? undefined
          : startTimer(timeoutMs, () =>
              done(new KernelError('wait_timeout', { details: { handoff_id: id, timeout_ms: timeoutMs } })),
            );
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiting.set(id, (this.#waiting.get(id) ?? new Set()).add(done));
      // The timer reads for all waits, so it must not belong to the handler that started it.
      outsideHandlers(() => {
        this.#timer ??= setInterval(() => void this.#look(), LOOK_MS);
      });
    });
  }

  async #look(): Promise<void> {
    if (this.#options.isClosed()) return this.#endAll();
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      const ids = [...this.#waiting.keys()];
      const rows = new Map((await this.#options.read(ids)).map((row) => [row.handoff_id, row]));
      for (const id of ids) {
        const row = rows.get(id);
        if (row === undefined || row.turn_id !== null || row.has_ended)
          for (const done of this.#waiting.get(id) ?? []) done();
      }
    } catch {
      // The next look tries again.
    } finally {
      this.#isReading = false;
    }
  }

  #endAll(): void {
    for (const all of [...this.#waiting.values()])
      for (const done of [...all])
        done(new KernelError('internal_error', { message: 'The runtime was closed while waiting.' }));
  }

  #stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}
