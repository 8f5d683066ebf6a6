/**
 * Brings a database to the newest schema: numbered SQL files, forward only.
 *
 * M1. One process migrates at a time, under a session advisory lock that the others poll for: a session waiting inside
 *     `pg_advisory_lock` would hold a snapshot and block vacuum. When a process is stopped, inside or between transactions, the server
 *     ends its session, so that another process can continue. The waits of the migrating process are bounded (M4). So the other
 *     processes wait without their own limit: a long index build must not fail a second deploy.
 * M2. Each file runs in its own transaction, together with its row in `boxcar.schema_version`. A file that begins with
 *     `-- transaction: none` runs statement by statement instead, and its row is written after the last statement. Each of its
 *     statements can be repeated, so the next run continues a stopped run. This is for work that takes long on a large table but need
 *     not stop readers and writers: building indexes, validating constraints.
 * M3. A file that was applied never changes: its checksum is compared at every run.
 * M4. A file waits for a lock for `TABLE_LOCK_MS`, because later requests for the same lock wait too. Then it pauses for several times
 *     as long and tries again, for `GIVE_WAY_MS` in all. It does the same as the victim of a deadlock. Statements outside a transaction
 *     wait for locks without pauses, since they do not block other requests.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { checkDuration, errorText, KernelError } from '@boxcar/kernel/base';
import pg from 'pg';
import { createDirectClient, endClient, unlimited } from './connection-limits.js';
import { toDatabaseError } from './errors.js';
import { loadMigrations, type Migration, REPEATABLE } from './migrations.js';
import { readVersion, tooNew } from './schema-version.js';

/** An arbitrary number, which must be the same in every version of this program. */
const MIGRATION_LOCK = 7_205_129_001;
const LOCK_POLL_MS = 100;
/** The first message about a wait follows after this time. The interval doubles with each message, up to the longest. */
const FIRST_LINE_MS = 1_000;
const LONGEST_LINE_MS = 60_000;
/** A file may need the locks of two tables. Both waits together stay below the 200 ms that others may have to wait. */
const TABLE_LOCK_MS = 80;
/** The pause between two tries. Others can use the tables for four to eight times as long as they may have to wait. */
const PAUSE_MS = 4 * TABLE_LOCK_MS;
/** The longest time for one statement, except the statements of the files. */
const QUERY_MS = 30_000;
/** The pauses of a running migration are shorter than a second. */
const IDLE_SESSION_MS = 8_000;
/**
 * How long a file or a step tries to get its locks. A statement outside a transaction waits for all older transactions;
 * transactions of a worker end after 30 s.
 */
const GIVE_WAY_MS = 300_000;
/** A lock that was not free, a deadlock, a conflict: a repetition may succeed. */
const CONTENDED: ReadonlySet<string | undefined> = new Set(['55P03', '40P01', '40001']);
/** How often the server checks whether this process still exists, so that the lock (M1) is free soon after a kill. */
const CONNECTION_CHECK_MS = 5_000;
/** In the form of `server_version_num`. */
export const OLDEST_SERVER = 150_000;

export interface MigrateOptions {
  readonly log?: (line: string) => void;
  /** Default: the files shipped with this package. */
  readonly migrationsDir?: string;
  /** How long to wait for another process that is migrating, at most 30 days. Default: until it has ended. */
  readonly lockDeadlineMs?: number;
  /** How long a file or a step tries to get its locks while other transactions hold them. Default 300,000. */
  readonly giveWayMs?: number;
  /** How long the server may take for one statement; statements of the files have no limit. Default 30,000. */
  readonly queryMs?: number;
  /** The server ends the session after it was idle for this time. Default 8,000. */
  readonly idleSessionMs?: number;
}

export interface MigrateResult {
  readonly from: number;
  readonly to: number;
  /** Names of the files applied by this call, in order. */
  readonly applied: readonly string[];
}

/**
 * Applies the missing migrations. Running it again changes nothing.
 *
 * @param connectionString - A direct connection to Postgres: a pooler in transaction mode would lose the session lock.
 * @throws KernelError `migration_failed` when a file fails or was edited; `bad_request` for a time that is not a valid duration;
 *   `schema_too_new` when the database has a newer schema than this program; `bad_config` for an empty database in an encoding other
 *   than UTF8; `database_unavailable` or `database_auth_failed` when it cannot connect.
 */
