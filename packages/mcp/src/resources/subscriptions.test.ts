/** Change notifications over HTTP: changes are written in another process and reported with the rights of the reader. */
import { tcpProxy, waitFor } from '@boxcar/testkit';
import type { Client } from '@modelcontextprotocol/client';
import { ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { endSession, openClient, openLegacyClient, openStage, type Stage } from '../testing/http-stage.js';
import { grantUpto, makeAgents, makeSession, say, sessionsOf } from '../testing/world.js';
import { changeWatchOf } from './change-watch.js';
import { MAX_SUBSCRIPTIONS } from './subscriptions.js';

let stage: Stage;
/** Another process on the same rows. */
let elsewhere: Stage;

beforeAll(async () => {
  stage = await openStage();
  elsewhere = await openStage({ database: stage.database });
  await makeAgents(stage, ['ada', 'bob']);
});
afterAll(async () => {
  await elsewhere[Symbol.asyncDispose]();
  await stage[Symbol.asyncDispose]();
});

type Told = string[];

/** A client of either revision, and the notifications that it received. */
async function openReader(
  revision: '2025' | '2026',
  { agent, url = stage.url }: { readonly agent?: string; readonly url?: string } = {},
) {
  const key = await stage.key(agent === undefined ? {} : { agent });
  const told: Told = [];
  if (revision === '2025') {
    const client = await openLegacyClient(url, key);
    client.setNotificationHandler(
      ResourceUpdatedNotificationSchema,
      ({ params }) => void told.push(params.uri),
    );
    return {
      told,
      follow: async (...uris: string[]) => {
        for (const uri of uris) await client.subscribeResource({ uri });
      },
      unfollow: (uri: string) => client.unsubscribeResource({ uri }),
      close: () => endSession(client),
    };
  }
  const client = await openClient(url, key);
  client.setNotificationHandler(
    'notifications/resources/updated',
    ({ params }) => void told.push(params.uri),
  );
  const open: Awaited<ReturnType<Client['listen']>>[] = [];
  return {
    told,
    follow: async (...uris: string[]) => {
      const listening = await client.listen({ resourceSubscriptions: uris });
      open.push(listening);
      expect(listening.honoredFilter).toEqual({ resourceSubscriptions: uris });
    },
    unfollow: async (_uri: string) => open.at(-1)?.close(),
    close: async () => {
      for (const listening of open) await listening.close();
      await client.close();
    },
  };
}

const until = (told: Told, uri: string, times = 1): Promise<unknown> =>
  waitFor(async () => told.filter((one) => one === uri).length >= times || undefined, {
    message: `${uri} to be told`,
  });

/** Without followers nothing queries the rows. */
const untilQuiet = (): Promise<unknown> =>
  waitFor(async () => changeWatchOf(stage.opened.runtime).size === 0 || undefined, {
    message: 'the last follower to leave',
  });

describe.each(['2025', '2026'] as const)('a client of the revision %s', (revision) => {
  test('is notified of writes of another process to its session, and of no other session', async () => {
    const sessions = await sessionsOf(elsewhere);
    for (const key of ['told', 'other']) await makeSession(sessions, `${key}-${revision}`, [], 'claude');
    const reader = await openReader(revision);
    const uris = [
      `handoff://context/told-${revision}`,
      `handoff://summary/told-${revision}`,
      'handoff://sessions',
    ];
    await reader.follow(...uris);
    await say(sessions, `other-${revision}`, 'x');
    await until(reader.told, 'handoff://sessions');
    expect(reader.told).toEqual(['handoff://sessions']);
    await say(sessions, `told-${revision}`, 'x');
    for (const uri of uris.slice(0, 2)) await until(reader.told, uri);
    await sessions.close({ session_key: `told-${revision}` });
    for (const uri of uris.slice(0, 2)) await until(reader.told, uri, 2);
    await reader.close();
    await untilQuiet();
  });

  test('is notified of a new anchor of the same name, and of the turns of a run', async () => {
    const { runtime } = elsewhere.opened;
    const tape = await runtime.tape(`watched-${revision}`);
    await tape.handoff('phase');
    const { run_id, turn_id } = (await runtime.submit('launch_principal', {
      profile_name: 'idle',
      instruction: 'wait',
    })) as { readonly run_id: string; readonly turn_id: string };
    const reader = await openReader(revision);
    const anchor = `tape://default/watched-${revision}/anchor/phase`;
    await reader.follow(anchor, `boxcar://runs/${run_id}`);
    await tape.handoff('phase');
    await until(reader.told, anchor);
    await runtime.submit('cancel', { turn_id });
    await until(reader.told, `boxcar://runs/${run_id}`);
    await reader.close();
    await untilQuiet();
  });

  test('is notified of nothing beyond the handed-over part', async () => {
    const owner = await sessionsOf(elsewhere, 'ada');
    const key = `frozen-${revision}`;
    const boxId = await makeSession(owner, key, ['one']);
    await grantUpto(stage, { boxId, agent: 'bob', upto: 4 });
    const bob = await openReader(revision, { agent: 'bob' });
    const ada = await openReader(revision, { agent: 'ada' });
    for (const reader of [bob, ada]) await reader.follow(`handoff://context/${key}`);
    await say(owner, key, 'two');
    await until(ada.told, `handoff://context/${key}`);
    expect(bob.told).toEqual([]);
    await stage.database.pool.query('update boxcar.grants set upto_position = 5 where box_id = $1', [boxId]);
    await say(owner, key, 'three');
    await until(bob.told, `handoff://context/${key}`);
    await ada.close();
    await bob.close();
    await untilQuiet();
  });

  test('is no longer notified after it ends the subscription', async () => {
    const sessions = await sessionsOf(elsewhere);
    const key = `left-${revision}`;
    await makeSession(sessions, key, [], 'claude');
    const reader = await openReader(revision);
    await reader.follow(`handoff://context/${key}`);
    await reader.unfollow(`handoff://context/${key}`);
    await untilQuiet();
    await reader.close();
  });
});

test('a 2025 client is refused resources that it may not see, and more than the limit', async () => {
  const client = await openLegacyClient(stage.url, await stage.key({ agent: 'bob' }));
  await makeSession(await sessionsOf(stage, 'ada'), 'hidden', []);
  for (const uri of ['handoff://context/hidden', 'handoff://health', 'other://x'])
    await expect(client.subscribeResource({ uri })).rejects.toMatchObject({ code: -32602, data: { uri } });
  const sessions = await sessionsOf(stage, 'bob');
  for (let n = 0; n <= MAX_SUBSCRIPTIONS; n += 1) await makeSession(sessions, `b-${n}`, []);
  for (let n = 0; n < MAX_SUBSCRIPTIONS; n += 1)
    await client.subscribeResource({ uri: `handoff://context/b-${n}` });
  await client.subscribeResource({ uri: 'handoff://context/b-0' });
  await expect(
    client.subscribeResource({ uri: `handoff://context/b-${MAX_SUBSCRIPTIONS}` }),
  ).rejects.toMatchObject({ code: -32602, message: expect.stringContaining('may follow 100 resources') });
  await endSession(client);
});

test('resources that the scopes of a key do not allow cannot be followed', async () => {
  await makeSession(await sessionsOf(stage), 'scoped', [], 'claude');
  const client = await openLegacyClient(stage.url, await stage.key({ scopes: ['mcp:call'] }));
  for (const uri of [
    'handoff://sessions',
    'handoff://context/scoped',
    'tape://default/session%2Fscoped/entry/3',
  ])
    await expect(client.subscribeResource({ uri })).rejects.toMatchObject({ code: -32602, data: { uri } });
  await endSession(client);
});

test('a 2026 client is told which of its resources are followed', async () => {
  const client = await openClient(stage.url, await stage.key({ agent: 'bob' }));
  await makeSession(await sessionsOf(stage, 'bob'), 'mine', []);
  const seen = 'handoff://context/mine';
  const listening = await client.listen({ resourceSubscriptions: ['handoff://context/hidden', seen] });
  expect(listening.honoredFilter).toEqual({ resourceSubscriptions: [seen] });
  await listening.close();
  const many = Array.from({ length: MAX_SUBSCRIPTIONS + 1 }, (_, n) => `handoff://context/b-${n}`);
  await expect(client.listen({ resourceSubscriptions: many })).rejects.toMatchObject({ code: -32602 });
  await client.close();
});

test('a stream ends gracefully with its server', async () => {
  const other = await openStage({ database: stage.database });
  const client = await openClient(other.url, await stage.key());
  const listening = await client.listen({ resourceSubscriptions: ['handoff://sessions'] });
  await other.frame.close({ graceMs: 60_000 });
  expect(await listening.closed).toBe('graceful');
  await client.close();
  await other[Symbol.asyncDispose]();
});

test('writes while the database cannot be reached are notified afterwards', async () => {
  const sessions = await sessionsOf(elsewhere);
  await makeSession(sessions, 'outage', [], 'claude');
  await using proxy = await tcpProxy(stage.database.url);
  const cut = await openStage({ database: stage.database, databaseUrl: proxy.url });
  const client = await openLegacyClient(cut.url, await stage.key());
  const told: Told = [];
  client.setNotificationHandler(
    ResourceUpdatedNotificationSchema,
    ({ params }) => void told.push(params.uri),
  );
  await client.subscribeResource({ uri: 'handoff://context/outage' });
  await proxy.cut();
  await say(sessions, 'outage', 'meanwhile');
  await waitFor(async () => cut.log.some(({ event }) => event === 'mcp.changes_not_read') || undefined, {
    message: 'a look to fail',
  });
  await proxy.restore();
  await until(told, 'handoff://context/outage');
  await endSession(client);
  await cut[Symbol.asyncDispose]();
});
