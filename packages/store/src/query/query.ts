/**
 * Ordinary statements, written with drizzle's query builder. When to use it and when to write SQL: docs/explanation/database-access.md.
 *
 * Q1  A statement runs on the given connection in the same way as a statement of `run`: it is prepared under a name derived from its text,
 *     its values are parsed by the kernel's parsers, and its failures become the same errors.
 * Q2  The first statement loads drizzle: the start of a worker, its turns, and `boxcar health` do not need it.
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
