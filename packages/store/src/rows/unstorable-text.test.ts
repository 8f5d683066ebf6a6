import { testDatabase } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { run, statement } from '../db/statement.js';

test('text that no column can store is an error of the caller, as plain text and in JSON', async () => {
  await using database = await testDatabase({ empty: true });
  const fromJson = statement(
    "select /* unstorable-text.json */ item->>'a' as a from json_array_elements($1::json) item",
  );
  for (const text of ['a\u0000b', 'a\ud800b', '\udc00'])
    await expect(run(database.pool, fromJson, [JSON.stringify([{ a: text }])])).rejects.toMatchObject({
      code: 'bad_request',
    });
  await expect(
    run(database.pool, statement('select /* unstorable-text.text */ $1::text'), ['a\u0000b']),
  ).rejects.toMatchObject({
    code: 'bad_request',
  });
  // Invalid JSON from the kernel is not an error of the caller.
  await expect(run(database.pool, fromJson, ['[{'])).rejects.toMatchObject({ code: '22P02' });
});
