import type { Ring } from '@boxcar/kernel';
import { placeOf, priorityAt } from './ring-order.js';

export const keyOf = (ring: Pick<Ring, 'turnId' | 'epoch'>): string => `${ring.turnId}-${ring.epoch}`;

interface Waiting {
  readonly ring: Ring;
  readonly place: number;
}

/** The rings of one target in delivery order: the lowest place first, then the oldest ring. */
class Line {
  readonly #byPlace = new Map<number, Map<string, Ring>>();

  add(key: string, { ring, place }: Waiting): void {
    const equals = this.#byPlace.get(place);
    if (equals === undefined) this.#byPlace.set(place, new Map([[key, ring]]));
    else equals.set(key, ring);
  }

  delete(key: string, { place }: Waiting): void {
    const equals = this.#byPlace.get(place);
    equals?.delete(key);
    if (equals?.size === 0) this.#byPlace.delete(place);
  }

  first(): Ring | undefined {
    if (this.#byPlace.size === 0) return undefined;
    return this.#byPlace
      .get(Math.min(...this.#byPlace.keys()))
      ?.values()
      .next().value;
  }
}

/** The rings that a doorbell without a queue has not delivered yet. A waiting ring is not added a second time. */
export class WaitingRings {
  readonly #now: () => number;
  readonly #rings = new Map<string, Waiting>();
  readonly #lines = new Map<string, Line>();

  constructor(now: () => number) {
    this.#now = now;
  }

  get size(): number {
    return this.#rings.size;
  }

  has(ring: Ring): boolean {
    return this.#rings.has(keyOf(ring));
  }

  add(ring: Ring): void {
    if (!this.has(ring)) this.#addAt({ ring, place: placeOf(ring, this.#now()) });
  }

  raise(ring: Ring): void {
    const known = this.#rings.get(keyOf(ring));
    if (known === undefined || known.place === 0) return;
    this.delete(known.ring);
    this.#addAt({ ring: known.ring, place: 0 });
  }

  delete(ring: Ring): void {
    const key = keyOf(ring);
    const known = this.#rings.get(key);
    if (known === undefined) return;
    this.#rings.delete(key);
    this.#lines.get(ring.workerTarget)?.delete(key, known);
  }

  first(workerTarget: string): Ring | undefined {
    return this.#lines.get(workerTarget)?.first();
  }

  /** Removes all rings. @returns Them, with the lowest place first, and with priorities that keep their places. */
  takeAll(): readonly Ring[] {
    const now = this.#now();
    const all = [...this.#rings.values()]
      .sort((a, b) => a.place - b.place)
      .map(({ ring, place }) => ({ ...ring, priority: priorityAt(place, now) }));
    this.#rings.clear();
    this.#lines.clear();
    return all;
  }

  #addAt(waiting: Waiting): void {
    const { ring } = waiting;
    const key = keyOf(ring);
    this.#rings.set(key, waiting);
    const line = this.#lines.get(ring.workerTarget) ?? new Line();
    this.#lines.set(ring.workerTarget, line);
    line.add(key, waiting);
  }
}
