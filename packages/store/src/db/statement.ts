/** Prepared statements, and the connections that run them. */
import { createHash } from 'node:crypto';
import type pg from 'pg';
import { toDatabaseError } from './errors.js';
import { ROW_TYPES } from './pool.js';

/** Anything that runs one statement: a pool, a client, or a transaction. */
export interface Queryable {
  query<R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>>;
}

/** A connection inside a transaction. */
export type Tx = Queryable;

/** A named prepared statement: parsed and planned once per connection. Two texts never share a name. */
export interface Statement {
  readonly name: string;
  readonly text: string;
}

/** The label by which `pg_stat_statements` and `pg_stat_activity` show a statement: its file, and the statement within the file. */
const LABELED = /^\s*(?:with recursive|rollback to savepoint|[a-z]+) \/\* [\w-]+\.[\w-]+ \*\/\s/;

/** @throws Error for a text without a label after its first keyword. */
export function statement(text: string): Statement {
  if (!LABELED.test(text)) throw new Error(`a statement has no label: ${text.trim().slice(0, 200)}`);
  return { name: `bx_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`, text };
}

/**
 * Runs a prepared statement and returns its rows. Connection failures are thrown as `KernelError`. A caller's own client may parse
 * types differently; the kernel's statements always use the kernel's parsers.
 */
export async function run<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  try {
    const { name, text } = prepared;
    return (await db.query<R>({ name, text, values, types: ROW_TYPES })).rows;
  } catch (error) {
    throw toDatabaseError(error);
  }
}

type ListRow = unknown[] & pg.QueryResultRow;

/** `run`, but each row is the list of its values, in the order in which the statement selects them. */
export async function runLists(
  db: Queryable,
  { name, text }: Statement,
  values: unknown[],
): Promise<unknown[][]> {
  const config: pg.QueryArrayConfig = { name, text, values, types: ROW_TYPES, rowMode: 'array' };
  try {
    return (await db.query<ListRow>(config)).rows;
  } catch (error) {
    throw toDatabaseError(error);
  }
}
