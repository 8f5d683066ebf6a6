/**
 * Stops a repeated call: a call that the same profile has already made with the same arguments and without new
 * information since, in this turn or in a turn between it and the root. Rule: docs/reference/budgets.md, "Loop guard".
 *
 * The hash is committed with the call, so that a worker that takes over the turn decides in the same way. Earlier steps
 * since the claim are in memory. Only a turn with a parent, or a turn that was begun under an earlier claim, reads
 * rows, while its commit is in progress.
 */
import {
  hashCall,
  hashContext,
  type JsonValue,
  KernelError,
  type Profile,
  TurnNews,
  type ViewRows,
} from '@boxcar/kernel';
import { type EarlierCall, findRepeats, type PendingCall } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { toFailure, toSettlement } from '../end/index.js';
import { type CallRoute, findFunction, type Toolbox } from '../toolbox/index.js';
import type { CallRun } from './call-tools.js';
import type { HeldTurn } from './held-turn.js';

type Rows = Pick<ViewRows, 'entries' | 'contexts'>;
type Repeats = ReadonlyMap<string, Pick<EarlierCall, 'turn_id' | 'step' | 'tool_call_id'>>;

export class LoopGuard {
  readonly #runtime: RuntimeCore;
  readonly #held: HeldTurn;
  readonly #profile: Pick<Profile, 'name' | 'repeatable'>;
  readonly #news = new TurnNews();
  readonly #seen = new Map<string, Pick<EarlierCall, 'turn_id' | 'step' | 'tool_call_id'>>();
  #contextHash: string | undefined;
  #looking: { readonly step: number; readonly repeats: Promise<Repeats> } | undefined;

  constructor(runtime: RuntimeCore, held: HeldTurn, profile: Pick<Profile, 'name' | 'repeatable'>) {
    this.#runtime = runtime;
    this.#held = held;
    this.#profile = profile;
  }

  /** The hash functions of a step's calls; they return undefined for calls that are not guarded. */
  at(
    rows: Rows,
    toolbox: Toolbox,
  ): (call: { name: string; arguments: JsonValue }, route: CallRoute) => string | undefined {
    const { turn } = this.#held;
    this.#contextHash ??= hashContext(rows.contexts.get(turn.contextBoxId) ?? []);
    const of = {
      profile: this.#profile.name,
      contextHash: this.#contextHash,
      news: this.#news.read(rows.entries, turn.turnId),
    };
    return (call, { route }) =>
      route === 'none' || this.#mayRepeat(call.name, toolbox) ? undefined : hashCall(call, of);
  }

  #mayRepeat(name: string, toolbox: Toolbox): boolean {
    if (this.#profile.repeatable?.includes(name) === true) return true;
    const queued = toolbox.queued.get(name);
    if (queued !== undefined) return queued.repeatable === true;
    const known = findFunction(this.#runtime, toolbox, name) ?? this.#runtime.handlers.get(name);
    return known?.repeatable === true;
  }

  /** True when the rows may have earlier calls that are not in memory. */
  get #mustRead(): boolean {
    const { turn } = this.#held;
    return turn.parentTurnId !== null || turn.stepCount > 0;
  }

  /** Starts to look for earlier calls while these calls are being committed. */
  lookAhead(hashes: readonly string[], step: number): void {
    if (!this.#mustRead || hashes.length === 0) return;
    const repeats = this.#read(hashes, step);
    // `find` reports the failure. If the commit fails first, the result is not needed.
    repeats.catch(() => undefined);
    this.#looking = { step, repeats };
  }

  #read(hashes: readonly string[], step: number): Promise<Repeats> {
    return findRepeats(this.#runtime.pool, { turnId: this.#held.turn.turnId, step, hashes });
  }

  /** The calls of one step that are repetitions, by id, with their refusals. */
  async find(calls: readonly PendingCall[]): Promise<ReadonlyMap<string, CallRun>> {
    const guarded = calls.flatMap((call) =>
      call.guard_hash === null || call.is_awaiting ? [] : [{ call, hash: call.guard_hash }],
    );
    const step = guarded[0]?.call.step;
    if (step === undefined) return new Map();
    const hashes = guarded.map(({ hash }) => hash);
    const looked = this.#looking?.step === step ? this.#looking.repeats : undefined;
    const repeats = this.#mustRead ? await (looked ?? this.#read(hashes, step)) : this.#seen;
    const refused = guarded.flatMap(({ call, hash }) => {
      const earlier = repeats.get(hash);
      return earlier === undefined ? [] : [[call.id, this.#refuse(call, earlier)] as const];
    });
    if (!this.#mustRead)
      for (const { call, hash } of guarded)
        if (!this.#seen.has(hash))
          this.#seen.set(hash, { turn_id: call.turn_id, step, tool_call_id: call.id });
    return new Map(refused);
  }

  #refuse(call: PendingCall, earlier: Pick<EarlierCall, 'turn_id' | 'step' | 'tool_call_id'>): CallRun {
    const { turn } = this.#held;
    const place =
      earlier.turn_id === turn.turnId
        ? `step ${earlier.step}`
        : `turn ${earlier.turn_id}, step ${earlier.step}`;
    const error = new KernelError('loop_detected', {
      message: `${call.name} was called with the same arguments in ${place}, and nothing new has come since.`,
      details: {
        tool: call.name,
        turn_id: earlier.turn_id,
        step: earlier.step,
        tool_call_id: earlier.tool_call_id,
      },
    }).toJSON();
    const settlement = toSettlement(
      { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: turn.projectId },
      toFailure(error),
      { authorId: turn.agentId, maxBytes: this.#runtime.limits.maxCardBytes },
    );
    return { kind: 'result', settlement };
  }
}
