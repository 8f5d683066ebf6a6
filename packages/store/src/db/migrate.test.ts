import { copyFileSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, tcpProxy, testDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type MigrateOptions, migrate } from './migrate.js';
import { loadMigrations } from './migrations.js';
import { checkSchemaVersion } from './schema-version.js';

let migrationsDir: string;
let database: TestDatabase;

beforeEach(async () => {
  migrationsDir = mkdtempSync(join(tmpdir(), 'boxcar-migrations-'));
  database = await testDatabase({ empty: true });
});

afterEach(async () => {
  rmSync(migrationsDir, { recursive: true, force: true });
  await database.close();
});

function file(name: string, sql: string): void {
  writeFileSync(join(migrationsDir, name), sql);
}

const run = (options: Pick<MigrateOptions, 'lockDeadlineMs' | 'giveWayMs' | 'log'> = {}) =>
  migrate(database.url, { migrationsDir, ...options });

async function versions(): Promise<unknown[]> {
  const { rows } = await database.pool.query(
    'select version, name, min_compatible from boxcar.schema_version order by version',
  );
  return rows;
}

describe('the encoding check', () => {
  const create = async (encoding: string): Promise<{ name: string; url: string }> => {
    const name = `encoding_${encoding.toLowerCase()}_${process.pid}`;
    await database.pool.query(
      `create database ${name} encoding '${encoding}' lc_collate 'C' lc_ctype 'C' template template0`,
    );
    const url = new URL(database.url);
    url.pathname = `/${name}`;
    return { name, url: url.href };
  };

  const schemasOf = async (url: string): Promise<unknown> => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    try {
      return (await client.query("select to_regnamespace('boxcar') as schema")).rows[0];
    } finally {
      await client.end();
    }
  };

  it.each(['SQL_ASCII', 'LATIN1'])(
    'refuses a database in %s before anything is created in it',
    async (encoding) => {
      const other = await create(encoding);
      try {
        const failure = migrate(other.url, { migrationsDir });
        await expect(failure).rejects.toMatchObject({
          code: 'bad_config',
          details: { encoding, database: other.name },
        });
        await expect(failure).rejects.toThrow(/UTF8.*create database .* encoding 'UTF8' template template0/);
        expect(await schemasOf(other.url)).toEqual({ schema: null });
      } finally {
        await database.pool.query(`drop database ${other.name} with (force)`);
      }
    },
  );
});

