/**
 * The step loop of one turn that a worker holds. The objects here are only copies: all effects of a step are committed
 * under the turn's epoch before the next step begins, so another worker can continue from any point.
 */
import {
  agentsIn,
  answerTokensOf,
  bindProfile,
  budgetExceeded,
  buildView,
  type ErrorBody,
  estimatePrompt,
  findAnswerFinding,
  HANDOFF_PRIMITIVES,
  type JsonValue,
  type ModelReply,
  mayExpand,
  priceUnknown,
  providerOf,
  resultFieldsOf,
  toldLimitOf,
  type ViewRows,
} from '@boxcar/kernel';
import { dropUnasked, findLastWords, findServedHandoff } from '@boxcar/store';
import { CHAIN_TARGET, HANDOFF_TARGET } from '../core/index.js';
import { fallbackDeliverable } from '../end/index.js';
import { askModel, describeModelFailure, withCommandCalls, withoutCutCall } from '../model/index.js';
import { findUnknownServer } from '../tool/index.js';
import { findNoEnd } from '../toolbox/index.js';
import type { PricedProfile } from '../view/index.js';
import { closeStep, type EndedCall } from './close-step.js';
import { commitNext } from './commit-next.js';
import { type Checked, ContextKeeper, type HeldPrompt, saysTooLong } from './context-keeper.js';
import { endExhausted } from './end-exhausted.js';
import { type FailedUsage, usageOfFailure } from './failed-usage.js';
import { awaitCached, cachedEnding } from './flight.js';
import { type ClosedStep, type HeldTurn, MAX_ATTEMPTS, type TurnHost, type TurnRun } from './held-turn.js';
import { judgeReply, limitEnd } from './judge-reply.js';
import { keepLate, lateReply } from './late.js';
import { PartWriter } from './part-writer.js';
import { type FailedStep, type Progress, type SentPrompt, successOf } from './progress.js';
import { runHandoff } from './run-handoff.js';
import { StepBudget } from './step-budget.js';
import { type OpenCalls, StepCalls } from './step-calls.js';
import { CALLS_REMINDER } from './step-cards.js';
import { TurnCommits } from './turn-commits.js';
import { TurnSelector } from './turn-selector.js';

export async function runTurn(host: TurnHost, held: HeldTurn): Promise<TurnRun> {
  if (held.turn.losses >= MAX_ATTEMPTS) return endExhausted(host, held);
  const { workerTarget } = held.turn;
  if (workerTarget.startsWith(HANDOFF_TARGET) && workerTarget !== CHAIN_TARGET) {
    const handoff = await findServedHandoff(host.runtime.pool, held.turn.turnId);
    if (handoff !== undefined) return runHandoff(host, held, handoff);
  }
  return new TurnLoop(host, held, await host.loader.profile(held.turn.profileId)).run();
}

class TurnLoop {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #profile: PricedProfile['profile'];
  readonly #price: PricedProfile['price'];
  readonly #progress: Progress;
  /** Undefined when no budget limits the turn. */
  readonly #budget: StepBudget | undefined;
  readonly #calls: StepCalls;
  readonly #commits: TurnCommits;
  readonly #context: ContextKeeper;
  readonly #selector: TurnSelector;
  /** Undefined when the turn has no readers of partial text. */
  readonly #parts: PartWriter | undefined;

