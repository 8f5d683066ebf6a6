import fc from 'fast-check';
import { expect, it } from 'vitest';
import { shortIds } from './short-ids.js';

const A = '0198c1f2-7d3e-7000-8000-000000000001';
const B = '0198c1f2-7d3e-7000-8000-000000000012';

it('eight digits are enough for ids that differ in them', () => {
  const other = A.replace('0198c1f2', '0198c1f3');
  expect([...shortIds([A, other, A])]).toEqual([
    [A, '0198c1f2'],
    [other, '0198c1f3'],
  ]);
  expect(shortIds([]).size).toBe(0);
});

it('ids of one moment are cut after the digit that distinguishes them, and none ends with a dash', () => {
  expect([...shortIds([A, B]).values()]).toEqual([A.slice(0, -1), B.slice(0, -1)]);
  const next = A.replace('7d3e-7', '7d3e-8');
  expect([...shortIds([A, next]).values()]).toEqual(['0198c1f2-7d3e-7', '0198c1f2-7d3e-8']);
});

it('for any ids, each prefix belongs to one id', () => {
  fc.assert(
    fc.property(fc.array(fc.uuid({ version: 7 })), (ids) => {
      const short = shortIds(ids);
      expect(new Set(short.values()).size).toBe(new Set(ids).size);
      for (const [id, beginning] of short)
        expect([...new Set(ids)].filter((other) => other.startsWith(beginning))).toEqual([id]);
    }),
  );
});
