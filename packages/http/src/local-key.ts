/** The key of a server that only its own machine can reach. The first start makes it, and keeps it for the clients of the same account. */
import { createHash } from 'node:crypto';
import { KernelError, type ProjectId, SCOPES } from '@boxcar/kernel';
import { digestKey, getProject, makeKeyText, newId } from '@boxcar/runtime';
import { type UsableKey, withLocalKey } from '@boxcar/store';
import type pg from 'pg';
import { keyFile, readKeptKey, writeKeptKey } from './local-state.js';

const NAME = 'local';

export interface LocalKey {
  readonly keyId: string;
  readonly key: string;
  /** The file with the key. */
  readonly path: string;
  /** True when this start has made the key. */
  readonly isNew: boolean;
}

const nameOf = (database: string, projectId: ProjectId): string =>
  createHash('sha256').update(`${database}:${projectId}`).digest('hex').slice(0, 32);

/** A key that an older build made may lack a scope. */
const isComplete = (found: UsableKey, projectId: ProjectId): boolean =>
  found.project_id === projectId && found.is_local && SCOPES.every((scope) => found.scopes.includes(scope));

/**
 * The local key of a project, with all scopes: the key in its file while that key is valid, otherwise a new key. Concurrent starts end
 * with the same key. When other accounts could read the file, it is replaced and its key is revoked.
 *
 * @param of.project - Id or name.
 * @throws KernelError `not_found`, `project_archived`; `bad_config` for a folder that cannot be used.
 */
export async function openLocalKey(
  pool: pg.Pool,
  { project, folder }: { readonly project: string; readonly folder: string },
): Promise<LocalKey> {
  const { project_id: projectId, name, archived_at } = await getProject(pool, project);
  if (archived_at !== null)
    throw new KernelError('project_archived', {
      message: `Project '${name}' is archived: its keys are not valid.`,
      details: { project_id: projectId },
    });
  const open = () =>
    withLocalKey(pool, projectId, async ({ database, findUsable, insert, revoke }) => {
      const path = keyFile(folder, nameOf(database, projectId));
      const kept = readKeptKey(path);
      const found = kept && (await findUsable(digestKey(kept.value.key)));
      if (kept?.isPrivate === true && found !== undefined && isComplete(found, projectId))
        return { keyId: found.id, key: kept.value.key, path, isNew: false };
      if (found?.project_id === projectId) {
        await revoke(found.id);
        return undefined;
      }
      const { text, sha256, hint } = makeKeyText();
      const id = newId<'key'>();
      await insert({
        ...{ id, projectId, agentId: null, name: NAME, sha256, hint },
        ...{ scopes: SCOPES, isLocal: true, lifetimeMs: null },
      });
      // Written before the commit: when the write fails, the transaction leaves no key, and a key that is not committed is made again.
      writeKeptKey(path, { key_id: id, key: text, project: name, project_id: projectId });
      return { keyId: id, key: text, path, isNew: true };
    });
  // The old key is revoked and committed before its file is replaced, because after the replacement nothing names the old key any more.
  for (let key = await open(); ; key = await open()) if (key !== undefined) return key;
}