  constructor(host: TurnHost, held: HeldTurn, { profile, price }: PricedProfile) {
    const { turn } = held;
    const { purse } = turn;
    this.#host = host;
    this.#held = held;
    this.#profile = profile;
    this.#price = price;
    this.#budget =
      purse === null ? undefined : new StepBudget(host.runtime.pool, held, { purse, profile, price });
    this.#calls = new StepCalls(host, held, profile);
    this.#commits = new TurnCommits(host, held);
    this.#context = new ContextKeeper(host.runtime, held, profile);
    this.#selector = new TurnSelector(host.runtime, held);
    this.#parts = HANDOFF_PRIMITIVES.has(turn.primitive) ? new PartWriter(host.runtime, held) : undefined;
    this.#progress = {
      step: turn.stepCount,
      attempt: turn.attempt,
      retries: turn.retries,
      emptyReplies: turn.emptyReplies,
      open: turn.pendingCalls > 0 ? 'unknown' : 'none',
    };
  }

  async run(): Promise<TurnRun> {
    const { turn, signal } = this.#held;
    const progress = this.#progress;
    if (progress.step === 0 && progress.open === 'none') {
      const cached = await awaitCached(this.#host, this.#held);
      if (cached !== undefined) return this.#commits.end(cachedEnding(cached));
    }
    // A turn may resume after a call that it must end with.
    let mayHaveEnded = progress.step > 0 && progress.open === 'none';
    for (;;) {
      signal.throwIfAborted();
      if (progress.open !== 'none') {
        const outcome = await this.#runCalls(progress.open);
        if (outcome !== 'open') return outcome;
        mayHaveEnded = true;
      }
      if (mayHaveEnded && this.#profile.must_end_with.some((name) => name !== 'submit_result')) {
        const ended = await this.#endByCall();
        if (ended !== undefined) return ended;
      }
      mayHaveEnded = false;
      // The last step may still end the turn by a call. When that call was refused, no step is left for another try.
      if (progress.step >= turn.maxSteps)
        return this.#commits.end(limitEnd(turn, { step: progress.step, text: null, isAnswer: false }));
      if (this.#host.isDraining()) return 'released';
      const { runtime } = this.#host;
      const noEnd =
        findUnknownServer(runtime.toolServers, this.#profile) ?? findNoEnd(runtime, this.#profile);
      if (noEnd !== undefined) return this.#endShort('failed', noEnd.toJSON());
      const outcome = await this.#step();
      if (outcome !== 'next') return outcome;
    }
  }

  /** Runs the open calls. Afterwards the next step is open, or the turn waits, or it has ended. */
  async #runCalls(open: Exclude<OpenCalls, 'none'>): Promise<TurnRun | 'open'> {
    const run = await this.#calls.run(open, this.#progress.step);
    switch (run.outcome) {
      case 'open':
        this.#progress.attempt = run.attempt;
        this.#progress.open = 'none';
        return 'open';
      case 'ending':
        return this.#commits.end(successOf(run.deliverable, run), run);
      default:
        return run.outcome;
    }
  }

  /** Ends the turn if its last step has a successful call that the turn must end with. */
  async #endByCall(): Promise<TurnRun | undefined> {
    const ender = await this.#calls.findEnder(this.#progress.step);
    if (ender === undefined) return undefined;
    const content = ender.content as { result?: JsonValue } | null;
    return this.#commits.end(successOf(content?.result ?? null));
  }

  async #step(): Promise<TurnRun | 'next'> {
    const { turn } = this.#held;
    const found = await this.#selector.find();
    if (found.outcome !== 'found') return found.outcome;
    const built = await this.#buildPrompt();
    const prompt = found.selector === undefined ? built : this.#selector.apply(built, found.selector);
    if ('failed' in prompt) return this.#endShort('failed', prompt.failed);
    const checked = await this.#context.check(prompt);
    if (checked.outcome !== 'fits') return this.#afterCheck(checked);
    const unpaid = this.#budget === undefined ? undefined : await this.#pay(this.#budget, prompt);
    if (unpaid !== undefined) return unpaid;
    const sent: SentPrompt = {
      ...prompt,
      isLast: prompt.step >= turn.maxSteps,
      hash: this.#held.view.hash(prompt.view, prompt.tools),
      toolset: await this.#host.loader.toolsets.keep(turn.projectId, prompt.tools, {
        known: this.#host.runtime,
        told: this.#calls.told,
        served: this.#calls.bound.toolbox.served,
      }),
    };
    const entry = await this.#host.modelWaits.gate.enter(providerOf(this.#profile.model), {
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId: this.#held.holderId,
      step: prompt.step,
      attempt: this.#progress.attempt,
    });
    if (entry.outcome !== 'admitted') return entry.outcome;
    this.#host.checkLease();
    const startedAt = performance.now();
    let reply: ModelReply;
    try {
      reply = await entry.pass.ask(() => this.#generate(prompt));
    } catch (error) {
      if (this.#held.signal.aborted) throw error;
      const body = describeModelFailure(error);
      const used = usageOfFailure(this.#profile, sent, error);
      const closed = this.#close(sent, { modelMs: performance.now() - startedAt, error: body, ...used });
      return this.#afterFailure(sent, closed, { error, body, used });
    }
    const { usage, finishReason, warnings = [] } = reply;
    const modelMs = performance.now() - startedAt;
    const own = findAnswerFinding(this.#profile)?.message ?? [];
    const closed = this.#close(sent, { modelMs, usage, finishReason, warnings: [own, warnings].flat() });
    const outcome = await this.#commitReply(sent, closed, reply);
    if (outcome === 'fenced') await this.#keepReply(reply, prompt.step);
    return outcome;
  }

  async #buildPrompt(): Promise<HeldPrompt> {
    const { turn, view } = this.#held;
    const step = this.#progress.step + 1;
    const named = view.rows().then(async (found) => {
      const names = await this.#host.loader.names(turn.projectId, agentsIn({ ...found, turn }));
      return { found, names };
    });
    const [{ found: rows, names }] = await Promise.all([
      named,
      this.#calls.tellProfiles(),
      this.#calls.findServed(),
    ]);
    const context = rows.contexts.get(turn.contextBoxId) ?? [];
    const { toolbox, enders } = this.#calls.bind({
      resultFields: resultFieldsOf(context),
      canExpand: mayExpand(rows),
    });
    const isLast = step >= turn.maxSteps;
    const tools = isLast ? toolbox.schemas.filter((tool) => enders.includes(tool.name)) : toolbox.schemas;
    const profile = bindProfile(this.#profile, context);
    const viewRows: ViewRows = { ...rows, turn, profile, names, contextLimit: toldLimitOf(this.#profile) };
    return { rows: viewRows, view: buildView(viewRows), tools, step };
  }

  /** Continues with a prompt that is shorter now, or ends a turn whose prompt cannot be shortened. */
  #afterCheck(checked: Checked, failed?: FailedStep): TurnRun | 'next' | Promise<TurnRun> {
    switch (checked.outcome) {
      case 'fits':
        return 'next';
      case 'again':
        this.#progress.attempt = checked.attempt ?? this.#progress.attempt;
        return 'next';
      case 'fenced':
        return 'fenced';
      case 'over':
        return this.#endShort('failed', checked.error, failed);
      default:
        return checked satisfies never;
    }
  }

  /** Ends the turn before it has answered, with its last text. */
  async #endShort(status: 'failed' | 'partial', error: ErrorBody, failed?: FailedStep): Promise<TurnRun> {
    const { pool } = this.#host.runtime;
    const { turn, holderId } = this.#held;
    const { step, attempt } = this.#progress;
    // Lost attempts are counted only against a budget.
    if (failed === undefined && turn.purse !== null)
      await dropUnasked(pool, { ...turn, holderId, step: step + 1, attempt });
    const lastText = await findLastWords(pool, turn.turnId);
    const deliverable = fallbackDeliverable(error, step, lastText);
    const also = failed === undefined ? {} : { step: { ...failed.step, error }, spent: failed.spent };
    return this.#commits.end({ status, deliverable, error }, also);
  }

  /** Undefined when the step is paid for. */
  async #pay(budget: StepBudget, { view, tools, step }: HeldPrompt): Promise<TurnRun | undefined> {
    const { turn } = this.#held;
    const paid = await budget.pay({
      // The decider of a chain reads rows, and its prompt costs nothing.
      promptTokens: turn.workerTarget === CHAIN_TARGET ? 0 : estimatePrompt(view.estimateTokens, tools),
      step,
      attempt: this.#progress.attempt,
    });
    switch (paid.outcome) {
      case 'paid':
        return undefined;
      case 'fenced':
        return 'fenced';
      case 'paused':
        return 'suspended';
      case 'unpriced': {
        const details = { turn_id: turn.turnId, step };
        const unknown = priceUnknown({ model: this.#profile.model, accountId: paid.accountId, details });
        return this.#endShort('failed', unknown.toJSON());
      }
      case 'exceeded':
        return this.#endShort(
          'partial',
          budgetExceeded(paid.hit, { next: paid.next, details: { turn_id: turn.turnId, step } }).toJSON(),
        );
      default:
        return paid satisfies never;
    }
  }

  #keepReply(reply: ModelReply, step: number): Promise<void> {
    const { attempt } = this.#progress;
    return keepLate(this.#host.runtime, this.#held, [lateReply(reply, { step, attempt })]);
  }

  async #generate({ view, tools, step }: HeldPrompt): Promise<ModelReply> {
    const { turn, signal } = this.#held;
    const parts = this.#parts?.open({ masks: false });
    const { model, model_settings: settings, script, limits } = this.#profile;
    const asked = askModel(
      this.#host.runtime.model,
      {
        messages: view.messages,
        tools,
        model,
        settings: { ...settings, max_output_tokens: answerTokensOf(this.#profile) },
        script,
        turn: {
          turnId: turn.turnId,
          step,
          attempt: this.#progress.attempt,
          epoch: turn.epoch,
          firstMessage: view.firstMessage,
          sharedMessages: view.sharedMessages,
          instruction: view.instruction,
        },
      },
      {
        signal,
        timeoutMs: limits.model_timeout_seconds * 1000,
        onText: parts?.onText,
        onLate: (late) => void this.#keepReply(late, step),
      },
    );
    return parts === undefined ? asked : asked.finally(() => parts.stop());
  }

  #close(sent: SentPrompt, call: EndedCall): ClosedStep {
    const { attempt } = this.#progress;
    return closeStep(sent, call, { attempt, model: this.#profile.model, price: this.#price });
  }

  /** Shortens a prompt that was too long, waits for another try, or ends the turn. */
  async #afterFailure(
    sent: SentPrompt,
    step: ClosedStep,
    failed: { readonly error: unknown; readonly body: ErrorBody; readonly used: FailedUsage | undefined },
  ): Promise<TurnRun | 'next'> {
    const { error, body, used } = failed;
    const spent = used === undefined ? undefined : this.#budget?.spend(used.usage, used);
    if (saysTooLong(body))
      return this.#afterCheck(await this.#context.recover(sent, { step, spent, error: body }), {
        step,
        spent,
      });
    const after = await this.#host.modelWaits.afterFailure(this.#held, {
      error,
      body,
      step,
      spent,
      retries: this.#progress.retries,
      limits: this.#profile.limits,
    });
    if (after.outcome !== 'final') return after.outcome;
    return this.#commits.end(
      {
        status: body.code === 'model_timeout' ? 'timeout' : 'failed',
        deliverable: fallbackDeliverable(after.error, sent.step - 1, null),
        error: after.error,
      },
      { step, spent },
    );
  }

  #commitReply(sent: SentPrompt, closed: ClosedStep, reply: ModelReply): Promise<TurnRun | 'next'> {
    const { turn } = this.#held;
    const { step, isLast } = sent;
    const answer = withoutCutCall(reply);
    const spent = this.#budget?.spend(answer.usage);
    const verdict = judgeReply(this.#profile.comma_commands === true ? withCommandCalls(answer) : answer, {
      turn,
      model: this.#profile.model,
      step,
      isLast,
      bound: this.#calls.bound,
      emptyReplies: this.#progress.emptyReplies,
      hadTooManyCalls: sent.rows.entries.some(
        ({ card, turnId }) => turnId === turn.turnId && card?.metadata.notice === CALLS_REMINDER,
      ),
      maxCardBytes: this.#host.runtime.limits.maxCardBytes,
    });
    if (verdict.kind === 'end') return this.#commits.end(verdict.ending, { step: closed, spent });
    return this.#commitNext(sent, { closed, spent, ...verdict });
  }

  async #commitNext(sent: SentPrompt, next: Parameters<typeof commitNext>[2]): Promise<TurnRun | 'next'> {
    const parts = { held: this.#held, calls: this.#calls, commits: this.#commits };
    const after = await commitNext(parts, sent, next);
    if (typeof after === 'string') return after;
    Object.assign(this.#progress, { step: sent.step, retries: 0, ...after });
    return 'next';
  }
}
