/**
 * Questions that a function, or an agent of another platform, asks while it serves a handoff.
 *
 * Q1  A question is written to a row before its reply is awaited. A waiting question holds no slot of its worker, and
 *     the time of its handoff does not run.
 * Q2  A worker that closes does not wait for replies: the turn is handed back, and its function starts again on another
 *     worker.
 * Q3  A function that starts again asks again, and receives the replies that already exist. The same text, asked for
 *     the nth time, is the same question.
 * Q4  The id of the waiting task of a platform is written with its question. Another attempt resumes that task and does
 *     not start a new one.
 * Rule: docs/reference/handoff.md, "Questions".
 */
import { createHash } from 'node:crypto';
import { buildCard, KernelError, type NewCard } from '@boxcar/kernel';
import {
  type AskedQuestion,
  askQuestion,
  expireQuestion,
  findQuestion,
  type LoggedEvent,
  retryTransient,
  type ServedHandoff,
} from '@boxcar/store';
import type { QuestionOptions } from '../core/index.js';
import { newId } from '../lib/index.js';
import type { AttemptTime } from './attempt-time.js';
import type { HeldTurn, TurnHost } from './held-turn.js';

/** How often the rows are read without a notice. */
const LOOK_MS = 30_000;
/** How soon a waiting question notices that its worker closes. */
const CLOSE_MS = 500;

export class Asking {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #handoff: ServedHandoff;
  readonly #time: AttemptTime;
  /** How often this attempt has asked each question. */
  readonly #asked = new Map<string, number>();

  readonly #leave: () => void;
  readonly #ended = new AbortController();
  #remoteTask: string | undefined;

  /** @param of.leave - Ends the attempt and hands its turn back. */
  constructor(
    host: TurnHost,
    of: {
      readonly held: HeldTurn;
      readonly handoff: ServedHandoff;
      readonly time: AttemptTime;
      readonly leave: () => void;
    },
  ) {
    this.#host = host;
    this.#held = of.held;
    this.#handoff = of.handoff;
    this.#time = of.time;
    this.#leave = of.leave;
  }

  /** True when another attempt can resume the task of the platform. */
  get canResume(): boolean {
    return this.#remoteTask !== undefined;
  }

  /** @throws KernelError `question_expired`, `payload_too_large`; the signal's reason. */
  readonly ask = async (
    text: string,
    { timeoutMs, key = text, remoteTask, signal }: QuestionOptions & { readonly signal: AbortSignal },
  ): Promise<string> => {
    const { turn, holderId } = this.#held;
    const { pool } = this.#host.runtime;
    const askKey = this.#keyOf(key);
    const asked = {
      turnId: turn.turnId,
      epoch: turn.epoch,
      holderId,
      askKey,
      card: this.#cardOf(text),
      timeoutMs,
      remoteTask,
    };
    const known = await retryTransient(() => askQuestion(pool, asked));
    signal.throwIfAborted();
    if (known === undefined)
      throw new KernelError('internal_error', {
        message: 'Another worker has this handoff.',
        details: { turn_id: turn.turnId },
      });
    this.#log(known.logged);
    if (known.logged.some(({ calls_back }) => calls_back)) this.#host.runtime.webhooks.wake();
    this.#remoteTask = remoteTask;
    if (known.question.is_closed) return this.#replyOf(known.question);
    // `whileWaiting` also waits for a slot before it returns.
    const either = AbortSignal.any([signal, this.#ended.signal]);
    return this.#time.standStill(() => this.#host.whileWaiting(() => this.#wait(askKey, either)));
  };

  /** The attempt is over: replies to its questions are not awaited any more. */
  end(): void {
    this.#ended.abort(new Error('the attempt is over'));
  }

  #keyOf(given: string): string {
    const hash = createHash('sha256').update(given).digest('hex');
    const n = (this.#asked.get(hash) ?? 0) + 1;
    this.#asked.set(hash, n);
    return `${hash}:${n}`;
  }

  #cardOf(text: string): NewCard {
    const { turn } = this.#held;
    return buildCard(
      {
        type: 'handoff_question',
        role: null,
        content: { kind: 'text', text },
        metadata: {},
        authorId: turn.agentId,
      },
      { id: newId<'card'>(), projectId: turn.projectId },
      this.#host.runtime.limits.maxCardBytes,
    );
  }

  async #wait(askKey: string, signal: AbortSignal): Promise<string> {
    const { pool, watcher } = this.#host.runtime;
    const { handoff_id } = this.#handoff;
    using follower = watcher.follow(this.#held.turn.turnId);
    for (let leftMs = LOOK_MS; ; ) {
      await this.#news(follower, { leftMs, signal });
      const question = await retryTransient(() => findQuestion(pool, handoff_id, askKey));
      if (question === undefined) throw new KernelError('not_found', { details: { handoff_id } });
      if (question.is_closed) return this.#replyOf(question);
      leftMs = Math.min(question.remaining_ms, LOOK_MS);
      // If a reply was recorded first, the next read finds it.
      if (leftMs <= 0)
        this.#log(
          await retryTransient(() => expireQuestion(pool, { handoffId: handoff_id, seq: question.seq })),
        );
      leftMs = Math.max(leftMs, 1);
    }
  }

  /** Resolves when there is news, and after `leftMs` in any case. @throws The signal's reason. */
  async #news(
    follower: ReturnType<TurnHost['runtime']['watcher']['follow']>,
    { leftMs, signal }: { readonly leftMs: number; readonly signal: AbortSignal },
  ): Promise<void> {
    const until = performance.now() + leftMs;
    for (let left = leftMs; left > 0; left = until - performance.now()) {
      if (this.#host.isDraining()) this.#leave();
      if (await follower.news(Math.min(left, CLOSE_MS), signal)) return;
    }
  }

  #replyOf({ seq, answer_seq, answer }: AskedQuestion): string {
    const details = { handoff_id: this.#handoff.handoff_id, question: seq };
    if (answer_seq === null) throw new KernelError('question_expired', { details });
    if (answer === null)
      throw new KernelError('card_damaged', { message: 'The reply to this question was erased.', details });
    return answer;
  }

  #log(events: readonly LoggedEvent[]): void {
    for (const { type, handoff_id, data } of events)
      this.#host.runtime.log('info', type, { handoff_id, ...data });
  }
}
