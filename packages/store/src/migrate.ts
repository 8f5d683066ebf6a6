/**
 * Brings a database to the newest schema: numbered SQL files, forward only.
 *
 * M1. One process migrates at a time, under a session advisory lock that the others poll for: a session waiting inside
 *     `pg_advisory_lock` would hold a snapshot and keep vacuum from its work.
 * M2. Each file runs in a transaction of its own, together with its row in `boxcar.schema_version`.
 * M3. A file that was applied never changes: its checksum is compared at every run.
 * M4. A file does not wait for a table lock longer than a few seconds, because everything behind it would wait too; it
 *     gives way and tries again.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import { type Queryable, toDatabaseError } from './db.js';

/** A number of our own; it only has to be the same in every version of this program. */
const MIGRATION_LOCK = 7_205_129_001;
const LOCK_POLL_MS = 100;
const LOCK_DEADLINE_MS = 120_000;
const TABLE_LOCK_TIMEOUT_MS = 3_000;
const TABLE_LOCK_ATTEMPTS = 20;
const OLDEST_SERVER = 150_000;

export interface Migration {
  readonly version: number;
  /** The file's name, `0001_core.sql`. */
  readonly name: string;
  readonly sql: string;
  /** sha256 of the text with `\n` line ends, in hex. */
  readonly checksum: string;
  /**
   * The oldest program, by the newest migration it knows, that may run on a database that has this one. From the line
   * `-- min_compatible: N`; without it only programs that know the migration may.
   */
  readonly minCompatible: number;
}

export interface MigrateOptions {
  readonly log?: (line: string) => void;
  /** Default: the files shipped with this package. */
  readonly migrationsDir?: string;
  /** How long to wait for another process that is migrating. */
  readonly lockDeadlineMs?: number;
}

export interface MigrateResult {
  readonly from: number;
  readonly to: number;
  /** Names of the files applied by this call, in order. */
  readonly applied: readonly string[];
}

export interface SchemaRange {
  /** The oldest schema this program can work on. */
  readonly min: number;
  /** The newest it knows. */
  readonly max: number;
}

/**
 * Applies what is missing. Running it again changes nothing.
 *
 * @param connectionString - Straight to Postgres: a pooler in transaction mode would lose the session lock.
 * @throws KernelError `migration_failed` when a file fails or was edited, `schema_too_new` when the database is beyond
 * this program, `database_unavailable` or `database_auth_failed` when there is no way in.
 */
export async function migrate(
  connectionString: string,
  options: MigrateOptions = {},
): Promise<MigrateResult> {
  const log = options.log ?? (() => {});
  const migrations = await loadMigrations(options.migrationsDir);
  const client = new pg.Client({
    connectionString,
    application_name: 'boxcar migrate',
    connectionTimeoutMillis: 10_000,
  });
  // The loss of the connection shows in the query that is running, or in the next one.
  client.on('error', () => {});
  try {
    await client.connect();
    await assertServerVersion(client);
    await takeLock(client, options.lockDeadlineMs ?? LOCK_DEADLINE_MS, log);
    return await applyMissing(client, migrations, log);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    // Ending the session frees the lock.
    await client.end().catch(() => {});
  }
}

/**
 * Compares the database with what this program supports; called at the start of everything that works on it.
 *
 * @param options.supported - Default: the newest migration shipped with this package, as both bounds.
 * @returns The version of the database.
 * @throws KernelError `schema_outdated` or `schema_too_new`.
 */
export async function checkSchemaVersion(
  client: Queryable,
  options: { readonly supported?: SchemaRange } = {},
): Promise<number> {
  const supported = options.supported ?? (await shippedSchema());
  const { version, minCompatible } = await readVersion(client);
  if (version < supported.min) {
    throw new KernelError('schema_outdated', {
      message:
        version === 0
          ? 'The database has no Boxcar schema yet.'
          : `The database schema is at version ${version}; this program needs ${supported.min}.`,
      details: { version, supported },
    });
  }
  if (minCompatible > supported.max) throw tooNew(version, minCompatible, supported.max);
  return version;
}

/** Reads and checks the numbered files of a folder, in order. */
export async function loadMigrations(folder = shippedMigrationsDir()): Promise<readonly Migration[]> {
  const names = (await readdir(folder)).filter((name) => /^\d{4}_.+\.sql$/.test(name)).sort();
  const migrations = await Promise.all(
    names.map(async (name): Promise<Migration> => {
      const sql = (await readFile(join(folder, name), 'utf8')).replaceAll('\r\n', '\n');
      const version = Number(name.slice(0, 4));
      const declared = /^-- min_compatible: (\d+)\s*$/m.exec(sql)?.[1];
      return {
        version,
        name,
        sql,
        checksum: createHash('sha256').update(sql).digest('hex'),
        minCompatible: declared === undefined ? version : Number(declared),
      };
    }),
  );
  for (const [index, migration] of migrations.entries()) {
    if (migration.version !== index + 1) {
      throw new KernelError('migration_failed', {
        message: `The migrations in ${folder} are not numbered without gaps: ${migration.name} should begin with ${String(index + 1).padStart(4, '0')}.`,
      });
    }
    if (migration.minCompatible > migration.version) {
      throw new KernelError('migration_failed', {
        message: `${migration.name}: min_compatible ${migration.minCompatible} is beyond the migration itself.`,
      });
    }
  }
  return migrations;
}

