import { testDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { expect, it } from 'vitest';
import { openCountingProxy } from './counting-proxy.js';

it('every statement counts once, however it is sent and however large it is', async () => {
  await using database = await testDatabase({ empty: true });
  await using proxy = await openCountingProxy(database.url);
  const client = new pg.Client({ connectionString: proxy.url });
  await client.connect();
  try {
    expect(proxy.statements).toBe(0);
    await client.query('begin');
    await client.query('select $1::int', [1]);
    const text = 'x'.repeat(1_000_000);
    for (let time = 0; time < 3; time += 1) {
      const { rows } = await client.query({ name: 'long', text: 'select length($1) as n', values: [text] });
      expect(rows).toEqual([{ n: text.length }]);
    }
    await client.query('commit');
    expect(proxy.statements).toBe(6);
  } finally {
    await client.end();
  }
});
