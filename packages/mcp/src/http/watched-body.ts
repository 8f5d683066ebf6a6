/**
 * The body of an answer, watched until its end.
 *
 * B1  `onEnd` is called once: when the answer was read to its end, when its client is gone, or when its source failed.
 * B2  A reader that reads nothing for a while is disconnected.
 * B3  An answer with a time limit ends at that time, as if its source had ended.
 */
export interface BodyWatch {
  readonly stallMs: number;
  readonly onEnd: () => void;
  readonly onStall: () => void;
  /** Default: without a limit. */
  readonly until?: AbortSignal | undefined;
}

class WatchedBody {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly #watch: BodyWatch;
  #stall: NodeJS.Timeout | undefined;
  #isOver = false;
  #stop: (() => void) | undefined;

  constructor(body: ReadableStream<Uint8Array>, watch: BodyWatch) {
    this.#reader = body.getReader();
    this.#watch = watch;
  }

  start(controller: ReadableStreamDefaultController<Uint8Array>): void {
    const { until } = this.#watch;
    if (until === undefined) return;
    this.#stop = () => this.#close(controller);
    until.addEventListener('abort', this.#stop, { once: true });
    if (until.aborted) this.#stop();
  }

  async pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    clearTimeout(this.#stall);
    try {
      const { done, value } = await this.#reader.read();
      if (this.#isOver) return;
      if (done) {
        this.#end();
        controller.close();
        return;
      }
      controller.enqueue(value);
      this.#stall = setTimeout(() => this.#drop(controller), this.#watch.stallMs);
      this.#stall.unref();
    } catch (error) {
      this.#end();
      throw error;
    }
  }

  async cancel(reason: unknown): Promise<void> {
    this.#end();
    await this.#reader.cancel(reason);
  }

  #close(controller: ReadableStreamDefaultController<Uint8Array>): void {
    if (this.#isOver) return;
    this.#end();
    controller.close();
    this.#reader.cancel().catch(() => undefined);
  }

  #drop(controller: ReadableStreamDefaultController<Uint8Array>): void {
    if (this.#isOver) return;
    this.#watch.onStall();
    this.#end();
    const error = new Error('the reader of an answer reads nothing');
    controller.error(error);
    this.#reader.cancel(error).catch(() => undefined);
  }

  #end(): void {
    clearTimeout(this.#stall);
    if (this.#isOver) return;
    if (this.#stop !== undefined) this.#watch.until?.removeEventListener('abort', this.#stop);
    this.#isOver = true;
    this.#watch.onEnd();
  }
}

/** The same answer, watched. For an answer without a body, the end is reported at once. */
export function watchBody(response: Response, watch: BodyWatch): Response {
  const { body, status, statusText, headers } = response;
  if (body === null) {
    watch.onEnd();
    return response;
  }
  const watched = new ReadableStream(new WatchedBody(body, watch), { highWaterMark: 0 });
  return new Response(watched, { status, statusText, headers });
}
