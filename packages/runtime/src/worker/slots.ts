/**
 * The slots of a worker, shared by the queues of all its targets.
 *
 * S1  A ring is admitted while there is a free slot, and takes it at once. Otherwise the queue gets the ring back and
 *     is paused until a slot is offered to it. So no ring waits in this process while another worker is idle: near rings
 *     wait here only while there is no other worker.
 * S2  A free slot is offered to the paused queues in rotation, one queue at a time. The other queues are paused until
 *     that queue has taken the slot or is empty. Otherwise a queue that is never empty would take every slot.
 * S3  Own rings take a slot only while all queues are known to be empty, because rings in a queue were there first.
 * S4  A slot is free only while the worker can claim turns (it has a lease, and reaches the database), and while there is
 *     memory for the view of the turn. So a worker without its database takes no rings from the others.
 * S5  A turn that waits for another turn lends its slot: if this were the last slot, the two turns would block each
 *     other. Before the turn continues it must have a slot again, and it gets the next slot that becomes free. A turn
 *     that was aborted meanwhile needs none: a ring of its next epoch may have the slot, and waits for its end.
 */

import { AsyncLocalStorage } from 'node:async_hooks';

/** How long a queue may take to answer the offer of a slot. It answers later only if its server is away. */
const OFFER_MS = 1_000;

/** The queue of one target, as the slots control it. */
export interface Intake {
  pause(): void;
  resume(): void;
}

/** How a queue reports to the slots. */
export interface SlotQueue {
  /** Takes a slot for a ring of this queue. False: no slot is free for it, and the queue is now paused. */
  admit(): boolean;
  /** The queue has no further ring. */
  empty(): void;
}

interface Member {
  intake: Intake | undefined;
  isEmpty: boolean;
  isPaused: boolean;
  /** The queue did not answer the last offer: other queues are not paused for it again until it takes a slot. */
  isSilent: boolean;
}

/** A taken slot, as the turn that runs in it holds it. */
export class Place {
  readonly #slots: Slots;
  readonly #onLent: () => void;
  #isHeld = true;
  #isLeft = false;
  #waits = 0;
  /** Settles when the turn has a slot again, or no longer needs a slot. */
  #returning: Promise<void> | undefined;
  #settle: () => void = () => undefined;

  /** @param onLent - Called when the slot is free for others. */
  constructor(slots: Slots, onLent: () => void) {
    this.#slots = slots;
    this.#onLent = onLent;
  }

  /**
   * S5. Several waits at the same time lend the slot once, until the last of them is over.
   *
   * @param signal - Aborts the turn. An aborted turn only cleans up, so it needs no slot.
   */
  async whileWaiting<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    this.#waits += 1;
    if (this.#isHeld && !this.#isLeft) this.#lend();
    try {
      return await work();
    } finally {
      this.#waits -= 1;
      if (this.#waits === 0) await this.#takeBack(signal);
    }
  }

  #lend(): void {
    this.#isHeld = false;
    this.#slots.release();
    this.#onLent();
  }

