import { type AddressInfo, connect, createServer } from 'node:net';
import { testDatabase } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { createPool, transactAtOnce, transaction } from './db.js';

/** `ReadyForQuery` of an idle session, which ends what the server says at the start of one. */
const READY = Buffer.from('5a0000000549', 'hex');

/** A proxy that cuts the first session off as soon as it is ready, and hands both on in one piece. */
async function cutOnceReady(targetUrl: string) {
  const target = new URL(targetUrl);
  let isFirst = true;
  const server = createServer((inner) => {
    const outer = connect({ host: target.hostname, port: Number(target.port) });
    const held: Buffer[] = [];
    let isHeld = isFirst;
    isFirst = false;
    outer.on('data', (chunk) => {
      if (!isHeld) return void inner.write(chunk);
      held.push(chunk);
      const said = Buffer.concat(held);
      const readyAt = said.indexOf(READY);
      if (readyAt === -1) {
        held.length = 0;
        inner.write(said);
      } else {
        isHeld = false;
        inner.end(
          Buffer.concat([said, fatal('57P01', 'terminating connection due to administrator command')]),
        );
        outer.destroy();
      }
    });
    inner.on('data', (chunk) => outer.write(chunk));
    for (const [one, other] of [
      [inner, outer],
      [outer, inner],
    ] as const)
      one.on('error', () => other.destroy()).on('close', () => other.end());
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  const url = new URL(targetUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  return { url: url.href, [Symbol.asyncDispose]: async () => void server.close() };
}

/** An `ErrorResponse` as the server sends it before it closes the connection. */
function fatal(code: string, message: string): Buffer {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C${code}\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write('E');
  head.writeInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}

test('a connection that is lost in the moment it opens fails a statement, not the process', async () => {
  await using database = await testDatabase({ empty: true });
  await using proxy = await cutOnceReady(database.url);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  try {
    const rows = await transaction(pool, (tx) => tx.query({ text: 'select 1 as one' }));
    expect(rows.rows).toEqual([{ one: 1 }]);
  } finally {
    await pool.end();
  }
});

test('what is sent at once and breaks before all of it was sent leaves nothing', async () => {
  await using database = await testDatabase();
  const { pool } = database;
  await pool.query('create table public.sent (n int)');
  const insert = (n: number) => ({ text: 'insert into public.sent values ($1)', values: [n] });
  const build = async (isWhole: boolean): Promise<void> => {
    if (!isWhole) throw new RangeError('too large to be written');
  };
  const send = (isWhole: boolean) =>
    transactAtOnce(pool, async (tx) => {
      await Promise.all([tx.query(insert(1)), build(isWhole).then(() => tx.query(insert(2)))]);
    });
  await expect(send(false)).rejects.toThrow('too large to be written');
  expect((await pool.query('select n from public.sent')).rows).toEqual([]);
  // As is what the server refuses, whatever follows it.
  const refused = transactAtOnce(pool, (tx) =>
    Promise.all([tx.query(insert(1)), tx.query({ text: 'select 1 / 0' }), tx.query(insert(2))]),
  );
  await expect(refused).rejects.toThrow('division by zero');
  expect((await pool.query('select n from public.sent')).rows).toEqual([]);
  await send(true);
  expect((await pool.query('select n from public.sent order by n')).rows).toEqual([{ n: 1 }, { n: 2 }]);
});
