/** Purges ended keys of the HTTP frame. */
import type { ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';

const DELETE = statement(`
  delete /* purge-keys.delete */ from boxcar.api_keys k
  where ($2::uuid is null or k.project_id = $2) and least(k.revoked_at, k.expires_at) < $1`);

/** Removes keys that were revoked or expired before a moment. */
export async function purgeKeys(
  pool: pg.Pool,
  of: { readonly before: Date; readonly projectId?: ProjectId | undefined },
): Promise<void> {
  await runRetrying(pool, DELETE, [of.before, of.projectId ?? null]);
}
