/** The MCP server over HTTP on a separate database, and clients of the official SDKs, for tests. */
import { createHttpFrame, type HttpFrame, type HttpFrameOptions } from '@boxcar/http';
import { SCOPES, type Scope } from '@boxcar/kernel';
import { createKey, type OpenRuntime, openRuntime } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { type McpRoutesOptions, mcpRoutes } from '../http/mcp-routes.js';
import type { SessionTimes } from '../http/transport-sessions.js';

export interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface StageOptions
  extends Omit<McpRoutesOptions, 'runtime' | 'log'>,
    Partial<Omit<HttpFrameOptions, 'runtime' | 'log' | 'stallMs'>> {
  /** The database of another stage: a second process on the same rows. */
  readonly database?: TestDatabase;
  /** Another address of the database. */
  readonly databaseUrl?: string;
}

export interface KeyOptions {
  readonly scopes?: readonly Scope[];
  readonly projectId?: string;
  readonly agent?: string;
}

export interface Stage extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly opened: OpenRuntime;
  readonly frame: HttpFrame;
  readonly url: string;
  readonly log: LogLine[];
  key(options?: KeyOptions): Promise<string>;
}

const noModel = { generate: () => Promise.reject(new Error('no model')) };

export async function openStage(options: StageOptions = {}): Promise<Stage> {
  const {
    database: given,
    databaseUrl,
    groups,
    limits,
    createServer,
    keepAliveMs,
    stallMs,
    idleMs,
    replaceMs,
    checkMs,
    oauth,
    ...frameOptions
  } = options;
  const database = given ?? (await testDatabase());
  const log: LogLine[] = [];
  const write = (level: string, event: string, fields: LogLine['fields'] = {}): void =>
    void log.push({ level, event, fields });
  const opened = openRuntime({
    databaseUrl: databaseUrl ?? database.url,
    directUrl: databaseUrl ?? database.url,
    model: noModel,
    log: write,
  });
  const { runtime } = opened;
  const frame = createHttpFrame({ runtime, port: 0, ...frameOptions, log: write }).mount(
    mcpRoutes({
      runtime,
      log: write,
      groups,
      limits,
      createServer,
      keepAliveMs,
      stallMs,
      oauth,
      ...times({ idleMs, replaceMs, checkMs }),
    }),
  );
  const { url } = await frame.listen();
  return {
    database,
    opened,
    frame,
    url: `${url}/mcp`,
    log,
    key: async ({ scopes = SCOPES.filter((scope) => scope !== 'approvals:write'), ...rest } = {}) =>
      (await createKey(database.pool, { scopes, ...rest })).key,
    [Symbol.asyncDispose]: async () => {
      await frame.close({ graceMs: 0 });
      await opened.close();
      if (given === undefined) await database.close();
    },
  };
}

const times = (given: Readonly<Record<keyof SessionTimes, number | undefined>>): Partial<SessionTimes> =>
  Object.fromEntries(Object.entries(given).filter(([, ms]) => ms !== undefined));

export const bearer = (key: string): Readonly<Record<string, string>> => ({ authorization: `Bearer ${key}` });

/** A client of the SDK for the revision 2025-11-25. */
export async function openLegacyClient(url: string, key: string): Promise<LegacyClient> {
  const client = new LegacyClient({ name: 'test', version: '1.0.0' });
  const transport = new LegacyTransport(new URL(url), { requestInit: { headers: { ...bearer(key) } } });
  await client.connect(transport as never);
  return client;
}

/** Ends the session too: closing a client leaves the session open. */
export async function endSession(client: LegacyClient): Promise<void> {
  const { transport } = client;
  if (transport instanceof LegacyTransport) await transport.terminateSession();
  await client.close();
}

/** A client of the SDK for both revisions; `auto` takes the newer one. */
export async function openClient(
  url: string,
  key: string,
  mode: 'auto' | 'legacy' = 'auto',
): Promise<Client> {
  const client = new Client({ name: 'test', version: '1.0.0' }, { versionNegotiation: { mode } });
  await client.connect(
    new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { ...bearer(key) } } }),
  );
  return client;
}
