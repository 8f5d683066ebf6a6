/**
 * The rings of this process that stay in it. While no other worker lives, a job in the queue would come back to this
 * worker. So the rings of its own process wait here instead: the children of a fork, promoted turns, and turns that this
 * process submits.
 *
 * N1  Only rings stay here, never facts. A ring that is lost with the process is rung again by the sweep.
 * N2  As soon as another worker starts, of whatever target, the waiting rings go to the queue. The workers then share
 *     them, and the sweep of any worker finds them there. They keep their places in the order. The same happens when this
 *     worker closes, and when it has lost its lease.
 * N3  The waiting rings are one more queue of the slots: they take turns with the queues of BullMQ, in the order of
 *     their priorities. At most `MAX_KEPT` wait here.
 */
import type { Doorbell, DoorbellSubscription, Ring } from '@boxcar/kernel';
import { InProcessDoorbell } from '../queue/index.js';

/** N3. Rings of ended turns wait as well, so the window of a target does not bound the number. */
const MAX_KEPT = 1_000;

export class NearRings {
  readonly #waiting: InProcessDoorbell;
  readonly #targets: readonly string[];
  readonly #isStale: () => boolean;
  readonly #send: (rings: readonly Ring[]) => void;
  #isAlone = false;
  #isClosed = false;
  /** When another worker was last met, on the monotonic clock. */
  #metAt = Number.NEGATIVE_INFINITY;

  /**
   * @param parts.isStale - True while this worker has no lease.
   * @param parts.send - Rings by the queue.
   * @param parts.now - Clock for tests, in milliseconds.
   */
  constructor(parts: {
    readonly targets: readonly string[];
    readonly isStale: () => boolean;
    readonly send: (rings: readonly Ring[]) => void;
    readonly now?: () => number;
  }) {
    this.#waiting = new InProcessDoorbell(parts.now);
    this.#targets = parts.targets;
    this.#isStale = parts.isStale;
    this.#send = parts.send;
  }

  listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    return this.#waiting.listen(options);
  }

  /** @returns The rings that do not stay here. */
  keep(rings: readonly Ring[]): readonly Ring[] {
    if (!this.#isAlone || this.#isStale()) return rings;
    const near = rings
      .filter(({ workerTarget }) => this.#targets.includes(workerTarget))
      .slice(0, MAX_KEPT - this.#waiting.waiting);
    void this.#waiting.ring(near);
    const isNear = new Set(near);
    return rings.filter((ring) => !isNear.has(ring));
  }

  /** The rings that neither wait here nor are being handled here. */
  findLost(rings: readonly Ring[], options: { readonly takenMs?: number }): Promise<readonly Ring[]> {
    return this.#waiting.findLost(rings, options);
  }

  raise(rings: readonly Ring[]): Promise<void> {
    return this.#waiting.raise(rings);
  }

  /**
   * Records the result of a heartbeat.
   *
   * @param hasOthers - True when another worker lives.
   * @param askedAt - When the question was asked, on the monotonic clock.
   */
  renewed(hasOthers: boolean, askedAt: number): void {
    if (hasOthers) this.meet();
    else if (askedAt > this.#metAt && !this.#isClosed) this.#isAlone = true;
  }

  /** Another worker has started. */
  meet(): void {
    this.#metAt = performance.now();
    this.letGo();
  }

  /** N2. No further ring stays here until a heartbeat has found this worker alone. */
  letGo(): void {
    this.#isAlone = false;
    const rings = this.#waiting.takeWaiting();
    if (rings.length > 0) this.#send(rings);
  }

  /** N2. No further ring stays here. */
  close(): void {
    this.#isClosed = true;
    this.letGo();
  }
}
