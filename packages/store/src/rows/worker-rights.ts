/**
 * The rights of the database role of processes that submit and work: workers, doors, programs and the command line, except `migrate`,
 * `erase` and `purge`. The list is in `known-schema.ts`. `boxcar doctor` compares a role with it, and `boxcar migrate --grant-worker`
 * grants it.
 */
import { KernelError } from '@boxcar/kernel';
import type pg from 'pg';
import {
  createDirectClient,
  endClient,
  type Queryable,
  run,
  sqlStateOf,
  statement,
  toDatabaseError,
} from '../db/index.js';
import { WORKER_TABLES } from './known-schema.js';

const WORKER_FUNCTIONS = ['is_lock_free'];

interface Right {
  readonly right: string;
  /** `table boxcar.turns`, quoted for SQL. */
  readonly target: string;
}

// BullMQ creates a sequence for the ids of a queue when jobs are first added to it in bulk, so the role must be able to create one.
// Such a sequence belongs to the role that created it, and this program does not use it: its jobs have their own ids.
// Takes no locks: it only reads the catalogue.
// $1: the role; null: the role of this connection. $2: rights on tables. $3: functions. $4: whether this database has the queues.
const MISSING = statement(`
  with /* worker-rights.missing */
  role as (
    select r.oid
    from pg_roles r
    where r.rolname = coalesce($1::text, current_user::text)
  ),
  space as (
    select n.oid, n.nspname, n.nspowner
    from pg_namespace n
    where n.nspname = 'boxcar' or ($4 and n.nspname = 'bullmq')
  ),
  wanted as (
    select
      1 as place, r.what as right,
      format('database %I', current_database()) as target,
      has_database_privilege(role.oid, current_database(), r.what) as has
    from role
    cross join (values ('connect'), ('temporary')) r(what)
    union all
    select 2, x.what, format('schema %I', s.nspname), has_schema_privilege(role.oid, s.oid, x.what)
    from role
    cross join space s
    join (values ('usage'), ('create')) x(what) on x.what = 'usage' or s.nspname = 'bullmq'
    union all
    select
      3, x.right, format('table %I.%I', s.nspname, c.relname),
      case x.right
        when 'update (id)' then has_column_privilege(role.oid, c.oid, 'id', 'update')
        else has_table_privilege(role.oid, c.oid, x.right)
      end
    from role
    cross join json_to_recordset($2) as x(name text, "right" text)
    join space s on s.nspname = 'boxcar'
    join pg_class c on c.relnamespace = s.oid and c.relname = x.name
    union all
    select
      4, 'execute', format('function %s', p.oid::regprocedure),
      has_function_privilege(role.oid, p.oid, 'execute')
    from role
    cross join space s
    join pg_proc p on p.pronamespace = s.oid
    where s.nspname = 'bullmq' or p.proname = any ($3)
    union all
    select 5, x.what, format('table %I.%I', s.nspname, c.relname), has_table_privilege(role.oid, c.oid, x.what)
    from role
    cross join space s
    join pg_class c on c.relnamespace = s.oid and c.relkind = 'r'
    cross join (values ('select'), ('insert'), ('update'), ('delete')) x(what)
    where s.nspname = 'bullmq' and (x.what = 'select' or c.relname <> 'migration')
    union all
    select
      6, 'usage', format('sequence %I.%I', s.nspname, c.relname),
      has_sequence_privilege(role.oid, c.oid, 'usage')
    from role
    cross join space s
    join pg_class c on c.relnamespace = s.oid and c.relkind = 'S' and c.relowner = s.nspowner
    where s.nspname = 'bullmq'
  )
  select w.right, w.target
  from wanted w
  where not w.has
  order by w.place, w.target, w.right`);

const TABLE_RIGHTS = JSON.stringify(
  Object.entries(WORKER_TABLES).flatMap(([name, rights]) =>
    ['select', ...rights].map((right) => ({ name, right })),
  ),
);

const findMissing = (db: Queryable, role: string | null, hasQueues: boolean): Promise<Right[]> =>
  run<Right & pg.QueryResultRow>(db, MISSING, [role, TABLE_RIGHTS, WORKER_FUNCTIONS, hasQueues]);

const toText = ({ right, target }: Right): string =>
  `${right} on ${target.replace(/^(table|sequence) /, '')}`;

/**
 * The rights that the role of this connection lacks, such as `update on boxcar.turns`.
 *
 * @param options.hasQueues - Whether this database also has the queues.
 */
export const readMissingRights = async (
  db: Queryable,
  options: { readonly hasQueues: boolean },
): Promise<readonly string[]> => (await findMissing(db, null, options.hasQueues)).map(toText);

/**
 * Grants a role the rights that it lacks for work on this database, including its queues. A second call changes nothing.
 *
 * @param connectionString - A connection as the owner of the tables, which is the role that migrates.
 * @returns The rights that were granted.
 * @throws KernelError `not_found` for an unknown role, `database_forbidden` for a connection that may not grant.
 */
export async function grantWorkerRights(connectionString: string, role: string): Promise<readonly string[]> {
  const client = createDirectClient({
    connectionString,
    applicationName: 'boxcar migrate',
    queryMs: 30_000,
  });
  try {
    await client.connect();
    const { rows } = await client.query<{ quoted: string }>(
      'select quote_ident(rolname) as quoted from pg_roles where rolname = $1::text',
      [role],
    );
    const [{ quoted } = {}] = rows;
    if (quoted === undefined)
      throw new KernelError('not_found', {
        message: `The server has no role '${role}'; create it first (create role … login password '…'), in the case in which it is written here.`,
        details: { role },
      });
    const missing = await findMissing(client, role, true);
    if (missing.length === 0) return [];
    await client.query(
      `begin; ${missing.map(({ right, target }) => `grant ${right} on ${target} to ${quoted}`).join('; ')}; commit`,
    );
    // Postgres only warns when a role may grant some of a target's rights but not this one.
    const left = await findMissing(client, role, true);
    if (left.length > 0)
      throw forbidden(role, `${left.slice(0, 5).map(toText).join(', ')} could not be granted`);
    return missing.map(toText);
  } catch (error) {
    if (sqlStateOf(error) === '42501') throw forbidden(role, (error as Error).message, error);
    throw toDatabaseError(error);
  } finally {
    await endClient(client);
  }
}

const forbidden = (role: string, reason: string, cause?: unknown): KernelError =>
  new KernelError('database_forbidden', {
    message: `Role '${role}' was not granted the rights that a worker needs: ${reason}.`,
    details: { role },
    cause,
  });
