/**
 * Functions for programs and the command line that make, list, revoke and rotate keys of the HTTP frame. Rule:
 * docs/reference/http.md, "Keys".
 */
import {
  type AgentId,
  checkDuration,
  KernelError,
  type KeyId,
  nameSchema,
  type ProjectId,
  SCOPES,
  type Scope,
  safeParse,
  toBadRequest,
} from '@boxcar/kernel';
import {
  findKeyId,
  findKeyRow,
  findProjectByRef,
  insertKey,
  type KeyRow,
  listKeyRows,
  revokeKeyRow,
  rotateKeyRow,
} from '@boxcar/store';
import type pg from 'pg';
import { z } from 'zod';
import { findActor, newId, readCursor } from '../lib/index.js';
import { makeKeyText } from './key-text.js';

const TEN_YEARS_MS = 3650 * 86_400_000;
const DEFAULT_NAME = 'key';
/** The rights of keys that a key of an agent cannot have. */
const NOT_FOR_AGENTS: readonly Scope[] = ['approvals:write'];

/** A key without its text, which is not stored. */
export interface Key {
  readonly key_id: KeyId;
  readonly project_id: ProjectId;
  readonly agent_id: AgentId | null;
  readonly agent: string | null;
  readonly name: string;
  /** The last characters of its text. */
  readonly hint: string;
  readonly scopes: readonly Scope[];
  /** A key that the servers of one machine made for themselves; valid only on loopback addresses. */
  readonly is_local: boolean;
  readonly status: 'usable' | 'revoked' | 'expired';
  readonly created_at: Date;
  readonly expires_at: Date | null;
  /** Precise to the minute. */
  readonly last_used_at: Date | null;
  /** The time from which the key is refused. */
  readonly revoked_at: Date | null;
  /** The key that it replaces. */
  readonly rotated_from: KeyId | null;
}

/** A new key with its text. The text is shown only here. */
export interface CreatedKey extends Key {
  readonly key: string;
  /** The name of its project. */
  readonly project: string;
}

const toKey = ({ id, ...row }: KeyRow): Key => ({
  key_id: id,
  project_id: row.project_id,
  agent_id: row.agent_id,
  agent: row.agent,
  name: row.name,
  hint: row.hint,
  scopes: row.scopes,
  is_local: row.is_local,
  status: row.status,
  created_at: row.created_at,
  expires_at: row.expires_at,
  last_used_at: row.last_used_at,
  revoked_at: row.revoked_at,
  rotated_from: row.rotated_from,
});

export interface CreateKeyOptions {
  readonly scopes: readonly Scope[];
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** Id or name: the key acts as this agent. Default: the key acts for the project. */
  readonly agent?: string | undefined;
  /** A label for people; several keys may have the same name. Default `key`. */
  readonly name?: string | undefined;
  /** How long the key may be used. Default: no limit. */
  readonly lifetimeMs?: number | undefined;
}

const scopesSchema = z
  .array(z.enum(SCOPES))
  .min(1, 'must have one scope at least')
  .transform((scopes) => SCOPES.filter((scope) => scopes.includes(scope)));

const createSchema = z
  .strictObject({
    scopes: scopesSchema,
    projectId: z.string().min(1).default('default'),
    agent: z.string().min(1).optional(),
    name: nameSchema.default(DEFAULT_NAME),
    lifetimeMs: z.int().min(1).max(TEN_YEARS_MS).optional(),
  })
  .refine(({ agent, scopes }) => agent === undefined || !scopes.some((one) => NOT_FOR_AGENTS.includes(one)), {
    path: ['scopes'],
    message: `must be without ${NOT_FOR_AGENTS.join(', ')} in a key of an agent: an agent never decides`,
  });

/**
 * Makes a key. Two statements.
 *
 * @throws KernelError `bad_request` with all findings; `not_found` for project or agent. A key of an archived project can be
 * made; it is refused until the project is opened again.
 */
export async function createKey(pool: pg.Pool, options: CreateKeyOptions): Promise<CreatedKey> {
  const parsed = safeParse(createSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  const { scopes, projectId, agent, name, lifetimeMs } = parsed.data;
  const project = await findProjectByRef(pool, projectId);
  const agentId = agent === undefined ? null : (await findActor(pool, project.id, agent)).agentId;
  const { text, sha256, hint } = makeKeyText();
  const row = await insertKey(pool, {
    id: newId<'key'>(),
    projectId: project.id,
    agentId,
    name,
    sha256,
    hint,
    scopes,
    isLocal: false,
    lifetimeMs: lifetimeMs ?? null,
  });
  return { ...toKey(row), key: text, project: project.name };
}

export interface ListKeysOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** Includes ended keys. */
  readonly all?: boolean | undefined;
  /** 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the previous page. */
  readonly cursor?: string | undefined;
}

