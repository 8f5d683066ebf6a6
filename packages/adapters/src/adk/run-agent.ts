/** One attempt with an A2A agent: a message, the task that it becomes, and its questions. */
import { createHash } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { type Message, type Part, Role, type SendMessageConfiguration, TaskState } from '@a2a-js/sdk';
import { type JsonValue, KernelError } from '@boxcar/kernel';
import type { AdapterRequest, ExecuteOptions, LostCard, PackedCard } from '../adapter.js';
import { AdapterError } from '../adapter-error.js';
import { idempotencyHeaders } from '../idempotency.js';
import { fixedPieces, kindOf, type Piece, pieceOfCard } from '../pieces.js';
import { type Caller, type Exchange, failureOf, shorten } from '../wire/exchange.js';
import { type Agent, openAgent } from './a2a-agent.js';
import { answerParts } from './answer-parts.js';
import { type Arrived, TaskView } from './task-view.js';

export interface AgentCall {
  readonly cardUrl: string;
  readonly request: AdapterRequest;
  readonly cards: readonly PackedCard[];
  readonly options: ExecuteOptions;
  readonly exchange: Exchange;
  readonly caller: Caller;
  /** The interval between polls of a task whose stream has ended. */
  readonly pollMs: number;
}

export interface AgentAnswer {
  readonly result: JsonValue;
  readonly remoteId: string | null;
  /** The cards that the agent's card rules out. */
  readonly lost: readonly LostCard[];
}

const JSON_TYPE = 'application/json';

/** Without this, an agent that does not stream would name its task only at its end, and the task could not be canceled before. */
const AT_ONCE: SendMessageConfiguration = {
  acceptedOutputModes: [],
  taskPushNotificationConfig: undefined,
  returnImmediately: true,
};

const partOf = (content: NonNullable<Part['content']>, mediaType = ''): Part => ({
  content,
  metadata: undefined,
  filename: '',
  mediaType,
});

const toPart = (piece: Piece, agent: Agent): Part => {
  if (piece.kind === 'file') return partOf({ $case: 'url', value: piece.url }, piece.mediaType);
  const isValue = piece.kind === 'json' && agent.takes(JSON_TYPE);
  return isValue
    ? partOf({ $case: 'data', value: piece.data }, JSON_TYPE)
    : partOf({ $case: 'text', value: piece.text }, 'text/plain');
};

/** Cards with files whose types the agent does not accept. */
const findRuledOut = (cards: readonly PackedCard[], agent: Agent): readonly LostCard[] =>
  cards.flatMap((card) => {
    const piece = pieceOfCard(card);
    if (piece.kind !== 'file' || agent.takes(piece.mediaType)) return [];
    return [
      { card_id: card.id, what: kindOf(card.content), why: `the agent does not accept ${piece.mediaType}` },
    ];
  });

/** The agent's failure: a JSON-RPC error, or an answer that cannot be read. */
function explainAgent(error: unknown, caller: Caller): Error {
  const verdict = { code: 'platform_failed', retryable: false } as const;
  let cause = error;
  while (cause instanceof Error) {
    const code: unknown = Reflect.get(cause, 'envelopeCode');
    if (typeof code === 'number')
      return failureOf(caller, verdict, `refused the message: ${shorten(cause.message, caller)}`, {
        platformCode: String(code),
      });
    cause = cause.cause;
  }
  return failureOf(caller, verdict, 'answered with something that cannot be read');
}

const isAsking = ({ state }: TaskView): boolean => state === TaskState.TASK_STATE_INPUT_REQUIRED;

/** A conversation about one task. */
class Conversation {
  readonly #call: AgentCall;
  readonly #agent: Agent;
  readonly #view: TaskView;
  /** How often each question was asked. */
  readonly #asked = new Map<string, number>();

