/** drizzle, in the form in which `query.ts` passes it to callbacks that build statements. It is loaded by the first such call. */
import * as operators from 'drizzle-orm';
import { alias, type PgColumn } from 'drizzle-orm/pg-core';
import { drizzle } from 'drizzle-orm/pg-proxy';
import { tables } from '../schema/index.js';

const { sql } = operators;

/**
 * The column has one of the values. One parameter and one text for any number of values; `inArray` has a different text for each
 * number.
 */
const isAnyOf = <Column extends PgColumn>(
  column: Column,
  values: readonly Column['_']['data'][],
): operators.SQL => sql`${column} = any (${sql.param(values)})`;

/**
 * A condition with its values in the text. A plan is made once for all parameters, so it cannot use an index whose condition depends on
 * a parameter (`where status = 'queued'`). Only for constants of the program.
 */
const inline = (condition: operators.SQL): operators.SQL => sql`${condition}`.inlineParams();

/** Sends a statement and gets its rows: as lists in the order of the selected fields, or as objects if the statement selects no fields. */
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

/** The tools to build a statement: `orm` begins it; the rest are drizzle's operators and the tables. */
export type Builder = ReturnType<typeof builderOn>;

export { builderOn };
