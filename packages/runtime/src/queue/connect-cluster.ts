/** The connections of queues and workers to a Redis Cluster (B2 to B5 of `queues.ts`). */
import type { RedisClusterAddress } from '@boxcar/kernel';
import { Cluster, type ClusterOptions } from 'ioredis';
import type { ClientGroup } from './client-group.js';
import {
  BLOCKING_SILENCE_MS,
  type ClientUse,
  type Connector,
  connectClients,
  DISCONNECT_MS,
  RETRY_MAX_MS,
  RETRY_MIN_MS,
  SILENCE_MS,
} from './connectors.js';

/** How often a command of a queue follows its slot, or is repeated, before it fails (B3). */
const QUEUE_TRIES = 6;

/**
 * The prefix of a queue on a cluster. It has a hash tag: BullMQ needs all keys of a queue in one slot, and the job of a
 * tool must be in the slot of its bell. A queue of turns has a tag of its own, so that the targets spread over the
 * nodes.
 */
export function clusterPrefix(name: string, queue: string): string {
  const turns = /^boxcar(-turns(?:-.*)?)$/.exec(queue);
  return `{${name}${turns?.[1] ?? ''}}`;
}

/**
 * Makes `connect()` of a client settle when the client is ready or has ended for good. The promise of ioredis itself never
 * settles when a node is lost while the client connects: the check for readiness fails, and the client connects again by
 * itself. BullMQ waits for that promise before its worker asks for the next job.
 */
function settleConnect(client: Cluster): void {
  const connect = client.connect.bind(client);
  /** All attempts of the client until it is ready share one promise, and its listeners. */
  let opening: Promise<void> | undefined;
  client.connect = () => {
    const attempt = connect();
    if (opening !== undefined) {
      attempt.catch(() => undefined);
      return opening;
    }
    opening = new Promise<void>((resolve, reject) => {
      const settle = (act: () => void) => (): void => {
        client.off('ready', onReady);
        client.off('end', onEnd);
        opening = undefined;
        act();
      };
      const onReady = settle(resolve);
      const fail = (error: unknown): void => settle(() => reject(error))();
      const onEnd = (): void => {
        // The report arrives later: the client may already connect again.
        if (client.status === 'end') fail(new Error('The connection to the cluster was closed.'));
      };
      client.on('ready', onReady);
      client.on('end', onEnd);
      attempt.then(onReady, fail);
    });
    return opening;
  };
}

type Duplicate = (nodes?: [], options?: ClusterOptions) => Cluster;

export function connectCluster(address: RedisClusterAddress): Connector<Cluster> {
  const track = (client: Cluster, group: ClientGroup<Cluster>): Cluster => {
    const duplicate = client.duplicate.bind(client) as Duplicate;
    const duplicateForWaits: Duplicate = (_nodes, { redisOptions = {}, ...options } = {}) =>
      track(
        duplicate([], { ...options, redisOptions: { ...redisOptions, socketTimeout: BLOCKING_SILENCE_MS } }),
        group,
      );
    client.duplicate = duplicateForWaits as typeof client.duplicate;
    group.add(client);
    settleConnect(client);
    return client;
  };
  /** B2: the commands of a worker wait while a node is away, or while no node serves their slot. */
  const optionsOf = (use: ClientUse): ClusterOptions =>
    use === 'worker'
      ? { maxRedirections: Number.POSITIVE_INFINITY, redisOptions: { maxRetriesPerRequest: null } }
      : {
          enableOfflineQueue: false,
          maxRedirections: QUEUE_TRIES,
          redisOptions: { maxRetriesPerRequest: 1, commandTimeout: SILENCE_MS },
        };
  return connectClients((use, group) => {
    const { redisOptions, ...options } = optionsOf(use);
    const client = new Cluster([...address.nodes], {
      ...options,
      clusterRetryStrategy: (times) => Math.min(times * RETRY_MIN_MS, RETRY_MAX_MS),
      // A certificate names the host, not its address.
      ...(address.isTls ? { dnsLookup: (host, found) => found(null, host) } : {}),
      redisOptions: {
        ...redisOptions,
        username: address.username,
        password: address.password,
        ...(address.isTls ? { tls: {} } : {}),
        replyMapping: 'legacy' as const,
        socketTimeout: SILENCE_MS,
        disconnectTimeout: DISCONNECT_MS,
      },
    });
    return track(client as Cluster, group);
  });
}
