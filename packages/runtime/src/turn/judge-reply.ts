/**
 * Decides the effect of a model's answer: the end of the turn, or the entries that its step leaves on the tape. No I/O.
 */
import {
  decideStep,
  type ErrorBody,
  isBlank,
  KernelError,
  MAX_EMPTY_REPLIES,
  type ModelReply,
  type ModelToolCall,
  type NewCard,
} from '@boxcar/kernel';
import type { ClaimedTurn } from '@boxcar/store';
import { type Ending, fallbackDeliverable } from '../end/index.js';
import type { Bound } from './step-calls.js';
import {
  type AnswerFacts,
  CALLS_REMINDER,
  type CleanText,
  cleanText,
  factsOf,
  thoughtCard,
} from './step-cards.js';

/** The limit for calls of one answer, including comma commands. */
const MAX_CALLS = 256;

export type ReplyVerdict =
  | { readonly kind: 'end'; readonly ending: Ending }
  | {
      readonly kind: 'next';
      /** Undefined for an answer without words. */
      readonly thought: NewCard | undefined;
      /** Facts for the card of the first call, when the answer has no words. */
      readonly facts: AnswerFacts | undefined;
      readonly calls: readonly ModelToolCall[];
      readonly reminder: string | undefined;
      /** The metadata value of the reminder. */
      readonly notice?: string;
      readonly emptyReplies: number;
    };

export interface AnsweredStep {
  readonly turn: ClaimedTurn;
  readonly model: string;
  readonly step: number;
  /** True when no further step follows. */
  readonly isLast: boolean;
  readonly bound: Bound;
  /** Consecutive empty answers before this answer. */
  readonly emptyReplies: number;
  /** True when the model was already reminded of the number of calls. */
  readonly hadTooManyCalls: boolean;
  readonly maxCardBytes: number | undefined;
}

export function judgeReply(reply: ModelReply, of: AnsweredStep): ReplyVerdict {
  const { turn, step, isLast, bound } = of;
  const text = cleanText(reply.text, of.maxCardBytes);
  if (reply.toolCalls.length > MAX_CALLS) return judgeManyCalls(reply, text, of);
  const cutShort = emptyCut(reply, text, of);
  if (cutShort !== undefined) return { kind: 'end', ending: cutShort };
  const decided = decideStep({ text: text.value, toolCalls: reply.toolCalls }, bound.endRule);
  if (decided.kind === 'end') return { kind: 'end', ending: answerEnd(reply, text, of) };
  const isEmpty = text.value.trim() === '';
  const isReminded = decided.kind === 'remind';
  if (isLast && (isReminded || !isEnding(reply, bound)))
    return {
      kind: 'end',
      ending: limitEnd(turn, { step, text: text.value, isAnswer: isReminded && !isEmpty }),
    };
  const emptyReplies = isReminded && isEmpty ? of.emptyReplies + 1 : 0;
  if (emptyReplies >= MAX_EMPTY_REPLIES) return { kind: 'end', ending: emptyEnd(emptyReplies, of) };
  return {
    kind: 'next',
    ...writeWords(reply, text, of),
    calls: isReminded ? [] : reply.toolCalls,
    reminder: isReminded ? decided.reminder : undefined,
    emptyReplies,
  };
}

/**
 * A card for the words of an answer. Without words, the facts of the answer are left for the card of its first call.
 */
function writeWords(
  reply: ModelReply,
  text: CleanText,
  { turn, model }: AnsweredStep,
): Pick<Extract<ReplyVerdict, { kind: 'next' }>, 'thought' | 'facts'> {
  const facts = factsOf(reply, model);
  return isBlank(text.value)
    ? { thought: undefined, facts }
    : { thought: thoughtCard(turn, text, facts), facts: undefined };
}

/**
 * When an answer has too many calls, none of them is run. The model is reminded once; the second time the turn ends.
 */
