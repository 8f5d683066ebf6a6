import { describe, expect, test } from 'vitest';
import type { JsonValue } from '../base/json.js';
import type { Message, ToolSchema } from '../card/message.js';
import { checkMessages } from './check-messages.js';

const system: Message = { role: 'system', content: 'You count files.' };
const user = (content = 'go'): Message => ({ role: 'user', content });
const say = (content: string): Message => ({ role: 'assistant', content });
const call = (...ids: string[]): Message =>
  calls('', ...ids.map((id) => ({ id, name: 'list', arguments: {} })));
const calls = (
  content: string,
  ...toolCalls: { readonly id: string; readonly name: string; readonly arguments: JsonValue }[]
): Message => ({ role: 'assistant', content, toolCalls });
const answer = (toolCallId: string, content = 'ok', name = 'list', isError = false): Message => ({
  role: 'tool',
  toolCallId,
  name,
  content,
  isError,
});
const tool = (name: string, parameters: JsonValue = { type: 'object' }): ToolSchema => ({
  name,
  description: 'A tool.',
  parameters,
});

const good: Record<string, readonly Message[]> = {
  'a lone user message': [user()],
  'system, then user': [system, user()],
  'several user messages in a row': [system, user(), user()],
  'several assistant texts in a row': [user(), say('one'), say('two'), user()],
  'a call with its answer': [user(), call('a'), answer('a')],
  'two calls answered in the other order': [user(), call('a', 'b'), answer('b'), answer('a')],
  'text and calls': [
    user(),
    calls('I look.', { id: 'a', name: 'tape.info', arguments: {} }),
    answer('a', 'x', 'tape.info'),
  ],
  'a failed answer': [user(), call('a'), answer('a', 'no', 'list', true)],
  'a white-space answer': [user(), call('a'), answer('a', ' ')],
  'a step after a step': [user(), call('a'), answer('a'), call('b'), answer('b')],
  'text, reminder, call': [user(), say('done'), user('call submit'), call('a'), answer('a')],
  'an astral character': [user('\u{1F600}')],
};

