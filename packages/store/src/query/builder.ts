/** drizzle, as `query.ts` hands it to those who write statements. Loaded by the first of them. */
import * as operators from 'drizzle-orm';
import { alias, type PgColumn } from 'drizzle-orm/pg-core';
import { drizzle } from 'drizzle-orm/pg-proxy';
import { tables } from '../schema/index.js';

const { sql } = operators;

/** A column has one of the values: one parameter and one text, whatever their number, where `inArray` has a text for each number. */
const isAnyOf = <Column extends PgColumn>(
  column: Column,
  values: readonly Column['_']['data'][],
): operators.SQL => sql`${column} = any (${sql.param(values)})`;

/**
 * A condition with its values in the text. A plan is made once for all parameters, and then no index applies whose condition
 * depends on one of them (`where status = 'queued'`). For constants of the program only.
 */
const inline = (condition: operators.SQL): operators.SQL => sql`${condition}`.inlineParams();

/** Sends a statement, and gets its rows: as lists in the order of the selected fields, or as objects if it selects no fields. */
export type Send = (text: string, values: unknown[], shape: 'lists' | 'objects') => Promise<unknown[]>;

const builderOn = (send: Send) => ({
  ...operators,
  alias,
  isAnyOf,
  inline,
  tables,
  orm: drizzle(async (text, values, method) => ({
    rows: await send(text, values, method === 'all' ? 'lists' : 'objects'),
  })),
});

/** What a statement is written with: `orm` begins it; the rest are drizzle's operators and the tables. */
export type Builder = ReturnType<typeof builderOn>;

export { builderOn };
