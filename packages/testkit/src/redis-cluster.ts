import { randomBytes } from 'node:crypto';
import { freePort } from '@boxcar/embedded';
import { Redis } from 'ioredis';
import { testContext } from './context.js';
import { closeAtEnd } from './lifecycle.js';
import { startRedis, type TestRedis } from './redis-server.js';
import { waitFor } from './wait-for.js';

const SLOTS = 16_384;
const MASTERS = 3;

/** Three masters without replicas, each with a third of the slots. */
export interface TestRedisCluster extends AsyncDisposable {
  /** All nodes in one URL, in the form of the setting. */
  readonly url: string;
  readonly password: string;
  readonly nodes: readonly TestRedis[];
  /** The node that has the slot of this key at present. */
  ownerOf(key: string): Promise<TestRedis>;
  /** Moves the slot of this key to another node, key by key, as the tools of Redis do. */
  moveSlotOf(key: string): Promise<void>;
  /** Waits until the cluster reports that every slot has a node that answers, or that some slot has no such node. */
  untilWhole(isWhole: boolean): Promise<void>;
  close(): Promise<void>;
}

/** Whether this run can start a cluster, which needs a `redis-server` on the `PATH`. */
export const hasRedisCluster = (): boolean => testContext().redis.kind === 'program';

interface Member {
  readonly server: TestRedis;
  readonly admin: Redis;
  readonly port: number;
  readonly busPort: number;
  /** The id of the node in the cluster. */
  readonly id: string;
}

async function startMember(path: string, password: string): Promise<Member> {
  const busPort = await freePort();
  const server = await startRedis(path, {
    requirepass: password,
    masterauth: password,
    'cluster-enabled': 'yes',
    'cluster-config-file': 'nodes.conf',
    'cluster-node-timeout': 1_000,
    'cluster-port': busPort,
  });
  const admin = new Redis(server.url, { retryStrategy: () => 50, maxRetriesPerRequest: 0 });
  admin.on('error', () => undefined);
  const id = String(await admin.call('cluster', 'myid'));
  return { server, admin, port: Number(new URL(server.url).port), busPort, id };
}

const firstSlotOf = (at: number): number => Math.floor((SLOTS * at) / MASTERS);

async function join(members: readonly Member[]): Promise<void> {
  await Promise.all(
    members.map(({ admin }, at) =>
      admin.call('cluster', 'addslotsrange', firstSlotOf(at), firstSlotOf(at + 1) - 1),
    ),
  );
  // The cluster would need a second to resolve equal epochs.
  await Promise.all(members.map(({ admin }, at) => admin.call('cluster', 'set-config-epoch', at + 1)));
  const [first, ...others] = members;
  for (const { port, busPort } of others)
    await first?.admin.call('cluster', 'meet', '127.0.0.1', port, busPort);
}

/** Undefined for a node that does not answer, or has no information yet. */
async function isWhole({ admin }: Member): Promise<boolean | undefined> {
  if (admin.status !== 'ready') return undefined;
  const info = String(await admin.call('cluster', 'info').catch(() => undefined));
  if (info.includes('cluster_state:fail')) return false;
  return info.includes(`cluster_slots_ok:${SLOTS}`) ? true : undefined;
}

/** The number of the slot, and the member that has it according to `asked`. */
async function placeOf(members: readonly Member[], key: string, asked: Member) {
  const slot = Number(await asked.admin.call('cluster', 'keyslot', key));
  const ranges = (await asked.admin.call('cluster', 'slots')) as [number, number, [string, number, string]][];
  const id = ranges.find(([from, to]) => slot >= from && slot <= to)?.[2][2];
  const owner = members.find((member) => member.id === id);
  if (owner === undefined) throw new Error(`no node has the slot ${slot} of ${key}`);
  return { slot, owner };
}

async function moveSlot(
  members: readonly Member[],
  move: { readonly slot: number; readonly from: Member; readonly to: Member; readonly password: string },
): Promise<void> {
  const { slot, from, to, password } = move;
  await to.admin.call('cluster', 'setslot', slot, 'importing', from.id);
  await from.admin.call('cluster', 'setslot', slot, 'migrating', to.id);
  for (;;) {
    const keys = (await from.admin.call('cluster', 'getkeysinslot', slot, 10)) as string[];
    if (keys.length === 0) break;
    const place = ['127.0.0.1', to.port, '', 0, 5_000, 'auth', password, 'keys', ...keys];
    await from.admin.call('migrate', ...place);
  }
  for (const { admin } of [to, from, ...members.filter((one) => one !== to && one !== from)])
    await admin.call('cluster', 'setslot', slot, 'node', to.id);
}

/** A private cluster on the loopback interface. */
export async function testRedisCluster(): Promise<TestRedisCluster> {
  const { redis } = testContext();
  if (redis.kind !== 'program') throw new Error('a Redis Cluster needs a redis-server on the PATH');
  const password = randomBytes(24).toString('hex');
  const members = await Promise.all(Array.from({ length: MASTERS }, () => startMember(redis.path, password)));
  const untilWhole = async (wanted: boolean): Promise<void> => {
    await waitFor(
      async () => {
        const states = await Promise.all(members.map(isWhole));
        return wanted
          ? states.every((state) => state === true)
          : states.includes(false) &&
              states.every((state, at) => state === false || members[at]?.admin.status !== 'ready');
      },
      { message: wanted ? 'every slot has its node' : 'the cluster has lost slots', deadlineMs: 20_000 },
    );
  };
  const living = (): Member => {
    const member = members.find(({ admin }) => admin.status === 'ready');
    if (member === undefined) throw new Error('no node of the cluster answers');
    return member;
  };
  await join(members);
  await untilWhole(true);
  const close = closeAtEnd(async () => {
    for (const { admin } of members) admin.disconnect();
    await Promise.all(members.map(({ server }) => server.close()));
  });
  return {
    url: `redis+cluster://:${password}@${members.map(({ port }) => `127.0.0.1:${port}`).join(',')}`,
    password,
    nodes: members.map(({ server }) => server),
    ownerOf: async (key) => (await placeOf(members, key, living())).owner.server,
    moveSlotOf: async (key) => {
      const { slot, owner } = await placeOf(members, key, living());
      const to = members.find((member) => member !== owner);
      if (to !== undefined) await moveSlot(members, { slot, from: owner, to, password });
    },
    untilWhole,
    close,
    [Symbol.asyncDispose]: close,
  };
}
