/** Sessions, their entries and summaries as resources. The bodies are defined in docs/reference/mcp.md, "Resources". */
import { openHandoffSessions } from '@boxcar/runtime';
import type { McpClientScope } from '../client-scope.js';
import { type Body, jsonBody, readPosition } from './body.js';

const open = ({ runtime, projectId, as }: McpClientScope) => openHandoffSessions(runtime, { projectId, as });

export async function sessionsBody(
  scope: McpClientScope,
  { agent, cursor }: { readonly agent?: string; readonly cursor: string | undefined },
): Promise<Body> {
  const sessions = await open(scope);
  const page = await sessions.list({
    ...(agent === undefined ? {} : { agent }),
    ...(cursor === undefined ? {} : { cursor }),
  });
  return jsonBody({
    ...(agent === undefined ? {} : { agent_id: agent }),
    sessions: page.sessions,
    total: page.total,
    has_more: page.next_cursor !== null,
    next_cursor: page.next_cursor,
  });
}

/** Undefined: the client may read no such session. */
export async function contextBody(
  scope: McpClientScope,
  { sessionKey, cursor }: { readonly sessionKey: string; readonly cursor: string | undefined },
): Promise<Body | undefined> {
  const sessions = await open(scope);
  const page = await sessions.context({ session_key: sessionKey, cursor: readPosition(cursor) });
  if (page.outcome !== 'found') return undefined;
  const { entries, has_more, next_cursor } = page;
  return jsonBody({ session_key: sessionKey, entries, has_more, next_cursor });
}

/** Undefined: the client may read no such session. */
export async function summaryBody(scope: McpClientScope, sessionKey: string): Promise<Body | undefined> {
  const sessions = await open(scope);
  const found = await sessions.summary({ session_key: sessionKey });
  if (found.outcome !== 'found') return undefined;
  const { summary, key_points, participants, generated_at } = found;
  return jsonBody({ session_key: sessionKey, summary, key_points, participants, generated_at });
}

/** The part of a session that a write changes; undefined: the client cannot see the session. */
export async function sessionVersion(scope: McpClientScope, sessionKey: string): Promise<string | undefined> {
  const sessions = await open(scope);
  const session = await sessions.get({ session_key: sessionKey });
  if (session === undefined) return undefined;
  // Readers with access up to a position do not learn about later writes.
  const { last_write_at: _written, expires_at: _expires, ...seen } = session;
  return JSON.stringify(seen);
}
