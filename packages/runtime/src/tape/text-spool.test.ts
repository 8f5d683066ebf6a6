import { expect, test } from 'vitest';
import { TextSpool } from './text-spool.js';

async function read(spool: TextSpool): Promise<string[]> {
  const texts: string[] = [];
  for await (const text of spool.texts()) texts.push(text);
  return texts;
}

test('texts are returned in order at every read, whether they fit in memory or not', async () => {
  const texts = ['a', '', 'ä\u2028\n€', 'x'.repeat(200_000), 'end'];
  for (const [limit, isInFile] of [
    [1_000_000, false],
    [3, true],
    [0, true],
  ] as const) {
    await using spool = new TextSpool(limit);
    for (const text of texts) await spool.add(text);
    expect(spool.isInFile).toBe(isInFile);
    expect(await read(spool)).toEqual(texts);
    expect(await read(spool)).toEqual(texts);
  }
});
