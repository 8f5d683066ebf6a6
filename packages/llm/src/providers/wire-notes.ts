/**
 * Notes about changes that an adapter makes to a prompt on the way to its provider. The code that makes a change notes it here each time.
 */
import type { WireNote } from '@boxcar/kernel';

/** Messages of a prompt by their index, counted from 1. */
const numbers = (indexes: readonly number[]): readonly number[] => indexes.map((index) => index + 1);

export const placeholderNote = (tool: string, text: string): WireNote => ({
  kind: 'placeholder_tool',
  message: `the tool ${tool} is declared, and no tool may be called: the history used it, and this step does not offer it`,
  tool,
  text,
});

export const fillerNote = (text: string, at: readonly number[], why: string): WireNote => ({
  kind: 'filler',
  message: `${JSON.stringify(text)} ${why}`,
  messages: numbers(at),
  text,
});

export const joinedNote = (indexes: readonly number[]): WireNote => ({
  kind: 'joined',
  message: 'sent as one message',
  messages: numbers(indexes),
});

export const cacheNote = (indexes: readonly number[]): WireNote => ({
  kind: 'cache_mark',
  message: 'may be cached up to here',
  messages: numbers(indexes),
});

export const callIdNote = (indexes: readonly number[]): WireNote => ({
  kind: 'call_id',
  message: 'ids of calls as the provider gave or takes them',
  messages: numbers(indexes),
});

export const nameNote = (tool: string, wireName: string): WireNote => ({
  kind: 'tool_name',
  message: `the tool ${tool} is called ${wireName}`,
  tool,
  text: wireName,
});

export const leftOutNote = (indexes: readonly number[]): WireNote => ({
  kind: 'left_out',
  message: 'content attached by a provider is not sent, or not completely',
  messages: numbers(indexes),
});

export const untoldNotes = (tool: string, findings: readonly string[]): readonly WireNote[] =>
  findings.map((message) => ({ kind: 'untold', message: `the tool ${tool}: ${message}`, tool }));
