/** The types of rows, derived from the tables. They are for statements written in SQL, whose results no compiler checks. */
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

/**
 * The type that the driver returns for a column. A `bigint` is a text, which holds every number; other columns have the type of the
 * table.
 */
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
 * The columns of a table that a statement selects.
 *
 * @typeParam As - Columns that are selected under other names: `{ turn_id: 'id' }`.
 */
export type Row<
  Name extends TableName,
  Selected extends keyof Columns<Name> = never,
  As extends Readonly<Record<string, keyof Columns<Name>>> = Record<never, never>,
> = Pick<Columns<Name>, Selected> & { readonly [Key in keyof As]: Columns<Name>[As[Key]] };

/** A row of an outer join that may have no match. */
export type Outer<R> = { readonly [Key in keyof R]: R[Key] | null };
