/**
 * Server-sent events.
 *
 * E1  The reader sets the pace: the source is not asked for the next event while an event waits for the reader. So at most one event is in
 *     memory.
 * E2  A reader that takes nothing for a while is dropped. It reconnects with the id of the last event that it has read.
 * E3  A stream ends when its source ends, the client disconnects, the frame closes, or its key becomes invalid.
 */
import { isCleanText, KernelError } from '@boxcar/kernel';

export interface ServerEvent {
  /** A reconnecting reader sends this id as `last-event-id`. */
  readonly id?: string | undefined;
  readonly event?: string | undefined;
  readonly data: unknown;
}

/**
 * Produces the events after the last one that the reader has seen.
 *
 * @param of.signal - Fires when no reader waits for the events any more.
 */
export type EventSource = (of: {
  readonly lastEventId: string | undefined;
  readonly signal: AbortSignal;
}) => AsyncIterable<ServerEvent>;

export interface EventStreamLimits {
  /** The interval of heartbeats on a silent stream, and of the checks that its key is still valid. */
  readonly heartbeatMs: number;
  /** How long a reader may take nothing before it is dropped. */
  readonly stallMs: number;
}

interface EventStreamOptions extends EventStreamLimits {
  readonly lastEventId: string | undefined;
  /** Fire when the client has disconnected or the frame closes. */
  readonly signals: readonly AbortSignal[];
  readonly isAllowed: () => Promise<boolean>;
  /** Cuts the connection. */
  readonly drop: () => void;
  /** Called when the source fails. */
  readonly onError: (error: unknown) => void;
}

const HEARTBEAT = ': \n\n';
const encoder = new TextEncoder();
/** JSON contains no line breaks. */
const toText = ({ id, event, data }: ServerEvent): string =>
  `${id === undefined ? '' : `id: ${id}\n`}${event === undefined ? '' : `event: ${event}\n`}data: ${JSON.stringify(data)}\n\n`;

/** @throws KernelError `bad_request` for an id that no event can have. */
export function readLastEventId(headers: Headers): string | undefined {
  const id = headers.get('last-event-id') ?? undefined;
  if (id === undefined || id === '') return undefined;
  if (id.length <= 200 && isCleanText(id)) return id;
  throw new KernelError('bad_request', {
    message: 'last-event-id: must be the id of an event of this stream.',
    details: { field: 'last-event-id' },
  });
}

type Step = 'heartbeat' | 'ended' | IteratorResult<ServerEvent, unknown>;

/** One stream of events to one reader. */
class EventStream {
  readonly #options: EventStreamOptions;
  readonly #ending = new AbortController();
  readonly #events: AsyncIterator<ServerEvent>;
  readonly #ended: Promise<'ended'>;
  #next: Promise<IteratorResult<ServerEvent, unknown>> | undefined;
  #stall: NodeJS.Timeout | undefined;
  #checkedAt = performance.now();
  #isCanceled = false;

  constructor(source: EventSource, options: EventStreamOptions) {
    this.#options = options;
    this.#ended = new Promise((resolve) => {
      this.#ending.signal.addEventListener('abort', () => resolve('ended'), { once: true });
    });
    for (const signal of options.signals) signal.addEventListener('abort', this.#end, { once: true });
    if (options.signals.some(({ aborted }) => aborted)) this.#ending.abort();
    const { lastEventId } = options;
    this.#events = source({ lastEventId, signal: this.#ending.signal })[Symbol.asyncIterator]();
  }

  /** Called when the reader has taken everything so far. */
  async pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    clearTimeout(this.#stall);
    const step = await this.#step();
    if (this.#isCanceled) return;
    if (step === 'ended' || (step !== 'heartbeat' && step.done === true)) {
      this.#end();
      controller.close();
      return;
    }
    controller.enqueue(encoder.encode(step === 'heartbeat' ? HEARTBEAT : toText(step.value)));
    this.#stall = setTimeout(this.#options.drop, this.#options.stallMs);
  }

  cancel(): void {
    this.#isCanceled = true;
    this.#end();
  }

  async #step(): Promise<Step> {
    const { heartbeatMs, isAllowed, onError } = this.#options;
    let timer: NodeJS.Timeout | undefined;
    // The client may disconnect before the stream exists. Then its source is never begun.
    if (this.#ending.signal.aborted) return 'ended';
    try {
      if (performance.now() - this.#checkedAt >= heartbeatMs) {
        this.#checkedAt = performance.now();
        if (!(await isAllowed())) return 'ended';
      }
      const heartbeat = new Promise<'heartbeat'>((resolve) => {
        timer = setTimeout(() => resolve('heartbeat'), heartbeatMs);
      });
      this.#next ??= this.#events.next();
      const step = await Promise.race([this.#ended, this.#next, heartbeat]);
      if (typeof step === 'object') this.#next = undefined;
      return step;
    } catch (error) {
      // The stream ends here; the reader reconnects for the remaining events.
      if (!this.#ending.signal.aborted) onError(error);
      return 'ended';
    } finally {
      clearTimeout(timer);
    }
  }

  readonly #end = (): void => {
    clearTimeout(this.#stall);
    for (const signal of this.#options.signals) signal.removeEventListener('abort', this.#end);
    if (this.#ending.signal.aborted) return;
    this.#ending.abort();
    this.#next?.catch(() => undefined);
    // A waiting source listens to its signal. Its later events and errors are ignored.
    Promise.resolve(this.#events.return?.()).catch(() => undefined);
  };
}

export const eventStreamResponse = (source: EventSource, options: EventStreamOptions): Response =>
  new Response(new ReadableStream(new EventStream(source, options), { highWaterMark: 0 }), {
    headers: {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      // Proxies that buffer answers would delay the events.
      'x-accel-buffering': 'no',
    },
  });
