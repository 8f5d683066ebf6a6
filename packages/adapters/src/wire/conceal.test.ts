import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Concealer } from './conceal.js';

const concealer = () =>
  new Concealer({
    key: { variable: 'WRITER_KEY', value: 'k-1234' },
    model: 'gpt-5',
    addresses: ['http://10.0.0.9:8000/v1', undefined],
  });

test('errors show neither the key, nor an address, nor the model', () => {
  const text =
    'k-1234 is wrong for gpt-5 (GPT-5) at http://10.0.0.9:8000/v1/responses, host 10.0.0.9:8000, 10.0.0.9';
  expect(concealer().error(text)).toBe(
    '[secret: WRITER_KEY] is wrong for [model] ([model]) at [address]/responses, host [address], [address]',
  );
});

test('a model’s name as a part of other words is not concealed', () => {
  expect(new Concealer({ model: 'm' }).error('model m is missing')).toBe('model [model] is missing');
  expect(concealer().error('gpt-50 and xgpt-5')).toBe('gpt-50 and xgpt-5');
});

test('results show neither the key nor an address, in texts and in names of members', () => {
  const value = {
    'k-1234': ['at http://10.0.0.9:8000', { deep: 'k-1234k-1234' }],
    n: 1,
    gpt: 'gpt-5 is a model',
  };
  expect(concealer().value(value)).toEqual({
    '[secret: WRITER_KEY]': ['at [address]', { deep: '[secret: WRITER_KEY][secret: WRITER_KEY]' }],
    n: 1,
    gpt: 'gpt-5 is a model',
  });
});

test('an address that becomes known later is concealed from then on', () => {
  const one = concealer();
  one.addAddress('https://inner.example:9443/rpc');
  expect(one.error('see https://inner.example:9443/rpc or inner.example')).toBe('see [address] or [address]');
});

test('a text that arrives in parts is concealed like the whole text', () => {
  const words = fc.constantFrom(
    'k-1234',
    'k-',
    '1234',
    'http://10.0.0.9:8000',
    'http://10.0.0.9:8000/v1',
    'ht',
    ' a ',
    'k',
  );
  fc.assert(
    fc.property(fc.array(words, { maxLength: 12 }), fc.array(fc.nat(60), { maxLength: 6 }), (parts, cuts) => {
      const text = parts.join('');
      const places = [
        0,
        ...cuts.map((cut) => Math.min(cut, text.length)).toSorted((a, b) => a - b),
        text.length,
      ];
      const open = concealer().openText();
      const pieces = places.slice(1).map((end, index) => open.push(text.slice(places[index], end)));
      const joined = [...pieces, open.end()].join('');
      expect(joined).toBe(concealer().text(text));
      expect(joined).not.toContain('k-1234');
      expect(joined).not.toContain('10.0.0.9');
    }),
  );
});

test('text that cannot begin a secret is shown at once', () => {
  const open = concealer().openText();
  expect([open.push('Hello k-12'), open.push('x'), open.push(' k-1234'), open.end()]).toEqual([
    'Hello ',
    'k-12x',
    ' [secret: WRITER_KEY]',
    '',
  ]);
});

test('an error does not show the path of an address, which may be a secret', () => {
  const concealer = new Concealer({
    addresses: ['https://hooks.example/team/S3CRET/v1', 'https://agents.example/card.json?key=abc'],
  });
  expect(concealer.error('Route POST:/team/S3CRET/v1/responses not found')).toBe(
    'Route POST:[address]/responses not found',
  );
  expect(concealer.error('GET /card.json?key=abc: 404, GET /card.json: 404')).toBe(
    'GET [address]: 404, GET [address]: 404',
  );
  expect(new Concealer({ addresses: ['https://agents.example/'] }).error('GET /: 404')).toBe('GET /: 404');
  expect(new Concealer({ addresses: ['https://agents.example/v1'] }).error('/v1beta')).toBe('/v1beta');
});
