/**
 * Keeps a turn's prompts within the limit of its model. It reminds an agent that can hand off. When a prompt is too
 * long, by the estimate or according to the provider, it hands off in the agent's place. Rules:
 * docs/reference/views.md, "Overflow".
 */
import {
  AUTO_HANDOFF_ANCHOR,
  appendAutoHandoff,
  buildView,
  type ContextLimits,
  contextLimitsOf,
  contextReminder,
  draftAutoHandoff,
  type ErrorBody,
  estimatePrompt,
  estimateTokens,
  isContextOverflow,
  KernelError,
  MAX_AUTO_HANDOFFS,
  type Message,
  nameSelector,
  type Profile,
  planCompaction,
  providerDataBytes,
  TAPE_HANDOFF,
  type ToolSchema,
  type View,
  type ViewRows,
} from '@boxcar/kernel';
import { countAnchorsOfTurn, type MidStep, type StepCommit, writeMidStep } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { newId, unlessAborted } from '../lib/index.js';
import type { HeldTurn } from './held-turn.js';
import { CONTEXT_REMINDER, noticeCard } from './step-cards.js';

/** A prompt that is about to be sent, or was sent. */
export interface HeldPrompt {
  readonly rows: ViewRows;
  readonly view: View;
  readonly tools: readonly ToolSchema[];
  readonly step: number;
}

export type Checked =
  | { readonly outcome: 'fits' }
  /** The tape has new entries: the prompt must be built again. */
  | { readonly outcome: 'again'; readonly attempt?: number }
  | { readonly outcome: 'fenced' }
  /** The prompt is too long and cannot be shortened. */
  | { readonly outcome: 'over'; readonly error: ErrorBody };

/**
 * After this many tries that found new entries on the tape, the plan is written even if others have appended meanwhile.
 */
const MAX_EXACT_TRIES = 3;
/** Tokens that providers add around each message. */
const MESSAGE_TOKENS = 4;

/** The schema objects are the same in every step. */
const toolTokens = new WeakMap<ToolSchema, number>();

function estimateWith(
  { estimateTokens: messages }: Pick<View, 'estimateTokens'>,
  tools: readonly ToolSchema[],
): number {
  return tools.reduce((sum, tool) => {
    const tokens = toolTokens.get(tool) ?? estimatePrompt(0, [tool]);
    toolTokens.set(tool, tokens);
    return sum + tokens;
  }, messages);
}

const wordsOf = (message: Message): string =>
  message.role === 'assistant' && message.toolCalls !== undefined
    ? message.content + JSON.stringify(message.toolCalls)
    : message.content;

/** Data that providers attached is mostly not text, so it is counted by its bytes, like the estimate does. */
const attachedTokens = ({ messages }: View): number =>
  messages.reduce(
    (sum, message) =>
      message.role === 'assistant' ? sum + estimateTokens(providerDataBytes(message.provider)) : sum,
    0,
  );

const headOf = ({ entries }: ViewRows): number => entries.at(-1)?.position ?? 0;

/** True when a failed call means that the prompt was too long, in the words of any provider or adapter. */
export const saysTooLong = ({ code, message, details }: ErrorBody): boolean => {
  const { status, provider_code: providerCode } = details ?? {};
  return (
    code === 'context_overflow' ||
    (code === 'model_failed' &&
      isContextOverflow({
        message,
        ...(typeof status === 'number' ? { status } : {}),
        ...(typeof providerCode === 'string' ? { code: providerCode } : {}),
      }))
  );
};

export class ContextKeeper {
  readonly #runtime: RuntimeCore;
  readonly #held: HeldTurn;
  readonly #model: string;
  readonly #limits: ContextLimits;
  /** Token counts of the texts in the last prompt, so that only new texts are counted. */
  #counted = new Map<string, number>();
  /** Consecutive tries that found new entries on the tape. */
  #moved = 0;

  constructor(runtime: RuntimeCore, held: HeldTurn, profile: Profile) {
    this.#runtime = runtime;
    this.#held = held;
    this.#model = profile.model;
    this.#limits = contextLimitsOf(profile);
  }

