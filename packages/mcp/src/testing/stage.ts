/** A server on a separate database, and clients of the official SDKs, for tests. */
import type { JsonObject, JsonValue, Scope } from '@boxcar/kernel';
import { SCOPES } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createWorker, type OpenRuntime, openRuntime } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { InMemoryTransport, Client as NewClient } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import type { Transport as OldTransport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { type McpClientScope, OPERATOR, TOOL_GROUPS } from '../client-scope.js';
import { createMcpServer } from '../create-server.js';

/** Both generations of the SDK, and both revisions of the protocol. */
export const CLIENTS = ['1.x', '2.x on 2025-11-25', '2.x on 2026-07-28'] as const;
export type ClientKind = (typeof CLIENTS)[number];

export type McpClient = OldClient | NewClient;

const INFO = { name: 'stage', version: '1.0.0' };

export function makeClient(kind: ClientKind): McpClient {
  switch (kind) {
    case '1.x':
      return new OldClient(INFO);
    case '2.x on 2025-11-25':
      return new NewClient(INFO);
    case '2.x on 2026-07-28':
      return new NewClient(INFO, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
    default:
      return kind satisfies never;
  }
}

/** The answer of a tool. */
export interface Called {
  readonly isError: boolean;
  /** The text, parsed. */
  readonly body: JsonObject;
  readonly structured: JsonValue | undefined;
  readonly meta: JsonObject;
}

export async function callTool(client: McpClient, name: string, args?: JsonObject): Promise<Called> {
  const request = args === undefined ? { name } : { name, arguments: args };
  const result = (await client.callTool(request)) as {
    readonly content: readonly { readonly type: string; readonly text: string }[];
    readonly isError?: boolean;
    readonly structuredContent?: JsonValue;
    readonly _meta?: JsonObject;
  };
  const [first] = result.content;
  return {
    isError: result.isError === true,
    body: JSON.parse(first?.text ?? 'null') as JsonObject,
    structured: result.structuredContent,
    meta: result._meta ?? {},
  };
}

export interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface Connection extends AsyncDisposable {
  readonly client: McpClient;
  call(name: string, args?: JsonObject): Promise<Called>;
}

export interface Stage extends AsyncDisposable {
  readonly database: TestDatabase;
  readonly opened: OpenRuntime;
  readonly log: LogLine[];
  scope(rest?: Partial<McpClientScope>): McpClientScope;
  connect(rest?: Partial<McpClientScope>, client?: ClientKind | McpClient): Promise<Connection>;
  profile(name: string, script: readonly JsonValue[], rest?: JsonObject): Promise<void>;
  agent(name: string, profile: string, rest?: JsonObject): Promise<void>;
}

export interface StageOptions {
  /** The text of a policy. */
  readonly policy?: string;
  readonly functions?: Record<string, ScriptedFunction>;
  /** False: no worker runs turns. */
  readonly works?: boolean;
  /** True: the primitive `handoff` is enabled. */
  readonly handsOff?: boolean;
}

const ALL: readonly Scope[] = SCOPES;

export async function openStage({
  policy,
  functions = {},
  works = true,
  handsOff = false,
}: StageOptions = {}): Promise<Stage> {
  const database = await testDatabase();
  const log: LogLine[] = [];
  const write: McpClientScope['log'] = (level, event, fields = {}) => void log.push({ level, event, fields });
  const opened = openRuntime({
    databaseUrl: database.url,
    directUrl: database.url,
    model: createModelRouter({ scripted: { functions } }),
    log: write,
    handoffs: { enabled: handsOff },
    ...(policy === undefined ? {} : { permissionEvaluator: new PermissionEvaluator({ text: policy }) }),
  });
  const { runtime } = opened;
  const worker = works ? await createWorker(runtime, { sweepMs: 200 }) : undefined;
  const connections = new Set<Connection>();
  const scope: Stage['scope'] = (rest = {}) => ({
    runtime,
    projectId: 'default',
    as: OPERATOR,
    scopes: ALL,
    groups: new Set(TOOL_GROUPS),
    log: write,
    ...rest,
  });
  return {
    database,
    opened,
    log,
    scope,
    connect: async (rest = {}, given = '1.x') => {
      const client = typeof given === 'string' ? makeClient(given) : given;
      const [near, far] = InMemoryTransport.createLinkedPair();
      const served = serveStdio(() => createMcpServer(scope(rest)), { transport: far });
      await (client as OldClient).connect(near as OldTransport);
      // After this call the client validates results against the schemas of the tools.
      await client.listTools();
      const connection: Connection = {
        client,
        call: (name, args) => callTool(client, name, args),
        [Symbol.asyncDispose]: async () => {
          connections.delete(connection);
          await client.close();
          await served.close();
        },
      };
      connections.add(connection);
      return connection;
    },
    profile: async (name, script, rest = {}) => {
      const instructions = `You are ${name}.`;
      await runtime.applyProfile({ name, instructions, model: 'scripted', script, ...rest });
    },
    agent: async (name, profile, rest = {}) => {
      const made = { action: 'create', profile_name: profile, agent_id: name, ...rest };
      await runtime.submit('provision_agent', made);
    },
    [Symbol.asyncDispose]: async () => {
      for (const connection of connections) await connection[Symbol.asyncDispose]();
      await worker?.close({ graceMs: 1_000 });
      await opened.close();
      await database.close();
    },
  };
}
