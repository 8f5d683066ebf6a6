import { KernelError } from '@boxcar/kernel';
import type { CallToolResult } from '@modelcontextprotocol/client';
import { describe, expect, test } from 'vitest';
import { toResult } from './result.js';

const text = (words: string) => ({ type: 'text' as const, text: words });
const resultOf = (result: Partial<CallToolResult>) => toResult('s.t', { content: [], ...result });

test('texts are joined, and other parts become notes', () => {
  const data = Buffer.alloc(300).toString('base64');
  expect(
    resultOf({
      content: [
        text('one'),
        { type: 'image', data, mimeType: 'image/png' },
        { type: 'audio', data, mimeType: 'audio/wav' },
        { type: 'resource_link', uri: 'file:///a', name: 'a' },
        { type: 'resource', resource: { uri: 'file:///b', text: 'in b' } },
        { type: 'resource', resource: { uri: 'file:///c', blob: data } },
      ],
    }),
  ).toBe(
    [
      'one',
      '[image: image/png, 300 bytes, not shown]',
      '[audio: audio/wav, 300 bytes, not shown]',
      '[resource: file:///a (a)]',
      '[resource: file:///b]\nin b',
      '[resource: file:///c, 300 bytes, not shown]',
    ].join('\n\n'),
  );
});

describe('structured content', () => {
  const structuredContent = { n: 1 };

  test('is the result when the text repeats it, or when there is no text', () => {
    expect(resultOf({ content: [text('{ "n": 1 }')], structuredContent })).toEqual({ n: 1 });
    expect(resultOf({ structuredContent })).toEqual({ n: 1 });
  });

  test('is kept next to a text that differs', () => {
    expect(resultOf({ content: [text('one')], structuredContent })).toEqual({
      text: 'one',
      structured: { n: 1 },
    });
  });

  test('is left out when it is too large', () => {
    const large = { words: 'x'.repeat(300_000) };
    expect(resultOf({ content: [text('short')], structuredContent: large })).toEqual({
      text: 'short',
      note: 'structured content left out: 300012 characters',
    });
  });
});

test('an error of the server is a failure with its message, which is cut when it is long', () => {
  const failureOf = (result: Partial<CallToolResult>): KernelError => {
    try {
      resultOf({ ...result, isError: true });
    } catch (error) {
      if (error instanceof KernelError) return error;
    }
    throw new Error('it did not fail');
  };
  expect(failureOf({ content: [text('no such file')] })).toMatchObject({
    code: 'tool_failed',
    message: expect.stringContaining('no such file'),
  });
  expect(failureOf({})).toMatchObject({ message: expect.stringContaining('s.t failed without a reason') });
  expect(failureOf({ content: [text('x'.repeat(1_000_000))] }).message.length).toBeLessThan(5_000);
});
