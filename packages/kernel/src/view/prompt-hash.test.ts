import { describe, expect, test } from 'vitest';
import { canonicalJson, type JsonValue, sha256 } from '../base/json.js';
import type { Message } from '../card/message.js';
import { PromptHasher } from './prompt-hash.js';

const tools = [{ name: 'n', description: 'd', parameters: { type: 'object' } }];
const whole = (messages: readonly Message[]): string =>
  sha256(canonicalJson({ messages, tools } as unknown as JsonValue));

const call = (id: string, args: JsonValue = {}): Message => ({
  role: 'assistant',
  content: 'I look.',
  toolCalls: [{ id, name: 'n', arguments: args }],
});
const result = (id: string, isError = false): Message => ({
  role: 'tool',
  toolCallId: id,
  name: 'n',
  content: 'seen',
  isError,
});
const attached = (message: Message, text: string): Message =>
  message.role === 'assistant'
    ? { ...message, provider: { v: 1, model: 'm', parts: [{ kind: 'reasoning', text }] } }
    : message;
const user = (content: string): Message => ({ role: 'user', content });

const said: readonly Message[] = [
  { role: 'system', content: 's' },
  user('go'),
  call('a'),
  result('a'),
  { role: 'assistant', content: 'done' },
];

describe('the hash of a prompt is that of the whole, whatever part was hashed earlier:', () => {
  test.each<[string, readonly Message[]]>([
    ['the same', said],
    ['the same and more', [...said, user('again')]],
    ['its beginning', said.slice(0, 3)],
    ['no part of it', [user('other')]],
    ['nothing', []],
    ['another text early on', said.map((message, at) => (at === 1 ? user('stop') : message))],
    [
      'attached data of a provider',
      said.map((message, at) => (at === 2 ? attached(message, 'one') : message)),
    ],
    ['other attached data', said.map((message, at) => (at === 2 ? attached(message, 'two') : message))],
    ['other arguments of a call', said.map((message, at) => (at === 2 ? call('a', { x: 1 }) : message))],
    ['another call', said.map((message, at) => (at === 2 ? call('b') : message))],
    ['a failure instead of a result', said.map((message, at) => (at === 3 ? result('a', true) : message))],
    [
      'the same words in another role',
      said.map((message, at) => (at === 1 ? { role: 'system', content: 'go' } : message)),
    ],
  ])('%s', (_name, next) => {
    for (const settled of [0, 2, said.length, 99]) {
      const hasher = new PromptHasher();
      expect(hasher.hash(said, tools, settled)).toBe(whole(said));
      expect(hasher.hash(next, tools, settled)).toBe(whole(next));
      expect(hasher.hash([...next, user('last')], tools)).toBe(whole([...next, user('last')]));
    }
  });

  test('a prompt of many chunks', () => {
    const hasher = new PromptHasher();
    const messages: Message[] = [];
    for (let at = 0; at < 10; at += 1) {
      messages.push(user('x'.repeat(50_000)));
      expect(hasher.hash(messages, tools)).toBe(whole(messages));
    }
  });
});
