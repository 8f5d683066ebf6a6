/**
 * Ordinary statements, written with drizzle's query builder. When to take it and when to write SQL: docs/explanation/database-access.md.
 *
 * Q1  A statement goes through the connection that it is given, as those of `run` do: prepared under a name of its text, its values read
 *     as the kernel reads them, its failures named alike.
 * Q2  drizzle is loaded by the first statement: the start of a worker, its turns, and `boxcar health` do without.
 */
import { type Queryable, retryTransient, run, runLists, statement } from '../db/index.js';
import type { Builder } from './builder.js';

export type { Builder };

/**
 * Runs one statement. Must not be used where several statements are sent at once (`transactAtOnce`): it waits until drizzle is loaded.
 *
 * @param label - `file.what_it_does`. It is put after the first word of the text, as in statements written in SQL.
 */
export async function query<T>(
  db: Queryable,
  label: string,
  write: (builder: Builder) => PromiseLike<T>,
): Promise<T> {
  const { builderOn } = await import('./builder.js');
  let failure: unknown;
  const builder = builderOn(async (text, values, shape) => {
    try {
      return await (shape === 'lists' ? runLists : run)(
        db,
        statement(text.replace(' ', ` /* ${label} */ `)),
        values,
      );
    } catch (error) {
      failure = error;
      throw error;
    }
  });
  try {
    return await write(builder);
  } catch (error) {
    // drizzle wraps the failure in its own error.
    throw failure ?? error;
  }
}

/** `query` for a statement that is its own transaction. It is retried as a whole. */
export const queryRetrying = <T>(
  db: Queryable,
  label: string,
  write: (builder: Builder) => PromiseLike<T>,
): Promise<T> => retryTransient(() => query(db, label, write));
