import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { type StatementFault, statementProxy, tcpProxy, testDatabase, waitFor } from './index.js';

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, pipeline: true });
  client.on('error', () => undefined);
  await client.connect();
  return client;
}

const numbers = async (pool: pg.Pool): Promise<number[]> =>
  (await pool.query<{ n: number }>('select n from written order by n')).rows.map(({ n }) => n);

const insert = (client: pg.Client, n: number) =>
  client.query({ name: 'insert', text: 'insert into written values ($1)', values: [n] });

describe('statementProxy', () => {
  it('numbers simple, prepared and pipelined statements alike', async () => {
    await using database = await testDatabase({ empty: true });
    await using proxy = await statementProxy(database.url);
    const client = await connect(proxy.url);
    await client.query('create table written (n int)');
    await Promise.all([client.query('begin'), insert(client, 1), insert(client, 2), client.query('commit')]);
    expect(proxy.statements).toEqual([
      'create table written (n int)',
      'begin',
      'insert into written values ($1)',
      'insert into written values ($1)',
      'commit',
    ]);
    expect(proxy.struck).toBeUndefined();
    await client.end();
  });

  it.each([
    ['before', [1]],
    ['after', [1, 2]],
  ] as const)('cuts %s one of many statements that are sent together', async (when, left) => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url, { at: 2, when, scope: 'connection' });
    const client = await connect(proxy.url);
    const outcomes = await Promise.allSettled([1, 2, 3].map((n) => insert(client, n)));
    // An answer at the same moment may be lost as well. An answer to a statement that was cut never arrives.
    expect(outcomes.slice(1).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(proxy.struck).toBe('insert into written values ($1)');
    await waitFor(async () => (await numbers(database.pool)).length === left.length, {
      message: `${left.length} rows are written`,
    });
    expect(await numbers(database.pool)).toEqual(left);
    const next = await connect(proxy.url);
    await insert(next, 4);
    expect(await numbers(database.pool)).toEqual([...left, 4]);
    await next.end();
  });

  it('lets a transaction whose commit was executed be committed, and a transaction whose commit was not executed be gone', async () => {
    for (const when of ['before', 'after'] as const) {
      await using database = await testDatabase({ empty: true });
      await database.pool.query('create table written (n int)');
      const fault: StatementFault = { at: 3, when, scope: 'connection' };
      await using proxy = await statementProxy(database.url, fault);
      const client = await connect(proxy.url);
      await client.query('begin');
      await insert(client, 1);
      await expect(client.query('commit')).rejects.toThrow();
      await waitFor(
        async () =>
          (
            await database.pool.query(
              'select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()',
            )
          ).rowCount === 0,
        { message: 'the server has noticed' },
      );
      expect(await numbers(database.pool)).toEqual(when === 'after' ? [1] : []);
    }
  });

  it('keeps a process cut off after a cut', async () => {
    await using database = await testDatabase({ empty: true });
    await using proxy = await statementProxy(database.url, { at: 1, when: 'after', scope: 'process' });
    const [first, second] = [await connect(proxy.url), await connect(proxy.url)];
    await expect(first.query('select 1')).rejects.toThrow();
    await expect(second.query('select 1')).rejects.toThrow();
    await expect(connect(proxy.url)).rejects.toThrow();
  });

  it('strikes again when it is armed again, and reports the statements before each statement', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url, { at: 1, when: 'before', scope: 'process' });
    await expect(connect(proxy.url).then((client) => insert(client, 1))).rejects.toThrow();
    expect(proxy.isDead).toBe(true);
    proxy.arm();
    const kept = await connect(proxy.url);
    await insert(kept, 2);
    proxy.arm({ at: 2, when: 'before', scope: 'connection' });
    await insert(kept, 3);
    await expect(insert(kept, 4)).rejects.toThrow();
    expect(proxy.isDead || proxy.life.aborted).toBe(false);
    expect(proxy.places).toEqual([proxy.statements[0], proxy.statements[0]]);
    expect(await numbers(database.pool)).toEqual([2, 3]);
  });

  it('strikes a statement that follows another given statement', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url, {
      at: { text: 'commit', nth: 2, behind: 'select 1' },
      when: 'before',
      scope: 'process',
    });
    const client = await connect(proxy.url);
    const commit = async (n: number, last?: string): Promise<void> => {
      await client.query('begin');
      await insert(client, n);
      if (last !== undefined) await client.query(last);
      await client.query('commit');
    };
    await commit(1, 'select 1');
    await commit(2);
    await expect(commit(3, 'select 1')).rejects.toThrow();
    expect(proxy.life.aborted).toBe(true);
    expect(await numbers(database.pool)).toEqual([1, 2]);
  });

  const locks = async (pool: pg.Pool): Promise<number> =>
    (
      await pool.query(
        `select 1 from pg_locks where relation = 'written'::regclass and mode = 'RowExclusiveLock' and pid <> pg_backend_pid()
           and database = (select oid from pg_database where datname = current_database())`,
      )
    ).rowCount ?? 0;

  it.each(['before', 'after'] as const)(
    'falls silent %s a statement: the transaction keeps its locks until the process wakes, and is then committed',
    async (when) => {
      await using database = await testDatabase({ empty: true });
      await database.pool.query('create table written (n int)');
      await using proxy = await statementProxy(database.url, {
        at: { text: when === 'before' ? 'commit' : 'insert into written values ($1)', nth: 1 },
        when,
        scope: 'process',
        effect: 'silence',
      });
      const client = await connect(proxy.url);
      const other = await connect(proxy.url);
      const told: string[] = [];
      const work = Promise.all([client.query('begin'), insert(client, 1), client.query('commit')]);
      void work.then(() => told.push('first'));
      await waitFor(() => proxy.strike.aborted, { message: 'it is silent' });
      expect(proxy.life.aborted).toBe(true);
      const asked = other.query('select 1').then(() => told.push('other'));
      const late = connect(proxy.url);
      void late.then(() => told.push('late'));
      expect(await locks(database.pool)).toBe(1);
      expect(told).toEqual([]);
      proxy.wake();
      await Promise.all([work, asked]);
      await (await late).end();
      expect(await numbers(database.pool)).toEqual([1]);
      expect(proxy.statements.filter((text) => text === 'commit')).toHaveLength(1);
      await client.end();
      await other.end();
    },
  );

  it.each(['before', 'after'] as const)(
    'wakes a process that fell silent %s a statement at once, and nothing is lost',
    async (when) => {
      await using database = await testDatabase({ empty: true });
      await database.pool.query('create table written (n int)');
      const at = { text: 'insert into written values ($1)', nth: 1 };
      await using proxy = await statementProxy(database.url, {
        at,
        when,
        scope: 'process',
        effect: 'silence',
      });
      const told: string[] = [];
      proxy.strike.addEventListener('abort', () => {
        told.push(proxy.life.aborted ? 'stopped' : 'goes on');
        proxy.wake();
      });
      const client = await connect(proxy.url);
      await Promise.all([insert(client, 1), insert(client, 2)]);
      expect(told).toEqual(['stopped']);
      expect(await numbers(database.pool)).toEqual([1, 2]);
      await client.end();
    },
  );

  it('silences one connection, and the others of its process continue', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    const at = { text: 'insert into written values ($1)', nth: 1 };
    await using proxy = await statementProxy(database.url, {
      at,
      when: 'after',
      scope: 'connection',
      effect: 'silence',
    });
    const [silent, other] = [await connect(proxy.url), await connect(proxy.url)];
    const written = insert(silent, 1);
    await waitFor(() => proxy.strike.aborted, { message: 'it is silent' });
    await insert(other, 2);
    expect(proxy.life.aborted).toBe(false);
    expect(proxy.silentCount).toBe(1);
    expect(await numbers(database.pool)).toEqual([1, 2]);
    proxy.wake();
    await written;
    await silent.end();
    await other.end();
  });

  it('gives the client its last messages and the end after the wake-up, when a server ends a silent session', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url, {
      at: { text: 'insert into written values ($1)', nth: 1 },
      when: 'after',
      scope: 'process',
      effect: 'silence',
    });
    const client = await connect(proxy.url);
    await client.query("set idle_in_transaction_session_timeout = '100ms'");
    const work = Promise.allSettled([client.query('begin'), insert(client, 1), client.query('commit')]);
    await waitFor(() => proxy.strike.aborted, { message: 'it is silent' });
    await waitFor(async () => (await locks(database.pool)) === 0, { message: 'the server has ended it' });
    proxy.wake();
    const [begun, , committed] = await work;
    expect(begun.status).toBe('fulfilled');
    expect(committed).toMatchObject({ status: 'rejected', reason: { code: '25P03' } });
    expect(await numbers(database.pool)).toEqual([]);
  });

  it('informs the server only after the wake-up, when a silent client gives up', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url, {
      at: { text: 'insert into written values ($1)', nth: 1 },
      when: 'after',
      scope: 'process',
      effect: 'silence',
    });
    const client = await connect(proxy.url);
    const work = Promise.allSettled([client.query('begin'), insert(client, 1)]);
    await waitFor(() => proxy.strike.aborted, { message: 'it is silent' });
    const ended = client.end();
    Reflect.get(client, 'connection').stream.destroy();
    await Promise.all([work, ended]);
    expect(await locks(database.pool)).toBe(1);
    proxy.wake();
    await waitFor(async () => (await locks(database.pool)) === 0, { message: 'the server knows' });
    expect(await numbers(database.pool)).toEqual([]);
  });

  it('reports which statements take effect together', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await statementProxy(database.url);
    const client = await connect(proxy.url);
    await insert(client, 1);
    await client.query('begin');
    await insert(client, 2);
    await client.query('commit');
    await insert(client, 3);
    expect(proxy.transactions).toEqual([0, 1, 1, 1, 0]);
  });
});

