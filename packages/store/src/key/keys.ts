/**
 * Keys of the HTTP frame.
 *
 * K1  The text of a key is never stored or logged: a key is found by the sha256 of its text.
 * K2  A key is usable until it is revoked or expires, while its project accepts submissions. Each request reads the row.
 * K3  A key has at most one successor. One statement makes the successor and ends the key.
 * K4  A local key is valid only at servers that are reachable only from their own machine.
 * Rule: docs/reference/http.md, "Keys".
 */
import type { AgentId, KeyId, ProjectId, Scope } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement, type Tx, transaction } from '../db/index.js';

/** A key as lists and reports show it. */
export interface KeyRow extends pg.QueryResultRow {
  readonly id: KeyId;
  readonly project_id: ProjectId;
  readonly agent_id: AgentId | null;
  readonly agent: string | null;
  readonly name: string;
  readonly hint: string;
  readonly scopes: readonly Scope[];
  readonly is_local: boolean;
  readonly created_at: Date;
  readonly expires_at: Date | null;
  readonly last_used_at: Date | null;
  readonly revoked_at: Date | null;
  readonly rotated_from: KeyId | null;
  readonly status: 'usable' | 'revoked' | 'expired';
}

export interface NewKey {
  readonly id: KeyId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId | null;
  readonly name: string;
  readonly sha256: Buffer;
  readonly hint: string;
  readonly scopes: readonly Scope[];
  /** A key of one machine (K4). */
  readonly isLocal: boolean;
  /** Null: it does not expire. */
  readonly lifetimeMs: number | null;
}

const IS_USABLE =
  '(k.revoked_at is null or k.revoked_at > now()) and (k.expires_at is null or k.expires_at > now())';
const STATUS = `
  case when k.revoked_at <= now() then 'revoked' when k.expires_at <= now() then 'expired' else 'usable' end`;
/** Columns of a key `k` and its agent `a`. */
const KEY = `
  k.id, k.project_id, k.agent_id, a.name as agent, k.name, k.hint, k.scopes, k.is_local, k.created_at, k.expires_at,
  k.last_used_at, k.revoked_at, k.rotated_from, ${STATUS} as status`;
const AGENT = 'left join boxcar.agents a on a.id = k.agent_id';

const MAKE = statement(`
  with /* keys.make */
  k as (
    insert into boxcar.api_keys (id, project_id, agent_id, name, key_sha256, hint, scopes, expires_at, is_local)
    values ($1, $2, $3, $4, $5, $6, $7, now() + $8::bigint * interval '1 millisecond', $9)
    on conflict (id) do update set name = excluded.name
    returning *
  )
  select ${KEY}
  from k
  ${AGENT}`);

const valuesOf = (key: NewKey): unknown[] => [
  key.id,
  key.projectId,
  key.agentId,
  key.name,
  key.sha256,
  key.hint,
  key.scopes,
  key.lifetimeMs,
  key.isLocal,
];

const onlyRow = (rows: readonly KeyRow[]): KeyRow => {
  const [row] = rows;
  if (row === undefined) throw new Error('a key was not made');
  return row;
};

/** One statement. A repeated call with the same id changes nothing. */
export const insertKey = async (pool: pg.Pool, key: NewKey): Promise<KeyRow> =>
  onlyRow(await runRetrying<KeyRow>(pool, MAKE, valuesOf(key)));

/** A usable key, with the state of its project and agent. */
export interface UsableKey extends pg.QueryResultRow {
  readonly id: KeyId;
  readonly project_id: ProjectId;
  readonly agent_id: AgentId | null;
  readonly agent: string | null;
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly is_local: boolean;
  /** The last recorded use is more than a minute old. */
  readonly is_use_due: boolean;
}

const USE_NOTED = `interval '1 minute'`;

const FIND_USABLE = statement(`
  select /* keys.find_usable */
    k.id, k.project_id, k.agent_id, a.name as agent, k.name, k.scopes, k.is_local,
    coalesce(k.last_used_at < now() - ${USE_NOTED}, true) as is_use_due
  from boxcar.api_keys k
  join boxcar.projects p on p.id = k.project_id and p.archived_at is null
  ${AGENT}
  where k.key_sha256 = $1 and ${IS_USABLE}`);

/** The key with this digest, if it is usable now (K2). One statement. */
export async function findUsableKey(db: Queryable, sha256: Buffer): Promise<UsableKey | undefined> {
  const [row] = await run<UsableKey>(db, FIND_USABLE, [sha256]);
  return row;
}

const NOTE_USE = statement(`
  update /* keys.note_use */ boxcar.api_keys k
  set last_used_at = now()
  where k.id = $1 and (k.last_used_at is null or k.last_used_at < now() - ${USE_NOTED})`);

/** Records the use of a key, at most once a minute. */
export async function noteKeyUse(db: Queryable, keyId: KeyId): Promise<void> {
  await run(db, NOTE_USE, [keyId]);
}

const HAS_USABLE = statement(`
  select /* keys.has_usable */ exists (
    select from boxcar.api_keys k
    join boxcar.projects p on p.id = k.project_id and p.archived_at is null
    where not k.is_local and ${IS_USABLE}
  ) as has_usable`);

/** Whether any project has a key that is usable from another machine now. */
export async function hasUsableKey(db: Queryable): Promise<boolean> {
  const [row] = await run<{ has_usable: boolean }>(db, HAS_USABLE, []);
  return row?.has_usable === true;
}

