import { readRedisUrl } from '@boxcar/kernel';
import { hasRedisCluster, waitFor } from '@boxcar/testkit';
import type { Cluster } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { connectCluster } from './connect-cluster.js';

describe.runIf(hasRedisCluster())('a connection to a cluster', () => {
  let backend: TestBackend;
  beforeAll(async () => {
    backend = await testBackend('cluster');
  });
  afterAll(() => backend.close());

  const openConnector = () => {
    const read = readRedisUrl(backend.connection.url);
    if (read.problem !== undefined || read.address.kind !== 'cluster')
      throw new Error('the queues are not on a cluster');
    return connectCluster(read.address);
  };

  /** Settles when the connections to all nodes have ended. The client itself says so after the first of them. */
  const disconnect = async (client: Cluster): Promise<void> => {
    const nodes = client.nodes('all');
    client.disconnect();
    await waitFor(() => nodes.every(({ status }) => status === 'end'), { message: 'all nodes are left' });
  };

  test.each([
    ['of a worker', false],
    ['on which a worker waits for jobs', true],
  ])('%s that reconnects while a master is lost is open once the master is back', async (_whose, isWaits) => {
    const { cluster } = backend;
    if (cluster === undefined) throw new Error('the queues are not on a cluster');
    const connector = openConnector();
    const { connection } = connector.worker();
    const client = isWaits ? connection.duplicate() : connection;
    try {
      await waitFor(() => client.status === 'ready', { message: 'the client is ready' });
      const node = await cluster.ownerOf('{any}:key');
      await node.stop();
      await cluster.untilWhole(false);
      await disconnect(client);

      let checks = 0;
      client.on('reconnecting', () => {
        checks += 1;
      });
      const connecting = client.connect();
      await waitFor(() => checks > 0, { message: 'the client has found that a master is lost' });
      await node.start();
      await cluster.untilWhole(true);
      await connecting;
      expect(client.status).toBe('ready');
      expect(await client.set('{any}:key', 'value')).toBe('OK');
    } finally {
      await connector.close();
    }
  });

  test.each(['is connected', 'is opened again', 'waits before its next attempt'])(
    'that is closed while it %s ends, and never connects again',
    async (when) => {
      const { cluster } = backend;
      if (cluster === undefined) throw new Error('the queues are not on a cluster');
      const connector = openConnector();
      const { connection: client } = connector.worker();
      await waitFor(() => client.status === 'ready', { message: 'the client is ready' });
      const node = await cluster.ownerOf('{any}:key');
      await node.stop();
      await cluster.untilWhole(false);
      const outcomeOf = (work: Promise<unknown>) =>
        work.then(
          () => 'done',
          () => 'closed',
        );
      const pending: Promise<string>[] = [];
      if (when !== 'is connected') {
        await disconnect(client);
        const waits = new Promise<void>((settle) => client.once('reconnecting', () => settle()));
        pending.push(outcomeOf(client.connect()));
        if (when === 'waits before its next attempt') {
          await waits;
          expect(client.status).toBe('reconnecting');
        }
      }
      pending.push(outcomeOf(client.get('{any}:key')));
      const nodes = client.nodes('all');
      const ended = new Promise<void>((settle) => client.once('end', () => settle()));
      await connector.close();
      await ended;
      expect(new Set(await Promise.all(pending))).toEqual(new Set(['closed']));
      await waitFor(() => nodes.every(({ status }) => status === 'end'), { message: 'all nodes are left' });
      await waitFor(() => client.status === 'end', { message: 'the client has ended' });
      await node.start();
      await cluster.untilWhole(true);
      await expect(client.connect()).rejects.toThrow('closed');
      expect(client.status).toBe('end');
    },
  );

  test('that a worker has left does not stay open', async () => {
    const connector = openConnector();
    const { connection, end } = connector.worker();
    const clients = [connection, connection.duplicate()];
    await waitFor(() => clients.every(({ status }) => status === 'ready'), {
      message: 'the clients are ready',
    });
    const nodes = clients.flatMap((client) => client.nodes('all'));
    expect(nodes.length).toBeGreaterThan(0);
    end();
    await waitFor(() => nodes.every(({ status }) => status === 'end'), {
      message: 'their connections have ended',
    });
    await connector.close();
  });
});
