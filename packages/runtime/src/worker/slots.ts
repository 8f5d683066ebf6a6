/**
 * The slots of a worker, shared by the queues of all its targets.
 *
 * S1  A ring is admitted while there is a free slot, and takes it at once. Otherwise the queue gets the ring back and is paused
 *     until a slot is offered to it. So no ring waits in this process while another worker is idle.
 * S2  A free slot is offered to the paused queues in rotation, one queue at a time. The other queues are paused until that queue
 *     has taken the slot or is empty. Otherwise a queue that is never empty would take every slot.
 * S3  Own rings take a slot only while all queues are known to be empty, because rings in a queue were there first.
 * S4  A slot is free only while there is memory for the view of its turn.
 */

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
  /** It did not answer the last offer: other queues are not paused for it again until it takes a slot. */
  isSilent: boolean;
}

export class Slots {
  #free: number;
  readonly #hasRoom: () => boolean;
  readonly #members: Member[] = [];
  /** The paused queues, longest wait first. */
  readonly #paused: Member[] = [];
  /** The queue to which a slot is offered. */
  #offered: Member | undefined;
  #patience: NodeJS.Timeout | undefined;

  /** @param hasRoom - S4. Call `offer` when it may have become true. */
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

  /** All queues are known to be empty. */
  get isIdle(): boolean {
    return this.#members.every((member) => member.isEmpty && !member.isPaused);
  }

  /** S3: takes a slot for an own ring. */
  takeOwn(): boolean {
    return this.isIdle && this.take();
  }

  release(): void {
    this.#free++;
    this.offer();
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
    next.intake?.resume();
  }
}