export async function migrate(
  connectionString: string,
  options: MigrateOptions = {},
): Promise<MigrateResult> {
  const {
    log = () => {},
    lockDeadlineMs,
    giveWayMs = GIVE_WAY_MS,
    queryMs = QUERY_MS,
    idleSessionMs = IDLE_SESSION_MS,
  } = options;
  if (lockDeadlineMs !== undefined) checkDuration(lockDeadlineMs, 'lockDeadlineMs', { allowsZero: true });
  checkDuration(giveWayMs, 'giveWayMs');
  checkDuration(queryMs, 'queryMs');
  checkDuration(idleSessionMs, 'idleSessionMs');
  const migrations = await loadMigrations(options.migrationsDir);
  // The session and its transactions hold locks that block others, so the server must end both when this process is stopped.
  const client = createDirectClient({
    connectionString,
    applicationName: 'boxcar migrate',
    queryMs,
    idleSessionMs,
  });
  try {
    await client.connect();
    await assertServerVersion(client);
    await assertEncoding(client, log);
    await takeLock(client, lockDeadlineMs, log);
    return await applyMissing(client, migrations, { log, giveWayMs });
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    // Ending the session frees the lock.
    await endClient(client);
  }
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

/**
 * Texts are Unicode. A database in another encoding fails at the first character that it cannot store, or accepts any bytes, like
 * SQL_ASCII. A database that was already migrated is accepted, since a refusal would not convert its rows.
 */
async function assertEncoding(client: pg.Client, log: (line: string) => void): Promise<void> {
  const { rows } = await client.query<{ database: string; encoding: string }>(
    `select current_database() as database, current_setting('server_encoding') as encoding`,
  );
  const [{ database, encoding } = { database: '', encoding: '' }] = rows;
  if (encoding === 'UTF8') return;
  const { version } = await readVersion(client);
  if (version > 0) {
    log(
      `the encoding of this database is ${encoding}; Boxcar needs UTF8, and texts may be refused or damaged`,
    );
    return;
  }
  throw new KernelError('bad_config', {
    message: `The encoding of the database ${database} is ${encoding}; Boxcar needs UTF8. Create one with: create database <name> encoding 'UTF8' template template0.`,
    details: { database, encoding },
  });
}

/** Reports that a wait continues: soon at first, then at growing intervals. */
function waitTeller(say: (seconds: number) => void | Promise<void>): () => Promise<void> {
  const startedAt = Date.now();
  let everyMs = FIRST_LINE_MS;
  let next = startedAt + everyMs;
  return async () => {
    const now = Date.now();
    if (now < next) return;
    everyMs = Math.min(2 * everyMs, LONGEST_LINE_MS);
    next = now + everyMs;
    await say(Math.round((now - startedAt) / 1000));
  };
}

/** Describes the process that is migrating: its server process and its statement, as far as this role may see them. */
async function describeHolder(client: pg.Client): Promise<string> {
  const { rows } = await client.query<{ pid: number; query: string }>(
    `
      select a.pid, left(a.query, 80) as query
      from pg_locks l
      join pg_stat_activity a using (pid)
      where l.locktype = 'advisory'
        and l.granted
        and l.objsubid = 1
        and (l.classid::bigint << 32 | l.objid::bigint) = $1
        and a.datname = current_database()`,
    [MIGRATION_LOCK],
  );
  return rows.map(({ pid, query }) => `server process ${pid}: ${query.replace(/\s+/g, ' ')}`).join('; ');
}

async function takeLock(
  client: pg.Client,
  deadlineMs: number | undefined,
  log: (line: string) => void,
): Promise<void> {
  const startedAt = Date.now();
  const tell = waitTeller(async (seconds) =>
    log(
      `still waiting for the process that migrates this database, ${seconds} s (${await describeHolder(client)})`,
    ),
  );
  for (let attempt = 0; ; attempt += 1) {
    const { rows } = await client.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [
      MIGRATION_LOCK,
    ]);
    if (rows[0]?.taken === true) return;
    if (attempt === 0) log('another process is migrating this database; waiting for it');
    if (deadlineMs !== undefined && Date.now() - startedAt > deadlineMs) {
      throw new KernelError('migration_failed', {
        message: `Another process has been migrating this database for ${Math.round(deadlineMs / 1000)} s.`,
      });
    }
    await tell();
    await delay(LOCK_POLL_MS);
  }
}

/** How files and steps are applied. */
interface Applying {
  readonly log: (line: string) => void;
  readonly giveWayMs: number;
}

