/** Calls whose connection to Postgres breaks get an answer, and take effect once. */
import type { JsonObject } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { type OpenRuntime, openRuntime } from '@boxcar/runtime';
import { type StatementProxy, statementProxy, tcpProxy } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { McpClientScope } from '../client-scope.js';
import { type Connection, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let proxy: StatementProxy;
let opened: OpenRuntime;
let connection: Connection;
let n = 0;

beforeAll(async () => {
  stage = await openStage({ works: false });
  proxy = await statementProxy(stage.database.url);
  opened = openRuntime({
    databaseUrl: proxy.url,
    directUrl: stage.database.url,
    model: createModelRouter({}),
  });
  connection = await stage.connect({ runtime: opened.runtime });
});
afterAll(async () => {
  await connection[Symbol.asyncDispose]();
  await opened.close();
  await proxy[Symbol.asyncDispose]();
  await stage[Symbol.asyncDispose]();
});

/** The statements that make a write durable. */
const WRITES = /^\s*(?:commit|with|insert|update)\b/i;

async function session(): Promise<string> {
  const session_key = `s-${++n}`;
  const { body } = await connection.call('register_session', { session_key, agent_from: 'x' });
  expect(body).toMatchObject({ success: true });
  return session_key;
}

/** The row counts of a session. */
async function rowsOf(session_key: string): Promise<readonly number[]> {
  const { rows } = await stage.database.pool.query<{ entries: number; handoffs: number }>(
    `select (select count(*)::int from boxcar.handoff_session_entries e where e.session_id = s.id) as entries,
      (select count(*)::int from boxcar.handoffs h where h.session_id = s.id) as handoffs
    from boxcar.handoff_sessions s where s.session_key = $1`,
    [session_key],
  );
  return rows.flatMap(({ entries, handoffs }) => [entries, handoffs]);
}

test.each<[string, JsonObject]>([
  ['update_context', { context_type: 'message', content: 'one' }],
  ['request_handoff', { target_agent: 'far-away' }],
  ['close_session', {}],
])(
  '%s is done once, whichever statement loses its connection',
  async (tool, args) => {
    const calm = await session();
    proxy.arm();
    expect((await connection.call(tool, { session_key: calm, ...args })).body).toMatchObject({
      success: true,
    });
    const count = proxy.statements.length;
    const expected = await rowsOf(calm);
    expect(count).toBeGreaterThan(0);
    let strikes = 0;
    for (const when of ['before', 'after'] as const)
      for (let at = 1; at <= count; at += 1) {
        const session_key = await session();
        proxy.arm({ at, when, scope: 'connection' });
        const { body } = await connection.call(tool, { session_key, ...args });
        strikes += proxy.struck === undefined ? 0 : 1;
        expect([when, at, body]).toMatchObject([when, at, { success: true }]);
        expect([when, at, await rowsOf(session_key)]).toEqual([when, at, expected]);
        proxy.arm();
      }
    // The number of statements after the answer differs between calls.
    expect(strikes).toBeGreaterThan(count);
  },
  90_000,
);

test.each<[string, JsonObject]>([
  ['update_context', { context_type: 'message', content: 'one' }],
  ['close_session', {}],
  ['request_handoff', { target_agent: 'far-away' }],
])(
  '%s is done once when Postgres is away after its write',
  async (tool, args) => {
    const away = await tcpProxy(proxy.url);
    const other = openRuntime({
      databaseUrl: away.url,
      directUrl: stage.database.url,
      model: createModelRouter({}),
    });
    let retries = 0;
    // The retry within one attempt finds no server. The next attempt of the call does.
    const log: McpClientScope['log'] = (_level, event) => {
      if (event !== 'mcp.call_again') return;
      retries += 1;
      void away.restore();
    };
    try {
      await using client = await stage.connect({ runtime: other.runtime, log });
      const calm = await session();
      proxy.arm();
      await client.call(tool, { session_key: calm, ...args });
      const expected = await rowsOf(calm);
      const writes = proxy.statements.flatMap((text, index) => (WRITES.test(text) ? [index + 1] : []));
      expect(writes.length).toBeGreaterThan(0);
      for (const at of writes) {
        const session_key = await session();
        proxy.arm({ at, when: 'after', scope: 'connection' });
        proxy.strike.addEventListener('abort', () => void away.cut(), { once: true });
        expect((await client.call(tool, { session_key, ...args })).body).toMatchObject({ success: true });
        expect([at, await rowsOf(session_key)]).toEqual([at, expected]);
        proxy.arm();
      }
      expect(retries).toBeGreaterThan(0);
    } finally {
      await other.close();
      await away.close();
    }
  },
  90_000,
);

test('while Postgres is away a call reports so after its attempts, and the server continues', async () => {
  const session_key = await session();
  const away = await tcpProxy(stage.database.url);
  const other = openRuntime({
    databaseUrl: away.url,
    directUrl: stage.database.url,
    model: createModelRouter({}),
  });
  try {
    await using client = await stage.connect({ runtime: other.runtime });
    await away.cut();
    const { isError, body } = await client.call('get_summary', { session_key });
    expect(isError).toBe(true);
    expect(body).toMatchObject({ success: false, error_code: 'DATABASE_UNAVAILABLE' });
    const lines = stage.log.filter(({ fields }) => fields.request_id === body.request_id);
    expect(lines.map(({ event }) => event)).toEqual(['mcp.call_again', 'mcp.call_again', 'mcp.call']);
    await away.restore();
    expect((await client.call('get_summary', { session_key })).body).toMatchObject({ success: true });
  } finally {
    await other.close();
    await away.close();
  }
});
