/** The current state of a resource as its reader sees it, and the rows whose mark shows a possible change. */
import { KernelError, type ProjectId, sha256, tryParseId } from '@boxcar/kernel';
import { findActor } from '@boxcar/runtime';
import type { Followed } from '@boxcar/store/report';
import { ResourceNotFoundError } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { type Address, parseAddress } from './address.js';
import { toProtocolError } from './body.js';
import { mayRead, readResource } from './read-resource.js';
import { sessionVersion } from './session-bodies.js';
import { resolveTape } from './turn-bodies.js';

export interface Observed {
  /** It differs from the previous version exactly when the resource has changed. */
  readonly version: string;
  /** Null: no write changes the resource. */
  readonly followed: Followed | null;
}

/** Numbers that change constantly are not followed. */
const UNFOLLOWED: ReadonlySet<Address['kind']> = new Set(['health', 'metrics']);

function followedOf(address: Address, projectId: ProjectId): Followed | null {
  switch (address.kind) {
    case 'sessions':
    case 'agent_sessions':
      return { kind: 'sessions', projectId };
    case 'context':
    case 'summary':
      return { kind: 'session', projectId, sessionKey: address.sessionKey };
    case 'run': {
      const runId = tryParseId<'run'>(address.runId);
      return runId === undefined ? null : { kind: 'run', projectId, runId };
    }
    default:
      return null;
  }
}

async function observeTape(scope: McpClientScope, ref: string): Promise<Observed> {
  const { boxId, position, head } = await resolveTape(scope, ref);
  return { version: `${boxId} ${position} ${head}`, followed: { kind: 'tape', boxId } };
}

async function observe(scope: McpClientScope, uri: string, address: Address): Promise<Observed | undefined> {
  if (address.kind === 'tape') return observeTape(scope, address.ref);
  const { projectId } = await findActor(scope.runtime.pool, scope.projectId, scope.as);
  const version =
    address.kind === 'context' || address.kind === 'summary'
      ? await sessionVersion(scope, address.sessionKey)
      : sha256((await readResource(scope, uri)).text);
  return version === undefined ? undefined : { version, followed: followedOf(address, projectId) };
}

/**
 * Undefined: the client cannot see it, or it cannot be followed.
 *
 * @throws KernelError, ProtocolError for failures of the server.
 */
export async function observeResource(scope: McpClientScope, uri: string): Promise<Observed | undefined> {
  const address = parseAddress(uri);
  if (address === undefined || UNFOLLOWED.has(address.kind) || !mayRead(scope, address.kind))
    return undefined;
  try {
    return await observe(scope, uri, address);
  } catch (error) {
    const said = error instanceof KernelError ? toProtocolError(error, uri) : error;
    if (said instanceof ResourceNotFoundError) return undefined;
    if (error instanceof KernelError && error.code === 'bad_request') return undefined;
    throw error;
  }
}
