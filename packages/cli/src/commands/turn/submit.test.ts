import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readArguments } from './submit.js';

let folder: string;
let file: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-cli-'));
  file = join(folder, 'args.json');
  writeFileSync(file, '{"a": 1, "b": {"c": [null]}}');
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('the arguments of a submission', () => {
  it('can be pairs: key=text, and key:=json', async () => {
    expect(
      await readArguments({ arg: ['a=x=y', 'b:={"c":[1,null]}', 'd=', 'e:=true', 'f=:='] }, undefined),
    ).toEqual({ a: 'x=y', b: { c: [1, null] }, d: '', e: true, f: ':=' });
    expect(await readArguments({}, undefined)).toEqual({});
  });

  it('can be one JSON object from the command line or a file, and pairs override its members', async () => {
    expect(await readArguments({ jsonArgs: '{"a":1,"b":2}', arg: ['b=x', 'c=y'] }, undefined)).toEqual({
      a: 1,
      b: 'x',
      c: 'y',
    });
    expect(await readArguments({ file, arg: ['a=2'] }, undefined)).toEqual({ a: '2', b: { c: [null] } });
  });

  it('cannot change the prototype of objects', async () => {
    const args = await readArguments({ arg: ['__proto__:={"x":1}'] }, undefined);
    expect(Object.getPrototypeOf(args)).toBe(Object.prototype);
    expect(Object.keys(args)).toEqual(['__proto__']);
  });

  it.each([
    [{ jsonArgs: '[]' }, undefined, /--json-args: must be a JSON object/],
    [{ jsonArgs: '{' }, undefined, /--json-args: is not valid JSON/],
    [{ arg: ['result'] }, undefined, /--arg 'result': must be key=text or key:=json/],
    [{ arg: ['=x'] }, undefined, /--arg '=x': must be/],
    [{ arg: [':=1'] }, undefined, /--arg ':=1': must be/],
    [{ arg: ['a:=nope'] }, undefined, /--arg a: is not valid JSON/],
    [{ file: '/nowhere.json' }, undefined, /--file \/nowhere\.json: ENOENT/],
    [{ jsonArgs: '{}' }, '-', /not by several of them/],
    [{ file: 'x', jsonArgs: '{}' }, undefined, /not by several of them/],
    [{}, 'x.json', /'x\.json': only -, for stdin,/],
  ])('%j %s is refused', async (flags, source, message) => {
    const read = readArguments(flags, source);
    await expect(read).rejects.toMatchObject({ code: 'bad_request' });
    await expect(read).rejects.toThrow(message);
  });
});
