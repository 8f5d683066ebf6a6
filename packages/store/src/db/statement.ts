/** Prepared statements, and what runs them. */
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

/** What `pg_stat_statements` and `pg_stat_activity` show a statement by: its file, and the statement in it. */
const LABELED = /^\s*(?:with recursive|rollback to savepoint|[a-z]+) \/\* [\w-]+\.[\w-]+ \*\/\s/;

/** @throws Error for a text without a label after its first keyword. */
export function statement(text: string): Statement {
  if (!LABELED.test(text)) throw new Error(`a statement has no label: ${text.trim().slice(0, 200)}`);
  return { name: `bx_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`, text };
}

/**
 * Runs a prepared statement and returns its rows; connection failures come back as `KernelError`. A client of a caller may read types in
 * another way: the kernel's statements are read as the kernel expects.
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

/** `run` with each row as the list of its values, in the order in which the statement selects them. */
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
