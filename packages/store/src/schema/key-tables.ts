/** Keys of the HTTP frame. */
import type { AgentId, KeyId, ProjectId, Scope } from '@boxcar/kernel';
import { boolean, text, uuid } from 'drizzle-orm/pg-core';
import { boxcar, bytea, createdAt, time } from './columns.js';

export const apiKeys = boxcar.table('api_keys', {
  id: uuid('id').$type<KeyId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** Whose key it is; null: of the project. */
  agentId: uuid('agent_id').$type<AgentId>(),
  name: text('name').notNull(),
  /** The text of a key is nowhere. */
  keySha256: bytea('key_sha256').notNull().unique(),
  /** The last characters of its text. */
  hint: text('hint').notNull(),
  scopes: text('scopes').array().$type<Scope[]>().notNull(),
  /** Of a machine, whose servers made it for themselves; valid on loopback addresses alone. */
  isLocal: boolean('is_local').notNull().default(false),
  createdAt: createdAt(),
  expiresAt: time('expires_at'),
  /** Written at most once a minute. */
  lastUsedAt: time('last_used_at'),
  /** From when it is refused; after a rotation this may be later. */
  revokedAt: time('revoked_at'),
  /** The key in whose place it was made, which has one successor. */
  rotatedFrom: uuid('rotated_from').$type<KeyId>().unique(),
});
