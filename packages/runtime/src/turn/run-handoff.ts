/**
 * A turn that an adapter or a function serves.
 *
 * R1  An attempt is recorded before anything is sent. If its worker died and its outcome is unknown, another attempt
 *     follows only where a repetition is harmless, or where the platform waits for a reply and its task can be resumed.
 *     Otherwise the handoff ends as `outcome_unknown`.
 * R2  The result, the parts that the platform could not carry, and the usage are written with the end of the turn, in
 *     one transaction.
 * R3  The time of a handoff begins with its first attempt and is shared by all attempts.
 * R4  A turn that has ended stops its attempt, and the platform is told to stop, if it has a way to be told.
 * Rule: docs/reference/handoff.md, "Attempts".
 */
import {
  budgetExceeded,
  type ErrorBody,
  type ErrorCode,
  findPrice,
  isFinal,
  type JsonObject,
  type JsonValue,
  KernelError,
  MAX_CARD_BYTES,
  maskSecrets,
  type Profile,
  priceUnknown,
  sanitizeJson,
  toErrorBody,
} from '@boxcar/kernel';
import {
  beginAttempt,
  loadTurnStates,
  retryAttempt,
  retryTransient,
  type ServedHandoff,
} from '@boxcar/store';
import type { PackedHandoff, PreparedHandoff, ServedResult } from '../core/index.js';
import { type Ending, fallbackDeliverable } from '../end/index.js';
import { deliverableContent, unlessAborted } from '../lib/index.js';
import { Asking } from './asking.js';
import { AttemptTime } from './attempt-time.js';
import { awaitCached, cachedEnding } from './flight.js';
import type { HeldTurn, TurnHost, TurnRun } from './held-turn.js';
import { PartWriter } from './part-writer.js';
import { StepBudget } from './step-budget.js';
import { TurnCommits } from './turn-commits.js';

/** How long the request that tells a platform to stop may take. */
const CANCEL_MS = 5_000;
const STEP = 1;
/** A question without a reply ends the attempt, but the agent that asked still waits on its platform. */
const UNANSWERED: ReadonlySet<ErrorCode | undefined> = new Set(['question_expired', 'payload_too_large']);

type Status = 'failed' | 'timeout' | 'partial';

interface Spent {
  readonly tokens: number;
  readonly costMicros: number;
}

/** The end of a turn whose target has answered, and the usage of the attempt. */
interface Done {
  readonly ending: Ending;
  readonly spent: Spent | undefined;
}

const failedEnding = (error: ErrorBody, status: Status): Ending => ({
  status,
  deliverable: fallbackDeliverable(error, 0, null),
  error,
});

export function runHandoff(host: TurnHost, held: HeldTurn, handoff: ServedHandoff): Promise<TurnRun> {
  return new HandoffRun(host, held, handoff).run();
}

class HandoffRun {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #handoff: ServedHandoff;
  readonly #commits: TurnCommits;
  #budget: StepBudget | undefined;

  constructor(host: TurnHost, held: HeldTurn, handoff: ServedHandoff) {
    this.#host = host;
    this.#held = held;
    this.#handoff = handoff;
    this.#commits = new TurnCommits(host, held);
  }

