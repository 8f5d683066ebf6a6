/**
 * Counts the cost of a piece of work on an otherwise idle server: statements and round trips on the wire, commits that flush the log, bytes
 * of the log, and rows by table.
 *
 * C1  The log is read record by record (`pg_walinspect`), so the server's own records do not count.
 * C2  A commit flushes when its transaction has written something before it. A transaction that only notifies does not flush.
 * C3  Triggers count rows in an unlogged table, so that counting adds nothing to the log.
 * C4  Periodic work of processes (heartbeats, the version of the schema) belongs to no operation.
 */
import { privatePostgres, type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import pg from 'pg';

/** Rows of each table: `+1` inserted, `~2` updated, `-1` deleted. */
export type Rows = Readonly<Record<string, string>>;

export interface Cost {
  readonly statements: number;
  /** Statements that are sent together on one connection share a round trip. */
  readonly roundTrips: number;
  readonly commits: number;
  readonly walBytes: number;
  readonly rows: Rows;
  /** Updates by table that had to write new entries in all indexes (not HOT). */
  readonly coldUpdates: Readonly<Record<string, number>>;
}

/** After this number of consecutive looks at a silent wire, no work is under way. A delayed process counts as one look. */
const QUIET_LOOKS = 12;
const LOOK_MS = 5;

/** Prevents checkpoints, vacuum and full page writes during a measurement. */
const SETTINGS = [
  'set synchronous_commit = on',
  'alter system set autovacuum = off',
  'alter system set full_page_writes = off',
  "alter system set checkpoint_timeout = '1d'",
  "alter system set max_wal_size = '8GB'",
  'select pg_reload_conf()',
];

const SCHEMA = `
  create extension pg_walinspect;
  create schema meter;
  create unlogged table meter.changes (table_name text not null, sign text not null, rows int not null);
  create function meter.note() returns trigger language plpgsql security definer as $$
  begin
    insert into meter.changes select tg_table_name, tg_argv[0], count(*) from changed having count(*) > 0;
    return null;
  end $$;
  do $$
  declare
    name text;
    event text[];
  begin
    for name in
      select relname from pg_class
      where relnamespace = 'boxcar'::regnamespace and relkind in ('r', 'p') and not relispartition
        and relname not in ('workers', 'sweeper', 'schema_version')
    loop
      foreach event slice 1 in array array[['insert', 'new', '+'], ['update', 'new', '~'], ['delete', 'old', '-']] loop
        execute format(
          'create trigger meter_%1$s after %1$s on boxcar.%2$I referencing %3$s table as changed
             for each statement execute function meter.note(%4$L)',
          event[1], name, event[2], event[3]);
      end loop;
    end loop;
  end $$;`;

const CHANGES = `
  select table_name, string_agg(sign || rows, ' ' order by array_position('{+,~,-}', sign)) as change
  from (select table_name, sign, sum(rows) as rows from meter.changes group by 1, 2) c
  group by 1
  order by 1`;

/** Leaves out records that the server writes by itself, and the marks of this file. */
const LOG = `
  with records as (
    select xid::text as xid, resource_manager as manager, record_type as type, record_length as bytes
    from pg_get_wal_records_info($1, $2)
    where resource_manager not in ('XLOG', 'Standby')
  ),
  transactions as (
    select xid, sum(bytes) as bytes, bool_or(type = 'COMMIT') and bool_or(manager <> 'Transaction') as is_flushed
    from records
    group by xid
    having not bool_or(manager = 'LogicalMessage')
  )
  select count(*) filter (where xid <> '0' and is_flushed)::int as commits, coalesce(sum(bytes), 0)::int as bytes
  from transactions`;

/** Block 0 of an update contains its new version. */
const COLD_UPDATES = `
  select c.relname as table_name, count(*)::int as updates
  from pg_get_wal_block_info($1, $2) b
  join pg_class c on c.relfilenode = b.relfilenode
  where b.reldatabase = (select oid from pg_database where datname = current_database())
    and b.block_id = 0
    and b.resource_manager = 'Heap'
    and b.record_type like 'UPDATE%'
  group by 1
  order by 1`;

const isOfTheWork = (text: string): boolean => !text.includes('boxcar.schema_version');

export class Meter implements AsyncDisposable {
  readonly #admin: pg.Client;
  readonly #proxy: StatementProxy;
  readonly #close: () => Promise<void>;
  /** The labels of the statements of the last measurement, in order. */
  labels: readonly string[] = [];

  private constructor(admin: pg.Client, proxy: StatementProxy, close: () => Promise<void>) {
    this.#admin = admin;
    this.#proxy = proxy;
    this.#close = close;
  }

  static async open(): Promise<Meter> {
    const server = await privatePostgres();
    const admin = new pg.Client({ connectionString: server.adminUrl });
    await admin.connect();
    for (const text of [...SETTINGS, SCHEMA]) await admin.query(text);
    const proxy = await statementProxy(server.url);
    return new Meter(admin, proxy, async () => {
      await admin.end();
      await proxy[Symbol.asyncDispose]();
      await server.close();
    });
  }

  /** The URL of the database through the proxy that counts. */
  get url(): string {
    return this.#proxy.url;
  }

  /** The cost of `work` and all its consequences. @param isDone - Default: a statement was sent. */
  async costOf(work: () => unknown, isDone = () => this.#statements().length > 0): Promise<Cost> {
    await this.#rest();
    await this.#admin.query('truncate meter.changes');
    const from = await this.#position();
    this.#proxy.arm();
    await work();
    await waitFor(isDone, { message: 'the measured work is done', intervalMs: LOOK_MS });
    await this.#rest();
    const statements = this.#statements();
    const { statements: all, begins } = this.#proxy;
    const roundTrips = all.filter((text, index) => begins[index] === true && isOfTheWork(text)).length;
    this.labels = statements.map((text) => /\/\* ([\w.-]+)/.exec(text)?.[1] ?? text.slice(0, 12));
    const to = await this.#position();
    const log = await this.#log(from, to);
    const cold = await this.#admin.query<{ table_name: string; updates: number }>(COLD_UPDATES, [from, to]);
    const coldUpdates = Object.fromEntries(cold.rows.map((row) => [row.table_name, row.updates]));
    return { statements: statements.length, roundTrips, ...log, rows: await this.#changes(), coldUpdates };
  }

  #statements(): readonly string[] {
    return this.#proxy.statements.filter(isOfTheWork);
  }

  async #rest(): Promise<void> {
    let looks = 0;
    const isQuiet = (): boolean => {
      looks = this.#proxy.quietMs > LOOK_MS ? looks + 1 : 0;
      return looks > QUIET_LOOKS;
    };
    await waitFor(isQuiet, { message: 'nothing is under way', intervalMs: LOOK_MS });
  }

  /** The end of the log. Everything before it is on disk. */
  async #position(): Promise<string> {
    const { rows } = await this.#admin.query<{ lsn: string }>('select pg_current_wal_insert_lsn() as lsn');
    await this.#admin.query("select pg_logical_emit_message(true, 'meter', '')");
    return rows[0]?.lsn ?? '';
  }

  async #log(from: string, to: string): Promise<Pick<Cost, 'commits' | 'walBytes'>> {
    const { rows } = await this.#admin.query<{ commits: number; bytes: number }>(LOG, [from, to]);
    return { commits: rows[0]?.commits ?? 0, walBytes: rows[0]?.bytes ?? 0 };
  }

  async #changes(): Promise<Rows> {
    const { rows } = await this.#admin.query<{ table_name: string; change: string }>(CHANGES);
    return Object.fromEntries(rows.map((row) => [row.table_name, row.change]));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#close();
  }
}