describe('tcpProxy', () => {
  it('passes half of a message and breaks, once for each connection', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await tcpProxy(database.url);
    const client = await connect(proxy.url);
    await insert(client, 1);
    proxy.breakInMessage();
    await expect(insert(client, 2)).rejects.toThrow();
    expect(proxy.brokenCount).toBe(1);
    const next = await connect(proxy.url);
    await insert(next, 3);
    expect(await numbers(database.pool)).toEqual([1, 3]);
    await next.end();
  });

  it('can silence one direction and not the other', async () => {
    await using database = await testDatabase({ empty: true });
    await database.pool.query('create table written (n int)');
    await using proxy = await tcpProxy(database.url);
    const client = await connect(proxy.url);
    proxy.stallAnswers();
    let isAnswered = false;
    const first = insert(client, 1).then(() => {
      isAnswered = true;
    });
    await waitFor(async () => (await numbers(database.pool)).length === 1, { message: 'it took effect' });
    expect(isAnswered).toBe(false);
    await proxy.restore();
    await first;
    proxy.stallQuestions();
    const second = insert(client, 2);
    expect(await numbers(database.pool)).toEqual([1]);
    await proxy.restore();
    await second;
    expect(await numbers(database.pool)).toEqual([1, 2]);
    await client.end();
  });

  it('stalls the connections with one name, old and new, and no others', async () => {
    await using database = await testDatabase({ empty: true });
    await using proxy = await tcpProxy(database.url);
    const open = async (name: string): Promise<pg.Client> => {
      const client = new pg.Client({ connectionString: proxy.url, application_name: name });
      await client.connect();
      return client;
    };
    const [meant, other] = [await open('meant'), await open('other')];
    proxy.stall((hello) => hello.includes('meant'));
    let answered = 0;
    const count = (): number => ++answered;
    const asked = meant.query('select 1').then(count);
    const late = open('meant').then((client) => client.end().then(count));
    await other.query('select 1');
    await (await open('other')).end();
    expect(answered).toBe(0);
    await proxy.restore();
    await Promise.all([asked, late]);
    await meant.end();
    await other.end();
  });

  it('holds all data back, in order', async () => {
    await using database = await testDatabase({ empty: true });
    await using proxy = await tcpProxy(database.url);
    const client = await connect(proxy.url);
    proxy.delay(30);
    const before = performance.now();
    const order: number[] = [];
    const first = client.query('select 1').then(() => order.push(1));
    const second = client.query('select 2').then(() => order.push(2));
    await Promise.all([first, second]);
    expect(order).toEqual([1, 2]);
    // The delay applies once in each direction. A timer may fire a little early.
    expect(performance.now() - before).toBeGreaterThan(50);
    await proxy.restore();
    await client.end();
  });
});
