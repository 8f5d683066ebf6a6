import type { JsonValue } from '@boxcar/kernel';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { fillText, fillValue, parseTemplates, type TemplateScope } from './template.js';

const surveys: readonly JsonValue[] = [
  {
    files: 2,
    lines: 120,
    tags: ['a', 'b'],
    longest: [
      { name: 'f', lines: 40 },
      { name: 'g', lines: 9 },
    ],
  },
  { files: 3, lines: 80, tags: ['b'], longest: [{ name: 'h', lines: 40 }] },
  { files: 1, lines: 300, tags: [], longest: [{ name: 'i', lines: 77 }] },
];

const scope: TemplateScope = {
  instruction: { path: 'src', 'a/b': 1, 'c~d': 2, deep: { list: [10, 20, 30] } },
  results: (tool) => {
    if (tool === 'survey') return surveys;
    if (tool === 'a/b') return ['slash'];
    if (tool === 'read') return ['plain text'];
    if (tool === 'mixed') return [{ values: [3, 'x'], words: ['b', 'a'], numbers: [10, 9], nothing: [] }];
    return [];
  },
  item: { value: { path: 'lib', files: [1, 2] }, index: 4 },
  refuse: (why) => {
    throw new Error(why);
  },
};

const fill = (text: string): JsonValue => fillValue(text, scope);

describe('pointers', () => {
  it.each<[string, JsonValue]>([
    ['{{instruction/path}}', 'src'],
    ['{{ instruction/path }}', 'src'],
    ['{{instruction/a~1b}}', 1],
    ['{{instruction/c~0d}}', 2],
    ['{{instruction/deep/list/1}}', 20],
    ['{{instruction/deep}}', { list: [10, 20, 30] }],
    ['{{item}}', { path: 'lib', files: [1, 2] }],
    ['{{item/files/0}}', 1],
    ['{{index}}', 4],
    ['{{results/survey/lines}}', 300],
    ['{{results/a~1b}}', 'slash'],
    ['{{results/read}}', 'plain text'],
  ])('%s names one value', (text, value) => {
    expect(fill(text)).toEqual(value);
  });

  it('results/<tool> is the last call, and results/<tool>/* are all calls in order', () => {
    expect(fill('{{results/survey}}')).toEqual(surveys[2]);
    expect(fill('{{results/survey/*}}')).toEqual(surveys);
    expect(fill('{{results/survey/*/lines}}')).toEqual([120, 80, 300]);
    expect(fill('{{results/never_called/*/lines}}')).toEqual([]);
  });

  it('several * give one flat list, over lists and the values of objects', () => {
    expect(fill('{{results/survey/*/longest/*/name}}')).toEqual(['f', 'g', 'h', 'i']);
    expect(fill('{{results/survey/*/tags/*}}')).toEqual(['a', 'b', 'b']);
    expect(fill('{{results/survey/*/tags}}')).toEqual([['a', 'b'], ['b'], []]);
    expect(fill('{{instruction/deep/*}}')).toEqual([[10, 20, 30]]);
    expect(fill('{{instruction/deep/*/*}}')).toEqual([10, 20, 30]);
  });

  it('an instruction that is JSON text can be read by path, and stays text without a path', () => {
    const text: TemplateScope = { ...scope, instruction: '{"folder":"src"}' };
    expect(fillValue('{{instruction/folder}}', text)).toBe('src');
    expect(fillValue('{{instruction}}', text)).toBe('{"folder":"src"}');
  });

  it.each<[string, string]>([
    ['{{instruction/nope}}', 'instruction/nope is missing; there are path, a/b, c~d, deep'],
    ['{{instruction/path/x}}', 'instruction/path/x is missing; a string has no members'],
    ['{{instruction/deep/list/3}}', 'instruction/deep/list/3 is missing; the list has 3 elements'],
    ['{{instruction/deep/list/-1}}', 'instruction/deep/list/-1 is missing'],
    ['{{instruction/deep/list/length}}', 'instruction/deep/list/length is missing'],
    ['{{instruction/path/*}}', 'instruction/path/*: a string has no elements'],
    ['{{instruction/toString}}', 'instruction/toString is missing'],
    ['{{results/never_called}}', 'results/never_called is missing; this turn has no result of that tool'],
    [
      '{{results/survey/*/longest/*/nope}}',
      'results/survey/0/longest/0/nope is missing; there are name, lines',
    ],
  ])('%s is refused, and the error names the missing part', (text, why) => {
    expect(() => fill(text)).toThrow(`${text}: ${why}`);
  });

  it('a template is refused in a turn without an instruction, and for an item outside a list', () => {
    expect(() => fillValue('{{instruction}}', { ...scope, instruction: null })).toThrow('this turn has none');
    expect(() => fillValue('{{item}}', { ...scope, item: undefined })).toThrow('only the calls of a forEach');
  });
});

