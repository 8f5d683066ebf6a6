import { fileURLToPath } from 'node:url';
import { createHttpFrame } from '@boxcar/http';
import { mcpRoutes } from '@boxcar/mcp';
import { createKey } from '@boxcar/runtime';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { PROFILE } from '../boxcar/system.js';
import { openFloor } from '../floor/system.js';
import { sampleIdle, timed } from '../measure.js';
import { median, quantile } from '../report.js';
import type { Servers } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { settle, targetOf } from './pair.js';
import { openWorld, textOf, type World } from './world.js';

const SAMPLES = 60;
const WARM_UP = 5;
/** The number of entries of the session; the cost of a call must not depend on it. */
const SIZES = { few: 10, many: 10_000 } as const;
/** The number of entries between two handoffs, which the next handoff includes. */
const BETWEEN = 20;
const MAX_BATCH = 500;

type Call = (name: string, args: Readonly<Record<string, unknown>>) => Promise<void>;

interface Door extends AsyncDisposable {
  readonly call: Call;
  /** A message of the protocol and its answer, without any work. */
  ping(): Promise<unknown>;
}

function doorOf(client: Client, close: () => Promise<void>): Door {
  return {
    call: async (name, args) => {
      const { isError, content } = await client.callTool({ name, arguments: { ...args } });
      if (isError === true) throw new Error(`${name}: ${JSON.stringify(content)}`);
    },
    ping: () => client.ping(),
    [Symbol.asyncDispose]: close,
  };
}

/** A server in a separate process, as a client starts it. */
async function openStdio({ databaseUrl }: World): Promise<Door> {
  const client = new Client({ name: 'bench', version: '1.0.0' });
  const { PATH = '', HOME = '' } = process.env;
  await client.connect(
    new StdioClientTransport({
      command: process.execPath,
      args: [fileURLToPath(new URL('dist/server.js', import.meta.resolve('@boxcar/mcp/package.json')))],
      env: { PATH, HOME, DATABASE_URL: databaseUrl, BOXCAR_LOG_LEVEL: 'error' },
    }),
  );
  return doorOf(client, () => client.close());
}

async function openHttp({ runtime, pool }: World): Promise<Door> {
  const frame = createHttpFrame({ runtime, port: 0 }).mount(mcpRoutes({ runtime }));
  const { url } = await frame.listen();
  const { key } = await createKey(pool, { scopes: ['mcp:call', 'handoffs:read', 'handoffs:write'] });
  const client = new Client({ name: 'bench', version: '1.0.0' });
  await client.connect(
    new StreamableHTTPClientTransport(new URL(`${url}/mcp`), {
      requestInit: { headers: { authorization: `Bearer ${key}` } },
    }),
  );
  return doorOf(client, async () => {
    await client.close();
    await frame.close({ graceMs: 0 });
  });
}

const message = (n: number) => ({ context_type: 'message', content: textOf(n) });

async function fill(call: Call, session_key: string, entries: number): Promise<void> {
  await call('register_session', { session_key, agent_from: 'client' });
  for (let left = entries; left > 0; left -= MAX_BATCH)
    await call('update_context', {
      session_key,
      entries: Array.from({ length: Math.min(left, MAX_BATCH) }, (_none, n) => message(n)),
    });
}

type Times = Readonly<Record<string, readonly number[]>>;

/** Makes each kind of call once per round, so that a slow phase of the machine affects all kinds. */
async function measure(
  door: Door,
  name: string,
  { samples, most }: { readonly samples: number; readonly most: number },
): Promise<Times> {
  const { call } = door;
  const sessions = Object.entries(SIZES).map(([size, entries]) => ({
    key: `${name}-${size}`,
    entries,
  }));
  for (const { key, entries } of sessions) await fill(call, key, Math.min(entries, most));
  const found: Record<string, number[]> = {};
  for (let at = -Math.min(WARM_UP, samples); at < samples; at += 1) {
    const times: [string, number][] = [];
    times.push(['ping', await timed(() => door.ping())]);
    const fresh = { session_key: `${name}-new-${at}`, agent_from: 'client' };
    times.push(['register', await timed(() => call('register_session', fresh))]);
    for (const { key: session_key, entries } of sessions) {
      const one = { session_key, ...message(at) };
      times.push([`update ${entries}`, await timed(() => call('update_context', one))]);
      await call('update_context', {
        session_key,
        entries: Array.from({ length: BETWEEN }, (_none, n) => message(n)),
      });
      const asked = { session_key, target_agent: PROFILE.name };
      times.push([`handoff ${entries}`, await timed(() => call('request_handoff', asked))]);
    }
    if (at >= 0) for (const [what, ms] of times) found[what] = [...(found[what] ?? []), ms];
  }
  return found;
}

/** The cost of a client's calls, over stdio and HTTP, and whether it grows with the session. The floor is a message without work. */
export async function benchMcp({ servers, options, say }: Bench): Promise<Figures> {
  const samples = options.samples ?? SAMPLES;
  await using world = await openWorld(servers, 'mcp');
  const figures: Record<string, Figures[string]> = {};
  const bareMs = await measureBareTurn(servers, samples);
  for (const [name, open] of [
    ['stdio', openStdio],
    ['http', openHttp],
  ] as const) {
    await using door = await open(world);
    await settle(world.databaseUrl);
    const times = await measure(door, name, { samples, most: options.turns ?? Number.POSITIVE_INFINITY });
    const of = (what: string): readonly number[] => times[what] ?? [];
    const p50 = (what: string): number => median(of(what));
    for (const what of ['register', 'update 10', 'update 10000', 'handoff 10', 'handoff 10000']) {
      figures[`${name} ${what} p50`] = { value: p50(what), floor: p50('ping') };
      figures[`${name} ${what} p95`] = { value: quantile(of(what), 0.95), floor: quantile(of('ping'), 0.95) };
    }
    figures[`${name} handoff 10 beside a bare turn`] = { value: p50('handoff 10'), floor: bareMs };
    figures[`${name} handoff 10000 ÷ 10`] = { value: p50('handoff 10000') / p50('handoff 10'), floor: 1 };
    say(`mcp ${name}: ${samples} samples of each`);
  }
  return figures;
}

/** An idle turn of the floor, p50: with Redis, if it is available. */
async function measureBareTurn(servers: Servers, samples: number): Promise<number> {
  await using floor = await openFloor(targetOf(servers, 'redis', 1));
  await sampleIdle(floor, Math.min(WARM_UP, samples));
  return median(await sampleIdle(floor, samples));
}
