import { hasRedisCluster, testDatabase, testRedisCluster, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { cliHere } from '../../testing/cli.js';
import { checkRedis } from './check-redis.js';

test.runIf(hasRedisCluster())(
  'a Redis Cluster is reported as a cluster; without one of its masters it is reported as lost, with the reason',
  async () => {
    await using database = await testDatabase();
    await using cluster = await testRedisCluster();
    const env = { DATABASE_URL: database.url, REDIS_URL: cluster.url };
    const doctor = async () => {
      const { stdout } = await cliHere(['doctor', '--json'], env);
      const { findings } = JSON.parse(stdout) as {
        findings: { check: string; level: string; message: string }[];
      };
      return findings.filter(({ check }) => check.startsWith('queue'));
    };
    await cliHere(['migrate'], env);
    await checkRedis(cluster.url);
    expect(await doctor()).toEqual([
      { check: 'queue cluster', level: 'ok', message: 'A cluster of 3 masters; every slot has one.' },
      expect.objectContaining({ check: 'queue', level: 'ok' }),
      expect.objectContaining({ check: 'queue memory', level: 'ok' }),
    ]);

    await cluster.nodes[1]?.stop();
    await cluster.untilWhole(false);
    await expect(checkRedis(cluster.url)).rejects.toMatchObject({
      code: 'redis_unavailable',
      message: expect.stringMatching(/the state of the cluster is fail: \d+ of 16384 slots have a node/),
    });
    expect(await doctor()).toMatchObject([
      { level: 'fail', message: expect.stringMatching(/^redis_unavailable/) },
    ]);

    for (const node of cluster.nodes) await node.stop();
    const away = await checkRedis(cluster.url).catch((error: Error) => error.message);
    expect(away).toMatch(
      /^Redis at 127\.0\.0\.1:\d+, 127.*the connection was refused or cut off; turns are taken from the rows/,
    );
    expect(away).not.toContain(cluster.password);

    for (const node of cluster.nodes) await node.start();
    await waitFor(
      () =>
        checkRedis(cluster.url).then(
          () => true,
          () => false,
        ),
      { message: 'the cluster is back' },
    );
  },
);
