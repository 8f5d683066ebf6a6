/**
 * Lists of a project, newest first: one statement for a page, whatever the size of the tables.
 *
 * L1  Pages are cut by (created_at, id) along an index (`0032_lists.sql`). Each set of filters has its own statement, which is planned
 *     for its values: one project, agent or profile may have a hundred thousand times as many turns as another.
 * L2  Rows are chosen first. Cards and names are read only for the rows that are shown.
 * L3  A text that no index finds is searched in the newest `SCANNED` rows. The answer tells where the search ended.
 */
import type { ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, transaction } from '../db/index.js';

/** The most rows that are read to find a text without an index. */
export const SCANNED = 20_000;

/** A place in a list. The following rows are older. */
export interface ListPlace {
  /** ISO 8601, to the microsecond. */
  readonly at: string;
  readonly id: string;
}

/** The parameters of all lists. */
export interface ListScope {
  readonly projectId: ProjectId;
  /** The most rows of a page. */
  readonly limit: number;
  /** The last row of the previous page. */
  readonly after: ListPlace | undefined;
  readonly since: Date | undefined;
}

export interface ListPage<T> {
  readonly rows: readonly T[];
  /** The beginning of the next page; undefined when the list has no more rows. */
  readonly next: ListPlace | undefined;
  /** The time up to which the text was searched without an index, when older rows exist. */
  readonly scannedTo: Date | undefined;
}

/** The values of a statement, numbered as they are added. */
export class Values {
  readonly list: unknown[] = [];

  add(value: unknown, type: string): string {
    return `$${this.list.push(value)}::${type}`;
  }
}

/** A list of projects has no `projectId`. */
type WindowScope = Omit<ListScope, 'projectId'> & { readonly projectId?: ProjectId };

/** The values that each list has, as SQL. A value is added when it is first used, since a statement must use all of its parameters. */
export class Window {
  readonly limit: string;
  /** One row more than is shown, which tells whether there is a next page. */
  readonly more: string;
  readonly #values: Values;
  readonly #scope: WindowScope;
  readonly #added = new Map<string, string>();

  constructor(values: Values, scope: WindowScope) {
    this.#values = values;
    this.#scope = scope;
    this.limit = values.add(scope.limit, 'int');
    this.more = values.add(scope.limit + 1, 'int');
  }

  #add(name: string, value: unknown, type: string): string {
    const added = this.#added.get(name) ?? this.#values.add(value, type);
    this.#added.set(name, added);
    return added;
  }

  get project(): string {
    return this.#add('project', this.#scope.projectId, 'uuid');
  }

  /**
   * SQL conditions for the rows of the rest of the list. They compare whole rows: for a time between two bounds Postgres expects almost
   * no rows, and then reads all of them to sort them.
   */
  bounds(alias: string): readonly string[] {
    const { after, since } = this.#scope;
    const place = `(${alias}.created_at, ${alias}.id)`;
    return [
      ...(after === undefined
        ? []
        : [`${place} < (${this.#add('at', after.at, 'timestamptz')}, ${this.#add('id', after.id, 'uuid')})`]),
      ...(since === undefined
        ? []
        : [`${place} >= (${this.#add('since', since.toISOString(), 'timestamptz')}, '${LEAST_ID}'::uuid)`]),
    ];
  }
}

const LEAST_ID = '00000000-0000-0000-0000-000000000000';

/**
 * SQL that requires a value of a column, for a list that is ordered by this column first. With `=` Postgres infers that the order is by
 * time alone. Then it may choose an index that also contains other rows, and go through all of them to find a few matches.
 */
export const onlyBy = (column: string, value: string): string => `${column} between ${value} and ${value}`;

export const newestFirst = (alias: string): string => `${alias}.created_at desc, ${alias}.id desc`;

/** SQL for no scan, for {@link loadPage}. */
export const NO_SCAN = 'scan as (select null::timestamptz as created_at, null::uuid as id where false)';

const MICROS = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"';
const placeText = (alias: string): string => `to_char(${alias}.created_at at time zone 'UTC', '${MICROS}')`;

interface PageRow extends pg.QueryResultRow {
  list_id: string | null;
  list_at: string;
  list_more: boolean;
  scan_id: string | null;
  scan_at: string | null;
}

/**
 * Reads a page.
 *
 * @param of.ctes - SQL of `page` (`created_at` and `id`, with one row more than is shown) and `scan` (the last row that the search
 *   read, if there are more).
 * @param of.columns - SQL of the columns that are shown of a row `k`.
 * @param of.joins - SQL of the joins that these columns need.
 */
export async function loadPage<T extends object>(
  pool: pg.Pool,
  values: Values,
  of: { readonly window: Window; readonly ctes: string; readonly columns: string; readonly joins: string },
): Promise<ListPage<T>> {
  const text = `
    with /* list-page.page */
    ${of.ctes},
    shown as materialized (
      select p.created_at, p.id
      from page p
      order by ${newestFirst('p')}
      limit ${of.window.limit}
    )
    select
      k.id as list_id, ${placeText('k')} as list_at,
      (select count(*) from page) > ${of.window.limit} as list_more,
      (select s.id from scan s) as scan_id,
      (select ${placeText('s')} from scan s) as scan_at,
      ${of.columns}
    from (select) one
    left join (shown k ${of.joins}) on true
    order by ${newestFirst('k')}`;
  const found = await transaction(pool, async (tx) => {
    await tx.query({ text: 'set local plan_cache_mode = force_custom_plan' });
    return run<PageRow>(tx, statement(text), values.list);
  });
  const rows = found.filter((row) => row.list_id !== null);
  const [first] = found;
  const last = rows.at(-1);
  const scanned =
    first?.scan_id != null && first.scan_at !== null ? { at: first.scan_at, id: first.scan_id } : undefined;
  const more =
    first?.list_more === true && last?.list_id != null ? { at: last.list_at, id: last.list_id } : undefined;
  return {
    rows: rows.map(({ list_id, list_at, list_more, scan_id, scan_at, ...row }) => row as unknown as T),
    next: scanned ?? more,
    scannedTo: scanned && new Date(scanned.at),
  };
}

/** The `like` pattern for values that contain a text. */
export const toPattern = (text: string): string => `%${text.replace(/[\\%_]/g, '\\$&')}%`;
