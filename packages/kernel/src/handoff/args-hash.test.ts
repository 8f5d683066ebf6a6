import { expect, test } from 'vitest';
import { argsHash } from './args-hash.js';

test('the hash of arguments is the hash of their canonical text', () => {
  expect(argsHash({})).toBe('44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a');
  const known = '94a786c3662bc7beeb598efa7d8cb58d7bea25d6c275ea9785a0230ff1f8c2ba';
  expect(argsHash({ a: [1, 2], b: 1 })).toBe(known);
  expect(argsHash({ b: 1.0, a: [1, 2] })).toBe(known);
  expect(argsHash({ a: [2, 1], b: 1 })).not.toBe(known);
  expect(argsHash({ a: '\u00e9' })).not.toBe(argsHash({ a: 'e\u0301' }));
});

test.each([[() => 1], [{ a: Number.NaN }], [new Date(0)]])(
  'a value that is not JSON has no hash: %j',
  (value) => {
    expect(() => argsHash(value)).toThrow(expect.objectContaining({ code: 'bad_request' }));
  },
);
