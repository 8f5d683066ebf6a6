import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import type { CardId, ProjectId } from '../base/ids.js';
import { buildCard, type CardContent, estimateTokens, parseCardInput } from './card.js';

const ids = {
  id: '00000000-0000-7000-8000-000000000001' as CardId,
  projectId: '00000000-0000-7000-8000-000000000002' as ProjectId,
};
const build = (content: CardContent, maxBytes?: number) =>
  buildCard({ type: 'task.input', content, authorId: 'me' }, ids, maxBytes);
const errorOf = (work: () => unknown): KernelError => {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
};

describe('a card', () => {
  test('keeps the key order of its writer and is hashed over the canonical form', () => {
    const one = build({ kind: 'json', data: { b: 1, a: [2] } });
    const other = build({ kind: 'json', data: { a: [2], b: 1 } });
    expect(one.contentText).toBe('{"kind":"json","data":{"b":1,"a":[2]}}');
    expect(other.contentText).toBe('{"kind":"json","data":{"a":[2],"b":1}}');
    expect(one.contentHash).toBe(other.contentHash);
    const canonical = '{"data":{"a":[2],"b":1},"kind":"json"}';
    expect(one.contentHash).toBe(createHash('sha256').update(canonical).digest('hex'));
  });

  test('is measured in bytes of UTF-8', () => {
    const card = build({ kind: 'text', text: 'ä€' });
    expect(card.sizeBytes).toBe(Buffer.byteLength('{"kind":"text","text":"ä€"}'));
    expect(card.tokenEstimate).toBe(Math.ceil(card.sizeBytes / 4));
    expect([0, 1, 4, 5].map(estimateTokens)).toEqual([0, 1, 1, 2]);
  });

  test('is accepted at its size limit and refused above it', () => {
    const content = { kind: 'text', text: 'x' } as const;
    const size = build(content).sizeBytes;
    expect(build(content, size).sizeBytes).toBe(size);
    expect(errorOf(() => build(content, size - 1))).toMatchObject({
      code: 'payload_too_large',
      details: { sizeBytes: size, limitBytes: size - 1 },
    });
    expect(errorOf(() => build({ kind: 'text', text: 'x'.repeat(1024 * 1024) })).code).toBe(
      'payload_too_large',
    );
  });

  test('without a role has no role', () => {
    expect(build({ kind: 'text', text: 'x' })).toMatchObject({ role: null, metadata: {}, toolCallId: null });
  });
});

describe('a card from a caller', () => {
  const text = { kind: 'text', text: 'x' };

  test.each([
    { type: 'my.type', content: text },
    { type: 'task.input', role: 'system', content: text, metadata: { a: [1, null] } },
    { type: 't', content: { kind: 'json', data: null } },
    {
      type: 't',
      content: { kind: 'fields_schema', fields: [{ name: 'a', type: 'array', required: false }] },
    },
    { type: 't', content: { kind: 'file', uri: 'file:///a', checksum: 'sha256:1', size_bytes: 0 } },
    {
      type: 'tool.result',
      content: {
        kind: 'tool_result',
        tool_call_id: 'x',
        name: 'n',
        status: 'failed',
        error: { code: 'a', message: 'b' },
      },
    },
  ])('is accepted: %j', (input) => {
    expect(parseCardInput(input, 'cards.0')).toEqual(input);
  });

  test.each([
    [null, 'cards.0'],
    [{ content: text }, 'cards.0.type'],
    [{ type: ' ', content: text }, 'cards.0.type'],
    [{ type: 't' }, 'cards.0.content'],
    [{ type: 't', content: text, extra: 1 }, 'cards.0'],
    [{ type: 't', content: text, role: 'robot' }, 'cards.0.role'],
    [{ type: 't', content: text, metadata: [] }, 'cards.0.metadata'],
    [{ type: 't', content: { kind: 'other' } }, 'cards.0.content.kind'],
    [{ type: 't', content: { kind: 'text', text: 1 } }, 'cards.0.content.text'],
    [{ type: 't', content: { kind: 'text', text: 'x', more: 1 } }, 'cards.0.content'],
    [{ type: 't', content: { kind: 'text', text: 'a\u0000' } }, 'cards.0.content.text'],
    [{ type: 't', content: { kind: 'json', data: { a: '\udfff' } } }, 'cards.0.content.data.a'],
    [{ type: 't', content: { kind: 'json' } }, 'cards.0.content.data'],
    [
      { type: 't', content: { kind: 'fields_schema', fields: [{ name: 'a' }, { name: 'a' }] } },
      'cards.0.content.fields',
    ],
    [{ type: 't', content: { kind: 'file', uri: '', checksum: 'x' } }, 'cards.0.content.uri'],
  ])('is refused with the place of the fault: %j', (input, place) => {
    const error = errorOf(() => parseCardInput(input, 'cards.0'));
    expect(error.code).toBe('bad_request');
    expect(error.message.startsWith(`${place}:`)).toBe(true);
  });
});