  async run(): Promise<TurnRun> {
    const { turn } = this.#held;
    const handoff = this.#handoff;
    if (this.#host.isDraining()) return 'released';
    // Before the package is made: a turn that waits keeps no package in memory.
    const cached = await awaitCached(this.#host, this.#held);
    if (cached !== undefined) return this.#commits.end(cachedEnding(cached));
    let prepared: PreparedHandoff;
    try {
      prepared = await this.#host.runtime.handoffs.prepare(await this.#packed(), turn.workerTarget);
    } catch (error) {
      if (this.#held.signal.aborted) throw error;
      return this.#fail(bodyOf(error));
    }
    const resumeId = prepared.resumes === true ? (handoff.remote_task ?? undefined) : undefined;
    if (handoff.is_attempt_open && prepared.retry !== 'safe' && resumeId === undefined)
      return this.#fail(
        new KernelError('outcome_unknown', {
          message:
            'The process that carried out this handoff ended before it recorded a result. It is not known whether the target got the task.',
          next: 'Look at the platform before you hand off again.',
          details: { handoff_id: handoff.handoff_id, attempt: handoff.attempts },
        }).toJSON(),
      );
    // The worker may have begun to close during the wait.
    if (this.#host.isDraining()) return 'released';
    const unpaid = await this.#pay(prepared);
    if (unpaid !== undefined) return unpaid;
    this.#host.checkLease();
    const { turnId, epoch } = turn;
    const attempt = handoff.attempts + 1;
    const { holderId } = this.#held;
    const { pool } = this.#host.runtime;
    // Nothing was sent yet, so a lost connection does not end an attempt.
    const remainingMs = await retryTransient(() => beginAttempt(pool, { turnId, epoch, holderId, attempt }));
    if (remainingMs === undefined) return 'fenced';
    if (remainingMs <= 0) return this.#fail(this.#timeout(), 'timeout');
    const { handoff_id } = handoff;
    this.#host.runtime.log('info', 'handoff.started', { handoff_id, attempt });
    return this.#attempt(prepared, { attempt, remainingMs, resumeId });
  }

  async #packed(): Promise<PackedHandoff> {
    const { view, turn } = this.#held;
    const { contexts } = await view.rows();
    const own = new Set<string>(this.#handoff.card_ids);
    const cards = (contexts.get(turn.contextBoxId) ?? [])
      .map(({ card }) => card)
      .filter(({ id }) => !own.has(id));
    return { ...this.#handoff, cards };
  }

  /** Undefined when the attempt is paid for. */
  async #pay({ need }: PreparedHandoff): Promise<TurnRun | undefined> {
    const { turn } = this.#held;
    const { pool, prices } = this.#host.runtime;
    if (turn.purse === null) return undefined;
    const profile: Pick<Profile, 'model' | 'limits' | 'model_settings'> = {
      ...(await this.#host.loader.profile(turn.profileId)).profile,
      // A target that names no model needs no price, like a scripted model.
      model: need.model ?? 'scripted',
      ...(need.maxOutputTokens > 0 ? { model_settings: { max_output_tokens: need.maxOutputTokens } } : {}),
    };
    const price = need.model === null ? undefined : findPrice(need.model, prices);
    this.#budget = new StepBudget(pool, this.#held, { purse: turn.purse, profile, price });
    if (need.promptTokens === 0 && need.maxOutputTokens === 0) return undefined;
    const paid = await this.#budget.pay({
      promptTokens: need.promptTokens,
      step: STEP,
      attempt: turn.attempt,
    });
    switch (paid.outcome) {
      case 'paid':
        return undefined;
      case 'fenced':
        return 'fenced';
      case 'paused':
        return 'suspended';
      case 'unpriced':
        return this.#fail(
          priceUnknown({
            model: need.model ?? '',
            accountId: paid.accountId,
            details: { turn_id: turn.turnId },
          }).toJSON(),
        );
      case 'exceeded':
        return this.#fail(
          budgetExceeded(paid.hit, { next: paid.next, details: { turn_id: turn.turnId } }).toJSON(),
          'partial',
        );
      default:
        return paid satisfies never;
    }
  }

