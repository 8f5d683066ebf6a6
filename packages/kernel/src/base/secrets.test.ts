import { describe, expect, test } from 'vitest';
import { ModelError } from '../model/ports.js';
import { KernelError, toErrorBody } from './errors.js';
import { declareSecrets, maskSecrets, warnOfSecrets } from './secrets.js';

const VALUE = 'sk-"0123456789/abcdef';

describe('a text from which secrets are removed', () => {
  test.each([
    ['postgres://me:p%40ss@db:5432/x', 'postgres://me:[secret: url]@db:5432/x'],
    [
      'at redis://:hunter2@r:6379, and amqp://u:p@ss@h',
      'at redis://:[secret: url]@r:6379, and amqp://u:[secret: url]@h',
    ],
    ['["https://u:p@h","a@b"]', '["https://u:[secret: url]@h","a@b"]'],
    ['postgres://h/x?sslmode=no&password=abc#y', 'postgres://h/x?sslmode=no&password=[secret: url]#y'],
    ['http://host:8080/a@b and http://[::1]:80/', 'http://host:8080/a@b and http://[::1]:80/'],
    ['at postgres://u:ab"c<d`e>f@h/db', 'at postgres://u:[secret: url]@h/db'],
    ['at `postgres://u:"p"w@h`, see <b>x@y</b>', 'at `postgres://u:[secret: url]@h`, see <b>x@y</b>'],
    ['{"u":"postgres:\\/\\/u:pa\\"ss@h","m":"a@b"}', '{"u":"postgres:\\/\\/u:[secret: url]@h","m":"a@b"}'],
    ['{"u":"http://h:80","m":"a@b"}', '{"u":"http://h:80","m":"a@b"}'],
    ['{\\"u\\":\\"http://h:80\\",\\"m\\":\\"a@b\\"}', '{\\"u\\":\\"http://h:80\\",\\"m\\":\\"a@b\\"}'],
    ['<a href="http://h:80">a@b</a>', '<a href="http://h:80">a@b</a>'],
    ['"x://h/?password=a"b<c","y"', '"x://h/?password=[secret: url]","y"'],
    ['mailto:me@example.org 12:30@noon', 'mailto:me@example.org 12:30@noon'],
  ])('leaves out the password in: %s', (text, masked) => {
    expect(maskSecrets(text)).toBe(masked);
    expect(maskSecrets(masked)).toBe(masked);
  });

  test('shows the names of variables in place of their values, for values of 16 characters and more', () => {
    using _secrets = declareSecrets({
      MY_API_KEY: ` ${VALUE}\n`,
      A_TOKEN: 'x'.repeat(15),
      DB_PASSWORD: 'y'.repeat(16),
      LONGER_SECRET: `${'y'.repeat(16)}z`,
      KEY_FILE: 'a name that is not a secret',
      NONE_SECRET: undefined,
    });
    const text = `<${VALUE}> ${'x'.repeat(15)} ${'y'.repeat(17)} ${'y'.repeat(16)}z a name that is not a secret`;
    expect(maskSecrets(text)).toBe(
      `<[secret: MY_API_KEY]> ${'x'.repeat(15)} [secret: DB_PASSWORD]y [secret: LONGER_SECRET] a name that is not a secret`,
    );
    expect(maskSecrets(JSON.stringify({ a: VALUE }))).toBe('{"a":"[secret: MY_API_KEY]"}');
    expect(maskSecrets(`?k=${encodeURIComponent(VALUE)}`)).toBe('?k=[secret: MY_API_KEY]');
  });

  test('is replaced in lists and objects, whose other parts stay unchanged', () => {
    using _secrets = declareSecrets({ MY_API_KEY: VALUE });
    const [date, clean] = [new Date(0), { a: [1, null] }];
    expect(maskSecrets({ [VALUE]: [`x${VALUE}`], date, clean })).toEqual({
      '[secret: MY_API_KEY]': ['x[secret: MY_API_KEY]'],
      date,
      clean,
    });
    expect(maskSecrets(clean)).toBe(clean);
    expect(maskSecrets(JSON.parse(`{"__proto__":"${VALUE.replace('"', '\\"')}"}`))).toEqual(
      JSON.parse('{"__proto__":"[secret: MY_API_KEY]"}'),
    );
  });

  test('is replaced in errors, maps, sets, class instances and the JSON form of an object, at any depth', () => {
    using _secrets = declareSecrets({ MY_API_KEY: VALUE });
    const masked = '[secret: MY_API_KEY]';
    const cause = Object.assign(new RangeError(VALUE), { code: VALUE });
    const error: unknown = maskSecrets(new TypeError('fine', { cause }));
    expect(error).toBeInstanceOf(TypeError);
    expect(error).toMatchObject({ name: 'TypeError', message: 'fine' });
    const inner = (error as Error).cause;
    expect(inner).toBeInstanceOf(RangeError);
    expect(inner).toMatchObject({ message: masked, code: masked });
    expect((inner as Error).stack).not.toContain(VALUE);
    expect(maskSecrets(new Map([['a', [VALUE]]]))).toEqual(new Map([['a', [masked]]]));
    expect(maskSecrets(new Set([VALUE]))).toEqual(new Set([masked]));
    class Row {
      readonly #hidden = VALUE;
      readonly shown: string;
      constructor(shown: string) {
        this.shown = shown;
      }
      toString = (): string => this.#hidden;
    }
    expect(JSON.stringify(maskSecrets([new Row(VALUE)]))).toBe(JSON.stringify([{ shown: masked }]));
    const row = new Row('clean');
    expect(maskSecrets(row)).toBe(row);
    expect(maskSecrets({ url: new URL('redis://:p@h') })).toEqual({ url: 'redis://:[secret: url]@h' });

    let deep: unknown = VALUE;
    for (let level = 0; level < 300; level += 1) deep = [deep];
    expect(JSON.stringify(maskSecrets(deep))).toContain(masked);
    for (let level = 0; level < 300; level += 1) deep = [deep];
    expect(JSON.stringify(maskSecrets(deep))).not.toContain(VALUE);
    const circle: Record<string, unknown> = { VALUE };
    circle.self = circle;
    expect(JSON.stringify(maskSecrets(circle))).not.toContain(VALUE);
    const broken = {
      toJSON: () => {
        throw new Error(VALUE);
      },
    };
    expect(maskSecrets({ broken, text: VALUE })).toEqual({ broken: '[unreadable]', text: masked });
  });

  test('shows a value again after its declaration has ended', () => {
    declareSecrets({ MY_API_KEY: VALUE })[Symbol.dispose]();
    expect(maskSecrets(VALUE)).toBe(VALUE);
    expect(warnOfSecrets({ a: VALUE })).toBeUndefined();
  });
});

test('an error never holds a secret in its message, its details or its stack', () => {
  using _secrets = declareSecrets({ MY_API_KEY: VALUE });
  const options = { message: `no ${VALUE}`, details: { key: [VALUE], at: 'redis://:p@h' } };
  const errors = [
    new KernelError('bad_request', options),
    new ModelError('model_failed', options.message, options),
  ];
  for (const error of errors) {
    expect(error.message).toContain('no [secret: MY_API_KEY]');
    expect(error.details).toEqual({ key: ['[secret: MY_API_KEY]'], at: 'redis://:[secret: url]@h' });
    expect(error.stack).not.toContain(VALUE);
  }
  expect(toErrorBody(new Error(VALUE)).message).toBe('[secret: MY_API_KEY]');
});