const bad: Record<string, { readonly messages: readonly Message[]; readonly says: RegExp }> = {
  'no message': { messages: [], says: /no user message/ },
  'only a system message': { messages: [system], says: /no user message/ },
  'a system message in the middle': {
    messages: [user(), system, user()],
    says: /messages\[1\]: a system message/,
  },
  'two system messages': { messages: [system, system, user()], says: /messages\[1\]: a system message/ },
  'an assistant message first': {
    messages: [say('hi'), user()],
    says: /messages\[0\]: the first must be a user/,
  },
  'an assistant message after the system message': {
    messages: [system, say('hi'), user()],
    says: /messages\[1\]: the first must/,
  },
  'an assistant message last': { messages: [user(), say('hi')], says: /ends with an assistant/ },
  'an unanswered call last': { messages: [user(), call('a')], says: /ends before the answers to a/ },
  'an unanswered call': {
    messages: [user(), call('a'), user()],
    says: /messages\[2\]: is before the answers to a/,
  },
  'one of two calls unanswered': {
    messages: [user(), call('a', 'b'), answer('a'), user()],
    says: /before the answers to b/,
  },
  'a user message between call and answer': {
    messages: [user(), call('a'), user(), answer('a')],
    says: /messages\[3\]: answers 'a', which is not an open call/,
  },
  'a step between call and answer': {
    messages: [user(), call('a'), call('b'), answer('b'), answer('a')],
    says: /messages\[2\]: is before the answers to a/,
  },
  'an answer given twice': {
    messages: [user(), call('a'), answer('a'), answer('a')],
    says: /messages\[3\]: answers 'a'/,
  },
  'an answer without a call': { messages: [user(), answer('a')], says: /messages\[1\]: answers 'a'/ },
  'an answer as the first message': {
    messages: [answer('a'), user()],
    says: /messages\[0\]: the first must be a user/,
  },
  'an answer under another name': {
    messages: [user(), call('a'), answer('a', 'x', 'other')],
    says: /as other, called list/,
  },
  'a call id used twice in a message': {
    messages: [user(), call('a', 'a'), answer('a')],
    says: /'a' is used twice/,
  },
  'a call id used twice in a prompt': {
    messages: [user(), call('call_0'), answer('call_0'), call('call_0'), answer('call_0')],
    says: /messages\[3\]: call id 'call_0' is used twice/,
  },
  'an empty call id': { messages: [user(), call(''), answer('')], says: /call id '' is not legal/ },
  'a call id with a colon': {
    messages: [user(), call('a:b'), answer('a:b')],
    says: /call id 'a:b' is not legal/,
  },
  'a long call id': {
    messages: [user(), call('x'.repeat(65)), answer('x'.repeat(65))],
    says: /is not legal/,
  },
  'a tool name with a space': {
    messages: [user(), calls('', { id: 'a', name: 'my tool', arguments: {} }), answer('a', 'x', 'my tool')],
    says: /tool name 'my tool' is not legal/,
  },
  'an empty list of calls': { messages: [user(), calls('hi'), user()], says: /empty list of calls/ },
  'text as arguments': {
    messages: [user(), calls('', { id: 'a', name: 'list', arguments: '{}' }), answer('a')],
    says: /arguments of 'a' are not an object/,
  },
  'a list as arguments': {
    messages: [user(), calls('', { id: 'a', name: 'list', arguments: [] }), answer('a')],
    says: /arguments of 'a' are not an object/,
  },
  'NUL in arguments': {
    messages: [user(), calls('', { id: 'a', name: 'list', arguments: { deep: ['\u0000'] } }), answer('a')],
    says: /arguments of 'a' hold NUL/,
  },
  'an empty user message': { messages: [user('')], says: /messages\[0\]: the text is blank/ },
  'a white-space user message': { messages: [user(' \n\t')], says: /the text is blank/ },
  'white space that only Python knows': { messages: [user('\u0085\u001c')], says: /the text is blank/ },
  'a blank system message': {
    messages: [{ role: 'system', content: ' ' }, user()],
    says: /messages\[0\]: the text is blank/,
  },
  'a blank assistant message': {
    messages: [user(), say(''), user()],
    says: /messages\[1\]: the text is blank/,
  },
  'white space and calls': {
    messages: [user(), calls(' ', { id: 'a', name: 'list', arguments: {} }), answer('a')],
    says: /blank text beside calls/,
  },
  'an empty answer': { messages: [user(), call('a'), answer('a', '')], says: /the result is empty/ },
  'NUL in text': { messages: [user('a\u0000b')], says: /NUL or a lone surrogate/ },
  'a lone surrogate in an answer': {
    messages: [user(), call('a'), answer('a', '\ud800')],
    says: /lone surrogate/,
  },
};

const badTools: Record<string, { readonly tools: readonly ToolSchema[]; readonly says: RegExp }> = {
  'an illegal name': { tools: [tool('my tool')], says: /tools\[0\]: name 'my tool' is not legal/ },
  'a name of 65 characters': { tools: [tool('x'.repeat(65))], says: /is not legal/ },
  'a name used twice': { tools: [tool('list'), tool('list')], says: /tools\[1\]: name 'list' is used twice/ },
  'a schema that is not for an object': {
    tools: [tool('list', { type: 'string' })],
    says: /not a JSON schema of an object/,
  },
  'NUL in the schema': {
    tools: [tool('list', { type: 'object', title: '\u0000' })],
    says: /tools\[0\]: holds NUL/,
  },
};

describe('checkMessages', () => {
  test.each(Object.entries(good))('accepts %s', (_name, messages) => {
    expect(checkMessages(messages, [tool('list'), tool('tape.info')])).toEqual([]);
  });

  test.each(Object.entries(bad))('refuses %s', (_name, { messages, says }) => {
    expect(checkMessages(messages, []).join('\n')).toMatch(says);
  });

  test.each(Object.entries(badTools))('refuses a tool with %s', (_name, { tools, says }) => {
    expect(checkMessages([user()], tools).join('\n')).toMatch(says);
  });
});