  async #attempt(
    prepared: PreparedHandoff,
    of: {
      readonly attempt: number;
      readonly remainingMs: number;
      readonly resumeId: string | undefined;
    },
  ): Promise<TurnRun> {
    const { attempt, remainingMs, resumeId } = of;
    const { signal } = this.#held;
    const limit = new AbortController();
    const stop = (): void => limit.abort(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    const time = new AttemptTime(remainingMs, () => limit.abort(new KernelError(...this.#timeoutWords())));
    const left = new Error('the worker closes');
    const asking = new Asking(this.#host, {
      held: this.#held,
      handoff: this.#handoff,
      time,
      leave: () => limit.abort(left),
    });
    const parts = new PartWriter(this.#host.runtime, this.#held).open({ masks: true });
    let remoteId = resumeId;
    let done: Done;
    try {
      signal.throwIfAborted();
      const result = await unlessAborted(
        prepared.execute({
          signal: limit.signal,
          attempt,
          onRemoteId: (id) => {
            remoteId = id;
          },
          onText: parts.onText,
          ask: (text, options) => asking.ask(text, { ...options, signal: limit.signal }),
          resumeId,
          whileWaiting: (work) => this.#host.whileWaiting(work),
        }),
        limit.signal,
      ).finally(() => parts.stop());
      done = this.#toDone(result, attempt);
    } catch (error) {
      // The function asks again on another worker, and the platform still waits for the reply.
      if (limit.signal.reason === left) return 'released';
      if (limit.signal.aborted || UNANSWERED.has(codeOf(error)))
        this.#tellToStop(prepared, { remoteId, canResume: signal.aborted && asking.canResume });
      if (signal.aborted) throw error;
      if (limit.signal.aborted) return await this.#fail(this.#timeout(), 'timeout');
      return await this.#afterFailure(prepared, error, { attempt, leftMs: time.leftMs });
    } finally {
      time.end();
      asking.end();
      signal.removeEventListener('abort', stop);
    }
    return this.#keep(done);
  }

  /** The target has done its work. It is not called again when its result cannot be kept. */
  async #keep({ ending, spent }: Done): Promise<TurnRun> {
    try {
      return await this.#commits.end(ending, { spent });
    } catch (error) {
      if (this.#held.signal.aborted) throw error;
      return this.#fail(bodyOf(error), 'failed', spent);
    }
  }

  #toDone({ result, usage, remoteId, loss }: ServedResult, attempt: number): Done {
    const { value: clean } = sanitizeJson(result);
    const deliverable = deliverableContent(maskSecrets(clean));
    const sizeBytes = Buffer.byteLength(JSON.stringify(deliverable));
    const limitBytes = this.#host.runtime.limits.maxCardBytes ?? MAX_CARD_BYTES;
    const spent = this.#spend(usage);
    if (sizeBytes > limitBytes) {
      const error = new KernelError('payload_too_large', {
        message: `The result has ${sizeBytes} bytes; the limit is ${limitBytes}.`,
        details: { sizeBytes, limitBytes },
      }).toJSON();
      return { ending: failedEnding(error, 'failed'), spent };
    }
    const served = storable({ attempt, usage, remote_id: remoteId, loss });
    return { ending: { status: 'success', deliverable, error: null, metadata: { handoff: served } }, spent };
  }

  #spend(usage: ServedResult['usage']): Spent | undefined {
    if (usage === null) return undefined;
    return this.#budget?.spend({ inputTokens: usage.input_tokens, outputTokens: usage.output_tokens });
  }

  /** @param of.leftMs - The remaining time of the handoff. */
  async #afterFailure(
    prepared: PreparedHandoff,
    error: unknown,
    { attempt, leftMs }: { readonly attempt: number; readonly leftMs: number },
  ): Promise<TurnRun> {
    const { turn, holderId } = this.#held;
    const { retry, handoff_id } = this.#handoff;
    const body = bodyOf(error, 'platform_failed');
    const usage = (error as { usage?: ServedResult['usage'] } | null)?.usage ?? null;
    const spent = this.#spend(usage);
    const advice = prepared.adviseRetry(error);
    if (!advice.retryable || attempt >= retry.max_attempts)
      return this.#fail({ ...body, details: { ...body.details, handoff_id } }, 'failed', spent);
    // The time of the handoff also runs during the pause, and the pause ends with it at the latest.
    const delayMs = Math.min(pauseOf(retry, attempt, advice.retryAfterMs), leftMs);
    const failed = {
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId,
      step: STEP,
      attempt: turn.attempt,
      error: body,
      delayMs,
      spent,
    };
    // If only the answer was lost, the turn already waits, and the sweep wakes it.
    const isDone = await retryTransient(() => retryAttempt(this.#host.runtime.pool, failed));
    if (!isDone) return 'fenced';
    this.#host.runtime.log('info', 'handoff.retrying', {
      handoff_id,
      attempt,
      code: body.code,
      delay_ms: delayMs,
    });
    this.#host.modelWaits.wakeLater(turn, delayMs);
    return 'suspended';
  }

  #fail(error: ErrorBody, status: Status = 'failed', spent?: Spent): Promise<TurnRun> {
    return this.#commits.end(failedEnding(error, status), { spent });
  }

  #timeoutWords(): ConstructorParameters<typeof KernelError> {
    return ['handoff_timeout', { details: { handoff_id: this.#handoff.handoff_id } }];
  }

  #timeout(): ErrorBody {
    return new KernelError(...this.#timeoutWords()).toJSON();
  }

  /** R4: in the background, because no caller waits for the answer. */
  #tellToStop(
    { cancel }: PreparedHandoff,
    { remoteId, canResume }: { readonly remoteId: string | undefined; readonly canResume: boolean },
  ): void {
    if (cancel === undefined || remoteId === undefined) return;
    const { runtime } = this.#host;
    const { handoff_id } = this.#handoff;
    const { turnId } = this.#held.turn;
    runtime.afterwards(async () => {
      // Another worker may hold the turn and resume the task.
      const [turn] = canResume ? await loadTurnStates(runtime.pool, [turnId]) : [];
      if (turn !== undefined && !isFinal(turn.status)) return;
      const isTold = await cancel(remoteId, AbortSignal.timeout(CANCEL_MS)).catch(() => false);
      runtime.log(isTold ? 'info' : 'warn', isTold ? 'handoff.stopped' : 'handoff.not_stopped', {
        handoff_id,
      });
    });
  }
}

const codeOf = (error: unknown): ErrorCode | undefined =>
  error instanceof KernelError ? error.code : undefined;

/** Output of platforms in a form that Postgres can store: without NUL and lone surrogates. */
const storable = <T extends JsonValue>(said: T): T => sanitizeJson(said).value as T;

const bodyOf = (error: unknown, fallback?: ErrorCode): ErrorBody =>
  storable(toErrorBody(error, fallback) as ErrorBody & JsonObject);

/**
 * The pause doubles with each attempt, with a random spread of a quarter, and is never shorter than the platform asks
 * for.
 */
function pauseOf(
  { base_ms, max_ms }: ServedHandoff['retry'],
  attempt: number,
  askedMs: number | undefined,
): number {
  const doubled = Math.min(base_ms * 2 ** (attempt - 1), max_ms);
  const spread = doubled * (0.75 + Math.random() / 2);
  return Math.max(Math.min(spread, max_ms), askedMs ?? 0);
}
