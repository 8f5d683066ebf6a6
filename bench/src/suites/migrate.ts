/** How long readers and writers of large tables wait during the migrations from an older schema. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { createPool, loadMigrations, migrate } from '@boxcar/store';
import type pg from 'pg';
import { timed } from '../measure.js';
import { openEmptyDatabase } from '../servers.js';
import type { Bench, Figures } from '../suite.js';

/** The newest schema before migrations built indexes concurrently. */
const BEFORE = 16;
const TAPES = 1_000;
const ENTRIES_PER_TAPE = 1_000;
/** One writer has transactions that stay open for this time, with pauses of the same length between them. */
const LONG_MS = 1_000;
const LONG_WRITE = `insert into boxcar.boxes (id, project_id, kind, head_position, incarnation, last_anchor_position, view_position)
  select gen_random_uuid(), p.id, 'tape', 0, 1, 0, 0 from boxcar.projects p limit 1`;

/** How long the same work runs without a migration. */
const FLOOR_MS = 3_000;

const FILL = `
  set session_replication_role = replica;
  insert into boxcar.boxes (id, project_id, kind, head_position, incarnation, last_anchor_position, view_position)
    select gen_random_uuid(), p.id, 'tape', 0, 1, 0, 0 from boxcar.projects p, generate_series(1, ${TAPES});
  insert into boxcar.cards (id, project_id, type, role, content, content_hash, metadata, author_id, token_estimate, size_bytes)
    select gen_random_uuid(), p.id, 'task.context', 'user', '{"kind":"text","text":"x"}', sha256('x'), '{}', 'author', 1, 1
    from boxcar.projects p, generate_series(1, 10 * ${TAPES});
  set session_replication_role = origin`;

const APPEND = `
  with head as (update boxcar.boxes set head_position = head_position + $2::int where id = $1 returning id, head_position)
  insert into boxcar.tape_entries (box_id, position, kind, payload, author_id)
  select h.id, h.head_position - $2::int + n, 'event', '{"name":"noted"}', 'author' from head h, generate_series(1, $2::int) n`;

type Work = (tapeId: string) => readonly [text: string, values: readonly unknown[]];

const READS: readonly Work[] = [
  (id) => ['select * from boxcar.tape_entries where box_id = $1 order by position desc limit 10', [id]],
  (id) => ['select * from boxcar.boxes where id = $1', [id]],
  () => ['select * from boxcar.cards limit 1', []],
];
const WRITES: readonly Work[] = [
  (id) => [APPEND, [id, 1]],
  () => [
    `insert into boxcar.cards (id, project_id, type, role, content, content_hash, metadata, author_id, token_estimate, size_bytes)
     select gen_random_uuid(), p.id, 'task.context', 'user', '{"kind":"text","text":"x"}', sha256('x'), '{}', 'author', 1, 1 from boxcar.projects p limit 1`,
    [],
  ],
];

/**
 * The longest statement of readers and writers in milliseconds, next to a writer with long transactions, while a million entries are
 * migrated. The floor is the same without a migration.
 */
export async function benchMigrate({ servers, options, say }: Bench): Promise<Figures> {
  const entriesPerTape = options.turns ?? ENTRIES_PER_TAPE;
  await using database = await openEmptyDatabase(servers, 'migrate');
  await migrateTo(database.url, BEFORE);
  const pool = createPool({ connectionString: database.url, max: 3 });
  try {
    await pool.query(FILL);
    const { rows } = await pool.query<{ id: string }>("select id from boxcar.boxes where kind = 'tape'");
    const ids = rows.map(({ id }) => id);
    for (const id of ids) await pool.query(APPEND, [id, entriesPerTape]);
    await pool.query('vacuum analyze');
    say(`migrate: ${ids.length * entriesPerTape} entries`);
    const floor = await longestWhile(pool, ids, () => delay(FLOOR_MS));
    const tookMs: number[] = [];
    const value = await longestWhile(pool, ids, async () => {
      tookMs.push(await timed(() => migrate(database.url)));
    });
    say(`migrate: ${Math.round(tookMs[0] ?? 0)} ms`);
    return { 'longest wait': { value, floor } };
  } finally {
    await pool.end();
  }
}

async function migrateTo(databaseUrl: string, version: number): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-bench-migrations-'));
  try {
    for (const { name, sql, version: of } of await loadMigrations())
      if (of <= version) writeFileSync(join(folder, name), sql);
    await migrate(databaseUrl, { migrationsDir: folder });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * The longest statement of a reader and a writer in milliseconds, until `work` is done. The statements of the writer with long
 * transactions do not count.
 */
async function longestWhile(
  pool: pg.Pool,
  ids: readonly string[],
  work: () => Promise<unknown>,
): Promise<number> {
  let isOver = false;
  let longest = 0;
  const goOn = async (statements: readonly Work[]): Promise<void> => {
    for (let n = 0; !isOver; n += 1)
      for (const of of statements) {
        const [text, values] = of(ids[n % ids.length] ?? '');
        longest = Math.max(longest, await timed(() => pool.query(text, [...values])));
      }
  };
  const writeLong = async (): Promise<void> => {
    while (!isOver) {
      const client = await pool.connect();
      try {
        await client.query(`begin; ${LONG_WRITE}`);
        await delay(LONG_MS);
        await client.query('commit');
      } finally {
        client.release();
      }
      await delay(LONG_MS);
    }
  };
  const others = Promise.all([goOn(READS), goOn(WRITES), writeLong()]);
  try {
    await Promise.race([work(), others]);
  } finally {
    isOver = true;
  }
  await others;
  return longest;
}
