/**
 * The step loop of one turn in a worker's hands. No object here is the truth: everything that follows from a step is
 * committed under the turn's epoch before the next begins, so another worker can go on from any point.
 */
import {
  budgetExceeded,
  buildView,
  CARD_TYPES,
  decideStep,
  type ErrorBody,
  EXPAND_TOOL,
  estimatePrompt,
  foldManifest,
  type JsonValue,
  KernelError,
  MAX_EMPTY_REPLIES,
  type ModelReply,
  type NewCard,
  providerOf,
  type Ring,
  readCompaction,
  resultFieldsOf,
  stepNotice,
  type ToolCallId,
  type ToolSchema,
  toldLimitOf,
  type View,
  type ViewRows,
  type WorkerId,
} from '@boxcar/kernel';
import type {
  Advance,
  AdvanceOutcome,
  ClaimedTurn,
  CommitOutcome,
  NewEntry,
  NewToolCall,
  PendingCall,
  StepCommit,
} from '@boxcar/store';
import { loadCallsOfStep, loadPendingCalls, recordResults } from '@boxcar/store';
import type { RuntimeCore } from '../runtime.js';
import type { Begun } from '../submit/opening.js';
import { askModel } from './ask-model.js';
import { beginCall, buildToolbox, type CallRun, routeCall, runCall, type Toolbox } from './call-tools.js';
import { type Checked, ContextKeeper, type HeldPrompt, saysTooLong } from './context-keeper.js';
import { buildEnd, type Ending, entryOf, fallbackDeliverable } from './ending.js';
import { keepLate, lateReply, lateSettlements } from './late.js';
import type { PricedProfile, TurnLoader } from './loader.js';
import { LoopGuard } from './loop-guard.js';
import type { ModelWaits } from './model-waits.js';
import { describeModelFailure, reasoningMetadata, usageRow, withCommandCalls } from './reply.js';
import { StepBudget } from './step-budget.js';
import { cleanText, noticeCard, thoughtCard, writeCall } from './step-cards.js';
import type { TurnView } from './turn-view.js';

/** A claimed turn with what guards it. */
export interface HeldTurn {
  readonly turn: ClaimedTurn;
  readonly view: TurnView;
  readonly holderId: WorkerId;
  /** Fires when the worker may no longer act for the turn: lease lost, or shutdown out of patience. */
  readonly signal: AbortSignal;
  /** Rings what a commit of this turn has dispatched. */
  readonly ring: (rings: readonly Ring[]) => void;
}

/** The results of a step's own calls. */
export interface StepResults extends Advance {
  /** True when these are the results of all calls of the step, in call order. */
  readonly isWhole: boolean;
}

/** What a turn uses of its worker. */
export interface TurnHost {
  readonly runtime: RuntimeCore;
  readonly loader: TurnLoader;
  readonly modelWaits: ModelWaits;
  commit(commit: StepCommit): Promise<CommitOutcome>;
  advance(results: StepResults): Promise<AdvanceOutcome>;
  /** @throws when the worker's last renewal is older than its lease. */
  checkLease(): void;
  /** True once the worker hands its turns back at their next step. */
  isDraining(): boolean;
}

export type TurnRun = 'ended' | 'suspended' | 'fenced' | 'released';

/** Workers lost at one step before the turn is ended: what kills its workers again and again would go on doing so. */
export const MAX_ATTEMPTS = 10;

/** Progress inside the loop; the rows hold the same. */
interface Progress {
  step: number;
  attempt: number;
  /** Failed model calls of this step. */
  retries: number;
  emptyReplies: number;
  pending: readonly PendingCall[] | 'unknown' | 'none';
}

export async function runTurn(host: TurnHost, held: HeldTurn): Promise<TurnRun> {
  const { turn } = held;
  const priced = await host.loader.profile(turn.profileId);
  const progress: Progress = {
    step: turn.stepCount,
    attempt: turn.attempt,
    retries: turn.retries,
    emptyReplies: turn.emptyReplies,
    pending: turn.pendingCalls > 0 ? 'unknown' : 'none',
  };
  const run = new TurnLoop(host, held, priced, progress);
  return run.run();
}

