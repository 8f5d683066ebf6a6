/**
 * The part of a prompt that belongs to the current turn, as a scripted model reads it. It is derived from the request alone, so any
 * instance on any worker reads the same.
 *
 * C1  The calls of this turn begin at `turn.firstMessage`, and at most the last `turn.step - 1` messages with calls count. A clone's
 *     inherited calls precede them, and their results are not results of this turn.
 * C2  A result belongs to the call whose id it answers. Results are in call order, whatever order they were given in.
 */
import type { JsonValue, Message, ModelRequest, ModelToolCall } from '@boxcar/kernel';
import { parseJsonOrText } from './template.js';

export interface Conversation {
  /** The text that is new since this turn's last answer. Before the first answer: the turn's whole context. */
  news(): string;
  /** The results of this turn's calls of `tool` in call order, parsed when they are JSON, else text. */
  results(tool: string): readonly JsonValue[];
}

/** The index of the first message with calls of this turn (C1). */
function findFirstCalls({ messages, turn }: ModelRequest): number {
  let first = messages.length;
  let stepsLeft = turn.step - 1;
  for (let index = messages.length - 1; index >= turn.firstMessage && stepsLeft > 0; index -= 1) {
    const message = messages[index];
    if (message?.role !== 'assistant' || (message.toolCalls ?? []).length === 0) continue;
    first = index;
    stepsLeft -= 1;
  }
  return first;
}

/** The index of the first message that is new since this turn's last answer; before the first answer, the turn's first message. */
function findNews({ messages, turn }: ModelRequest): number {
  if (turn.step === 1) return turn.firstMessage;
  const lastAnswer = messages.findLastIndex((message) => message.role === 'assistant');
  return Math.max(turn.firstMessage, lastAnswer + 1);
}

function collectResults(messages: readonly Message[]): ReadonlyMap<string, readonly JsonValue[]> {
  const contents = new Map<string, string>();
  for (const message of messages) {
    if (message.role === 'tool') contents.set(message.toolCallId, message.content);
  }
  const results = new Map<string, JsonValue[]>();
  for (const message of messages) {
    if (message.role !== 'assistant') continue;
    for (const call of message.toolCalls ?? []) {
      const content = contents.get(call.id);
      if (content === undefined) continue;
      const sameTool = results.get(call.name) ?? [];
      sameTool.push(parseJsonOrText(content));
      results.set(call.name, sameTool);
    }
  }
  return results;
}

/** Reads this turn's part of a prompt. Results are parsed on the first request for any of them. */
export function readConversation(request: ModelRequest): Conversation {
  const { messages } = request;
  let results: ReadonlyMap<string, readonly JsonValue[]> | undefined;
  return {
    news: () =>
      messages
        .slice(findNews(request))
        .map((message) => message.content)
        .join('\n'),
    results: (tool) => {
      results ??= collectResults(messages.slice(findFirstCalls(request)));
      return results.get(tool) ?? [];
    },
  };
}

/** About four characters are one token: good enough for budgets and the figures of demos, not for billing. */
const tokensOf = (characters: number): number => Math.ceil(characters / 4);

/** The estimated size of a prompt: its texts and its calls. */
export function estimatePromptTokens(messages: readonly Message[]): number {
  const characters = messages.map((message) => {
    if (message.role !== 'assistant') return message.content.length;
    return message.content.length + lengthOfCalls(message.toolCalls ?? []);
  });
  return tokensOf(characters.reduce((total, part) => total + part, 0));
}

/** The estimated size of an answer. */
export function estimateReplyTokens(text: string, calls: readonly ModelToolCall[]): number {
  return tokensOf(text.length + lengthOfCalls(calls));
}

function lengthOfCalls(calls: readonly { readonly name: string; readonly arguments: JsonValue }[]): number {
  return calls
    .map((call) => {
      const text = typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments);
      return call.name.length + text.length;
    })
    .reduce((total, part) => total + part, 0);
}