describe('migrate', () => {
  it('applies the missing files in order, and nothing the second time', async () => {
    file('0001_first.sql', '-- min_compatible: 1\ncreate table boxcar.a (n int);');
    expect(await run()).toEqual({ from: 0, to: 1, applied: ['0001_first.sql'] });
    file('0002_second.sql', '-- min_compatible: 1\nalter table boxcar.a add m int;');
    file('0003_third.sql', 'alter table boxcar.a drop n;');
    expect(await run()).toEqual({ from: 1, to: 3, applied: ['0002_second.sql', '0003_third.sql'] });
    expect(await run()).toEqual({ from: 3, to: 3, applied: [] });
    expect(await versions()).toEqual([
      { version: 1, name: '0001_first.sql', min_compatible: 1 },
      { version: 2, name: '0002_second.sql', min_compatible: 1 },
      { version: 3, name: '0003_third.sql', min_compatible: 3 },
    ]);
  });

  it('leaves nothing of a failed file, and names the file and the line', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int);');
    file('0002_second.sql', 'create table boxcar.b (n int);\nselect wrong;\n');
    const failure = run();
    await expect(failure).rejects.toMatchObject({ code: 'migration_failed', details: { version: 2 } });
    await expect(failure).rejects.toThrow(/^0002_second\.sql:2: column "wrong" does not exist\. /);
    expect(await versions()).toHaveLength(1);
    expect((await database.pool.query(`select to_regclass('boxcar.b') as b`)).rows).toEqual([{ b: null }]);
    file('0002_second.sql', 'create table boxcar.b (n int);');
    expect(await run()).toEqual({ from: 1, to: 2, applied: ['0002_second.sql'] });
  });

  it('refuses a file that was edited after it was applied', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int);');
    await run();
    file('0001_first.sql', 'create table boxcar.a (n bigint);');
    await expect(run()).rejects.toMatchObject({ code: 'migration_failed', details: { version: 1 } });
    file('0001_first.sql', 'create table boxcar.a (n int);'.replaceAll('\n', '\r\n'));
    expect(await run()).toMatchObject({ applied: [] });
  });

  it('refuses gaps and duplicates in the numbers', async () => {
    file('0002_second.sql', 'select 1;');
    await expect(run()).rejects.toThrow('0002_second.sql should begin with 0001');
    file('0001_first.sql', 'select 1;');
    file('0001_again.sql', 'select 1;');
    await expect(run()).rejects.toMatchObject({ code: 'migration_failed' });
  });

  it('applies each file once when several processes migrate at once', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int); select pg_sleep(0.3);');
    file('0002_second.sql', 'create table boxcar.b (n int);');
    const results = await Promise.all([run(), run(), run(), run()]);
    expect(results.flatMap((result) => result.applied).sort()).toEqual(['0001_first.sql', '0002_second.sql']);
    expect(new Set(results.map((result) => result.to))).toEqual(new Set([2]));
  });

  it('holds no snapshot while it waits for another migration, and fails at its deadline', async () => {
    file('0001_first.sql', 'select 1;');
    const holder = new pg.Client({ connectionString: database.url });
    await holder.connect();
    await holder.query('select pg_advisory_lock(7205129001)');
    const lines: string[] = [];
    const waiting = run({ lockDeadlineMs: 500, log: (line) => lines.push(line) });
    const seen = (async () => {
      for (;;) {
        const { rows } = await holder.query<{ state: string; backend_xmin: string | null }>(
          `select state, backend_xmin from pg_stat_activity where application_name = 'boxcar migrate' and datname = current_database()`,
        );
        if (rows[0]?.state === 'idle') return rows[0];
      }
    })();
    await expect(waiting).rejects.toMatchObject({ code: 'migration_failed' });
    expect(await seen).toEqual({ state: 'idle', backend_xmin: null });
    expect(lines).toEqual(['another process is migrating this database; waiting for it']);
    await holder.end();
    expect(await run()).toMatchObject({ applied: ['0001_first.sql'] });
  });

  it('loses its lock when its process stops between two files, and another process continues', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int);');
    file('0002_second.sql', 'create table boxcar.b (n int);');
    const standStill = (line: string): void => {
      // Blocks the whole process, as if it were stopped.
      if (line.startsWith('applied 0001'))
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_500);
    };
    await expect(
      migrate(database.url, { migrationsDir, idleSessionMs: 300, log: standStill }),
    ).rejects.toMatchObject({ code: 'database_unavailable' });
    expect(await run({ lockDeadlineMs: 0 })).toMatchObject({ applied: ['0002_second.sql'] });
  });

  it('fails when the server does not answer, but waits for a server that works on a file', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int); select pg_sleep(1.2);');
    expect(await migrate(database.url, { migrationsDir, queryMs: 600 })).toMatchObject({ to: 1 });
    await using proxy = await tcpProxy(database.url);
    const said: string[] = [];
    file('0002_second.sql', 'create table boxcar.b (n int);');
    file('0003_third.sql', 'create table boxcar.c (n int);');
    const stall = (line: string): void => {
      said.push(line);
      proxy.stall();
    };
    const failure = migrate(proxy.url, { migrationsDir, queryMs: 600, log: stall });
    await expect(failure).rejects.toMatchObject({ code: 'database_unavailable' });
    expect(said).toHaveLength(1);
  });

  it.each([Number.NaN, -1, 2 ** 40])(
    'refuses %d ms as the time to wait for other migrations',
    async (lockDeadlineMs) => {
      file('0001_first.sql', 'select 1;');
      await expect(run({ lockDeadlineMs })).rejects.toMatchObject({
        code: 'bad_request',
        details: { field: 'lockDeadlineMs' },
      });
    },
  );

  const connect = async (): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString: database.url });
    await client.connect();
    return client;
  };
  /** The time at which the migration's statement that waits for a lock began; undefined when it does not wait for a lock. */
  const waitsSince = async (): Promise<string | undefined> =>
    (
      await database.pool.query<{ since: string }>(
        "select query_start::text as since from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and application_name = 'boxcar migrate'",
      )
    ).rows[0]?.since;

  it.each([
    ['a reader', 'alter table boxcar.a add m int;', 'select * from boxcar.a', 'select * from boxcar.a'],
    [
      'a writer',
      'create trigger a_t before insert on boxcar.a for each row execute function suppress_redundant_updates_trigger(); drop trigger a_t on boxcar.a;',
      'insert into boxcar.a values (1)',
      'insert into boxcar.a values (2)',
    ],
  ])(
    'gives way to %s with a long transaction, so that other sessions wait only briefly for the table',
    async (_who, sql, long, short) => {
      file('0001_first.sql', 'create table boxcar.a (n int);');
      await run();
      file('0002_second.sql', sql);
      const [first, other] = [await connect(), await connect()];
      await first.query('begin');
      await first.query(long);
      // Much longer than the migration waits, and much shorter than the long transaction.
      await other.query("set lock_timeout = '1500ms'");
      const lines: string[] = [];
      const migrating = run({ log: (line) => lines.push(line) });
      const tries = new Set<string>();
      while (tries.size < 4) {
        const since = await waitsSince();
        if (since === undefined) continue;
        tries.add(since);
        await other.query(short);
      }
      const said = expect.stringMatching(/^0002_second\.sql: gives way to other transactions, \d+ s$/);
      await vi.waitFor(() => expect(lines).toContainEqual(said), 30_000);
      await first.query('commit');
      expect(await migrating).toMatchObject({ applied: ['0002_second.sql'] });
      await Promise.all([first.end(), other.end()]);
    },
  );

  it('gives the reason when a transaction does not end in time', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int);');
    await run();
    file('0002_second.sql', 'alter table boxcar.a add m int;');
    const reader = await connect();
    await reader.query('begin; select * from boxcar.a');
    const failure = run({ giveWayMs: 300 });
    await expect(failure).rejects.toMatchObject({ code: 'migration_failed', details: { version: 2 } });
    await expect(failure).rejects.toThrow(
      /lock timeout\. Other transactions held the locks that it needs the whole time/,
    );
    await reader.end();
    expect(await run()).toMatchObject({ applied: ['0002_second.sql'] });
  });

  it('continues when the server has ended the transaction because of a deadlock', async () => {
    file('0001_first.sql', 'create table boxcar.a (n int); create table boxcar.b (n int);');
    await run();
    // Only the migration checks for deadlocks, late enough that the deadlock exists by then.
    file(
      '0002_second.sql',
      "set local lock_timeout = '1min'; set local deadlock_timeout = '2s'; alter table boxcar.a add m int; alter table boxcar.b add m int;",
    );
    const other = await connect();
    await other.query("set deadlock_timeout = '1min'; set lock_timeout = '1min'");
    await other.query('begin; insert into boxcar.b values (1)');
    const migrating = run();
    migrating.catch(() => undefined);
    // At this point the migration holds the first table.
    await vi.waitFor(async () => expect(await waitsSince()).toBeDefined(), { timeout: 10_000, interval: 1 });
    await other.query('insert into boxcar.a values (1)');
    await other.query('commit');
    expect(await migrating).toMatchObject({ applied: ['0002_second.sql'] });
    await other.end();
  });

  it('waits for another migration as long as that migration runs, and reports the wait', async () => {
    file('0001_first.sql', 'select 1;');
    const holder = await connect();
    await holder.query('select pg_advisory_lock(7205129001)');
    const lines: string[] = [];
    const waiting = run({ log: (line) => lines.push(line) });
    await vi.waitFor(() => expect(lines.length).toBeGreaterThan(1), { timeout: 30_000 });
    expect(lines[1]).toMatch(
      /^still waiting .*, \d+ s \(server process \d+: select pg_advisory_lock\(7205129001\)\)$/,
    );
    await holder.end();
    expect(await waiting).toMatchObject({ applied: ['0001_first.sql'] });
  });

  it('does not carry settings of one file into the next', async () => {
    file('0001_first.sql', 'set search_path = boxcar; create table a (n int);');
    file('0002_second.sql', `do $$ begin assert current_setting('search_path') not like 'boxcar%'; end $$;`);
    expect(await run()).toMatchObject({ to: 2 });
  });

  it('says what to do when it may not connect', async () => {
    file('0001_first.sql', 'select 1;');
    const wrong = new URL(database.url);
    wrong.port = '1';
    await expect(migrate(wrong.href, { migrationsDir })).rejects.toMatchObject({
      code: 'database_unavailable',
    });
    wrong.port = new URL(database.url).port;
    wrong.password = 'wrong';
    await expect(migrate(wrong.href, { migrationsDir })).rejects.toMatchObject({
      code: 'database_auth_failed',
    });
  });
});