type Profile = PricedProfile['profile'];

type StepRows = Awaited<ReturnType<TurnView['rows']>>;

interface Bound {
  /** Something was left out that the turn may read again. */
  readonly canExpand: boolean;
  readonly toolbox: Toolbox;
  readonly mustEndWith: readonly string[];
}

class TurnLoop {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #profile: Profile;
  readonly #progress: Progress;
  readonly #price: PricedProfile['price'];
  /** Undefined: nothing limits what the turn spends. */
  readonly #budget: StepBudget | undefined;
  readonly #guard: LoopGuard;
  /** The primitives among the calls of the last step. */
  #begun: ReadonlyMap<ToolCallId, Begun | undefined> = new Map();
  readonly #context: ContextKeeper;
  #binding: Bound | undefined;

  constructor(host: TurnHost, held: HeldTurn, { profile, price }: PricedProfile, progress: Progress) {
    this.#host = host;
    this.#held = held;
    this.#profile = profile;
    this.#price = price;
    const { purse } = held.turn;
    this.#budget =
      purse === null ? undefined : new StepBudget(host.runtime.pool, held, { purse, profile, price });
    this.#guard = new LoopGuard(host.runtime, held, profile);
    this.#context = new ContextKeeper(host.runtime, held, profile);
    this.#progress = progress;
  }