describe('helpers', () => {
  it.each<[string, JsonValue]>([
    ['{{count:results/survey/*}}', 3],
    ['{{count:instruction}}', 4],
    ['{{count:results/never_called/*}}', 0],
    ['{{sum:results/survey/*/lines}}', 500],
    ['{{sum:results/never_called/*}}', 0],
    ['{{max:results/survey/*/lines}}', 300],
    ['{{min:results/survey/*/lines}}', 80],
    ['{{first:results/survey/*/files}}', 2],
    ['{{last:results/survey/*/files}}', 1],
    ['{{take(2):results/survey/*/lines}}', [120, 80]],
    ['{{take(0):results/survey/*/lines}}', []],
    ['{{take(9):results/survey/*/lines}}', [120, 80, 300]],
    ['{{unique:results/survey/*/tags/*}}', ['a', 'b']],
    ['{{unique:results/survey/*/longest/*/lines}}', [40, 9, 77]],
    ['{{sort:results/mixed/numbers}}', [9, 10]],
    ['{{sort:results/mixed/words}}', ['a', 'b']],
    ['{{sort:results/mixed/nothing}}', []],
    ['{{sort(-):results/survey/*/lines}}', [300, 120, 80]],
    ['{{get(*/files):sort(lines):results/survey/*}}', [3, 2, 1]],
    ['{{get(*/name):sort(-lines):results/survey/*/longest/*}}', ['i', 'f', 'h', 'g']],
    ['{{get(name):first:sort(-lines):results/survey/*/longest/*}}', 'i'],
    ['{{join:results/survey/*/lines}}', '120, 80, 300'],
    ['{{join:unique:results/survey/*/tags/*}}', 'a, b'],
    ['{{json:instruction/deep}}', '{"list":[10,20,30]}'],
    ['{{json:results/read}}', '"plain text"'],
  ])('%s', (text, value) => {
    expect(fill(text)).toEqual(value);
  });

  it('after(text) takes the rest of the line after the first occurrence', () => {
    const asked: TemplateScope = { ...scope, instruction: 'Survey this.\nFolder: src/a \r\nFolder: src/b' };
    expect(fillValue('{{after(Folder: ):instruction}}', asked)).toBe('src/a');
    expect(() => fillValue('{{after(Path: ):instruction}}', asked)).toThrow("'Path: ' is not in the text");
  });

  it.each<[string, string]>([
    ['{{sum:results/mixed/values}}', 'sum needs numbers, element 1 is a string'],
    ['{{sum:instruction}}', 'sum needs a list, got an object'],
    ['{{max:results/mixed/nothing}}', 'max needs at least one element'],
    ['{{min:results/mixed/nothing}}', 'min needs at least one element'],
    ['{{first:results/never_called/*}}', 'first needs at least one element'],
    ['{{last:results/never_called/*}}', 'last needs at least one element'],
    ['{{sort:results/mixed/values}}', 'sort needs numbers only or strings only'],
    ['{{sort:results/survey/*}}', 'sort needs numbers only or strings only'],
    ['{{sort(nope):results/survey/*}}', 'sort element 0/nope is missing'],
    ['{{get(nope):instruction}}', 'get nope is missing'],
    ['{{count:results/read}}', 'count needs a list, got a string'],
    ['{{join:instruction/path}}', 'join needs a list, got a string'],
    ['{{after(x):instruction}}', 'after needs text, got an object'],
  ])('%s is refused', (text, why) => {
    expect(() => fill(text)).toThrow(`${text}: ${why}`);
  });
});

describe('filling in a template', () => {
  it('keeps strings within longer text unchanged, and writes other values as JSON', () => {
    expect(fill('{{instruction/path}}: {{count:results/survey/*}} of {{instruction/deep}}')).toBe(
      'src: 3 of {"list":[10,20,30]}',
    );
    expect(fillText('{{results/survey/lines}}', scope)).toBe('300');
  });

  it('fills in every string of a value, and no keys', () => {
    expect(fillValue({ '{{index}}': ['{{index}}', { at: 'n{{index}}' }], n: 1, none: null }, scope)).toEqual({
      '{{index}}': [4, { at: 'n4' }],
      n: 1,
      none: null,
    });
  });

  it('returns any JSON value unchanged for an exact template, and never reads filled-in text as a template', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.string(), (value, text) => {
        const plain: JsonValue = JSON.parse(JSON.stringify(value));
        const given: TemplateScope = { ...scope, instruction: { value: plain, text: `{{item}}${text}` } };
        expect(fillValue('{{instruction/value}}', given)).toEqual(plain);
        expect(fillValue('<{{instruction/text}}>', given)).toBe(`<{{item}}${text}>`);
      }),
    );
  });

  it('never throws while parsing, for any text', () => {
    fc.assert(
      fc.property(
        fc.string({
          unit: fc.constantFrom('{', '}', 'results/', 'a', ':', '(', ')', '-', '*', '/', 'sort', 'item'),
        }),
        (text) => {
          for (const parsed of parseTemplates(text)) expect(['parsed', 'refused']).toContain(parsed.outcome);
        },
      ),
    );
  });
});