function judgeManyCalls(reply: ModelReply, text: CleanText, of: AnsweredStep): ReplyVerdict {
  const { turn, step } = of;
  const count = reply.toolCalls.length;
  if (of.isLast || of.hadTooManyCalls) {
    const error = new KernelError('invalid_reply', {
      message: `The model asked for ${count} calls in one answer; at most ${MAX_CALLS} are run.`,
      details: { turn_id: turn.turnId, step, calls: count, max_calls: MAX_CALLS },
    }).toJSON();
    const deliverable = fallbackDeliverable(error, step, text.value);
    return { kind: 'end', ending: { status: 'partial', deliverable, error } };
  }
  return {
    kind: 'next',
    ...writeWords(reply, text, of),
    calls: [],
    reminder: `Your last answer had ${count} tool calls, and none was run. One answer may have ${MAX_CALLS} at most: make the others in later answers.`,
    notice: CALLS_REMINDER,
    emptyReplies: 0,
  };
}

const isEnding = ({ toolCalls }: ModelReply, { enders }: Bound): boolean =>
  toolCalls.every(({ name }) => enders.includes(name)) && (toolCalls.length === 1 || !callsSubmit(toolCalls));

/** `submit_result` must be the only call of its message. */
const callsSubmit = (calls: readonly ModelToolCall[]): boolean =>
  calls.some(({ name }) => name === 'submit_result');

function answerEnd(reply: ModelReply, text: CleanText, { turn, step, model }: AnsweredStep): Ending {
  const error = cutOffError(reply, { turn_id: turn.turnId, step });
  const { metadata, ...attached } = factsOf(reply, model);
  return {
    status: error === null ? 'success' : 'partial',
    deliverable: { kind: 'text', text: text.value },
    error,
    metadata: { ...(text.isChanged ? { sanitized: true } : {}), ...metadata },
    ...attached,
  };
}

/** An answer that its provider cut off is incomplete, and must not count as a complete answer. */
function cutOffError(
  { finishReason }: ModelReply,
  ids: { readonly turn_id: string; readonly step: number },
): ErrorBody | null {
  if (finishReason !== 'length' && finishReason !== 'content_filter') return null;
  return new KernelError('answer_cut', { details: { ...ids, finish_reason: finishReason } }).toJSON();
}

/**
 * An answer that was cut off before its first word ends the turn: another try with the same limit or filter would end
 * in the same way.
 */
function emptyCut(
  { finishReason, toolCalls, usage }: ModelReply,
  { value }: CleanText,
  { turn, step }: AnsweredStep,
): Ending | undefined {
  if (value.trim() !== '' || toolCalls.length > 0) return undefined;
  if (finishReason !== 'length' && finishReason !== 'content_filter') return undefined;
  const { reasoningTokens: reasoning = 0 } = usage;
  const details = {
    turn_id: turn.turnId,
    step,
    finish_reason: finishReason,
    output_tokens: usage.outputTokens,
  };
  const error =
    finishReason === 'length'
      ? new KernelError('answer_cut', {
          message: `The model used its whole limit of ${usage.outputTokens} tokens ${reasoning === 0 ? 'before its first word' : 'for reasoning'}. Raise model_settings.max_output_tokens.`,
          details: reasoning === 0 ? details : { ...details, reasoning_tokens: reasoning },
        })
      : new KernelError('model_refused', { details });
  const body = error.toJSON();
  return { status: 'failed', deliverable: fallbackDeliverable(body, step, null), error: body };
}

function emptyEnd(emptyReplies: number, { turn, step }: AnsweredStep): Ending {
  const error = new KernelError('invalid_reply', {
    message: `The model gave ${emptyReplies} empty answers in a row.`,
    details: { turn_id: turn.turnId, step },
  }).toJSON();
  return { status: 'failed', deliverable: fallbackDeliverable(error, step, null), error };
}

/**
 * The partial end of a turn that has used all its steps. Its last text is the deliverable if that text is an answer.
 */
export function limitEnd(
  turn: Pick<ClaimedTurn, 'turnId' | 'maxSteps'>,
  last: { readonly step: number; readonly text: string | null; readonly isAnswer: boolean },
): Ending {
  const error = new KernelError('step_limit', {
    message: `The turn used all its ${turn.maxSteps} steps.`,
    details: { turn_id: turn.turnId, max_steps: turn.maxSteps },
  }).toJSON();
  const deliverable =
    last.isAnswer && last.text !== null
      ? { kind: 'text' as const, text: last.text }
      : fallbackDeliverable(error, last.step, last.text);
  return { status: 'partial', deliverable, error };
}
