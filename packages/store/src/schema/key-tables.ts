/** Keys of the HTTP frame. */
import type { AgentId, KeyId, ProjectId, Scope } from '@boxcar/kernel';
import { boolean, text, uuid } from 'drizzle-orm/pg-core';
import { boxcar, bytea, createdAt, time } from './columns.js';

export const apiKeys = boxcar.table('api_keys', {
  id: uuid('id').$type<KeyId>().primaryKey(),
  projectId: uuid('project_id').$type<ProjectId>().notNull(),
  /** The agent that owns the key; null for a key of the project. */
  agentId: uuid('agent_id').$type<AgentId>(),
  name: text('name').notNull(),
  /** The hash of the key. The text of a key is not stored anywhere. */
  keySha256: bytea('key_sha256').notNull().unique(),
  /** The last characters of the key's text. */
  hint: text('hint').notNull(),
  scopes: text('scopes').array().$type<Scope[]>().notNull(),
  /** True for a key that the servers of a machine made for themselves. Valid only on loopback addresses. */
  isLocal: boolean('is_local').notNull().default(false),
  createdAt: createdAt(),
  expiresAt: time('expires_at'),
  /** Written at most once a minute. */
  lastUsedAt: time('last_used_at'),
  /** The time from which the key is refused; after a rotation it may be in the future. */
  revokedAt: time('revoked_at'),
  /** The key that this key replaces. A key has only one successor. */
  rotatedFrom: uuid('rotated_from').$type<KeyId>().unique(),
});