  /** What the turn may call and must end with; known once its context is. */
  get #bound(): Bound {
    return this.#binding ?? this.#bind(false);
  }

  #bind(hasResultFields: boolean, canExpand = false): Bound {
    if (this.#binding !== undefined && this.#binding.canExpand === canExpand) return this.#binding;
    this.#binding = {
      canExpand,
      toolbox: buildToolbox(this.#host.runtime, this.#profile, {
        hasResultFields,
        extra: canExpand ? [EXPAND_TOOL] : [],
      }),
      mustEndWith: [
        ...new Set([...this.#profile.must_end_with, ...(hasResultFields ? ['submit_result'] : [])]),
      ],
    };
    return this.#binding;
  }

  async run(): Promise<TurnRun> {
    const { turn } = this.#held;
    const progress = this.#progress;
    if (turn.losses >= MAX_ATTEMPTS) {
      const error = new KernelError('attempts_exhausted', {
        details: { turn_id: turn.turnId, step: progress.step + 1, attempts: turn.losses },
      }).toJSON();
      return this.#endWithout(error, 'failed');
    }
    // A turn resumed after its calls: one of them may be what it must end with.
    let mayHaveEnded = progress.step > 0 && progress.pending === 'none';
    for (;;) {
      this.#held.signal.throwIfAborted();
      if (progress.pending !== 'none') {
        if (this.#binding === undefined)
          this.#bind(await this.#host.loader.hasResultFields(turn.contextBoxId));
        const outcome = await this.#runCalls();
        if (outcome !== 'open') return outcome;
        mayHaveEnded = true;
      }
      if (mayHaveEnded && this.#profile.must_end_with.some((name) => name !== 'submit_result')) {
        const ended = await this.#endByCall();
        if (ended !== undefined) return ended;
      }
      mayHaveEnded = false;
      // The last step may still call submit_result; when that was refused, there is no step left to try again.
      if (progress.step >= turn.maxSteps) return this.#endAtLimit(progress.step, null);
      if (this.#host.isDraining()) return 'released';
      const outcome = await this.#step();
      if (outcome !== 'next') return outcome;
    }
  }

  /** Runs the open calls side by side; then either the next step is open, or the turn waits, or it has ended. */
  async #runCalls(): Promise<TurnRun | 'open'> {
    const { turn, holderId } = this.#held;
    const progress = this.#progress;
    const calls = Array.isArray(progress.pending)
      ? progress.pending
      : await loadPendingCalls(this.#host.runtime.pool, turn.turnId);
    this.#host.checkLease();
    // Calls just committed are all of their step; after a takeover some may have their results already.
    const isAlone = progress.pending === 'unknown' ? await this.#isAlone(calls) : calls.length === 1;
    const repeated = await this.#guard.find(calls);
    const settled = await Promise.allSettled(
      calls.map(
        async (call) =>
          repeated.get(call.id) ??
          runCall(this.#host.runtime, this.#held, call, this.#bound.toolbox, {
            isAlone,
            begun: this.#begun.get(call.id),
          }),
      ),
    );
    const runs = settled.flatMap((run) => (run.status === 'fulfilled' ? [run.value] : []));
    const failed = settled.find((run) => run.status === 'rejected');
    if (failed !== undefined) {
      // The turn or the database is lost, but what the other calls brought is real: the first record of a call wins.
      await this.#keepResults(runs);
      if (failed.reason instanceof KernelError && failed.reason.code === 'turn_ended') return 'fenced';
      throw failed.reason;
    }
    const results = runs.flatMap((run) => (run.kind === 'elsewhere' ? [] : [run.settlement]));
    const ending = runs.find((run) => run.kind === 'ending');
    if (ending !== undefined) {
      return this.#commitEnd(
        { status: 'success', deliverable: asContent(ending.deliverable), error: null },
        { results },
      );
    }
    const advanced = await this.#host.advance({
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId,
      results,
      isWhole: progress.pending !== 'unknown' && results.length === calls.length,
    });
    switch (advanced.outcome) {
      case 'fenced':
        await keepLate(this.#host.runtime, this.#held, lateSettlements(results, progress.step));
        return 'fenced';
      case 'suspended':
        return 'suspended';
      case 'open':
        this.#held.view.append(
          advanced.basePosition,
          progress.step,
          results.map(({ card }) => ({ kind: 'tool_result', card })),
        );
        progress.attempt = advanced.attempt;
        progress.pending = 'none';
        return 'open';
      default:
        return advanced satisfies never;
    }
  }

  async #keepResults(runs: readonly CallRun[]): Promise<void> {
    const results = runs.flatMap((run) => (run.kind === 'result' ? [run.settlement] : []));
    if (results.length === 0) return;
    const { runtime } = this.#host;
    try {
      const { rings, duplicates } = await recordResults(runtime.pool, results);
      runtime.ring(rings);
      const late = results.filter((result) => duplicates.includes(result.toolCallId));
      await keepLate(runtime, this.#held, lateSettlements(late, this.#progress.step));
    } catch (error) {
      runtime.log('warn', 'turn.results_lost', { turn_id: this.#held.turn.turnId, error });
    }
  }

  async #isAlone(calls: readonly PendingCall[]): Promise<boolean> {
    const step = calls[0]?.step;
    return (
      step !== undefined &&
      (await loadCallsOfStep(this.#host.runtime.pool, this.#held.turn.turnId, step)).length === 1
    );
  }

  /** Ends the turn when a call of its last step was one that it must end with, and succeeded. */
  async #endByCall(): Promise<TurnRun | undefined> {
    const calls = await loadCallsOfStep(this.#host.runtime.pool, this.#held.turn.turnId, this.#progress.step);
    const ender = calls.find(
      (call) => this.#profile.must_end_with.includes(call.name) && call.status === 'success',
    );
    if (ender === undefined) return undefined;
    const content = ender.content as { result?: JsonValue } | null;
    return this.#commitEnd({
      status: 'success',
      deliverable: asContent(content?.result ?? null),
      error: null,
    });
  }

  async #step(): Promise<TurnRun | 'next'> {
    const { turn } = this.#held;
    const step = this.#progress.step + 1;
    const isLast = step >= turn.maxSteps;
    const rows = await this.#held.view.rows();
    const { toolbox, mustEndWith } = this.#bind(
      resultFieldsOf(rows.contexts.get(turn.contextBoxId) ?? []) !== undefined,
      isCompacted(rows),
    );
    const tools = isLast ? toolbox.schemas.filter((tool) => tool.name === 'submit_result') : toolbox.schemas;
    const profile = { ...this.#profile, must_end_with: [...mustEndWith] };
    const viewRows: ViewRows = { ...rows, turn, profile, contextLimit: toldLimitOf(this.#profile) };
    const view = buildView(viewRows);
    const prompt: HeldPrompt = { rows: viewRows, view, tools, step };
    const checked = await this.#context.check(prompt);
    if (checked.outcome !== 'fits') return this.#afterCheck(checked, rows);
    const unpaid =
      this.#budget === undefined ? undefined : await this.#pay(this.#budget, { view, tools, rows, step });
    if (unpaid !== undefined) return unpaid;
    const hash = this.#held.view.hash(view, tools);
    const toolset = await this.#host.loader.toolsets.keep(turn.projectId, tools, this.#host.runtime);
    const entry = await this.#host.modelWaits.gate.enter(providerOf(this.#profile.model), {
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId: this.#held.holderId,
      step,
      attempt: this.#progress.attempt,
    });
    if (entry.outcome !== 'admitted') return entry.outcome;
    this.#host.checkLease();
    const startedAt = performance.now();
    let reply: ModelReply;
    try {
      reply = await entry.pass.ask(() => this.#generate(view, tools, step));
    } catch (error) {
      if (this.#held.signal.aborted) throw error;
      const body = describeModelFailure(error);
      const closed = this.#closeStep({
        step,
        view,
        hash,
        toolset,
        modelMs: performance.now() - startedAt,
        error: body,
      });
      if (saysTooLong(body)) {
        const recovered = await this.#context.recover(prompt, { step: closed, error: body });
        return this.#afterCheck(recovered, rows, closed);
      }
      // A call that took too long may have been answered where nobody heard it; one that was refused cost nothing.
      const spent = body.code === 'model_timeout' ? this.#budget?.spend(undefined) : undefined;
      const after = await this.#host.modelWaits.afterFailure(this.#held, {
        error,
        body,
        step: closed,
        spent,
        retries: this.#progress.retries,
        limits: this.#profile.limits,
      });
      if (after.outcome !== 'final') return after.outcome;
      return this.#commitEnd(
        {
          status: body.code === 'model_timeout' ? 'timeout' : 'failed',
          deliverable: fallbackDeliverable(after.error, step - 1, null),
          error: after.error,
        },
        { step: closed, spent },
      );
    }
    const closed = this.#closeStep({
      step,
      view,
      hash,
      toolset,
      modelMs: performance.now() - startedAt,
      reply,
    });
    const spent = this.#budget?.spend(reply.usage);
    const outcome = await this.#commitReply({ reply, step, isLast, closed, rows, spent });
    if (outcome === 'fenced') await this.#keepReply(reply, step);
    return outcome;
  }

  /** Goes on with a prompt that is shorter now, or ends the turn whose prompt cannot be. */
  #afterCheck(
    checked: Checked,
    rows: StepRows,
    closed?: NonNullable<StepCommit['step']>,
  ): TurnRun | 'next' | Promise<TurnRun> {
    switch (checked.outcome) {
      case 'fits':
        return 'next';
      case 'again':
        this.#progress.attempt = checked.attempt ?? this.#progress.attempt;
        return 'next';
      case 'fenced':
        return 'fenced';
      case 'over': {
        const { error } = checked;
        const lastText = lastTextOf(rows, this.#held.turn.turnId);
        const deliverable = fallbackDeliverable(error, this.#progress.step, lastText);
        return this.#commitEnd(
          { status: 'failed', deliverable, error },
          closed === undefined ? {} : { step: { ...closed, error } },
        );
      }
      default:
        return checked satisfies never;
    }
  }

  /** Undefined: the step is paid for. */
  async #pay(
    budget: StepBudget,
    of: { view: View; tools: readonly ToolSchema[]; rows: StepRows; step: number },
  ): Promise<TurnRun | undefined> {
    const { turn } = this.#held;
    const paid = await budget.pay({
      promptTokens: estimatePrompt(of.view.estimateTokens, of.tools),
      step: of.step,
      attempt: this.#progress.attempt,
    });
    switch (paid.outcome) {
      case 'paid':
        return undefined;
      case 'fenced':
        return 'fenced';
      case 'paused':
        return 'suspended';
      case 'exceeded': {
        const error = budgetExceeded(paid.hit, { turn_id: turn.turnId, step: of.step }).toJSON();
        const deliverable = fallbackDeliverable(error, of.step - 1, lastTextOf(of.rows, turn.turnId));
        return this.#commitEnd({ status: 'partial', deliverable, error });
      }
      default:
        return paid satisfies never;
    }
  }

  #keepReply(reply: ModelReply, step: number): Promise<void> {
    const { attempt } = this.#progress;
    return keepLate(this.#host.runtime, this.#held, [lateReply(reply, { step, attempt })]);
  }

  #generate(view: View, tools: readonly ToolSchema[], step: number): Promise<ModelReply> {
    const { turn, signal } = this.#held;
    const { model, model_settings: settings, script, limits } = this.#profile;
    return askModel(
      this.#host.runtime.model,
      {
        messages: view.messages,
        tools,
        model,
        settings,
        script,
        turn: {
          turnId: turn.turnId,
          step,
          attempt: this.#progress.attempt,
          epoch: turn.epoch,
          firstMessage: view.firstMessage,
          instruction: view.instruction,
        },
      },
      {
        signal,
        timeoutMs: limits.model_timeout_seconds * 1000,
        onLate: (late) => void this.#keepReply(late, step),
      },
    );
  }

  #closeStep(done: {
    step: number;
    view: View;
    hash: string;
    toolset: string;
    modelMs: number;
    reply?: ModelReply;
    error?: ErrorBody;
  }): NonNullable<StepCommit['step']> {
    return {
      step: done.step,
      attempt: this.#progress.attempt,
      model: this.#profile.model,
      promptHash: done.hash,
      toolsetHash: done.toolset,
      manifest: foldManifest(done.view) as unknown as JsonValue,
      thoughtCardId: null,
      usage: done.reply === undefined ? null : usageRow(done.reply.usage, this.#price),
      finishReason: done.reply?.finishReason ?? 'error',
      modelMs: Math.round(done.modelMs),
      error: done.error ?? null,
    };
  }

  async #commitReply(answer: {
    reply: ModelReply;
    step: number;
    isLast: boolean;
    closed: NonNullable<StepCommit['step']>;
    rows: StepRows;
    spent: StepCommit['spent'];
  }): Promise<TurnRun | 'next'> {
    const { step, isLast, closed, rows, spent } = answer;
    const reply = this.#profile.comma_commands === true ? withCommandCalls(answer.reply) : answer.reply;
    const { turn } = this.#held;
    const { toolbox, mustEndWith } = this.#bound;
    const text = cleanText(reply.text, this.#host.runtime.limits.maxCardBytes);
    const decided = decideStep(
      { text: text.value, toolCalls: reply.toolCalls },
      { must_end_with: mustEndWith },
    );
    const mayCall =
      !isLast ||
      (reply.toolCalls.length === 1 &&
        reply.toolCalls[0]?.name === 'submit_result' &&
        toolbox.allowed.has('submit_result'));

    if (decided.kind === 'end') {
      const deliverable = { kind: 'text' as const, text: decided.text };
      const cutOff = cutOffError(reply, { turn_id: turn.turnId, step });
      return this.#commitEnd(
        {
          status: cutOff === null ? 'success' : 'partial',
          deliverable,
          error: cutOff,
          metadata: { ...(text.isChanged ? { sanitized: true } : {}), ...reasoningMetadata(reply) },
        },
        { step: closed, spent },
      );
    }
    const thought =
      text.value.trim() === '' && decided.kind === 'remind' ? undefined : thoughtCard(turn, text, reply);
    if (isLast && (decided.kind === 'remind' || !mayCall)) {
      const isAnswer = decided.kind === 'remind' && text.value.trim() !== '';
      return this.#endAtLimit(step, text.value, { closed, isAnswer, spent });
    }
    if (decided.kind === 'remind') {
      const isEmpty = text.value.trim() === '';
      const emptyReplies = isEmpty ? this.#progress.emptyReplies + 1 : 0;
      if (emptyReplies >= MAX_EMPTY_REPLIES) {
        const error = new KernelError('invalid_reply', {
          message: `The model gave ${emptyReplies} empty answers in a row.`,
          details: { turn_id: turn.turnId, step },
        }).toJSON();
        return this.#commitEnd(
          { status: 'failed', deliverable: fallbackDeliverable(error, step, null), error },
          { step: closed, spent },
        );
      }
      const { reminder } = decided;
      return this.#commitNext({ step, closed, rows, spent, thought, calls: [], reminder, emptyReplies });
    }
    return this.#commitNext({
      step,
      closed,
      rows,
      spent,
      thought,
      calls: reply.toolCalls,
      reminder: undefined,
      emptyReplies: 0,
    });
  }

  /** Ends the turn that has used its steps, as partial: with its last text where that is an answer. */
  #endAtLimit(
    step: number,
    lastText: string | null,
    last?: {
      readonly closed: NonNullable<StepCommit['step']>;
      readonly isAnswer: boolean;
      readonly spent: StepCommit['spent'];
    },
  ): Promise<TurnRun> {
    const { turn } = this.#held;
    const error = new KernelError('step_limit', {
      message: `The turn used all its ${turn.maxSteps} steps.`,
      details: { turn_id: turn.turnId, max_steps: turn.maxSteps },
    }).toJSON();
    const deliverable =
      last?.isAnswer === true && lastText !== null
        ? { kind: 'text' as const, text: lastText }
        : fallbackDeliverable(error, step, lastText);
    return this.#commitEnd(
      { status: 'partial', deliverable, error },
      last === undefined ? {} : { step: last.closed, spent: last.spent },
    );
  }

  async #commitNext(next: {
    step: number;
    closed: NonNullable<StepCommit['step']>;
    rows: StepRows;
    spent: StepCommit['spent'];
    thought: NewCard | undefined;
    calls: ModelReply['toolCalls'];
    reminder: string | undefined;
    emptyReplies: number;
  }): Promise<TurnRun | 'next'> {
    const { turn } = this.#held;
    const written: { kind: NewEntry['kind']; card: NewCard }[] = [];
    const add = (kind: NewEntry['kind'], card: NewCard): void => void written.push({ kind, card });
    if (next.thought !== undefined) add('message', next.thought);
    const hashOf = next.calls.length > 0 ? this.#guard.at(next.rows, this.#bound.toolbox) : undefined;
    const calls = next.calls.map((call, index) => this.#buildCall(call, index + 1, hashOf));
    this.#guard.lookAhead(
      calls.flatMap((call) => call.row.guardHash ?? []),
      next.step,
    );
    this.#begun = new Map(calls.map(({ row }) => [row.id, beginCall(this.#host.runtime, this.#held, row)]));
    for (const call of calls) add('tool_call', call.card);
    if (next.reminder !== undefined) add('message', noticeCard(turn, next.reminder));
    const notice = stepNotice(turn.maxSteps - next.step, this.#bound.toolbox.allowed.has('submit_result'));
    if (notice !== undefined) add('message', noticeCard(turn, notice));
    const outcome = await this.#host.commit({
      ...this.#fence(),
      step: { ...next.closed, thoughtCardId: next.thought?.id ?? null },
      cards: written.map(({ card }) => card),
      entries: written.map(({ kind, card }) => entryOf(kind, card)),
      spent: next.spent,
      calls: calls.map((call) => call.row),
      emptyReplies: next.emptyReplies,
      results: [],
      end: null,
    });
    if (outcome.outcome === 'fenced') return 'fenced';
    this.#held.view.append(outcome.basePosition, next.step, written);
    this.#progress.step = next.step;
    this.#progress.attempt = calls.length > 0 ? 0 : 1;
    this.#progress.retries = 0;
    this.#progress.emptyReplies = next.emptyReplies;
    this.#progress.pending =
      calls.length > 0 ? calls.map((call) => this.#toPending(call.row, next.step)) : 'none';
    return 'next';
  }

  #buildCall(
    call: ModelReply['toolCalls'][number],
    ordinal: number,
    hashOf: ReturnType<LoopGuard['at']> | undefined,
  ): { row: NewToolCall; card: NewCard } {
    const { runtime } = this.#host;
    const { card, ...written } = writeCall(this.#held.turn, call, runtime.limits.maxCardBytes);
    const route = routeCall(runtime, written, this.#bound.toolbox, this.#profile);
    const guardHash = hashOf?.(written, route);
    return {
      row: { ...written, ordinal, ...route, ...(guardHash === undefined ? {} : { guardHash }) },
      card,
    };
  }

  #toPending(row: NewToolCall, step: number): PendingCall {
    return {
      id: row.id,
      turn_id: this.#held.turn.turnId,
      step,
      ordinal: row.ordinal,
      provider_call_id: row.providerCallId,
      name: row.name,
      arguments: row.arguments,
      route: row.route,
      target: row.target,
      retry: row.retry,
      epoch: this.#held.turn.epoch,
      guard_hash: row.guardHash ?? null,
      remaining_ms: row.timeoutMs,
      is_awaiting: false,
    };
  }

  #fence(): Pick<
    StepCommit,
    'turnId' | 'projectId' | 'agentId' | 'epoch' | 'holderId' | 'hasParent' | 'isMember'
  > {
    const { turn, holderId } = this.#held;
    return {
      turnId: turn.turnId,
      projectId: turn.projectId,
      agentId: turn.agentId,
      epoch: turn.epoch,
      holderId,
      hasParent: turn.parentTurnId !== null,
      isMember: turn.isMember,
    };
  }

  /** Commits the end of the turn; closing `step` and recording `results` in the same transaction. */
  async #commitEnd(
    ending: Ending,
    also: {
      step?: NonNullable<StepCommit['step']>;
      spent?: StepCommit['spent'];
      results?: StepCommit['results'];
    } = {},
  ): Promise<TurnRun> {
    const built = buildEnd(this.#held.turn, ending);
    const outcome = await this.#host.commit({
      ...this.#fence(),
      step: also.step === undefined ? null : { ...also.step, thoughtCardId: built.end.deliverableCardId },
      cards: built.cards,
      entries: built.entries,
      spent: also.spent,
      calls: [],
      emptyReplies: 0,
      results: also.results ?? [],
      end: built.end,
    });
    return outcome.outcome === 'committed' ? 'ended' : 'fenced';
  }

  #endWithout(error: ErrorBody, status: Ending['status']): Promise<TurnRun> {
    return this.#commitEnd({
      status,
      deliverable: fallbackDeliverable(error, this.#progress.step, null),
      error,
    });
  }
}

/** Whether the view begins with an anchor that has left something out. */
function isCompacted({ entries, lastAnchorPosition }: StepRows): boolean {
  const anchor = entries.find(({ position }) => position === lastAnchorPosition)?.card;
  return anchor != null && readCompaction(anchor) !== undefined;
}

/** The last thing the turn said. */
function lastTextOf({ entries }: StepRows, turnId: string): string | null {
  const said = entries.findLast(
    ({ card, kind, turnId: author }) =>
      kind === 'message' && author === turnId && card?.type === CARD_TYPES.thought,
  )?.card?.content;
  return said?.kind === 'text' && said.text.trim() !== '' ? said.text : null;
}

/** An answer that its provider broke off is not the whole one, and must not pass for it. */
function cutOffError(
  { finishReason }: ModelReply,
  ids: { readonly turn_id: string; readonly step: number },
): ErrorBody | null {
  if (finishReason !== 'length' && finishReason !== 'content_filter') return null;
  return new KernelError('answer_cut', { details: { ...ids, finish_reason: finishReason } }).toJSON();
}

const asContent = (value: JsonValue): Ending['deliverable'] =>
  typeof value === 'string' ? { kind: 'text', text: value } : { kind: 'json', data: value };
