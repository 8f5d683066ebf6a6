/** The numbered files of the schema, and the range of versions that this program works on. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { KernelError } from '@boxcar/kernel/base';

export interface Migration {
  readonly version: number;
  /** The file's name, `0001_core.sql`. */
  readonly name: string;
  readonly sql: string;
  /** sha256 of the text with `\n` line ends, in hex. */
  readonly checksum: string;
  /**
   * The oldest program that may run on a database with this migration, as the number of the newest migration that the program knows.
   * Read from the line `-- min_compatible: N`. Without this line, only programs that know the migration may run.
   */
  readonly minCompatible: number;
  /** The statements of a file that begins with `-- transaction: none`. They run one by one. */
  readonly steps?: readonly string[];
}

export interface SchemaRange {
  /** The oldest schema this program can work on. */
  readonly min: number;
  /** The newest schema that this program knows. */
  readonly max: number;
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
        ...(sql.startsWith('-- transaction: none\n') && { steps: splitSteps(name, sql) }),
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

export const REPEATABLE =
  /^(?:create (?:unique )?index concurrently if not exists (\w+) on |drop index concurrently if exists |alter table \S+ validate constraint )/;

function splitSteps(name: string, sql: string): readonly string[] {
  const steps = sql
    .replace(/--.*$/gm, '')
    .split(';')
    .map((step) => step.trim().replace(/\s+/g, ' '))
    .filter((step) => step !== '');
  for (const step of steps)
    if (!REPEATABLE.test(step))
      throw new KernelError('migration_failed', {
        message: `${name}: a file without a transaction may hold 'create index concurrently if not exists', 'drop index concurrently if exists' and 'alter table … validate constraint' only, not: ${step.slice(0, 200)}.`,
      });
  return steps;
}

/** In the installed package the files are next to the compiled code; in the repository they are at the top level. */
function shippedMigrationsDir(): string {
  const beside = fileURLToPath(new URL('../migrations/', import.meta.url));
  return existsSync(beside) ? beside : fileURLToPath(new URL('../../../../migrations/', import.meta.url));
}

/** The range of schemas that this build works on. */
export async function shippedSchema(): Promise<SchemaRange> {
  const newest = (await loadMigrations()).length;
  return { min: newest, max: newest };
}
