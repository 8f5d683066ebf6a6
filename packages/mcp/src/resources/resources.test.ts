/** Resources over HTTP, read by clients of both revisions. */
import { openHandoffSessions } from '@boxcar/runtime';
import type { Client } from '@modelcontextprotocol/client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openClient, openLegacyClient, openStage, type Stage } from '../testing/http-stage.js';

let stage: Stage;
let client: Client;
let agent: Client;

type Json = Record<string, unknown>;

async function read(of: Client, uri: string): Promise<Json> {
  const { contents } = await of.readResource({ uri });
  const [content] = contents;
  expect(content).toMatchObject({ uri, mimeType: 'application/json' });
  return JSON.parse((content as { text: string }).text) as Json;
}
const sessions = (as?: string) => openHandoffSessions(stage.opened.runtime, { as });

beforeAll(async () => {
  stage = await openStage();
  await stage.opened.runtime.applyProfile({ name: 'ada', instructions: '', model: 'scripted' });
  const { runtime } = stage.opened;
  await runtime
    .submit({ kind: 'context_handoff', target: { profile: 'ada', agent: 'ada' }, instruction: 'x' } as never)
    .catch(() => undefined);
  client = await openClient(stage.url, await stage.key());
});
afterAll(async () => {
  await client.close();
  await stage[Symbol.asyncDispose]();
});

test('all resources and templates are shown in both revisions', async () => {
  const legacy = await openLegacyClient(stage.url, await stage.key());
  const uris = (await client.listResources()).resources.map(({ uri }) => uri);
  expect(uris).toEqual(['handoff://sessions', 'handoff://health', 'handoff://metrics']);
  const templates = (await client.listResourceTemplates()).resourceTemplates.map((one) => one.uriTemplate);
  expect(templates).toEqual([
    'handoff://sessions{?cursor}',
    'handoff://context/{session_key}',
    'handoff://context/{session_key}{?cursor}',
    'handoff://summary/{session_key}',
    'handoff://agents/{agent_id}/sessions',
    'handoff://agents/{agent_id}/sessions{?cursor}',
    'tape://{workspace}/{+tape}/entry/{position}',
    'tape://{workspace}/{+tape}/anchor/{+name}',
    'boxcar://runs/{run_id}',
    'boxcar://runs/{run_id}{?cursor}',
    'boxcar://turns/{turn_id}/context',
    'boxcar://turns/{turn_id}/context{?cursor}',
  ]);
  const old = await legacy.listResourceTemplates();
  expect(old.resourceTemplates.map((one) => one.uriTemplate)).toEqual(templates);
  expect((await legacy.listResources()).resources.map(({ uri }) => uri)).toEqual(uris);
  await legacy.close();
});
