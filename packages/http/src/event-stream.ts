/**
 * Server-sent events.
 *
 * E1  A reader sets the pace: nothing is asked of the source while an event waits for the reader, so one event at most is held in memory.
 * E2  A reader that takes nothing for a while is dropped. It comes back with the id of the last event that it has read.
 * E3  It ends when its source ends, the client is gone, the frame closes, or the key of its request is no longer valid.
 */
import { isCleanText, KernelError } from '@boxcar/kernel';

export interface ServerEvent {
  /** What a reader that comes back sends as `last-event-id`. */
  readonly id?: string | undefined;
  readonly event?: string | undefined;
  readonly data: unknown;
}

/**
 * Makes the events after the last one that the reader has seen.
 *
 * @param of.signal - Fires when nobody waits for them any more.
 */
export type EventSource = (of: {
  readonly lastEventId: string | undefined;
  readonly signal: AbortSignal;
}) => AsyncIterable<ServerEvent>;

export interface EventStreamLimits {
  /** How often a silent stream says that it is alive, and whether its key is still valid is looked at. */
  readonly heartbeatMs: number;
  /** How long a reader may take nothing. */
  readonly stallMs: number;
}

interface EventStreamOptions extends EventStreamLimits {
  readonly lastEventId: string | undefined;
  /** The client is gone; the frame closes. */
  readonly signals: readonly AbortSignal[];
  readonly isAllowed: () => Promise<boolean>;
  /** Cuts the connection. */
  readonly drop: () => void;
  /** Its source has failed. */
  readonly onError: (error: unknown) => void;
}

const HEARTBEAT = ': \n\n';
const encoder = new TextEncoder();
/** JSON has no line ends of its own. */
const toText = ({ id, event, data }: ServerEvent): string =>
  `${id === undefined ? '' : `id: ${id}\n`}${event === undefined ? '' : `event: ${event}\n`}data: ${JSON.stringify(data)}\n\n`;

/** @throws KernelError `bad_request` for an id that no event has. */
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

  /** The reader has taken everything so far. */
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
    // A client may have gone before there was a stream: its source is never begun.
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
      // The reader comes back for the rest.
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
    // A source that waits listens to its signal; whatever it says now is for nobody.
    Promise.resolve(this.#events.return?.()).catch(() => undefined);
  };
}

export const eventStreamResponse = (source: EventSource, options: EventStreamOptions): Response =>
  new Response(new ReadableStream(new EventStream(source, options), { highWaterMark: 0 }), {
    headers: {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      // Proxies that collect answers would hold events back.
      'x-accel-buffering': 'no',
    },
  });