/** A page of keys, the newest first. */
export interface KeyList {
  readonly keys: readonly Key[];
  /** Null on the last page. */
  readonly next_cursor: string | null;
}

const listSchema = z.strictObject({
  projectId: z.string().min(1).default('default'),
  all: z.boolean().default(false),
  limit: z.int().min(1).max(1_000).default(50),
  cursor: z
    .string()
    .refine((text) => readCursor('keys', text) !== undefined, 'must be the next_cursor of a page of keys')
    .optional(),
});

/** Keys of a project. Two statements. @throws KernelError `bad_request`, `not_found`. */
export async function listKeys(pool: pg.Pool, options: ListKeysOptions = {}): Promise<KeyList> {
  const parsed = safeParse(listSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  const { projectId, all, limit, cursor } = parsed.data;
  const rows = await listKeyRows(pool, {
    projectId: (await findProjectByRef(pool, projectId)).id,
    isAll: all,
    limit: limit + 1,
    after: cursor === undefined ? undefined : readCursor('keys', cursor),
  });
  const shown = rows.slice(0, limit);
  const last = rows.length > limit ? shown.at(-1) : undefined;
  return {
    keys: shown.map(toKey),
    next_cursor: last === undefined ? null : `keys:${last.place_at}:${last.id}`,
  };
}

const noKey = (keyId: string): KernelError =>
  new KernelError('not_found', {
    message: `No key '${keyId}' in this project.`,
    details: { key_id: keyId },
  });

/**
 * Ends a key at once: the next request by the key is refused. A repeated call changes nothing.
 *
 * @param keyRef - The key's id, or at least its first eight digits.
 * @throws KernelError `not_found`, `bad_request`.
 */
export async function revokeKey(
  pool: pg.Pool,
  keyRef: string,
  { projectId: project = 'default' }: { readonly projectId?: string | undefined } = {},
): Promise<Key> {
  const { keyId, projectId } = await findKeyId(pool, keyRef, project);
  const row = await revokeKeyRow(pool, { keyId, projectId });
  if (row === undefined) throw noKey(keyRef);
  return toKey(row);
}

export interface RotateKeyOptions {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** How long the old key may still be used, at most 30 days; default 0. */
  readonly graceMs?: number | undefined;
}

/**
 * Makes the successor of a key. The old key ends after `graceMs`. The new key has the same project, agent, name, scopes and lifetime.
 *
 * @param keyRef - As `revokeKey`.
 * @throws KernelError `not_found`, `bad_request`; `conflict` for a key that has ended or was rotated before.
 */
export async function rotateKey(
  pool: pg.Pool,
  keyRef: string,
  { projectId: project = 'default', graceMs = 0 }: RotateKeyOptions = {},
): Promise<CreatedKey> {
  checkDuration(graceMs, 'graceMs', { allowsZero: true });
  const { keyId, projectId } = await findKeyId(pool, keyRef, project);
  // The project is read before the rotation, so that nothing can fail between the end of the old key and the answer.
  const { name } = await findProjectByRef(pool, projectId);
  const { text, sha256, hint } = makeKeyText();
  const id = newId<'key'>();
  const row = await rotateKeyRow(pool, { keyId, projectId, id, sha256, hint, graceMs: Math.round(graceMs) });
  if (row === undefined) throw await whyNotRotated(pool, { keyId, projectId });
  return { ...toKey(row), key: text, project: name };
}

async function whyNotRotated(
  pool: pg.Pool,
  of: { readonly keyId: KeyId; readonly projectId: ProjectId },
): Promise<KernelError> {
  const row = await findKeyRow(pool, of);
  if (row === undefined) return noKey(of.keyId);
  return new KernelError('conflict', {
    message:
      row.status === 'usable' ? `Key ${of.keyId} was rotated before.` : `Key ${of.keyId} is ${row.status}.`,
    next: 'Rotate the key that is in use (boxcar keys ls), or make a new one: boxcar keys create.',
    details: { key_id: of.keyId, status: row.status },
  });
}
