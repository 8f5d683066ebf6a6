/** A question to the person at the client, over HTTP, in the middle of a call. */
import { createHttpFrame, type HttpFrame } from '@boxcar/http';
import { SCOPES } from '@boxcar/kernel';
import { createKey } from '@boxcar/runtime';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { bearer } from '../testing/http-stage.js';
import {
  CLIENTS,
  type ClientKind,
  callTool,
  type McpClient,
  openStage,
  type Stage,
} from '../testing/stage.js';
import { mcpRoutes } from './mcp-routes.js';

let stage: Stage;
let frame: HttpFrame;
let url: URL;
let key: string;

beforeAll(async () => {
  stage = await openStage({ works: false, policy: 'tools: { handoff: { permission: REQUIRE_APPROVAL } }' });
  const open = { worker_target: 'nowhere', delegation_policy: { target_profiles: null } };
  await stage.profile('idle', [{ say: 'done' }], open);
  await stage.agent('bob', 'idle', { shared: true });
  const { runtime } = stage.opened;
  frame = createHttpFrame({ runtime, port: 0 }).mount(mcpRoutes({ runtime }));
  url = new URL(`${(await frame.listen()).url}/mcp`);
  ({ key } = await createKey(stage.database.pool, { scopes: SCOPES }));
});
afterAll(async () => {
  await frame.close({ graceMs: 0 });
  await stage[Symbol.asyncDispose]();
});

/** A client whose user approves everything. */
async function connect(kind: ClientKind, asked: string[]): Promise<McpClient> {
  const info = { name: 'asking', version: '1' };
  const capabilities = { elicitation: { form: {} } };
  const requestInit = { headers: { ...bearer(key) } };
  const answer = ({ params }: { params: { message: string } }) => {
    asked.push(params.message);
    return { action: 'accept' as const, content: { decision: 'approve' } };
  };
  if (kind === '1.x') {
    const client = new OldClient(info, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    await client.connect(new OldTransport(url, { requestInit }) as Transport);
    return client;
  }
  const mode = kind === '2.x on 2026-07-28' ? { pin: '2026-07-28' } : 'legacy';
  const client = new Client(info, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler('elicitation/create', answer);
  await client.connect(new StreamableHTTPClientTransport(url, { requestInit }));
  return client;
}

test.each(CLIENTS)('client %s: a person who approves hands the session on', async (kind) => {
  const asked: string[] = [];
  const client = await connect(kind, asked);
  const session_key = `s ${kind}`;
  await callTool(client, 'register_session', { session_key, agent_from: 'claude' });
  const { body } = await callTool(client, 'request_handoff', { session_key, target_agent: 'bob' });
  expect(asked).toEqual([expect.stringContaining(session_key)]);
  expect(body).toMatchObject({ success: true, handoff: { status: 'active' } });
  await client.close();
});
