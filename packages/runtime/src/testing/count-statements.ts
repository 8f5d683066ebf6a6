import { createModelRouter } from '@boxcar/llm';
import type { TestDatabase } from '@boxcar/testkit';
import pg from 'pg';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';

/** The text of a sent statement, including transaction control. */
const textOf = (query: unknown): string =>
  typeof query === 'string' ? query : ((query as { text?: string } | undefined)?.text ?? '');

// Each process checks every few seconds whether the build fits the database, independent of the work.
const isOfTheWork = (text: string): boolean => !text.includes('boxcar.schema_version');

/** The statements that `work` sends to this database, on any connection of this process. */
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
 * The number of statements to accept a primitive. A new runtime is used and closed each time, so that its later work in the background is
 * not counted.
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
