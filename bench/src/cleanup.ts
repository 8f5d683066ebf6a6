import { setTimeout as delay } from 'node:timers/promises';

type Close = () => unknown;

/** A resource that takes longer to close is left to the end of the process. */
const PATIENCE_MS = 15_000;

/** Closes opened resources in reverse order. Each is closed even if others fail. */
export class Cleanup implements AsyncDisposable {
  readonly #open: Close[] = [];

  defer(close: Close): void {
    this.#open.push(close);
  }

  /** Closes the resource also when the process ends earlier: then in its exit handler, where only synchronous work is possible. */
  deferAlsoAtExit(close: () => void): void {
    process.once('exit', close);
    this.defer(() => {
      process.off('exit', close);
      close();
    });
  }

  /** @throws AggregateError when a resource could not be closed. */
  async [Symbol.asyncDispose](): Promise<void> {
    const errors: unknown[] = [];
    for (const close of this.#open.splice(0).reverse()) {
      try {
        await closeInTime(close);
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw new AggregateError(errors, 'could not close what the bench had opened');
  }
}

async function closeInTime(close: Close): Promise<void> {
  const closed = new AbortController();
  const late = delay(PATIENCE_MS, undefined, { signal: closed.signal }).then(() => {
    throw new Error(`not closed after ${PATIENCE_MS / 1000} s`);
  });
  late.catch(() => undefined);
  try {
    await Promise.race([close(), late]);
  } finally {
    closed.abort();
  }
}