  async #takeBack(signal: AbortSignal): Promise<void> {
    if (this.#isHeld || this.#isLeft || signal.aborted) return;
    if (this.#returning === undefined && this.#slots.takeNext(this)) {
      this.#isHeld = true;
      return;
    }
    this.#returning ??= new Promise((settle) => {
      this.#settle = settle;
    });
    const giveUp = (): void => this.leave();
    signal.addEventListener('abort', giveUp, { once: true });
    await this.#returning.finally(() => signal.removeEventListener('abort', giveUp));
  }

  /**
   * Offers a free slot to this place. @returns False when it needs no slot, because the turn is over or waits again.
   */
  giveBack(): boolean {
    this.#returning = undefined;
    this.#settle();
    if (this.#isLeft || this.#waits > 0) return false;
    this.#isHeld = true;
    return true;
  }

  /** The turn is over, or needs no slot for the rest. */
  leave(): void {
    this.#isLeft = true;
    this.#settle();
    if (this.#isHeld) this.#slots.release();
    this.#isHeld = false;
  }
}

export class Slots {
  #free: number;
  readonly #hasRoom: () => boolean;
  readonly #members: Member[] = [];
  /** The paused queues, longest wait first. */
  readonly #paused: Member[] = [];
  /** S5: turns that need a slot to continue. */
  readonly #returning: Place[] = [];
  /** The queue to which a slot is offered. */
  #offered: Member | undefined;
  #patience: NodeJS.Timeout | undefined;
  /** Whoever frees a slot, the queues deliver in the asynchronous context of the worker. */
  readonly #inContext = AsyncLocalStorage.snapshot();

  /** @param hasRoom - S4. Call `offer` after it may have become true. */
  constructor(count: number, hasRoom: () => boolean = () => true) {
    this.#free = count;
    this.#hasRoom = hasRoom;
  }

  get free(): number {
    return this.#free;
  }

  /** Adds the queue of a target. `open` subscribes to the queue, which may deliver rings at once. */
  async join<I extends Intake>(open: (queue: SlotQueue) => Promise<I>): Promise<I> {
    const member: Member = { intake: undefined, isEmpty: false, isPaused: false, isSilent: false };
    this.#members.push(member);
    const intake = await open({
      admit: () => this.#admit(member),
      empty: () => this.#empty(member),
    });
    member.intake = intake;
    // Before `intake` existed, the queue may have been refused a slot, or offered one.
    if (member.isPaused) intake.pause();
    else if (this.#offered === member) intake.resume();
    return intake;
  }

  /** Takes a slot for a turn that no queue delivers. */
  take(): boolean {
    if (this.#free === 0 || !this.#hasRoom()) return false;
    this.#free--;
    return true;
  }

  /** True when all queues are known to be empty. */
  get isIdle(): boolean {
    return this.#members.every((member) => member.isEmpty && !member.isPaused);
  }

  /** S3: takes a slot for an own ring. */
  takeOwn(): boolean {
    return this.isIdle && this.take();
  }

  release(): void {
    for (let place = this.#returning.shift(); place !== undefined; place = this.#returning.shift())
      if (place.giveBack()) return;
    this.#free++;
    this.offer();
  }

  /** S5: takes a free slot for the place. False when no slot is free; the place then gets the next slot. */
  takeNext(place: Place): boolean {
    if (this.#free === 0) {
      this.#returning.push(place);
      return false;
    }
    this.#free--;
    return true;
  }

  #admit(member: Member): boolean {
    const isOthers = this.#offered !== undefined && this.#offered !== member;
    // One slot is reserved while it is offered to another queue.
    if (this.#free <= (isOthers ? 1 : 0) || !this.#hasRoom()) {
      // The queue has already paused itself.
      member.isEmpty = false;
      this.#pause(member);
      return false;
    }
    this.#free--;
    member.isEmpty = false;
    member.isSilent = false;
    if (this.#offered === member) this.#settle();
    return true;
  }

  #empty(member: Member): void {
    member.isEmpty = true;
    if (this.#offered === member) this.#settle();
  }

  #pause(member: Member): void {
    if (member.isPaused) return;
    member.isPaused = true;
    this.#paused.push(member);
    member.intake?.pause();
    if (this.#offered === member) this.#settle();
  }

  /** S2: the offered slot is taken or declined. */
  #settle(): void {
    clearTimeout(this.#patience);
    this.#offered = undefined;
    this.offer();
  }

  /** Offers a free slot to the queue that has been paused for the longest time. */
  offer(): void {
    if (this.#paused.length === 0 || this.#free === 0 || this.#offered !== undefined || !this.#hasRoom())
      return;
    const next = this.#paused.shift();
    if (next === undefined) return;
    this.#offered = next;
    this.#patience = setTimeout(() => {
      next.isSilent = true;
      this.#empty(next);
    }, OFFER_MS);
    this.#patience.unref();
    // An empty queue takes no slots from others; pausing it would only cost a useless offer later.
    if (this.#free === 1 && !next.isSilent)
      for (const other of this.#members) if (other !== next && !other.isEmpty) this.#pause(other);
    next.isPaused = false;
    this.#inContext(() => next.intake?.resume());
  }
}
