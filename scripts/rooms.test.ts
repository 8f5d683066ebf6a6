import { describe, expect, it } from 'vitest';
import { checkPackage, type RoomRules } from './rooms.mjs';

const check = (texts: Readonly<Record<string, string>>, rules: RoomRules = {}): readonly string[] =>
  checkPackage(new Map(Object.entries(texts)), rules);

describe('an import circle', () => {
  it('is found although it is closed by a type', () => {
    const texts = { 'a.ts': "import { b } from './b.js';", 'b.ts': "import type { A } from './a.js';" };
    expect(check(texts)).toEqual(['import circle: a.ts b.ts']);
  });

  it('is found although it is closed by an export or by an import at run time', () => {
    const texts = {
      'a.ts': "export { b } from './b.js';",
      'b.ts': "export * from './c.js';",
      'c.ts': "await import('./a.js');",
    };
    expect(check(texts)).toEqual(['import circle: a.ts b.ts c.ts']);
  });

  it('is found although it is closed by a type that is named at its use', () => {
    for (const type of ["import('./a.js').A", "typeof import('./a.js')", "Set<import('./a.js').A>"])
      expect(check({ 'a.ts': "import './b.js';", 'b.ts': `let b: ${type};` })).toEqual([
        'import circle: a.ts b.ts',
      ]);
  });

  it('is accepted when it is listed, and a larger circle is not', () => {
    const texts = { 'a.ts': "import './b.js';", 'b.ts': "import './a.js';" };
    expect(check(texts, { circles: [['b.ts', 'a.ts']] })).toEqual([]);
    const larger = { ...texts, 'b.ts': "import './a.js';\nimport './c.js';", 'c.ts': "import './a.js';" };
    expect(check(larger, { circles: [['b.ts', 'a.ts']] })).toEqual(['import circle: a.ts b.ts c.ts']);
  });
});

describe('a room', () => {
  const texts = {
    'index.ts': "export { a } from './low/index.js';\nexport { c } from './high/c.js';",
    'low/index.ts': "export { a } from './a.js';",
    'low/a.ts': '',
    'high/c.ts': "import { a } from '../low/index.js';",
  };
  const rooms = { low: [], high: ['low'] };

  it('may import the rooms that it lists', () => expect(check(texts, { rooms })).toEqual([]));

  it('may import no room that it does not list, and no type of it', () => {
    const up = { ...texts, 'low/b.ts': "import type { C } from '../high/c.js';", 'high/c.ts': '' };
    expect(check(up, { rooms: { low: [], high: [] } })).toEqual([
      'low/b.ts imports high/c.ts: low may not import high',
    ]);
  });

  it('lists no room that it does not import', () => {
    expect(check({ ...texts, 'high/c.ts': '' }, { rooms })).toEqual(['rooms.json: high does not import low']);
  });

  it('is entered through its index', () => {
    const around = { ...texts, 'high/c.ts': "import { a } from '../low/a.js';" };
    expect(check(around, { rooms })).toEqual(['low: imports go around its door low/index.ts to low/a.ts']);
  });

  it('without an index is entered by one file', () => {
    const two = { ...texts, 'high/d.ts': '', 'index.ts': "import './high/c.js';\nimport './high/d.js';" };
    expect(check(two, { rooms })).toEqual(['high: imports go around its door high/c.ts to high/d.ts']);
  });

  it('imports no file outside the rooms', () => {
    const out = { ...texts, 'core.ts': '', 'low/a.ts': "import '../core.js';" };
    expect(check(out, { rooms })).toEqual(['low/a.ts imports core.ts: a room imports other rooms only']);
  });

  it('that is new must be listed', () => {
    expect(check({ ...texts, 'new/x.ts': '' }, { rooms })).toEqual([
      'new/x.ts: its room is not in rooms.json',
    ]);
  });

  it('may import an entry of another package only when that is listed', () => {
    const entries = { '@boxcar/store/report': ['high', ''] };
    const reports = "import { loadTree } from '@boxcar/store/report';";
    expect(check({ ...texts, 'open.ts': reports, 'high/e.ts': reports }, { rooms, entries })).toEqual([]);
    expect(check({ ...texts, 'low/e.ts': reports }, { rooms, entries })).toEqual([
      'low/e.ts may not import @boxcar/store/report',
    ]);
  });
});

it('a room with an entry of its own is not exported by the main entry', () => {
  const texts = {
    'index.ts': "export { loadTree } from './report/index.js';",
    'report.ts': "export { loadTree } from './report/index.js';",
    'report/index.ts': '',
  };
  const rules = { rooms: { report: [] }, apart: { 'index.ts': ['report'] } };
  expect(check(texts, rules)).toEqual(['index.ts may not import report, which has an entry of its own']);
});

it('a shipped file imports no file that is not shipped', () => {
  const texts = { 'a.ts': "import { world } from './testing/world.js';" };
  expect(check(texts)).toEqual(['a.ts imports testing/world.ts, which does not ship']);
});

it('a light entry may import files inside rooms', () => {
  const texts = {
    'base.ts': "export { a } from './low/a.js';",
    'low/index.ts': "export * from './a.js';",
    'low/a.ts': '',
  };
  const around = ['low: imports go around its door low/index.ts to low/a.ts'];
  expect(check(texts, { rooms: { low: [] } })).toEqual(around);
  expect(check(texts, { rooms: { low: [] }, light: ['base.ts'] })).toEqual([]);
});
