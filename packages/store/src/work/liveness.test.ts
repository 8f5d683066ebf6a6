import type { WorkerId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { beforeEach, expect, test } from 'vitest';
import { waitUntilBlocked } from '../testing/interleave.js';
import { newId, World } from '../testing/world.js';
import { endLease, readLockSign, watchPeer } from './liveness.js';
import { removeWorker, renewLease } from './workers.js';

let world: World;
beforeEach(async () => {
  world = await World.open();
  return () => world[Symbol.asyncDispose]();
});

const LEASE = { leaseMs: 60_000, hasLock: true };

/** A separate connection. */
async function session(): Promise<pg.Client & AsyncDisposable> {
  const client = new pg.Client({ connectionString: world.database.url });
  client.on('error', () => undefined);
  await client.connect();
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() });
}

/** A worker that holds its lock on a session, and has confirmed it since `watcher` connected. */
async function locked(options: { readonly leaseMs?: number } = {}) {
  const id = await world.worker(options);
  const client = await session();
  await client.query('select pg_advisory_lock(lock_key) from boxcar.workers where id = $1', [id]);
  await renewLease(world.pool, id, { ...LEASE, ...options });
  return { id, client };
}
const leaseEnds = async (id: WorkerId): Promise<boolean> =>
  (await world.count('workers', `id = '${id}' and lease_until <= now()`)) === 1;

test('each worker watches the next living worker in the circle of ids, the last watches the first, and none watches itself', async () => {
  await using watcher = await session();
  const ids: WorkerId[] = [];
  for (let i = 0; i < 50; i += 1) ids.push(await world.worker());
  const peers: unknown[] = [];
  for (const id of ids) peers.push(await watchPeer(watcher, id, { waitMs: 1 }));
  expect(peers).toEqual(ids.map((_id, n) => ({ outcome: 'free', peerId: ids[(n + 1) % 50] })));
  // Workers that leave, and workers whose lease is over, are passed over.
  const [first, second, third, fourth] = ids as [WorkerId, WorkerId, WorkerId, WorkerId];
  await removeWorker(world.pool, second);
  await renewLease(world.pool, third, { leaseMs: 0, hasLock: true });
  expect(await watchPeer(watcher, first, { waitMs: 1 })).toMatchObject({ peerId: fourth });
});

test('a single worker watches no other', async () => {
  await using watcher = await session();
  expect(await watchPeer(watcher, await world.worker(), { waitMs: 1 })).toEqual({ outcome: 'none' });
  expect(await watchPeer(watcher, newId<'worker'>(), { waitMs: 1 })).toMatchObject({ outcome: 'free' });
});

test('a watcher waits for a lock that is held, and gets the lock the moment its session ends', async () => {
  await using watcher = await session();
  const me = newId<'worker'>();
  const { id, client } = await locked();
  expect(await watchPeer(watcher, me, { waitMs: 5 })).toEqual({ outcome: 'held', peerId: id });
  const watching = watchPeer(watcher, me, { waitMs: 60_000 });
  await waitUntilBlocked(world.pool);
  await client.end();
  expect(await watching).toEqual({ outcome: 'free', peerId: id });
  // Nothing remains that would keep the owner from its lock.
  await using again = await session();
  const { rows } = await again.query(
    'select pg_try_advisory_lock(lock_key) as is_mine from boxcar.workers where id = $1',
    [id],
  );
  expect(rows).toEqual([{ is_mine: true }]);
});

test('two watchers that get the lock both suspect the worker, and one ends the lease', async () => {
  await using one = await session();
  await using two = await session();
  const { id, client } = await locked();
  const watching = [one, two].map((watcher) => watchPeer(watcher, newId<'worker'>(), { waitMs: 60_000 }));
  await waitUntilBlocked(world.pool, { n: 2 });
  await client.end();
  expect(await Promise.all(watching)).toEqual([
    { outcome: 'free', peerId: id },
    { outcome: 'free', peerId: id },
  ]);
  const sign = await readLockSign(one, id);
  if (sign === undefined) throw new Error('not suspected');
  expect((await Promise.all([endLease(one, id, sign), endLease(two, id, sign)])).sort()).toEqual([
    false,
    true,
  ]);
  expect(await leaseEnds(id)).toBe(true);
  expect(await watchPeer(one, newId<'worker'>(), { waitMs: 1 })).toEqual({ outcome: 'none' });
});

test.each([
  ['a renewal', (id: WorkerId) => renewLease(world.pool, id, LEASE)],
  [
    'a report that its lock is gone',
    (id: WorkerId) => renewLease(world.pool, id, { ...LEASE, hasLock: false }),
  ],
  ['a report that it leaves', (id: WorkerId) => removeWorker(world.pool, id)],
])('%s refutes a suspicion', async (_what, refute) => {
  await using watcher = await session();
  const { id, client } = await locked();
  await client.end();
  await waitFor(async () => (await watchPeer(watcher, newId<'worker'>(), { waitMs: 1 })).outcome === 'free', {
    message: 'the lock is free',
  });
  const sign = await readLockSign(watcher, id);
  if (sign === undefined) throw new Error('not suspected');
  await refute(id);
  expect(await endLease(world.pool, id, sign)).toBe(false);
  expect(await leaseEnds(id)).toBe(false);
});

test('a lock that is held again refutes a suspicion', async () => {
  await using watcher = await session();
  const { id, client } = await locked();
  const sign = await readLockSign(watcher, id);
  if (sign === undefined) throw new Error('not watched');
  expect(await endLease(world.pool, id, sign)).toBe(false);
  await client.end();
  await waitFor(() => endLease(world.pool, id, sign), { message: 'nobody holds the lock' });
  expect(await leaseEnds(id)).toBe(true);
});

test('a free lock proves nothing about a worker without a lock, and nothing to a watcher that is younger than the worker’s last report', async () => {
  const id = await world.worker();
  // As after a restart of Postgres: every session is new, and no lock is held.
  await using watcher = await session();
  const me = newId<'worker'>();
  expect(await watchPeer(watcher, me, { waitMs: 1 })).toEqual({ outcome: 'asked', peerId: id });
  expect(await watchPeer(watcher, me, { waitMs: 1, without: [id] })).toEqual({ outcome: 'none' });
  expect(await readLockSign(watcher, id)).toBeUndefined();
  await renewLease(world.pool, id, { ...LEASE, hasLock: false });
  expect(await watchPeer(watcher, newId<'worker'>(), { waitMs: 1 })).toEqual({ outcome: 'none' });
  await renewLease(world.pool, id, LEASE);
  expect(await watchPeer(watcher, newId<'worker'>(), { waitMs: 1 })).toEqual({ outcome: 'free', peerId: id });
});
