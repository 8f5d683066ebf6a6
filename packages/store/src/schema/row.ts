/** The types of rows, from the tables: of statements that are written in SQL, whose results no compiler sees. */
import type * as tables from './schema.js';

type Tables = typeof tables;
export type TableName = keyof Tables;

interface Described {
  readonly _: {
    readonly name: string;
    readonly data: unknown;
    readonly notNull: boolean;
    readonly columnType: string;
  };
}

/** What the driver makes of a column: of a `bigint` text, which holds every number; else what the table says. */
type Read<Column extends Described> =
  | (Column['_']['columnType'] extends 'PgBigInt53' ? string : Column['_']['data'])
  | (Column['_']['notNull'] extends true ? never : null);

type ColumnsOf<Table> = Table extends { readonly _: { readonly columns: infer Columns } } ? Columns : never;

/** All columns of a table, by their names in the database. */
export type Columns<Name extends TableName> = {
  readonly [Key in keyof ColumnsOf<Tables[Name]> as ColumnsOf<Tables[Name]>[Key] extends Described
    ? ColumnsOf<Tables[Name]>[Key]['_']['name']
    : never]: ColumnsOf<Tables[Name]>[Key] extends Described ? Read<ColumnsOf<Tables[Name]>[Key]> : never;
};

/**
 * What a statement selects of a table.
 *
 * @typeParam As - Columns that it selects under other names, by these: `{ turn_id: 'id' }`.
 */
export type Row<
  Name extends TableName,
  Selected extends keyof Columns<Name> = never,
  As extends Readonly<Record<string, keyof Columns<Name>>> = Record<never, never>,
> = Pick<Columns<Name>, Selected> & { readonly [Key in keyof As]: Columns<Name>[As[Key]] };

/** A row that an outer join may not find. */
export type Outer<R> = { readonly [Key in keyof R]: R[Key] | null };
