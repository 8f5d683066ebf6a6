/** The metadata from which clients learn the issuer of tokens for `/mcp` (RFC 9728). */
import type { Route } from '@boxcar/http';
import type { Scope } from '@boxcar/kernel';
import type { ToolGroup } from '../client-scope.js';
import { METADATA_PATH, type OAuthSettings } from './settings.js';

const SCOPES_OF: Readonly<Record<ToolGroup, readonly Scope[]>> = {
  sessions: ['handoffs:read', 'handoffs:write'],
  tapes: ['tapes:read', 'tapes:write'],
  primitives: ['turns:read', 'turns:write'],
  approvals: ['approvals:read', 'approvals:write'],
};

/**
 * Clients request all listed scopes, so the scopes of tools that are not offered are left out. Resources show turns with any set of
 * tools.
 */
const scopesOf = (groups: ReadonlySet<ToolGroup>): readonly Scope[] => [
  ...new Set<Scope>(['mcp:call', ...[...groups].flatMap((group) => SCOPES_OF[group]), 'turns:read']),
];

/** Both addresses: of the server, and of `/mcp`. */
export function metadataRoutes(
  { issuer, resource }: OAuthSettings,
  groups: ReadonlySet<ToolGroup>,
): readonly Route[] {
  const body = {
    resource,
    resource_name: 'Boxcar',
    authorization_servers: [issuer],
    scopes_supported: scopesOf(groups),
    bearer_methods_supported: ['header'],
  };
  const handle = (): Response => Response.json(body, { headers: { 'cache-control': 'max-age=300' } });
  return [METADATA_PATH, `${METADATA_PATH}/mcp`].map((path) => ({
    method: 'GET',
    path,
    scope: 'public',
    handle,
  }));
}