export interface KeyFilters {
  readonly projectId: ProjectId;
  readonly limit: number;
  /** The last key of the previous page. */
  readonly after?: { readonly at: string; readonly id: string } | undefined;
  /** Includes ended keys. */
  readonly isAll: boolean;
}

export interface ListedKey extends KeyRow {
  /** ISO 8601, to the microsecond. */
  readonly place_at: string;
}

const LIST = statement(`
  select /* keys.list */ ${KEY}, to_char(k.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at
  from boxcar.api_keys k
  ${AGENT}
  where k.project_id = $1
    and ($2::boolean or (${IS_USABLE}))
    and ($3::timestamptz is null or (k.created_at, k.id) < ($3, $4::uuid))
  order by k.created_at desc, k.id desc
  limit $5`);

/** Keys of a project, the newest first. */
export const listKeyRows = (db: Queryable, of: KeyFilters): Promise<ListedKey[]> =>
  run<ListedKey>(db, LIST, [of.projectId, of.isAll, of.after?.at ?? null, of.after?.id ?? null, of.limit]);

const REVOKE = statement(`
  with /* keys.revoke */
  k as (
    update boxcar.api_keys x
    set revoked_at = least(x.revoked_at, now())
    where x.id = $1 and x.project_id = $2
    returning *
  )
  select ${KEY}
  from k
  ${AGENT}`);

/** Ends a key. A key that was already revoked stays as it is. @returns Undefined when the project does not have the key. */
export async function revokeKeyRow(
  pool: pg.Pool,
  of: { readonly keyId: KeyId; readonly projectId: ProjectId },
): Promise<KeyRow | undefined> {
  const [row] = await runRetrying<KeyRow>(pool, REVOKE, [of.keyId, of.projectId]);
  return row;
}

// The old key is locked. Of two rotations the second waits, and the unique `rotated_from` then lets it make nothing. A repeated statement
// finds the key that it has made, and changes nothing.
const ROTATE = statement(`
  with /* keys.rotate */
  old as (
    select k.*
    from boxcar.api_keys k
    where k.id = $1
      and k.project_id = $2
      and ${IS_USABLE}
      and not exists (select from boxcar.api_keys s where s.rotated_from = k.id)
    for update
  ),
  made as (
    insert into boxcar.api_keys (
      id, project_id, agent_id, name, key_sha256, hint, scopes, expires_at, rotated_from, is_local
    )
    select $3, o.project_id, o.agent_id, o.name, $4, $5, o.scopes, now() + (o.expires_at - o.created_at), o.id,
      o.is_local
    from old o
    on conflict (rotated_from) do nothing
    returning *
  ),
  ended as (
    update boxcar.api_keys k
    set revoked_at = least(k.revoked_at, now() + $6::bigint * interval '1 millisecond')
    from made m
    where k.id = m.rotated_from
  )
  select ${KEY}
  from (
    select *
    from made
    union all
    select *
    from boxcar.api_keys x
    where x.id = $3
  ) k
  ${AGENT}`);

export interface Rotation extends Pick<NewKey, 'id' | 'projectId' | 'sha256' | 'hint'> {
  readonly keyId: KeyId;
  /** How long the old key may still be used. */
  readonly graceMs: number;
}

/**
 * Makes the successor of a key and ends the key (K3). @returns Undefined when the key is not usable, has a successor, or does not exist.
 */
export async function rotateKeyRow(pool: pg.Pool, rotation: Rotation): Promise<KeyRow | undefined> {
  const { keyId, projectId, id, sha256, hint, graceMs } = rotation;
  const [row] = await runRetrying<KeyRow>(pool, ROTATE, [keyId, projectId, id, sha256, hint, graceMs]);
  return row;
}

const FIND = statement(`
  select /* keys.find */ ${KEY}
  from boxcar.api_keys k
  ${AGENT}
  where k.id = $1 and k.project_id = $2`);

export async function findKeyRow(
  db: Queryable,
  of: { readonly keyId: KeyId; readonly projectId: ProjectId },
): Promise<KeyRow | undefined> {
  const [row] = await run<KeyRow>(db, FIND, [of.keyId, of.projectId]);
  return row;
}

const LOCK_LOCAL = statement(
  "select /* keys.lock_local */ pg_advisory_xact_lock(hashtextextended('boxcar.local_key:' || $1::text, 0))",
);
const DATABASE = statement(`
  select /* keys.database */ d.oid::text || ':' || extract(epoch from v.applied_at)::text as name
  from pg_database d
  cross join boxcar.schema_version v
  where d.datname = current_database()
  order by v.version
  limit 1`);

/** Work on the local key, done under its lock. */
export type LocalKeyWork<T> = (of: {
  /** The id of the database, unique among all databases of the machine. */
  readonly database: string;
  findUsable(sha256: Buffer): Promise<UsableKey | undefined>;
  insert(key: NewKey): Promise<KeyRow>;
  revoke(keyId: KeyId): Promise<void>;
}) => Promise<T>;

/** Does work on the local key of a project in one transaction, in one process at a time. */
export const withLocalKey = <T>(pool: pg.Pool, projectId: ProjectId, work: LocalKeyWork<T>): Promise<T> =>
  transaction(pool, async (tx: Tx) => {
    await run(tx, LOCK_LOCAL, [projectId]);
    const [row] = await run<{ name: string }>(tx, DATABASE, []);
    return work({
      database: row?.name ?? '',
      findUsable: (sha256) => findUsableKey(tx, sha256),
      insert: async (key) => onlyRow(await run<KeyRow>(tx, MAKE, valuesOf(key))),
      revoke: async (keyId) => void (await run(tx, REVOKE, [keyId, projectId])),
    });
  });