describe('a file without a transaction', () => {
  const FIRST = 'create table boxcar.a (n int); insert into boxcar.a select generate_series(1, 100);';
  const INDEX = `-- transaction: none
-- min_compatible: 1
-- what reads by n; and why
create index concurrently if not exists a_n on boxcar.a
  (n);
`;
  const isValid = async (): Promise<unknown> =>
    (
      await database.pool.query(
        `select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid where c.relname = 'a_n'`,
      )
    ).rows;

  it('builds an index while a writer of the table has its transaction open', async () => {
    file('0001_first.sql', FIRST);
    await run();
    file('0002_index.sql', INDEX);
    const reader = await database.pool.connect();
    await reader.query('begin; insert into boxcar.a values (101)');
    const lines: string[] = [];
    const migrating = run({ log: (line) => lines.push(line) });
    await vi.waitFor(async () => {
      const { rows } = await database.pool.query(
        `select from pg_stat_progress_create_index where phase like 'waiting for writers%' and datname = current_database()`,
      );
      expect(rows).toHaveLength(1);
    });
    // Other sessions read and write at the same time.
    await database.pool.query('insert into boxcar.a values (102)');
    await reader.query('commit');
    reader.release();
    expect(await migrating).toMatchObject({ applied: ['0002_index.sql'] });
    expect(lines[0]).toMatch(/^0002_index\.sql: step 1 of 1 \(\d+ ms\)$/);
    expect(await isValid()).toEqual([{ indisvalid: true }]);
    expect(await versions()).toContainEqual({ version: 2, name: '0002_index.sql', min_compatible: 1 });
  });

  it('builds an index again when an earlier build was stopped', async () => {
    file('0001_first.sql', FIRST);
    await run();
    file('0002_index.sql', INDEX);
    const writer = await database.pool.connect();
    await writer.query('begin; insert into boxcar.a values (101)');
    const migrating = run();
    const stopped = expect(migrating).rejects.toMatchObject({ code: 'database_unavailable' });
    await vi.waitFor(async () => {
      const { rows } = await database.pool.query(
        `select pg_terminate_backend(p.pid) from pg_stat_progress_create_index p where p.phase like 'waiting for writers%' and p.datname = current_database()`,
      );
      expect(rows).toHaveLength(1);
    });
    await stopped;
    await writer.query('commit');
    writer.release();
    expect(await isValid()).toEqual([{ indisvalid: false }]);
    expect(await versions()).toHaveLength(1);
    expect(await run()).toMatchObject({ applied: ['0002_index.sql'] });
    expect(await isValid()).toEqual([{ indisvalid: true }]);
  });

  it('continues at the statement that failed, and repeats earlier statements without harm', async () => {
    file('0001_first.sql', `${FIRST} alter table boxcar.a add constraint small check (n < 50) not valid;`);
    await run();
    file('0002_index.sql', `${INDEX}alter table boxcar.a validate constraint small;`);
    const failure = run();
    await expect(failure).rejects.toMatchObject({ code: 'migration_failed', details: { version: 2 } });
    await expect(failure).rejects.toThrow(/^0002_index\.sql: check constraint "small"/);
    await database.pool.query('delete from boxcar.a where n >= 50');
    expect(await run()).toMatchObject({ applied: ['0002_index.sql'] });
  });

  it.each(['update boxcar.a set n = 1;', 'create index concurrently a_n on boxcar.a (n);'])(
    'may have only repeatable statements, so this statement is refused: %s',
    async (sql) => {
      file('0001_first.sql', FIRST);
      file('0002_index.sql', `-- transaction: none\n${sql}`);
      await expect(run()).rejects.toMatchObject({ code: 'migration_failed' });
      expect(await database.pool.query(`select to_regclass('boxcar.a') as a`)).toMatchObject({
        rows: [{ a: null }],
      });
    },
  );
});

