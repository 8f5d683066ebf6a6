import {
  KernelError,
  type RedisAddress,
  type RedisClusterAddress,
  readRedisUrl,
  redisHosts,
} from '@boxcar/kernel';
import { Cluster, Redis } from 'ioredis';
import type { RedisFacts } from '../../text/doctor-servers.js';

interface Client {
  connect(): Promise<void>;
  disconnect(): void;
  on(event: 'error' | 'node error', listener: (error: Error) => void): unknown;
}

const limitsOf = (timeoutMs: number) => ({
  connectTimeout: timeoutMs,
  commandTimeout: timeoutMs,
  maxRetriesPerRequest: 0,
});

function openCluster({ nodes, isTls, username, password }: RedisClusterAddress, timeoutMs: number): Cluster {
  return new Cluster([...nodes], {
    lazyConnect: true,
    clusterRetryStrategy: null,
    // With the check, the client would wait for an incomplete cluster.
    enableReadyCheck: false,
    slotsRefreshTimeout: timeoutMs,
    ...(isTls ? { dnsLookup: (host, found) => found(null, host) } : {}),
    redisOptions: { ...limitsOf(timeoutMs), username, password, ...(isTls ? { tls: {} } : {}) },
  });
}

const openServer = (url: string, timeoutMs: number): Redis =>
  new Redis(url, { ...limitsOf(timeoutMs), lazyConnect: true, retryStrategy: () => null });

const toError = (thrown: unknown): Error => (thrown instanceof Error ? thrown : new Error(String(thrown)));

const isClosed = (error: Error): boolean => error.message === 'Connection is closed.';

/** A cluster does not report why a node refused the connection. */
const toCause = (error: Error): Error =>
  isClosed(error) ? new Error('the connection was refused or cut off') : error;

/** Connects, runs the question and disconnects. The reason of a failure contains the error of Redis or of the network. */
async function ask<C extends Client, T>(
  address: RedisAddress,
  client: C,
  question: (client: C) => Promise<T>,
): Promise<T> {
  let reason: Error | undefined;
  let isConnected = false;
  // The first of several node errors of a cluster is the cause of the others.
  for (const event of ['error', 'node error'] as const)
    client.on(event, (error: Error) => {
      reason ??= error;
    });
  try {
    await client.connect();
    reason = undefined;
    isConnected = true;
    return await question(client);
  } catch (error) {
    const host = redisHosts(address);
    // A lost node of a cluster is in the events; the answer of the others says more.
    const own = toError(error);
    const why = isConnected && !isClosed(own) ? own : toCause(reason ?? own);
    throw new KernelError('redis_unavailable', {
      message: `Redis at ${host}: ${why.message.replace(/\.$/, '')}; turns are taken from the rows until it is back.`,
      details: { host },
      cause: error,
    });
  } finally {
    client.disconnect();
  }
}

async function readNode(node: Redis): Promise<RedisFacts> {
  const info = await node.info();
  const lines = info.split(/\r?\n/);
  const field = (name: string): string =>
    lines.find((line) => line.startsWith(`${name}:`))?.slice(name.length + 1) ?? '';
  // Managed servers may refuse CONFIG, and report the policy in INFO.
  const save = await node.config('GET', 'save').catch(() => undefined);
  const saves = Array.isArray(save) ? String(save[1] ?? '') : '';
  return {
    version: field('redis_version'),
    policy: field('maxmemory_policy'),
    maxMemory: Number(field('maxmemory')),
    isPersistent: field('aof_enabled') === '1' || saves !== '',
  };
}

function addressOf(url: string): RedisAddress {
  const read = readRedisUrl(url);
  if (read.problem !== undefined)
    throw new KernelError('bad_config', { message: `REDIS_URL: ${read.problem}.` });
  return read.address;
}

/** A cluster refuses every command while any of its slots has no node. All nodes are asked, since one of them may be away. */
async function checkCluster(cluster: Cluster): Promise<void> {
  const answers = await Promise.allSettled(cluster.nodes('master').map((node) => node.cluster('INFO')));
  const infos = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [String(answer.value)] : []));
  if (infos.length === 0)
    throw answers.find((answer) => answer.status === 'rejected')?.reason ?? new Error('no node answers');
  const stateOf = (info: string): string => /cluster_state:(\w+)/.exec(info)?.[1] ?? 'unknown';
  const broken = infos.find((info) => stateOf(info) !== 'ok');
  if (broken === undefined) return;
  const state = stateOf(broken);
  const [, slots = '0'] = /cluster_slots_ok:(\d+)/.exec(broken) ?? [];
  throw new Error(`the state of the cluster is ${state}: ${slots} of 16384 slots have a node that answers`);
}

/**
 * Checks that Redis is reachable and accepts the credentials. A cluster must have a node for every slot.
 *
 * @throws KernelError `redis_unavailable` with the reason, without the URL's password.
 */
export async function checkRedis(url: string, timeoutMs = 2_000): Promise<void> {
  const address = addressOf(url);
  if (address.kind === 'server') await ask(address, openServer(url, timeoutMs), (server) => server.ping());
  else await ask(address, openCluster(address, timeoutMs), checkCluster);
}

/**
 * Returns one entry for each node with slots.
 *
 * @throws KernelError as `checkRedis`.
 */
export function readRedisFacts(url: string, timeoutMs = 2_000): Promise<readonly RedisFacts[]> {
  const address = addressOf(url);
  if (address.kind === 'server')
    return ask(address, openServer(url, timeoutMs), async (server) => [await readNode(server)]);
  return ask(address, openCluster(address, timeoutMs), async (cluster) => {
    await checkCluster(cluster);
    return Promise.all(cluster.nodes('master').map(readNode));
  });
}
