import type { Doorbell, JsonValue, TurnId } from '@boxcar/kernel';
import { limitByLease, registerWorker } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { deafDoorbell } from '../testing/deaf-doorbell.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { Sweeper } from './sweeper.js';

const submit = async (h: Harness, primitive: string, args: Record<string, JsonValue>): Promise<TurnId> =>
  ((await h.runtime.submit(primitive, args)) as { turn_id: TurnId }).turn_id;

test('a thousand queued turns end on one slot, even turns that wait for turns after them in the queue', async () => {
  await using h = await harness();
  await h.profile('quick', [{ say: 'quick {{instruction}}' }]);
  await h.profile(
    'boss',
    [
      { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'quick', question: 'q' } }] },
      { say: 'done {{instruction}}' },
    ],
    { tools: ['ask_expert'], delegation_policy: { target_profiles: ['quick'] } },
  );
  const submitted = await Promise.all(
    Array.from({ length: 1_000 }, (_, n) =>
      submit(h, 'launch_principal', {
        profile_name: n % 20 === 0 ? 'boss' : 'quick',
        instruction: String(n),
      }),
    ),
  );
  await h.worker({ concurrency: 1 });
  await waitFor(
    async () => (await h.rows('select from boxcar.turns where ended_at is null limit 1')).length === 0,
    { message: 'all have ended', deadlineMs: 60_000, intervalMs: 100 },
  );
  const counts = await h.rows(
    'select status, count(*)::int as n, max(losses) as losses from boxcar.turns group by status',
  );
  expect(counts).toEqual([{ status: 'success', n: submitted.length + 50, losses: 0 }]);
  await checkInvariants(h.database.pool);
});

test.each([
  ['the oldest of its pool', 'b', 1],
  ['one of many of a busy pool', 'a', 2],
])(
  'a lost ring that is %s is found although 600 older turns wait for workers',
  async (_place, target, sweeps) => {
    let lostTurnId: TurnId | undefined;
    const doorbell: Doorbell = {
      ...deafDoorbell(),
      findLost: async (rings) => rings.filter(({ turnId }) => turnId === lostTurnId),
    };
    await using h = await harness({ doorbell });
    for (const name of ['a', 'b']) await h.profile(name, [{ say: 'done' }], { worker_target: name });
    const worker = { leaseMs: 3_600_000, info: {}, lockKey: '4711', concurrency: 200 };
    await registerWorker(h.database.pool, { ...worker, id: newId<'worker'>(), targets: ['a', 'b'] });
    const launch = (profile: string) =>
      submit(h, 'launch_principal', { profile_name: profile, instruction: 'go' });
    await Promise.all(Array.from({ length: 600 }, () => launch('a')));
    lostTurnId = await launch(target);
    const epochs = () => h.rows('select epoch from boxcar.turns where id = $1', [lostTurnId]);
    expect(await h.rows("select from boxcar.turns where status = 'dispatched'")).toHaveLength(601);
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 1_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });
    for (let n = 0; n < sweeps; n++) await sweeper.sweep({ now: new Date(Date.now() + 60_000) });
    expect(await epochs()).toEqual([{ epoch: 2 }]);
  },
  60_000,
);

test('a program cancels and closes in bounded time while another session has its rows locked', async () => {
  await using h = await harness();
  await h.profile('slow', [{ say: 'never' }]);
  const turnId = await submit(h, 'launch_principal', { profile_name: 'slow', instruction: 'go' });
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query('select from boxcar.runs, boxcar.turns, boxcar.agents for update');
  using _limits = limitByLease(h.database.pool, 1_000);
  const startedAt = performance.now();
  const refused = await h.runtime.submit('cancel', { turn_id: turnId }).catch((error: unknown) => error);
  expect(refused).toMatchObject({ code: 'database_unavailable' });
  h.runtime.promoteSoon('');
  await h.runtime.close();
  expect(performance.now() - startedAt).toBeLessThan(45_000);
  await stranger.end();
});