describe('checkSchemaVersion', () => {
  const check = (min: number, max: number) => checkSchemaVersion(database.pool, { supported: { min, max } });

  it('reports an empty database as outdated', async () => {
    await expect(check(1, 1)).rejects.toMatchObject({ code: 'schema_outdated', details: { version: 0 } });
    await expect(check(1, 1)).rejects.toThrow('boxcar migrate');
  });

  it('accepts versions that the program supports, and names versions that it does not support', async () => {
    file('0001_first.sql', 'select 1;');
    file('0002_expand.sql', '-- min_compatible: 1\nselect 1;');
    await run();
    expect(await check(2, 2)).toBe(2);
    await expect(check(3, 3)).rejects.toMatchObject({ code: 'schema_outdated' });
    // An older program continues to work on an expanded schema …
    expect(await check(1, 1)).toBe(2);
    file('0003_contract.sql', '-- min_compatible: 2\nselect 1;');
    file('0004_expand.sql', '-- min_compatible: 1\nselect 1;');
    await run();
    // … until the schema is contracted; a later file cannot undo that.
    expect(await check(2, 2)).toBe(4);
    await expect(check(1, 1)).rejects.toMatchObject({ code: 'schema_too_new' });
  });

  it('lets an older program work on a newer database while the database is compatible', async () => {
    file('0001_first.sql', 'select 1;');
    file('0002_expand.sql', '-- min_compatible: 1\nselect 1;');
    await run();
    rmSync(join(migrationsDir, '0002_expand.sql'));
    expect(await run()).toEqual({ from: 2, to: 2, applied: [] });
    file('0002_expand.sql', '-- min_compatible: 1\nselect 1;');
    file('0003_contract.sql', 'select 1;');
    await run();
    for (const name of ['0002_expand.sql', '0003_contract.sql']) rmSync(join(migrationsDir, name));
    await expect(run()).rejects.toMatchObject({ code: 'schema_too_new' });
  });
});