/** In the installed package the files lie beside the compiled code, in the repository at its top. */
function shippedMigrationsDir(): string {
  const beside = fileURLToPath(new URL('./migrations/', import.meta.url));
  return existsSync(beside) ? beside : fileURLToPath(new URL('../../../migrations/', import.meta.url));
}

async function shippedSchema(): Promise<SchemaRange> {
  const newest = (await loadMigrations()).length;
  return { min: newest, max: newest };
}

async function assertServerVersion(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ version: string }>('show server_version_num');
  const version = Number(Object.values(rows[0] ?? {})[0]);
  if (version < OLDEST_SERVER) {
    throw new KernelError('bad_config', {
      message: `Boxcar needs Postgres ${OLDEST_SERVER / 10_000} or newer; this server is ${Math.floor(version / 10_000)}.`,
    });
  }
}

async function takeLock(client: pg.Client, deadlineMs: number, log: (line: string) => void): Promise<void> {
  const deadline = Date.now() + deadlineMs;
  for (let attempt = 0; ; attempt += 1) {
    const { rows } = await client.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [
      MIGRATION_LOCK,
    ]);
    if (rows[0]?.taken === true) return;
    if (attempt === 0) log('another process is migrating this database; waiting for it');
    if (Date.now() > deadline) {
      throw new KernelError('migration_failed', {
        message: `Another process has been migrating this database for ${Math.round(deadlineMs / 1000)} s.`,
      });
    }
    await delay(LOCK_POLL_MS);
  }
}

async function applyMissing(
  client: pg.Client,
  migrations: readonly Migration[],
  log: (line: string) => void,
): Promise<MigrateResult> {
  await client.query(`create schema if not exists boxcar;
    create table if not exists boxcar.schema_version (
      version int primary key check (version > 0),
      name text not null,
      checksum text not null,
      -- the oldest program, by the newest migration it knows, that may run on this schema
      min_compatible int not null check (min_compatible between 1 and version),
      applied_at timestamptz not null default now()
    )`);
  const { rows: recorded } = await client.query<{ version: number; name: string; checksum: string }>(
    'select version, name, checksum from boxcar.schema_version order by version',
  );
  const from = recorded.at(-1)?.version ?? 0;
  const newest = migrations.length;
  for (const row of recorded) {
    const migration = migrations[row.version - 1];
    if (migration && migration.checksum !== row.checksum) {
      throw new KernelError('migration_failed', {
        message: `${migration.name} was edited after it was applied as ${row.name}; restore its text and write a new migration.`,
        details: { version: row.version },
      });
    }
  }
  if (from > newest) {
    const { minCompatible } = await readVersion(client);
    if (minCompatible > newest) throw tooNew(from, minCompatible, newest);
    log(`the database is at version ${from}, newer than this program's ${newest}, and still compatible`);
    return { from, to: from, applied: [] };
  }
  const applied: string[] = [];
  for (const migration of migrations.slice(from)) {
    const startedAt = Date.now();
    await applyOne(client, migration);
    applied.push(migration.name);
    log(`applied ${migration.name} (${Date.now() - startedAt} ms)`);
  }
  return { from, to: newest, applied };
}

async function applyOne(client: pg.Client, migration: Migration): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await client.query('begin');
      await client.query(
        `set local lock_timeout = ${TABLE_LOCK_TIMEOUT_MS}; set local statement_timeout = 0`,
      );
      await client.query(migration.sql);
      await client.query(
        'insert into boxcar.schema_version (version, name, checksum, min_compatible) values ($1, $2, $3, $4)',
        [migration.version, migration.name, migration.checksum, migration.minCompatible],
      );
      await client.query('commit');
      // A file may have set a search path or the like for the session.
      await client.query('reset all');
      return;
    } catch (error) {
      await client.query('rollback').catch(() => {});
      if (error instanceof pg.DatabaseError && error.code === '55P03' && attempt < TABLE_LOCK_ATTEMPTS) {
        await delay(200 + Math.random() * 300);
        continue;
      }
      throw failure(migration, error);
    }
  }
}

function failure(migration: Migration, error: unknown): unknown {
  const known = toDatabaseError(error);
  if (known instanceof KernelError && known.code.startsWith('database_')) return known;
  const position = error instanceof pg.DatabaseError ? Number(error.position) : Number.NaN;
  const line = Number.isNaN(position) ? '' : `:${migration.sql.slice(0, position).split('\n').length}`;
  return new KernelError('migration_failed', {
    message: `${migration.name}${line}: ${error instanceof Error ? error.message : String(error)}.`,
    details: { version: migration.version },
    cause: error,
  });
}

async function readVersion(client: Queryable): Promise<{ version: number; minCompatible: number }> {
  try {
    const { rows } = await client.query<{ version: number | null; min_compatible: number | null }>({
      text: 'select max(version) as version, max(min_compatible) as min_compatible from boxcar.schema_version',
    });
    return { version: rows[0]?.version ?? 0, minCompatible: rows[0]?.min_compatible ?? 0 };
  } catch (error) {
    const known = toDatabaseError(error);
    // No such table: no migration has run here.
    if (known instanceof KernelError && known.code === 'schema_outdated')
      return { version: 0, minCompatible: 0 };
    throw known;
  }
}

function tooNew(version: number, minCompatible: number, newest: number): KernelError {
  return new KernelError('schema_too_new', {
    message: `The database schema is at version ${version} and needs programs that know version ${minCompatible}; this one knows ${newest}.`,
    details: { version, minCompatible, newest },
  });
}
