/**
 * The selector of a turn that a worker holds: finds it, fixes its version and applies it. Rules:
 * docs/reference/views.md, "Selectors".
 */
import { type ErrorBody, KernelError, type SelectorRef } from '@boxcar/kernel';
import { fixSelector, waitForSelector } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { HeldPrompt } from './context-keeper.js';
import type { HeldTurn } from './held-turn.js';

export type FoundSelector =
  | { readonly outcome: 'found'; readonly selector: SelectorRef | undefined }
  /** This worker does not have the selector: a worker that has it takes the turn. */
  | { readonly outcome: 'suspended' }
  | { readonly outcome: 'fenced' };

export class TurnSelector {
  readonly #runtime: RuntimeCore;
  readonly #held: HeldTurn;
  /** The selector with the version that is fixed for the turn. */
  #fixed: SelectorRef | undefined;

  constructor(runtime: RuntimeCore, held: HeldTurn) {
    this.#runtime = runtime;
    this.#held = held;
  }

  /**
   * Call before each step. A turn without a selector costs nothing; the first step of a turn with a selector costs a
   * statement.
   */
  async find(): Promise<FoundSelector> {
    const { turn, holderId } = this.#held;
    const wanted = turn.selector;
    if (wanted === null) return { outcome: 'found', selector: undefined };
    if (this.#fixed !== undefined) return { outcome: 'found', selector: this.#fixed };
    const here = this.#runtime.selectors.find(wanted);
    if (here === undefined) return this.#handBack();
    const held = { turnId: turn.turnId, epoch: turn.epoch, holderId };
    const version = wanted.version ?? (await fixSelector(this.#runtime.pool, held, here.version));
    if (version === undefined) return { outcome: 'fenced' };
    this.#fixed = { name: wanted.name, version };
    return { outcome: 'found', selector: this.#fixed };
  }

  async #handBack(): Promise<FoundSelector> {
    const { turn, holderId } = this.#held;
    const held = { turnId: turn.turnId, epoch: turn.epoch, holderId };
    if (!(await waitForSelector(this.#runtime.pool, held))) return { outcome: 'fenced' };
    this.#runtime.log('info', 'turn.selector_missing', {
      turn_id: turn.turnId,
      selector: turn.selector?.name,
      selector_version: turn.selector?.version,
    });
    return { outcome: 'suspended' };
  }

  /** The prompt as the selector makes it, or the error of the selector. */
  apply(prompt: HeldPrompt, selector: SelectorRef): HeldPrompt | { readonly failed: ErrorBody } {
    try {
      return { ...prompt, view: this.#runtime.selectors.apply(prompt.view, prompt.rows, selector) };
    } catch (error) {
      if (!(error instanceof KernelError) || error.code !== 'selector_failed') throw error;
      const body = error.toJSON();
      const details = { ...body.details, turn_id: this.#held.turn.turnId, step: prompt.step };
      return { failed: { ...body, details } };
    }
  }
}