describe('the shipped migrations', () => {
  it('since 17 build indexes on large tables outside transactions', async () => {
    const blocking = (await loadMigrations()).filter(
      ({ version, steps, sql }) =>
        version > 16 &&
        steps === undefined &&
        /create (?:unique )?index(?: if not exists)?(?: \w+)? on (?:only )?boxcar\.(?:cards|tape_entries|boxes|turns)\b/i.test(
          sql,
        ),
    );
    expect(blocking.map(({ name }) => name)).toEqual([]);
  });

  it('are found and numbered, and bring an empty database to the version that this program supports', async () => {
    const shipped = await loadMigrations();
    expect(shipped.map((migration) => migration.name)).toEqual(
      readdirSync(new URL('../../../../migrations/', import.meta.url))
        .filter((name) => /^\d{4}_/.test(name))
        .sort(),
    );
    await migrate(database.url);
    expect(await checkSchemaVersion(database.pool)).toBe(shipped.length);
  });

  it('count the turns of runs that began before turns were counted', async () => {
    const shipped = new URL('../../../../migrations/', import.meta.url);
    const names = readdirSync(shipped).filter((name) => /^\d{4}_/.test(name));
    for (const name of names.filter((known) => known < '0010'))
      copyFileSync(new URL(name, shipped), join(migrationsDir, name));
    await run();
    await database.pool.query(`set session_replication_role = replica;
      insert into boxcar.runs (id, project_id, root_turn_id) select gen_random_uuid(), gen_random_uuid(), gen_random_uuid() from generate_series(1, 3);
      with r as (select id, row_number() over (order by id) as n from boxcar.runs),
      made as (update boxcar.runs set traceparent = r.n::text from r where r.id = runs.id returning runs.id, r.n)
      insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, ended_at, deliverable_card_id)
      select gen_random_uuid(), gen_random_uuid(), made.id, gen_random_uuid(), gen_random_uuid(), 0, 'x', case when is_open then 'suspended' else 'success' end, 1, 5,
        gen_random_uuid(), gen_random_uuid(), case when not is_open then now() end, case when not is_open then gen_random_uuid() end
      from made cross join lateral (select i, made.n < 3 and i = 1 as is_open from generate_series(1, case made.n when 1 then 1 else 7 end) i) part;
      set session_replication_role = origin`);
    copyFileSync(new URL('0010_budgets.sql', shipped), join(migrationsDir, '0010_budgets.sql'));
    await run();
    const { rows } = await database.pool.query<{ turn_count: number }>(
      'select turn_count from boxcar.runs order by traceparent',
    );
    // Three runs: one turn, which is under way; seven turns, one of them under way; seven turns that have all ended. The turns of the
    // last run are not counted.
    expect(rows.map((row) => row.turn_count)).toEqual([1, 7, 1]);
  });
});
