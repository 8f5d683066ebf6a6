/**
 * Writes the text of a handoff for its readers while the text is being generated.
 *
 * W1  The first text of a round is written at once, later texts in batches. A round that ends before its first write
 *     writes nothing.
 * W2  Nothing is written after a round has stopped: its readers get the rest from the commit of the turn.
 * W3  Parts are only for readers. A part that cannot be written is left out, and the turn continues.
 * Rule: docs/reference/handoff.md, "Streams".
 */
import { MaskedText } from '@boxcar/kernel';
import { addPart, retryTransient } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { HeldTurn } from './held-turn.js';

/** A batch is written when it has reached this age, or this number of texts. */
const BATCH_MS = 50;
const BATCH_TEXTS = 20;

export interface PartRound {
  readonly onText: (text: string) => void;
  /** Stops writing; resolves when the write in progress has ended. */
  stop(): Promise<void>;
}

export class PartWriter {
  readonly #runtime: Pick<RuntimeCore, 'pool' | 'log'>;
  readonly #held: HeldTurn;
  #rounds = 0;

  constructor(runtime: Pick<RuntimeCore, 'pool' | 'log'>, held: HeldTurn) {
    this.#runtime = runtime;
    this.#held = held;
  }

  /** @param options.masks - Whether secrets will be masked in the result. */
  open(options: { readonly masks: boolean }): PartRound {
    this.#rounds += 1;
    const { turn, holderId } = this.#held;
    const { turnId, epoch } = turn;
    const round = `${epoch}.${this.#rounds}`;
    const { pool, log } = this.#runtime;
    return new Round(new MaskedText(options), {
      add: (n, text) => retryTransient(() => addPart(pool, { turnId, epoch, holderId, round, n, text })),
      onFailure: (error) => log('warn', 'handoff.parts_left_out', { turn_id: turnId, error }),
    });
  }
}

class Round implements PartRound {
  readonly #text: MaskedText;
  readonly #add: (n: number, text: string) => Promise<boolean>;
  readonly #onFailure: (error: unknown) => void;
  #waiting = '';
  #texts = 0;
  #written = 0;
  #adding: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #first: NodeJS.Immediate | undefined;
  #isOver = false;

  constructor(
    text: MaskedText,
    to: {
      readonly add: (n: number, text: string) => Promise<boolean>;
      readonly onFailure: (error: unknown) => void;
    },
  ) {
    this.#text = text;
    this.#add = to.add;
    this.#onFailure = to.onFailure;
  }

  readonly onText = (text: string): void => {
    if (this.#isOver) return;
    this.#waiting += this.#text.push(text);
    this.#texts += 1;
    this.#plan();
  };

  #plan(): void {
    if (this.#isOver || this.#waiting === '' || this.#adding !== undefined) return;
    // W1: a text whose answer is complete in the same turn of the event loop needs no part.
    if (this.#written === 0) this.#first ??= setImmediate(() => this.#write());
    else if (this.#texts >= BATCH_TEXTS) this.#write();
    else this.#timer ??= setTimeout(() => this.#write(), BATCH_MS);
  }

  #write(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const text = this.#waiting;
    this.#waiting = '';
    this.#texts = 0;
    this.#written += 1;
    this.#adding = this.#add(this.#written, text)
      .then((isHeld) => {
        if (!isHeld) this.#isOver = true;
      })
      .catch((error: unknown) => {
        // A later part would be read at the position of the missing part.
        this.#isOver = true;
        this.#onFailure(error);
      })
      .finally(() => {
        this.#adding = undefined;
        this.#plan();
      });
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    clearImmediate(this.#first);
    clearTimeout(this.#timer);
    await this.#adding;
  }
}