  constructor(call: AgentCall, agent: Agent) {
    this.#call = call;
    this.#agent = agent;
    const { options, caller, exchange } = call;
    this.#view = new TaskView({
      concealer: caller.concealer,
      onPart: exchange.guard(options.onPart),
      onId: exchange.guard(options.onRemoteId),
    });
  }

  /** Follows the task of an earlier attempt until it is settled. */
  async resume(taskId: string): Promise<TaskView> {
    await this.#look(taskId);
    await this.#poll();
    this.#recall();
    return this.#view;
  }

  /** Counts the answers that the agent has already received: when it asks the same text again, an earlier answer must not be reused. */
  #recall(): void {
    const prefix = `${this.#call.options.idempotencyKey}/`;
    for (const id of new Set(this.#view.heard)) {
      const [hash] = id.startsWith(prefix) ? id.slice(prefix.length).split('-') : [];
      if (hash !== undefined) this.#asked.set(hash, (this.#asked.get(hash) ?? 0) + 1);
    }
  }

  /** The open question. Another attempt gives the same question the same id. */
  takeQuestion(): { readonly text: string; readonly id: string } {
    const text = this.#call.caller.concealer.text(this.#view.question);
    const hash = createHash('sha256').update(`${this.#view.statusId}\n${text}`).digest('hex').slice(0, 32);
    const n = (this.#asked.get(hash) ?? 0) + 1;
    this.#asked.set(hash, n);
    return { text, id: n === 1 ? hash : `${hash}-${n}` };
  }

  /**
   * Sends a message and follows the task until it is settled.
   *
   * @param answered - The id of the question that the message answers.
   */
  async say(parts: readonly Part[], answered?: string): Promise<TaskView> {
    const view = this.#view;
    view.reopen();
    const { exchange, options } = this.#call;
    const { client, isStreaming } = this.#agent;
    const isAnswer = view.taskId !== null;
    const configuration = isStreaming || isAnswer ? undefined : AT_ONCE;
    const stream = client.sendMessageStream(
      { tenant: '', message: this.#message(parts, answered), configuration, metadata: undefined },
      { signal: exchange.signal, serviceParameters: idempotencyHeaders(options.idempotencyKey) },
    );
    let isHeard = false;
    let cut: AdapterError | undefined;
    try {
      for await (const { payload } of stream) {
        if (payload !== undefined) view.take(payload as Arrived);
        // The first update may still show the task before the answer, with the question that has now been answered.
        if (!isHeard && isAnswer && payload?.$case === 'task' && isAsking(view)) continue;
        isHeard = true;
        if (view.isSettled) break;
      }
    } catch (error) {
      cut = this.#recover(error);
    }
    await this.#poll();
    // The task still asks: the answer did not arrive, and it is not sent a second time.
    if (cut !== undefined && !isHeard && isAsking(view)) throw cut;
    return view;
  }

  #message(parts: readonly Part[], answered: string | undefined): Message {
    const { options, request } = this.#call;
    const suffix = answered === undefined ? '' : `/${answered}`;
    return {
      // The same in all attempts: the agent can recognize a message that it has already received.
      messageId: `${options.idempotencyKey}${suffix}`,
      contextId: this.#view.contextId,
      taskId: this.#view.taskId ?? '',
      role: Role.ROLE_USER,
      parts: [...parts],
      metadata: { handoff_id: request.handoff_id, source_agent: request.source_agent },
      extensions: [],
      referenceTaskIds: [],
    };
  }

  /**
   * A known task continues without its stream: polling its state starts nothing new.
   *
   * @returns Why the stream ended.
   */
  #recover(error: unknown): AdapterError {
    const { exchange, caller, options } = this.#call;
    const { failure } = exchange;
    const isCut =
      failure instanceof AdapterError && failure.code === 'platform_unavailable' && !options.signal.aborted;
    if (!isCut || this.#view.taskId === null)
      throw exchange.explain(error, (other) => explainAgent(other, caller));
    exchange.forget();
    return failure;
  }

  async #poll(): Promise<void> {
    const { exchange, caller, pollMs } = this.#call;
    const view = this.#view;
    for (let round = 0; !view.isSettled; round += 1) {
      if (view.taskId === null)
        throw failureOf(
          caller,
          { code: 'platform_unavailable', retryable: true },
          'broke its answer off before the end',
        );
      if (round > 0) await pause(pollMs, undefined, { signal: exchange.signal });
      await this.#look(view.taskId);
    }
  }

  async #look(id: string): Promise<void> {
    const { exchange, caller } = this.#call;
    try {
      const task = await this.#agent.client.getTask({ tenant: '', id }, { signal: exchange.signal });
      this.#view.take({ $case: 'task', value: task });
    } catch (error) {
      throw exchange.explain(error, (other) => explainAgent(other, caller));
    }
  }
}

/** The outcome of a task that does not end with a question. */
function endOf(view: TaskView, caller: Caller): JsonValue {
  const words = shorten(view.statusText, caller);
  const fail = (
    code: 'platform_failed' | 'platform_refused' | 'platform_unauthorized',
    did: string,
  ): never => {
    throw failureOf(caller, { code, retryable: false }, words === '' ? did : `${did}: ${words}`);
  };
  switch (view.state) {
    case TaskState.TASK_STATE_FAILED:
      return fail('platform_failed', 'failed');
    case TaskState.TASK_STATE_CANCELED:
      return fail('platform_failed', 'canceled the task');
    case TaskState.TASK_STATE_REJECTED:
      return fail('platform_refused', 'rejected the task');
    case TaskState.TASK_STATE_AUTH_REQUIRED:
      return fail('platform_unauthorized', 'asks for a sign-in');
    default:
      return view.result() ?? fail('platform_failed', 'gave an empty answer');
  }
}

export async function runAgent(call: AgentCall): Promise<AgentAnswer> {
  const { cardUrl, request, cards, exchange, caller } = call;
  const { ask, resumeId } = call.options;
  const agent = await openAgent(cardUrl, exchange, caller);
  const lost = findRuledOut(cards, agent);
  const kept = cards.filter(({ id }) => !lost.some(({ card_id }) => card_id === id));
  if (cards.length > 0 && kept.length === 0)
    throw new KernelError('cards_not_carried', {
      message: 'None of the packed cards can be sent: the agent takes none of their types.',
      details: { lost, handoff_id: request.handoff_id },
    });
  const { instructions } = request.target;
  const pieces: readonly Piece[] = [
    ...(instructions === undefined ? [] : [{ kind: 'text', text: instructions } as const]),
    ...kept.map(pieceOfCard),
    ...fixedPieces(request),
  ];
  const conversation = new Conversation(call, agent);
  let view =
    resumeId === undefined
      ? await conversation.say(pieces.map((piece) => toPart(piece, agent)))
      : await conversation.resume(resumeId);
  while (isAsking(view)) {
    const { text, id: questionId } = conversation.takeQuestion();
    if (ask === undefined)
      throw failureOf(
        caller,
        { code: 'platform_failed', retryable: false },
        `asked a question that cannot be answered here: ${shorten(text, caller)}`,
      );
    const { askedWith } = view;
    const reply = await ask(text, { questionId, remoteId: view.taskId ?? '' });
    view = await conversation.say(answerParts(reply, askedWith), questionId);
  }
  try {
    return { result: endOf(view, caller), remoteId: view.taskId, lost };
  } catch (error) {
    // A value may be nested too deeply for the call stack.
    throw exchange.explain(error, (other) => explainAgent(other, caller));
  }
}
