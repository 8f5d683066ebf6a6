import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { JsonValue } from '../base/index.js';
import { maskArguments, REDACTED } from './mask-arguments.js';

test.each([
  'password',
  'Password',
  'db_password',
  'passwordHint',
  'client.secret.id',
  'token',
  'apiToken',
  'api_token2',
  'access-key',
  'APIKey',
  'HTTPCookie',
  'x-auth',
  'authorization',
  'weather api',
  'user session',
  'signature',
  'bearer',
  'credentials',
  'credential_file',
])('the value under the key %j is masked, whatever it is', (key) => {
  for (const value of ['x', 5, true, null, ['a'], { deep: 'x' }])
    expect(maskArguments({ a: { [key]: value } })).toEqual({ a: { [key]: REDACTED } });
});

test.each([
  'key_points',
  'authors',
  'monkey',
  'tokens',
  'keyboard',
  'apiary',
  'session_notes',
  'cookies',
  'secretary',
  'session_key',
])('the value under the key %j is shown', (key) => {
  expect(maskArguments({ [key]: 'x' })).toEqual({ [key]: 'x' });
});

test('a long text without spaces is masked, but uuids, prose and the facts of the decision are shown', () => {
  const long = `sk-${'aB3_'.repeat(10)}`;
  const uuid = '01890a5d-ac96-774b-bcce-b302099a8057';
  expect(maskArguments([long, long.slice(0, 31), uuid, `${long} as words`])).toEqual([
    REDACTED,
    long.slice(0, 31),
    uuid,
    `${long} as words`,
  ]);
  const shown = { target_agent: long, platform: long, task: long, session_key: long };
  expect(maskArguments(shown)).toEqual(shown);
  // The decision is only about a text; an object in this field may contain anything.
  expect(maskArguments({ task: { password: 'x' } })).toEqual({ task: { password: REDACTED } });
});

test('a key named __proto__ is an ordinary key', () => {
  const value = JSON.parse('{"__proto__": {"password": "x"}, "b": 1}') as JsonValue;
  expect(JSON.stringify(maskArguments(value))).toBe(`{"__proto__":{"password":"${REDACTED}"},"b":1}`);
});

test('masking keeps the shape, does not change its input, and changes nothing the second time', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (given) => {
      const value = given as JsonValue;
      const before = JSON.stringify(value);
      const once = maskArguments(value);
      expect(JSON.stringify(value)).toBe(before);
      expect(maskArguments(once)).toEqual(once);
    }),
  );
});
