import type pg from 'pg';

/** Tables whose rows belong to the project, its workers or the schema: copies of runs share them. */
const SHARED = new Set([
  'profiles',
  'projects',
  'provider_slots',
  'providers',
  'purging',
  'schema_version',
  'sweep_failures',
  'sweeper',
  'toolsets',
  'unsealed',
  'workers',
]);

const ID = /[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const FILLER = '00000000-0000-7000-8000-000000000000';
/** Copies per statement. */
const PART = 100;

interface Table {
  readonly name: string;
  readonly key: string;
  readonly rows: readonly Readonly<Record<string, unknown>>[];
}

async function readTables(db: pg.Client): Promise<readonly Table[]> {
  const { rows: tables } = await db.query<{ name: string; key: string }>(`
    select
      c.relname as name,
      (
        select string_agg(a.attname, ',' order by a.attnum)
        from pg_index i
        join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
        where i.indrelid = c.oid and i.indisprimary
      ) as key
    from pg_class c
    where c.relnamespace = 'boxcar'::regnamespace and c.relkind = 'r'
    order by 1`);
  const found: Table[] = [];
  for (const { name, key } of tables) {
    const { rows } = await db.query<{ row: Readonly<Record<string, unknown>> }>(
      `select to_jsonb(t) as row from boxcar.${name} t`,
    );
    found.push({ name, key, rows: rows.map(({ row }) => row) });
  }
  return found;
}

/** The ids that all runs share: projects, their operators, profiles, workers, and the boxes and cards of profiles. */
function sharedIds(tables: readonly Table[]): ReadonlySet<string> {
  const shared = new Set<string>();
  for (const { name, rows } of tables)
    if (SHARED.has(name)) for (const id of JSON.stringify(rows).match(ID) ?? []) shared.add(id);
  return shared;
}

/**
 * A new id for each copy with the same timestamp, so that copies have the same order as their pattern. The id is changed by XOR, because
 * digits that were replaced by the number of the copy could be those of the pattern.
 */
const idOf = (id: string, copy: number): string => {
  const digits = (Number.parseInt(id.slice(24, 29), 16) ^ copy).toString(16).padStart(5, '0');
  return `${id.slice(0, 24)}${digits}${id.slice(29)}`;
};

/** Appends an id to names and keys that are unique in a project. The id differs in each copy. */
function nameByCopy(row: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const { name, idempotency_key: key, tape_box_id: tape } = row;
  if (typeof key === 'string' && !key.startsWith('call:'))
    return { ...row, idempotency_key: `${key} ${FILLER}` };
  return tape !== undefined ? { ...row, name: `${String(name)} ${FILLER}` } : row;
}

export interface RunPattern {
  /** One statement per table, and the rows of the table as JSON without the outer brackets. */
  readonly tables: readonly { readonly insert: string; readonly rows: string }[];
  readonly shared: ReadonlySet<string>;
}

/** Reads all runs of a database with their rows. */
export async function readRuns(db: pg.Client): Promise<RunPattern> {
  const tables = await readTables(db);
  const shared = sharedIds(tables);
  const isShared = (value: unknown): boolean => !String(value).match(ID) || shared.has(String(value));
  const own = tables.flatMap(({ name, key, rows }) => {
    const copied = rows.filter((row) => !key.split(',').every((column) => isShared(row[column])));
    if (SHARED.has(name) || copied.length === 0) return [];
    const insert = `insert into boxcar.${name} select * from jsonb_populate_recordset(null::boxcar.${name}, $1::jsonb)`;
    return [{ insert, rows: JSON.stringify(copied.map(nameByCopy)).slice(1, -1) }];
  });
  return { tables: own, shared };
}

/**
 * Copies runs within one database: makes thousands of turns that look like executed turns, in seconds.
 *
 * @param db - A connection of a role that may set `session_replication_role`, which stays set.
 * @param range - The numbers of the copies; each number may be used only once.
 */
export async function copyRuns(
  db: pg.Client,
  { tables, shared }: RunPattern,
  { first, last }: { readonly first: number; readonly last: number },
): Promise<void> {
  await db.query('set session_replication_role = replica');
  for (const { insert, rows } of tables)
    for (let from = first; from <= last; from += PART) {
      const parts: string[] = [];
      for (let copy = from; copy < from + PART && copy <= last; copy++)
        parts.push(rows.replace(ID, (id) => (shared.has(id) ? id : idOf(id, copy))));
      await db.query(insert, [`[${parts.join(',')}]`]);
    }
}