  /** Checks a prompt before the call. */
  async check(prompt: HeldPrompt): Promise<Checked> {
    const { promptTokens, limitTokens } = this.#limits;
    // No reminder on the last step, because that step can no longer hand off.
    const canHandOff = prompt.tools.some(({ name }) => name === TAPE_HANDOFF.name);
    const reminderTokens = canHandOff ? this.#limits.reminderTokens : undefined;
    const smallest = Math.min(promptTokens, reminderTokens ?? promptTokens);
    // A token has at least one byte, so most prompts need not be counted.
    const bytes = estimateWith(prompt.view, prompt.tools) * 4;
    if (bytes <= smallest) return { outcome: 'fits' };
    const tokens = await this.#measure(prompt.view, prompt.tools);
    if (tokens > promptTokens) {
      const error = new KernelError('context_overflow', {
        message: `The prompt has about ${tokens} tokens; the model takes ${limitTokens}, of which ${limitTokens - promptTokens} are left to its answer.`,
        details: { turn_id: this.#held.turn.turnId, step: prompt.step, tokens, limit_tokens: limitTokens },
      }).toJSON();
      return this.#handOff(prompt, { tokens, error, elapsedMs: 0 });
    }
    if (reminderTokens === undefined || tokens <= reminderTokens || this.#isReminded(prompt.rows))
      return { outcome: 'fits' };
    return this.#remind(prompt, tokens);
  }

  /** Shortens the context after a call whose provider said that the prompt was too long. */
  async recover(
    prompt: HeldPrompt,
    failed: {
      readonly step: NonNullable<StepCommit['step']>;
      readonly spent: StepCommit['spent'];
      readonly error: ErrorBody;
    },
  ): Promise<Checked> {
    const tokens = await this.#measure(prompt.view, prompt.tools);
    return this.#handOff(prompt, {
      tokens,
      error: failed.error,
      elapsedMs: failed.step.modelMs,
      failed: { ...failed.step, spent: failed.spent },
    });
  }

