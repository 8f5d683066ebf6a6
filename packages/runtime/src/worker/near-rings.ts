/**
 * The rings of this process that stay in it. While no other worker serves its targets, a job in the queue would come
 * back to this worker. So the rings of its own process wait here instead: the children of a fork, promoted turns, and
 * turns that this process submits.
 *
 * N1  Only rings stay here, never facts. A ring that is lost with the process is rung again by the sweep.
 * N2  As soon as another worker starts, the waiting rings go to the queue, so that the workers share them. The same
 *     happens when this worker closes, and when it has lost its lease.
 * N3  The waiting rings are one more queue of the slots: they take turns with the queues of BullMQ, in the order of
 *     their priorities. Their number is bounded by the window of each target.
 */
import type { Doorbell, DoorbellSubscription, Ring } from '@boxcar/kernel';
import { InProcessDoorbell } from '../queue/index.js';

export class NearRings {
  readonly #waiting = new InProcessDoorbell();
  readonly #targets: readonly string[];
  readonly #isStale: () => boolean;
  readonly #send: (rings: readonly Ring[]) => void;
  #isAlone = false;
  /** When another worker was last met, on the monotonic clock. */
  #metAt = Number.NEGATIVE_INFINITY;

  /**
   * @param parts.isStale - True while this worker has no lease.
   * @param parts.send - Rings by the queue.
   */
  constructor(parts: {
    readonly targets: readonly string[];
    readonly isStale: () => boolean;
    readonly send: (rings: readonly Ring[]) => void;
  }) {
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
    const isNear = ({ workerTarget }: Ring): boolean => this.#targets.includes(workerTarget);
    void this.#waiting.ring(rings.filter(isNear));
    return rings.filter((ring) => !isNear(ring));
  }

  /** Leaves out the rings that wait or are handled here, which are not lost. */
  without(rings: readonly Ring[]): readonly Ring[] {
    return rings.filter((ring) => !this.#waiting.has(ring));
  }

  /**
   * Records the result of a heartbeat.
   *
   * @param isAlone - True when no other living worker serves any of its targets.
   * @param askedAt - When the question was asked, on the monotonic clock.
   */
  renewed(isAlone: boolean, askedAt: number): void {
    if (!isAlone) this.meet();
    else if (askedAt > this.#metAt) this.#isAlone = true;
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
}
