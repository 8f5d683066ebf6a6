/**
 * The calls of a turn's steps: which calls are allowed, how a call is written with its step, and how open calls are
 * run.
 */
import {
  checkResult,
  type EndRule,
  EXPAND_TOOL,
  enders,
  type Field,
  type JsonValue,
  KernelError,
  MAX_TOLD_PROFILES,
  type ModelToolCall,
  type ToldProfiles,
  type ToolCallId,
  tellProfiles,
  toolNames,
} from '@boxcar/kernel';
import {
  type CallSettlement,
  findReachable,
  findToldProfiles,
  hasSucceeded,
  loadCallsOfStep,
  loadPendingCalls,
  type NewToolCall,
  type PendingCall,
} from '@boxcar/store';
import { mayWait } from '../approval/index.js';
import type { ParsedSubmission } from '../core/index.js';
import { unlessAborted } from '../lib/index.js';
import type { Tool } from '../tool/index.js';
import { buildToolbox, findTeller, routeCall, type Toolbox } from '../toolbox/index.js';
import type { PricedProfile } from '../view/index.js';
import { beginCall, type CallRun, runCall } from './call-tools.js';
import { EarlyResults } from './early-results.js';
import { type CallEnding, readEnding } from './ending-call.js';
import type { HeldTurn, StepRows, TurnHost } from './held-turn.js';
import { keepLate, lateSettlements } from './late.js';
import { recordLeft } from './left-turns.js';
import { LoopGuard } from './loop-guard.js';
import { type AnswerFacts, type CallOnPaper, writeCall } from './step-cards.js';

type CallOfStep = Awaited<ReturnType<typeof loadCallsOfStep>>[number];

/** Calls of the last step that have no result yet: known from their commit, or still to be read. */
export type OpenCalls = readonly PendingCall[] | 'unknown' | 'none';

/** The calls that a turn may make, and the rules for its end. */
export interface Bound {
  readonly toolbox: Toolbox;
  readonly endRule: EndRule;
  readonly resultFields: readonly Field[] | undefined;
  /** The only calls that the last step may make. */
  readonly enders: readonly string[];
}

export interface WrittenCall {
  readonly row: NewToolCall;
  readonly card: CallOnPaper['card'];
}

export type CallsRun =
  /** All calls are answered, and the next step is open. */
  | { readonly outcome: 'open'; readonly attempt: number }
  /** The only call ends the turn; nothing is recorded yet. */
  | {
      readonly outcome: 'ending';
      readonly deliverable: JsonValue;
      readonly isSanitized: boolean;
      readonly results: readonly CallSettlement[];
    }
  | { readonly outcome: 'suspended' | 'fenced' };

export class StepCalls {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #profile: PricedProfile['profile'];
  readonly #guard: LoopGuard;
  /** The parsed submissions of the primitives among the calls of the last step. */
  #parsed: ReadonlyMap<ToolCallId, ParsedSubmission | undefined> = new Map();
  #binding: (Bound & { readonly canExpand: boolean }) | undefined;
  #told: ToldProfiles | undefined;
  #served: readonly Tool[] = [];

  constructor(host: TurnHost, held: HeldTurn, profile: PricedProfile['profile']) {
    this.#host = host;
    this.#held = held;
    this.#profile = profile;
    this.#guard = new LoopGuard(host.runtime, held, profile);
  }

  /** The list of reachable profiles that the turn's prompts contain. */
  get told(): ToldProfiles | undefined {
    return this.#told;
  }