  /** There is one reminder, until an anchor removes it from the prompt. */
  #isReminded({ entries, lastAnchorPosition }: ViewRows): boolean {
    return entries.some(
      ({ card, position, turnId }) =>
        position > lastAnchorPosition &&
        turnId === this.#held.turn.turnId &&
        card?.metadata.notice === CONTEXT_REMINDER,
    );
  }

  async #remind({ rows }: HeldPrompt, tokens: number): Promise<Checked> {
    const { turn } = this.#held;
    const text = contextReminder({ estimateTokens: tokens, limitTokens: this.#limits.limitTokens });
    const entries = [{ kind: 'message' as const, card: noticeCard(turn, text, CONTEXT_REMINDER) }];
    return this.#write(rows, { entries, ifGrown: () => ({ entries }) });
  }

  async #handOff(
    prompt: HeldPrompt,
    cause: {
      readonly tokens: number;
      readonly error: ErrorBody;
      readonly elapsedMs: number;
      readonly failed?: NonNullable<MidStep['failed']>;
    },
  ): Promise<Checked> {
    const { turn } = this.#held;
    const { rows, tools, step } = prompt;
    const before = cause.tokens;
    const { selector } = prompt.view.manifest;
    // A compaction would shorten the input of the selector, and its effect on the selector's prompt cannot be
    // predicted.
    if (selector !== undefined)
      return {
        outcome: 'over',
        error: {
          ...cause.error,
          code: 'context_overflow',
          message: `${nameSelector(selector)} made a prompt that is too long, and such a prompt is not made shorter: ${cause.error.message}`,
          details: {
            ...cause.error.details,
            tokens_before: before,
            selector: selector.name,
            selector_version: selector.version,
          },
        },
      };
    const earlier = await countAnchorsOfTurn(this.#runtime.pool, turn.turnId, AUTO_HANDOFF_ANCHOR);
    const over = (more: Record<string, unknown>): Checked => ({
      outcome: 'over',
      error: {
        ...cause.error,
        code: 'context_overflow',
        details: { ...cause.error.details, tokens_before: before, auto_handoffs: earlier, ...more },
      },
    });
    if (earlier >= MAX_AUTO_HANDOFFS && !this.#isUndone(rows)) return over({});
    const ids = { projectId: turn.projectId, anchorId: newId<'card'>(), summaryId: newId<'card'>() };
    const plan = planCompaction(rows, { tokens: this.#target(prompt, before), summaryId: ids.summaryId });
    const draft = (tokensAfter: number, keepFrom = plan.keepFrom) =>
      draftAutoHandoff(
        { ...plan, keepFrom },
        {
          error: cause.error.message,
          tokensBefore: before,
          tokensAfter,
          limitTokens: this.#limits.limitTokens,
        },
        { ...ids, step, elapsedMs: Math.round(cause.elapsedMs) },
      );
    // Measured with `before` in the place of the final number, which is not longer.
    const after = await this.#measure(buildView(appendAutoHandoff(rows, plan, draft(before))), tools);
    if (after >= before || after > this.#limits.promptTokens) return over({ tokens_after: after });
    const head = headOf(rows);
    const written = await this.#write(rows, {
      entries: draft(after),
      viewFrom: plan.keepFrom,
      // Entries that were added after the plan stay in view. An anchor of another writer hides everything before it.
      ifGrown: (lastAnchor) => {
        const viewFrom = lastAnchor > head ? lastAnchor : (plan.keepFrom ?? head + 1);
        return { entries: draft(after, viewFrom), viewFrom };
      },
      ...(cause.failed === undefined ? {} : { failed: cause.failed }),
    });
    if (written.outcome === 'again')
      this.#runtime.log('info', 'turn.auto_handoff', {
        turn_id: turn.turnId,
        step,
        tokens_before: before,
        tokens_after: after,
      });
    return written;
  }

  /** Another writer has set an anchor since. After such an anchor all of the turn's context is shown again. */
  #isUndone({ entries, lastAnchorPosition }: ViewRows): boolean {
    const last = entries.find(({ position }) => position === lastAnchorPosition);
    return last !== undefined && last.turnId !== this.#held.turn.turnId;
  }

  /**
   * The target for the messages, in tokens of the kernel's estimate: half of the fitting size, as measured, without the
   * fixed parts of the prompt.
   */
  #target({ rows, view, tools }: HeldPrompt, measured: number): number {
    const estimated = estimateWith(view, tools);
    const half = Math.min(this.#limits.promptTokens, measured) / 2;
    const fixed =
      estimateWith({ estimateTokens: 0 }, tools) +
      estimateTokens(Buffer.byteLength(rows.profile.instructions));
    return Math.max(Math.floor((half * estimated) / Math.max(measured, 1)) - fixed, 0);
  }

  /**
   * Writes the plan for these rows. If other writers have appended meanwhile, the prompt is built and measured again,
   * at most three times. After a failed call the plan is written at once: another plan would need another call.
   */
  async #write(
    rows: ViewRows,
    {
      ifGrown,
      ...item
    }: Pick<Parameters<typeof writeMidStep>[1], 'entries' | 'viewFrom' | 'failed' | 'ifGrown'>,
  ): Promise<Checked> {
    const { turn, holderId, view } = this.#held;
    const isDue = item.failed !== undefined || this.#moved >= MAX_EXACT_TRIES;
    const written = await writeMidStep(this.#runtime.pool, {
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId,
      headPosition: headOf(rows),
      ...item,
      ifGrown: isDue ? ifGrown : undefined,
    });
    view.drop();
    this.#moved = written.outcome === 'moved' ? this.#moved + 1 : 0;
    switch (written.outcome) {
      case 'written':
        return { outcome: 'again', attempt: written.attempt };
      case 'moved':
        return { outcome: 'again' };
      case 'fenced':
        return written;
      default:
        return written satisfies never;
    }
  }

  async #measure(view: View, tools: readonly ToolSchema[]): Promise<number> {
    const { model } = this.#runtime;
    const estimate = estimateWith(view, tools);
    if (model.countTokens === undefined) return estimate;
    const texts = view.messages.map(wordsOf);
    if (tools.length > 0) texts.push(JSON.stringify(tools));
    const fresh = [...new Set(texts.filter((text) => !this.#counted.has(text)))];
    try {
      const counts =
        fresh.length === 0
          ? []
          : await unlessAborted(model.countTokens(fresh, this.#model), this.#held.signal);
      const counted = new Map(fresh.map((text, index) => [text, counts[index] ?? 0]));
      const known = new Map(texts.map((text) => [text, counted.get(text) ?? this.#counted.get(text) ?? 0]));
      this.#counted = known;
      return texts.reduce((sum, text) => sum + MESSAGE_TOKENS + (known.get(text) ?? 0), attachedTokens(view));
    } catch (error) {
      this.#held.signal.throwIfAborted();
      this.#runtime.log('warn', 'turn.tokens_not_counted', { turn_id: this.#held.turn.turnId, error });
      return estimate;
    }
  }
}
