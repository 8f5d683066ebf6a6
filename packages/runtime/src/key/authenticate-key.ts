/** Finds the principal of a key. */
import type { AgentId, KeyId, Principal, ProjectId } from '@boxcar/kernel';
import { findUsableKey, noteKeyUse } from '@boxcar/store';
import type pg from 'pg';
import { digestOf, isKeyText } from './key-text.js';

/** The principal of a request by a key. A key of an agent acts as that agent; any other key acts for its project. */
export interface KeyPrincipal extends Principal {
  readonly keyId: KeyId;
  readonly name: string;
  readonly projectId: ProjectId;
  readonly agent: { readonly id: AgentId; readonly name: string } | null;
  /** A key that the servers of one machine made for themselves. */
  readonly isLocal: boolean;
  /**
   * Records the use, at most once a minute; undefined when a use was recorded recently. Call it outside the path of the request.
   */
  readonly noteUse: (() => Promise<void>) | undefined;
}

/**
 * The principal of a key that may be used now. For any other key undefined, whatever the reason. One statement, and none for a
 * text that is not a key.
 */
export async function authenticateKey(pool: pg.Pool, text: string): Promise<KeyPrincipal | undefined> {
  if (!isKeyText(text)) return undefined;
  const row = await findUsableKey(pool, digestOf(text));
  if (row === undefined) return undefined;
  const { id, name, project_id, agent_id, agent, scopes, is_local, is_use_due } = row;
  return {
    id: agent_id ?? id,
    kind: agent_id === null ? 'key' : 'agent',
    scopes,
    keyId: id,
    name,
    projectId: project_id,
    agent: agent_id === null ? null : { id: agent_id, name: agent ?? '' },
    isLocal: is_local,
    noteUse: is_use_due ? () => noteKeyUse(pool, id) : undefined,
  };
}
