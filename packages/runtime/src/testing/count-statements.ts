import { createModelRouter } from '@boxcar/llm';
import type { TestDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';

/** What one statement was sent as: its text, transaction control included. */
const textOf = (query: unknown): string =>
  typeof query === 'string' ? query : ((query as { text?: string } | undefined)?.text ?? '');

// Whether the build still fits the database is asked every few seconds, whatever is done meanwhile.
const isOfTheWork = (text: string): boolean => !text.includes('boxcar.schema_version');

/** The statements that `work` sends to this database, on whatever connection of this process. */
export async function statementsOf(
  database: Pick<TestDatabase, 'name'>,
  work: () => Promise<unknown>,
): Promise<string[]> {
  const seen: string[] = [];
  const { query } = pg.Client.prototype;
  pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]): unknown {
    if (this.database === database.name) seen.push(textOf(args[0]).trim());
    return Reflect.apply(query, this, args);
  } as typeof query;
  try {
    await work();
  } finally {
    pg.Client.prototype.query = query;
  }
  // With a pooler each statement is a transaction, which costs no additional round trip.
  const isPooled = seen.some((text) => /^begin\b.*\bset local\b/.test(text));
  return seen.filter((text) => isOfTheWork(text) && !(isPooled && /^(begin|commit)\b/.test(text)));
}

/**
 * How many statements it takes to accept a primitive. By a runtime of its own, which is closed each time: what it goes on to do
 * in the background is then counted by nobody.
 */
export async function statementsToAccept(
  database: Pick<TestDatabase, 'name' | 'pool' | 'url'>,
  primitive: string,
  args: unknown,
): Promise<number> {
  const runtime = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
  });
  try {
    return (await statementsOf(database, () => runtime.accept(primitive, args))).length;
  } finally {
    await runtime.close();
  }
}