/** Repeats `work` while other transactions hold locks that it needs (M4). A failed try must have no effect, or must be repeatable. */
async function givingWay<T>(name: string, { log, giveWayMs }: Applying, work: () => Promise<T>): Promise<T> {
  const startedAt = Date.now();
  const tell = waitTeller((seconds) => log(`${name}: gives way to other transactions, ${seconds} s`));
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof pg.DatabaseError && CONTENDED.has(error.code))) throw error;
      if (Date.now() - startedAt > giveWayMs) throw error;
    }
    await tell();
    await delay(PAUSE_MS * (1 + Math.random()));
  }
}

async function applyMissing(
  client: pg.Client,
  migrations: readonly Migration[],
  applying: Applying,
): Promise<MigrateResult> {
  const { log } = applying;
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
    if (migration.steps === undefined) await applyWhole(client, migration, applying);
    else await applySteps(client, migration, { ...applying, steps: migration.steps });
    applied.push(migration.name);
    log(`applied ${migration.name} (${Date.now() - startedAt} ms)`);
  }
  return { from, to: newest, applied };
}

const RECORD =
  'insert into boxcar.schema_version (version, name, checksum, min_compatible) values ($1, $2, $3, $4)';
const recordOf = ({ version, name, checksum, minCompatible }: Migration): unknown[] => [
  version,
  name,
  checksum,
  minCompatible,
];

async function applySteps(
  client: pg.Client,
  migration: Migration,
  { steps, ...applying }: Applying & { readonly steps: readonly string[] },
): Promise<void> {
  const { log, giveWayMs } = applying;
  try {
    await client.query(`set statement_timeout = 0; set lock_timeout = ${Math.ceil(giveWayMs)}`);
    await client.query(`set client_connection_check_interval = ${CONNECTION_CHECK_MS}`);
    for (const [index, step] of steps.entries()) {
      const startedAt = Date.now();
      await givingWay(migration.name, applying, async () => {
        await dropInvalid(client, REPEATABLE.exec(step)?.[1]);
        await client.query(unlimited({ text: step }));
      });
      log(`${migration.name}: step ${index + 1} of ${steps.length} (${Date.now() - startedAt} ms)`);
    }
    await client.query('reset all');
    await client.query(RECORD, recordOf(migration));
  } catch (error) {
    throw failure(migration, error);
  }
}

/** A stopped index build leaves an invalid index, and `if not exists` would accept it. */
async function dropInvalid(client: pg.Client, index: string | undefined): Promise<void> {
  if (index === undefined) return;
  const { rows } = await client.query(
    `
      select from pg_index i
      join pg_class c on c.oid = i.indexrelid
      where c.relname = $1 and c.relnamespace = 'boxcar'::regnamespace and not i.indisvalid`,
    [index],
  );
  if (rows.length > 0) await client.query(unlimited({ text: `drop index concurrently boxcar.${index}` }));
}

async function applyWhole(client: pg.Client, migration: Migration, applying: Applying): Promise<void> {
  const applyOnce = async (): Promise<void> => {
    try {
      await client.query('begin');
      await client.query(`set local lock_timeout = ${TABLE_LOCK_MS}; set local statement_timeout = 0`);
      await client.query(unlimited({ text: migration.sql }));
      await client.query(RECORD, recordOf(migration));
      await client.query('commit');
    } catch (error) {
      await client.query('rollback').catch(() => {});
      throw error;
    }
  };
  try {
    await givingWay(migration.name, applying, applyOnce);
    // A file may have changed the session, for example its search path.
    await client.query('reset all');
  } catch (error) {
    throw failure(migration, error);
  }
}

function failure(migration: Migration, error: unknown): unknown {
  const isContended = error instanceof pg.DatabaseError && CONTENDED.has(error.code);
  const known = toDatabaseError(error);
  if (!isContended && known instanceof KernelError && known.code.startsWith('database_')) return known;
  // For a step, the position is relative to that step.
  const isInFile = error instanceof pg.DatabaseError && migration.steps === undefined;
  const position = isInFile ? Number(error.position) : Number.NaN;
  const line = Number.isNaN(position) ? '' : `:${migration.sql.slice(0, position).split('\n').length}`;
  const next = isContended
    ? ' Other transactions held the locks that it needs the whole time: end them, or try later.'
    : '';
  return new KernelError('migration_failed', {
    message: `${migration.name}${line}: ${errorText(error)}.${next}`,
    details: { version: migration.version },
    cause: error,
  });
}
