import { describe, expect, test } from 'vitest';
import { measureCode, parseCode } from './code.js';
import { findTodos } from './todos.js';

async function codeOf(text: string, path = 'a.ts') {
  const parsed = await parseCode(path, text);
  if (parsed === undefined) return undefined;
  const { exports, functions } = measureCode(parsed, text);
  return { exports, functions: functions.map(({ name, line, lines }) => `${name} ${line}+${lines}`) };
}

describe('the number of exports', () => {
  test.each([
    ['export {};', 0],
    ['export default 1;', 1],
    ['export default class {}', 1],
    ['export const a = 1, { b, c: [d, ...e], ...f } = x;', 5],
    ['export * from "x"; export * from "y"; export * as z from "z";', 3],
    ['export { a, b as c, type D, default } from "x";', 4],
    ['const a = 1; export { a, a as default };', 2],
    ['export interface A {} export const A = 1; export namespace A {}', 1],
    ['export function f(a: 1): void; export function f(a: 2): void; export function f() {}', 1],
    ['export declare const a: 1; export enum E {} export abstract class C {}', 3],
    ['import x = require("x"); export import y = x.y;', 1],
    ['class A {} export = A;', 1],
    ['namespace N { export const a = 1; }', 0],
    ['declare module "m" { export const a: 1; }', 0],
    ['const text = `\nexport const a = 1;\n`; // export const b = 2', 0],
    ['module.exports = { a: 1 };', 0],
  ])('of %j is %i', async (text, exports) => {
    expect((await codeOf(text))?.exports).toBe(exports);
  });
});

describe('functions', () => {
  test('have a body and a name; callbacks are not counted', async () => {
    const text = `
      export default () => 1;
      const a = (() => 1) satisfies unknown, b = async function () {}, c = call(() => 1);
      const o = { m() {}, get g() { return 1; }, p: () => 1, [computed]: () => 1, 'q r': function named() {}, 7: () => 1 };
      let later; later = () => 1; o.deep.er = function* () {}; o['x'] = () => 1;
      class K { #private() {} static s = () => 1; declare d: () => void; over(): void; over() {} accessor = 1 }
      const L = class { m() {} };
      abstract class M { abstract m(): void }
      declare function gone(): void;
      function outer() { class Inner { m() { function deepest() {} } } }
      const { d = () => 1 } = o;
    `;
    const found = await codeOf(text);
    expect(found?.functions.map((name) => name.split(' ').slice(0, -1).join(' '))).toEqual([
      'default',
      'a',
      'b',
      'm',
      'g',
      'p',
      'q r',
      '7',
      'later',
      'er',
      'x',
      'K.#private',
      'K.s',
      'K.over',
      'm',
      'outer',
      'Inner.m',
      'deepest',
    ]);
  });

  test('are as long as their lines, including the first and the last', async () => {
    expect((await codeOf('\uFEFFconst f = () =>\n  1;\n\r\nfunction g() {\r\n}'))?.functions).toEqual([
      'f 1+2',
      'g 4+2',
    ]);
    expect((await codeOf('// 😀😀\nfunction f() { "😀"; }\nfunction g() {\n}'))?.functions).toEqual([
      'f 2+1',
      'g 3+2',
    ]);
  });
});

test('code that cannot be parsed is reported as such; an empty file can be parsed', async () => {
  expect(await codeOf('export const = {')).toBeUndefined();
  expect(await codeOf('')).toEqual({ exports: 0, functions: [] });
  expect(await codeOf('export const a = <b>c</b>;', 'a.js')).toMatchObject({ exports: 1 });
  expect(await codeOf('export const a = <T,>(x: T) => <b>{x}</b>;', 'a.tsx')).toMatchObject({ exports: 1 });
  expect(await codeOf('export const a = <T>(x: unknown) => <T>x;', 'a.mts')).toMatchObject({ exports: 1 });
  expect(await codeOf('export declare const a: 1;', 'a.d.ts')).toMatchObject({ exports: 1 });
});

describe('a TODO', () => {
  test('in code begins a comment or a line of a comment', async () => {
    // `@@` is a placeholder for the marker, so that a survey of this repository does not find it here.
    const text = `
      // @@ one
      const text = '// @@ none'; // @@: two
      /* @@(three) */ /** @todo none */
      /**
       * @@: four @@
       * not @@
       - [ ] @@ five
       */
      /// @@ six
      // @@s none, todo none
      const s = \`
        // @@ none
      \`; /* @@ seven */ /* @@ same line */
    `.replaceAll('@@', 'TODO');
    expect(findTodos(text, await parseCode('a.ts', text)).map((todo) => todo.text)).toEqual([
      'TODO one',
      'TODO: two',
      'TODO(three)',
      'TODO: four TODO',
      'TODO five',
      'TODO six',
      'TODO seven',
    ]);
  });

  test('elsewhere begins a line or follows the beginning of a comment', () => {
    const text = [
      '# TODO one',
      'TODO two',
      '  * FIXME three',
      'x = 1  # TODO: four',
      'select 1 -- TODO five',
      '<!-- TODO six -->',
      'a TODO none',
      'https://TODO.example none',
      'TODO.md'.replace('TODO', 'TODO_none'),
      `# TODO ${'y'.repeat(200)}`,
    ].join('\n');
    const found = findTodos(text, undefined);
    expect(found.map((todo) => todo.line)).toEqual([1, 2, 3, 4, 5, 6, 10]);
    expect(found[5]?.text).toBe('TODO six');
    expect(found[6]?.text).toHaveLength(160);
  });
});
