import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseAddress } from './address.js';

test.each([
  ['handoff://sessions', { kind: 'sessions', cursor: undefined }],
  ['handoff://sessions?cursor=a%3Ab', { kind: 'sessions', cursor: 'a:b' }],
  ['handoff://context/a%2Fb%3F%20ü', { kind: 'context', sessionKey: 'a/b? ü', cursor: undefined }],
  ['handoff://context/k?cursor=7', { kind: 'context', sessionKey: 'k', cursor: '7' }],
  ['handoff://summary/k', { kind: 'summary', sessionKey: 'k' }],
  ['handoff://agents/ada/sessions', { kind: 'agent_sessions', agent: 'ada', cursor: undefined }],
  ['handoff://health', { kind: 'health' }],
  ['handoff://metrics', { kind: 'metrics' }],
  ['boxcar://runs/1', { kind: 'run', runId: '1', cursor: undefined }],
  ['boxcar://turns/1/context?cursor=2', { kind: 'turn_context', turnId: '1', cursor: '2' }],
  [
    'tape://w/telegram:1/anchor/session/start?head=4&cursor=9',
    { kind: 'tape', ref: 'tape://w/telegram:1/anchor/session/start?head=4', cursor: '9' },
  ],
])('the address %s is read', (uri, address) => {
  expect(parseAddress(uri)).toEqual(address);
});

test.each([
  'handoff://',
  'handoff://nothing',
  'handoff://sessions/x',
  'handoff://sessions?page=2',
  'handoff://sessions?cursor=1&cursor=2',
  'handoff://context/',
  'handoff://context/a/b',
  'handoff://context/%E0%A4%A',
  'handoff://context/%00',
  'handoff://summary/k?cursor=1',
  'handoff://health?cursor=1',
  'handoff://agents/ada',
  'boxcar://runs',
  'boxcar://turns/1',
  'file:///etc/passwd',
  `handoff://context/${'x'.repeat(20_000)}`,
])('the address %s names no resource', (uri) => {
  expect(parseAddress(uri)).toBeUndefined();
});

test('every session key can be read back from its address', () => {
  fc.assert(
    fc.property(fc.string({ minLength: 1, maxLength: 50, unit: 'grapheme' }), (key) => {
      fc.pre(!key.includes('\u0000'));
      const uri = `handoff://context/${encodeURIComponent(key)}?cursor=3`;
      expect(parseAddress(uri)).toEqual({ kind: 'context', sessionKey: key, cursor: '3' });
    }),
  );
});
