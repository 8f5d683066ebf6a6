/**
 * The roles and the database of a server. The application's role owns its database and is not a superuser. So an attacker who takes over
 * its connection can neither read files of the machine nor run programs on it.
 */
import type pg from 'pg';
import { type Cluster, ROLE } from './cluster.js';
import { adminOf, sayGoodbye } from './server-client.js';

export const DATABASE = 'boxcar';

/**
 * Creates the role and the database where they are missing. When two processes do this at once, one creates them; the other fails, and
 * finds them at its next try.
 *
 * @throws The error of the server.
 */
export async function prepareDatabase(cluster: Cluster, port: number): Promise<void> {
  const admin = adminOf(cluster, port, 'postgres');
  try {
    await admin.connect();
    const { rows } = await admin.query<{ has_role: boolean; owner: string | null }>(
      `
        select
          exists (select from pg_roles where rolname = $1) as has_role,
          (select pg_get_userbyid(datdba) from pg_database where datname = $2) as owner`,
      [ROLE, DATABASE],
    );
    const [{ has_role: hasRole, owner } = { has_role: false, owner: null }] = rows;
    if (!hasRole) await admin.query(`create role ${ROLE} login password '${cluster.password}'`);
    if (owner === null) await admin.query(`create database ${DATABASE} owner ${ROLE}`);
    else if (owner !== ROLE) await handOver(cluster, port);
  } finally {
    await sayGoodbye(admin);
  }
}

// Objects of extensions keep their owner. Sequences of columns and types of tables follow their tables. Each `alter` locks its object
// exclusively until the end of the block, so a program that uses the database waits for the whole handover.
const HAND_OVER = `
do $$
declare statement text;
begin
  for statement in
    with space as (
      select n.oid, n.nspname, n.nspowner
      from pg_namespace n
      where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    )
    select format('alter schema %I owner to ${ROLE}', s.nspname)
    from space s
    where s.nspname <> 'public'
    union all
    select format(
      'alter %s %I.%I owner to ${ROLE}',
      case c.relkind when 'S' then 'sequence' when 'v' then 'view' when 'm' then 'materialized view' else 'table' end,
      s.nspname, c.relname
    )
    from pg_class c
    join space s on s.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'S', 'v', 'm')
      and not exists (
        select from pg_depend d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('e', 'a', 'i')
      )
    union all
    select format('alter routine %s owner to ${ROLE}', p.oid::regprocedure)
    from pg_proc p
    join space s on s.oid = p.pronamespace
    where not exists (
      select from pg_depend d
      where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
    )
    union all
    select format('alter type %I.%I owner to ${ROLE}', s.nspname, t.typname)
    from pg_type t
    join space s on s.oid = t.typnamespace
    where t.typtype in ('e', 'd')
      and not exists (
        select from pg_depend d
        where d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
      )
  loop
    execute statement;
  end loop;
  execute 'alter database ${DATABASE} owner to ${ROLE}';
end $$`;

/**
 * Hands over a database of an earlier version, which belongs to the superuser. It is one statement, so the handover is complete or has no
 * effect.
 */
async function handOver(cluster: Cluster, port: number): Promise<void> {
  const admin: pg.Client = adminOf(cluster, port, DATABASE);
  try {
    await admin.connect();
    await admin.query(HAND_OVER);
  } finally {
    await sayGoodbye(admin);
  }
}
