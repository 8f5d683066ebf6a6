/**
 * Questions of what serves a handoff: a function, or an agent of another platform.
 *
 * Q1  A question is a row before anybody waits for its reply. While it waits it holds no slot of its worker, and the time of the handoff stands.
 * Q2  A worker that closes does not wait for replies: the turn is given back, and its function begins anew elsewhere.
 * Q3  A function that begins anew asks again, and gets the replies that are there: the same text, for the same time, is the same question.
 * Q4  Which task of a platform waits is written with its question: another attempt goes on with that task, and begins none.
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
/** How soon a worker that closes is rid of it. */
const CLOSE_MS = 500;

export class Asking {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #handoff: ServedHandoff;
  readonly #time: AttemptTime;
  /** How often each question was asked by this attempt. */
  readonly #asked = new Map<string, number>();

  readonly #leave: () => void;
  readonly #ended = new AbortController();
  #remoteTask: string | undefined;

  /** @param of.leave - Ends the attempt, whose turn is given back. */
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

  /** Another attempt can go on with the task of the platform. */
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
    // It waits for its slot, too, before it goes on.
    const either = AbortSignal.any([signal, this.#ended.signal]);
    return this.#time.standStill(() => this.#host.whileWaiting(() => this.#wait(askKey, either)));
  };

  /** The attempt is over: nobody waits for the replies to what it has asked. */
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
      // What it has written says whether a reply was quicker.
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
