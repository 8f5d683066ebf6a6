/**
 * The delays that a migration causes for readers and writers of large tables. Rule: docs/reference/operations.md, "Two builds at once".
 */
import { cpSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { migrate } from './migrate.js';
import { loadMigrations } from './migrations.js';

/** The newest schema whose files are exempt from the rule. */
const BEFORE = 16;
const LARGE = ['cards', 'tape_entries', 'boxes', 'turns'];
const TAPES = 1_000;

let database: TestDatabase;

beforeEach(async () => {
  database = await testDatabase({ empty: true });
});
afterEach(() => database.close());

/** Brings the database to schema `BEFORE` and fills it. */
async function fill(entriesPerTape: number): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-migrations-'));
  try {
    const shipped = join(import.meta.dirname, '../../../../migrations');
    for (const name of readdirSync(shipped))
      if (/^\d{4}_/.test(name) && Number(name.slice(0, 4)) <= BEFORE)
        cpSync(join(shipped, name), join(folder, name));
    await migrate(database.url, { migrationsDir: folder });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  try {
    await client.query(`set session_replication_role = replica;
      insert into boxcar.boxes (id, project_id, kind, head_position, incarnation, last_anchor_position, view_position)
        select gen_random_uuid(), (select id from boxcar.projects limit 1), 'tape', ${entriesPerTape}, 1, 0, 0 from generate_series(1, ${TAPES});
      insert into boxcar.tape_entries (box_id, position, kind, payload, author_id)
        select b.id, n, 'event', '{"name":"noted"}', 'author' from boxcar.boxes b cross join generate_series(1, ${entriesPerTape}) n where b.kind = 'tape';
      insert into boxcar.cards (id, project_id, type, role, content, content_hash, metadata, author_id, token_estimate, size_bytes)
        select gen_random_uuid(), (select id from boxcar.projects limit 1), 'task.context', 'user', '{"kind":"text","text":"x"}', sha256('x'), '{}', 'author', 1, 1 from generate_series(1, 10000);
      insert into boxcar.runs (id, project_id, root_turn_id) select gen_random_uuid(), (select id from boxcar.projects limit 1), gen_random_uuid() from generate_series(1, 10000);
      insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, ended_at, deliverable_card_id)
        select gen_random_uuid(), r.project_id, r.id, gen_random_uuid(), gen_random_uuid(), 0, 'x', 'success', 1, 5, gen_random_uuid(), gen_random_uuid(), now(), gen_random_uuid() from boxcar.runs r;`);
    await client.query('analyze');
  } finally {
    await client.end();
  }
}

/** The statements of a file. Semicolons within quotes and function bodies do not end a statement. */
const splitSql = (sql: string): string[] =>
  (sql.match(/(?:\$\w*\$[\s\S]*?\$\w*\$|'(?:[^']|'')*'|--.*|[^;])+/g) ?? []).filter((text) =>
    /\S/.test(text.replace(/--.*/g, '')),
  );

test('a migration file that runs in a transaction scans no large table while it holds a lock on one', async () => {
  await fill(100);
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  const read = async (): Promise<Map<string, number>> => {
    const { rows } = await client.query<{ relname: string; n: string }>(
      `select c.relname, pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid) as n from pg_class c
       where c.relnamespace = 'boxcar'::regnamespace and c.relname = any ($1)`,
      [LARGE],
    );
    return new Map(rows.map(({ relname, n }) => [relname, Number(n)]));
  };
  const blocked = async (): Promise<string[]> =>
    (
      await client.query<{ relname: string }>(
        `select distinct c.relname from pg_locks l join pg_class c on c.oid = l.relation
         where l.database = (select oid from pg_database where datname = current_database()) and l.pid = pg_backend_pid() and c.relname = any ($1)
           and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`,
        [LARGE],
      )
    ).rows.map(({ relname }) => relname);
  const found: string[] = [];
  try {
    for (const { name, sql, steps, version } of await loadMigrations()) {
      if (version <= BEFORE) continue;
      if (steps !== undefined) {
        for (const step of steps) await client.query(step);
        continue;
      }
      await client.query('begin');
      for (const text of splitSql(sql)) {
        const before = await read();
        await client.query(text);
        const after = await read();
        const scanned = LARGE.filter(
          (table) => (after.get(table) ?? 0) - (before.get(table) ?? 0) >= TAPES / 2,
        );
        const kept = await blocked();
        if (scanned.length > 0 && kept.length > 0)
          found.push(
            `${name}: reads ${scanned.join(', ')} and locks ${kept.join(', ')}: ${text.trim().slice(0, 200)}`,
          );
      }
      await client.query('commit');
    }
  } finally {
    await client.end();
  }
  expect(found).toEqual([]);
});

test('no statement waits for an index build while a million entries are migrated under load', {
  timeout: 600_000,
}, async () => {
  await fill(1_000);
  const ids = (
    await database.pool.query<{ id: string }>("select id from boxcar.boxes where kind = 'tape' limit 50")
  ).rows.map(({ id }) => id);
  let isOver = false;
  const clients: pg.Client[] = [];
  const connect = async (): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString: database.url });
    await client.connect();
    clients.push(client);
    return client;
  };
  const waits: unknown[] = [];
  const builds = new Set<string>();
  let done = 0;
  let longestMs = 0;
  const work = async (statements: readonly ((id: string) => [string, unknown[]])[]): Promise<void> => {
    const client = await connect();
    for (let n = 0; !isOver; n += 1)
      for (const of of statements) {
        const startedAt = performance.now();
        await client.query(...of(ids[n % ids.length] ?? ''));
        longestMs = Math.max(longestMs, performance.now() - startedAt);
        done += 1;
      }
  };
  // A build that is found before and after a wait was running during the whole wait. Builds on small tables are part of files that lock
  // other tables.
  const look = async (): Promise<void> => {
    const client = await connect();
    const findBuilds = async (): Promise<Map<string, object>> => {
      const { rows } = await client.query<{ build: string; pid: number; phase: string; built_on: string }>(
        `select concat_ws(' ', p.pid, p.relid, p.index_relid) as build, p.pid, p.phase, c.relname as built_on
         from pg_stat_progress_create_index p join pg_class c on c.oid = p.relid where p.datname = current_database() and c.relname = any ($1)`,
        [LARGE],
      );
      for (const { build } of rows) builds.add(build);
      return new Map(rows.map((row) => [row.build, row]));
    };
    while (!isOver) {
      const before = await findBuilds();
      if (before.size === 0) continue;
      const { rows } = await client.query<{ waits: string; pid: number }>(
        `select a.query as waits, b.pid from pg_stat_activity a cross join lateral unnest(pg_blocking_pids(a.pid)) as b(pid)
         where a.datname = current_database() and a.wait_event_type = 'Lock'`,
      );
      const after = await findBuilds();
      for (const [build, found] of before)
        if (after.has(build))
          waits.push(
            ...rows.filter(({ pid }) => build.startsWith(`${pid} `)).map((row) => ({ ...row, ...found })),
          );
    }
  };
  const others = [
    work([
      (id) => ['select * from boxcar.tape_entries where box_id = $1 order by position desc limit 10', [id]],
      (id) => ['select * from boxcar.boxes where id = $1', [id]],
      () => ['select * from boxcar.turns limit 1', []],
      () => ['select * from boxcar.cards limit 1', []],
    ]),
    work([
      (id) => [
        `with head as (update boxcar.boxes set head_position = head_position + 1 where id = $1 returning id, head_position)
         insert into boxcar.tape_entries (box_id, position, kind, payload, author_id) select id, head_position, 'event', '{"name":"noted"}', 'author' from head`,
        [id],
      ],
      () => ['update boxcar.turns set losses = losses where id = (select id from boxcar.turns limit 1)', []],
      () => [
        `insert into boxcar.cards (id, project_id, type, role, content, content_hash, metadata, author_id, token_estimate, size_bytes)
         select gen_random_uuid(), (select id from boxcar.projects limit 1), 'task.context', 'user', '{"kind":"text","text":"x"}', sha256('x'), '{}', 'author', 1, 1`,
        [],
      ],
    ]),
    look(),
  ];
  const lines: string[] = [];
  try {
    await migrate(database.url, { log: (line) => lines.push(line) });
  } finally {
    isOver = true;
    await Promise.all(others);
    for (const client of clients) await client.end();
  }
  expect(waits).toEqual([]);
  expect(builds.size).toBeGreaterThan(0);
  expect(done).toBeGreaterThan(10);
  console.error(`longest statement of others: ${Math.round(longestMs)} ms; ${lines.join('; ')}`);
});