  /**
   * Loads the list of reachable profiles for the prompts. A turn that has begun keeps the list of its first prompt, so
   * that the beginning of its prompts stays the same on every worker.
   */
  async tellProfiles(): Promise<void> {
    const { runtime } = this.#host;
    const { turn } = this.#held;
    const names = [...toolNames(this.#profile), ...this.#profile.must_end_with];
    if (this.#told !== undefined || findTeller(runtime, names) === undefined) return;
    const { projectId, turnId } = turn;
    const hasBegun = turn.stepCount > 0 || turn.attempt > 1 || turn.retries > 0;
    const earlier = hasBegun ? await findToldProfiles(runtime.pool, projectId, turnId) : undefined;
    const policy = this.#profile.delegation_policy;
    const limit = MAX_TOLD_PROFILES + 1;
    this.#told = earlier ?? tellProfiles(await findReachable(runtime.pool, projectId, { policy, limit }));
    this.#binding = undefined;
  }

  /** Finds out which tools the servers of the profile have now. A change takes effect in the next prompt. */
  async findServed(): Promise<void> {
    const { mcp = [] } = this.#profile;
    const { toolServers } = this.#host.runtime;
    if (mcp.length === 0 || toolServers === undefined) return;
    const { signal } = this.#held;
    const served = await unlessAborted(toolServers.toolsOf(mcp, signal), signal);
    const isSame =
      served.length === this.#served.length && served.every((tool, index) => tool === this.#served[index]);
    if (isSame) return;
    this.#served = served;
    this.#binding = undefined;
  }

  /** The allowed calls as they were bound last. */
  get bound(): Bound {
    return this.#binding ?? this.bind({ resultFields: undefined, canExpand: false });
  }

  /**
   * Binds the allowed calls once the turn's context is known. `canExpand`: content was left out that the turn may read
   * again.
   */
  bind({ resultFields, canExpand }: Pick<Bound, 'resultFields'> & { readonly canExpand: boolean }): Bound {
    if (this.#binding?.canExpand === canExpand) return this.#binding;
    const extra = canExpand ? [EXPAND_TOOL] : [];
    const { must_end_with } = this.#profile;
    const hasResultFields = resultFields !== undefined;
    const toolbox = buildToolbox(this.#host.runtime, this.#profile, {
      hasResultFields,
      extra,
      served: this.#served,
      told: this.#told,
    });
    const endRule = { must_end_with, hasResultFields };
    this.#binding = {
      canExpand,
      toolbox,
      endRule,
      resultFields,
      enders: enders(endRule, toolbox.allowed.has('submit_result')),
    };
    return this.#binding;
  }

  /**
   * The calls of an answer as rows and cards.
   *
   * @param at.facts - Kept with the first call.
   */
  write(
    calls: readonly ModelToolCall[],
    at: { readonly rows: StepRows; readonly facts: AnswerFacts | undefined },
  ): WrittenCall[] {
    const { runtime } = this.#host;
    const { toolbox } = this.bound;
    const hashOf = calls.length > 0 ? this.#guard.at(at.rows, toolbox) : undefined;
    const written = calls.map((call, index): WrittenCall => {
      const { card, ...paper } = writeCall(this.#held.turn, call, {
        maxBytes: runtime.limits.maxCardBytes,
        ...(index === 0 && at.facts !== undefined ? { facts: at.facts } : {}),
      });
      const route = routeCall(runtime, paper, toolbox, this.#profile);
      const guardHash = hashOf?.(paper, route);
      const row = {
        ...paper,
        ordinal: index + 1,
        ...route,
        ...(mayWait(runtime, this.#profile, paper.name) ? { isGated: true } : {}),
      };
      return { row: guardHash === undefined ? row : { ...row, guardHash }, card };
    });
    return written;
  }

  /** Starts the work that can be done while the calls are being committed. */
  begin(written: readonly WrittenCall[], step: number): void {
    this.#guard.lookAhead(
      written.flatMap(({ row }) => row.guardHash ?? []),
      step,
    );
    this.#parsed = new Map(
      written.map(({ row }) => [row.id, beginCall(this.#host.runtime, this.#held, row)]),
    );
  }

  /** The end of the turn by these calls, if it can be determined without I/O. */
  readEnding(written: readonly WrittenCall[]): CallEnding | undefined {
    return readEnding(this.#host.runtime, this.#held.turn, {
      written,
      bound: this.bound,
      profile: this.#profile,
    });
  }

  /** Committed calls in the form in which they are run. */
  toOpen(written: readonly WrittenCall[], step: number): OpenCalls {
    const { turn } = this.#held;
    if (written.length === 0) return 'none';
    return written.map(({ row }) => ({
      id: row.id,
      turn_id: turn.turnId,
      step,
      ordinal: row.ordinal,
      provider_call_id: row.providerCallId,
      name: row.name,
      arguments: row.arguments,
      route: row.route,
      target: row.target,
      retry: row.retry,
      epoch: turn.epoch,
      guard_hash: row.guardHash ?? null,
      remaining_ms: row.timeoutMs,
      is_awaiting: false,
      has_ticket: false,
      is_out: false,
    }));
  }

  /** Runs the open calls of the last step concurrently. */
  async run(open: Exclude<OpenCalls, 'none'>, step: number): Promise<CallsRun> {
    const calls =
      open === 'unknown' ? await loadPendingCalls(this.#host.runtime.pool, this.#held.turn.turnId) : open;
    await this.#bindContext();
    this.#host.checkLease();
    // Newly committed calls are all calls of their step. After a takeover some calls of the step may already have
    // results.
    const isAlone = open === 'unknown' ? await this.#isAlone(calls) : calls.length === 1;
    const early = new EarlyResults(this.#host, this.#held, { step, count: calls.length });
    const runs = await this.#runAll(calls, { isAlone, early });
    if (runs === 'fenced') return { outcome: 'fenced' };
    this.#held.callsElsewhere = runs.filter(({ kind }) => kind === 'elsewhere').length;
    const { unrecorded } = this.#held;
    const results = runs.flatMap((run) =>
      run.kind === 'ending' || (run.kind === 'result' && unrecorded.has(run.settlement))
        ? [run.settlement]
        : [],
    );
    const ending = runs.find((run) => run.kind === 'ending');
    if (ending !== undefined) {
      const { deliverable, isSanitized } = ending;
      return { outcome: 'ending', deliverable, isSanitized, results };
    }
    return this.#record(results, { step, isWhole: open !== 'unknown' && results.length === calls.length });
  }

  /** A turn that is taken over with open calls has not read its context yet. */
  async #bindContext(): Promise<void> {
    if (this.#binding !== undefined) return;
    const [resultFields] = await Promise.all([
      this.#host.loader.resultFields(this.#held.turn.contextBoxId),
      this.tellProfiles(),
      this.findServed(),
    ]);
    this.bind({ resultFields, canExpand: false });
  }

  async #runAll(
    calls: readonly PendingCall[],
    { isAlone, early }: { readonly isAlone: boolean; readonly early: EarlyResults },
  ): Promise<readonly CallRun[] | 'fenced'> {
    const { toolbox } = this.bound;
    const repeated = await this.#guard.find(calls);
    // If the machine was suspended during the read, the lease may have expired.
    this.#host.checkLease();
    const settled = await Promise.allSettled(
      calls.map(async (call) => {
        const options = {
          isAlone,
          parsed: this.#parsed.get(call.id),
          checkEnd: this.#checkEnd,
          profile: this.#profile,
        };
        try {
          const run =
            repeated.get(call.id) ?? (await runCall(this.#host.runtime, this.#held, call, toolbox, options));
          if (run.kind === 'result') early.add(run.settlement);
          return run;
        } finally {
          early.leave();
        }
      }),
    );
    await early.close();
    const runs = settled.flatMap((run) => (run.status === 'fulfilled' ? [run.value] : []));
    const failed = settled.find((run) => run.status === 'rejected');
    if (failed === undefined) return runs;
    // The turn or the database is lost, but the results of the other calls are valid: the first record of a call wins.
    await recordLeft(this.#host, this.#held);
    if (failed.reason instanceof KernelError && failed.reason.code === 'turn_ended') return 'fenced';
    throw failed.reason;
  }

  /**
   * Checks that the turn may end by this call with this deliverable.
   *
   * @throws KernelError `tool_arguments_invalid`, `end_refused`.
   */
  readonly #checkEnd = async (name: string, deliverable: JsonValue): Promise<void> => {
    const { resultFields, endRule } = this.bound;
    checkResult(deliverable, resultFields);
    const { must_end_with: names } = endRule;
    if (names.length === 0 || names.includes(name)) return;
    const { turnId } = this.#held.turn;
    if (await hasSucceeded(this.#host.runtime.pool, turnId, names)) return;
    throw new KernelError('end_refused', {
      message: `${name}: this task ends only after a successful call of ${names.join(' or ')}.`,
      details: { turn_id: turnId, must_end_with: names },
    });
  };

  async #record(
    results: readonly CallSettlement[],
    { step, isWhole }: { readonly step: number; readonly isWhole: boolean },
  ): Promise<CallsRun> {
    const { turn, holderId, view } = this.#held;
    const advanced = await this.#host.advance({
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId,
      results,
      isWhole,
    });
    for (const result of results) this.#held.unrecorded.delete(result);
    switch (advanced.outcome) {
      case 'fenced':
        await keepLate(this.#host.runtime, this.#held, lateSettlements(results, step));
        return advanced;
      case 'suspended':
        return advanced;
      case 'open':
        view.append(
          advanced.basePosition,
          step,
          results.map(({ card }) => ({ kind: 'tool_result', card })),
        );
        return { outcome: 'open', attempt: advanced.attempt };
      default:
        return advanced satisfies never;
    }
  }

  async #isAlone(calls: readonly PendingCall[]): Promise<boolean> {
    const step = calls[0]?.step;
    return step !== undefined && (await this.#ofStep(step)).length === 1;
  }

  #ofStep(step: number): Promise<readonly CallOfStep[]> {
    return loadCallsOfStep(this.#host.runtime.pool, this.#held.turn.turnId, step);
  }

  /**
   * The successful call of a step that the turn must end with. Undefined when fields bind the result: then no such call
   * ends the turn.
   */
  async findEnder(step: number): Promise<CallOfStep | undefined> {
    await this.#bindContext();
    if (this.bound.resultFields !== undefined) return undefined;
    const calls = await this.#ofStep(step);
    return calls.find((call) => this.#profile.must_end_with.includes(call.name) && call.has_succeeded);
  }
}
