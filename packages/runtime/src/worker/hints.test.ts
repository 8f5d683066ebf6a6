/** Hints: the commit of another process notifies a worker of its submitted turn before the ring arrives. */
import type { Model, Ring, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { rungChannel } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, expect, test, vi } from 'vitest';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { Claims } from './claims.js';

/** Holds rings back until it is told to deliver them. */
class HeldDoorbell extends InProcessDoorbell {
  readonly held: Ring[] = [];

  override ring(rings: readonly Ring[]): Promise<void> {
    this.held.push(...rings);
    return Promise.resolve();
  }

  letGo(): Promise<void> {
    return super.ring(this.held.splice(0));
  }
}

let h: Harness;
/** The queue of both processes. */
let bell: HeldDoorbell;
/** A process without a worker. */
let caller: Runtime;
/** The promise for which the models wait. */
let gate: Promise<void>;
let calls: number;
const alone = { sweepMs: 3_600_000 };

beforeEach(async () => {
  gate = Promise.resolve();
  calls = 0;
  bell = new HeldDoorbell();
  const router = createModelRouter({});
  const model: Model = {
    ...router,
    generate: async (request, options) => {
      calls += 1;
      await gate;
      return router.generate(request, options);
    },
  };
  h = await harness({ doorbell: bell, model });
  await h.profile('leaf', [{ say: 'leaf' }]);
  caller = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: bell,
    model: createModelRouter({}),
  });
  return async () => {
    await caller.close();
    await h[Symbol.asyncDispose]();
  };
});

const submit = async (): Promise<TurnId> =>
  (
    (await caller.submit('launch_principal', { profile_name: 'leaf', instruction: 'go' })) as {
      turn_id: TurnId;
    }
  ).turn_id;
const statuses = async () =>
  (await h.rows<{ status: string }>('select status from boxcar.turns order by id')).map(
    ({ status }) => status,
  );
const allEnd = (message: string): Promise<unknown> =>
  waitFor(async () => (await statuses()).every((status) => status === 'success'), { message });

test('a single turn is taken before its ring, which then costs no statement', async () => {
  await h.worker(alone);
  await submit();
  await allEnd('the turn has ended');
  expect(bell.held).toHaveLength(1);
  const seen = await statementsOf(h.database, async () => {
    await bell.letGo();
    // The worker has received the earlier ring before the next submission.
    await submit();
    await allEnd('the next turn has ended');
  });
  expect(seen.filter((text) => text.includes('claims.claim'))).toHaveLength(1);
  expect(calls).toBe(2);
  await checkInvariants(h.database.pool);
});

test('a worker without a free slot leaves the turn to the ring', async () => {
  let release = (): void => undefined;
  gate = new Promise((settle) => {
    release = settle;
  });
  const told = vi.spyOn(Claims.prototype, 'takeHinted');
  const worker = await h.worker({ ...alone, concurrency: 1 });
  await submit();
  await waitFor(() => worker.activeCount === 1, { message: 'the first one runs' });
  await submit();
  await waitFor(() => told.mock.calls.length === 2, { message: 'it has heard of both' });
  told.mockRestore();
  release();
  await waitFor(async () => (await statuses())[0] === 'success', { message: 'the first one has ended' });
  expect(await statuses()).toEqual(['success', 'dispatched']);
  await bell.letGo();
  await allEnd('the second one has ended');
});

test('a hint reaches one of several workers, and the later ring of the turn has no effect', async () => {
  for (let worker = 0; worker < 3; worker += 1) await h.worker(alone);
  const seen = await statementsOf(h.database, async () => {
    for (let turn = 0; turn < 6; turn += 1) await submit();
    await allEnd('all have ended');
  });
  // Two hints may share a claim; three workers with a hint each would have sent more claims.
  expect(seen.filter((text) => text.includes('claims.claim')).length).toBeLessThanOrEqual(6);
  await bell.letGo();
  expect(await submit()).toBeDefined();
  await allEnd('one more has ended');
  expect(calls).toBe(7);
  await checkInvariants(h.database.pool);
});

test('turns that are submitted together have no hints, and neither have turns that no worker can read', async () => {
  await h.worker(alone);
  await h.profile('gpu', [{ say: 'gpu' }], { worker_target: 'gpu' });
  await caller.submit('launch_principal', { profile_name: 'gpu', instruction: 'go' });
  const task = { target_strategy: 'new', target_ref: 'leaf', instruction: 'go' };
  const joined = caller.submit('fork_join', { tasks: [task, task] });
  await waitFor(() => bell.held.length === 2, { message: 'its members are rung' });
  await submit();
  await waitFor(async () => (await statuses()).includes('success'), { message: 'the single one has ended' });
  expect((await statuses()).filter((status) => status === 'success')).toHaveLength(1);
  await bell.letGo();
  await joined;
});

test('a hint that cannot be read, or is for an unknown turn, has no effect', async () => {
  const worker = await h.worker(alone);
  const channel = rungChannel(worker.id);
  for (const text of ['', 'x', `${worker.id}`, `${worker.id} 99999999999 `, `${worker.id} 1 `])
    await h.rows('select pg_notify($1, $2)', [channel, text]);
  await submit();
  await allEnd('a good hint still counts');
});

test('a hint takes no turn of another target, and no slot of a running turn', async () => {
  let release = (): void => undefined;
  gate = new Promise((settle) => {
    release = settle;
  });
  await h.profile('gpu', [{ say: 'gpu' }], { worker_target: 'gpu' });
  const gpu = await h.worker({ ...alone, targets: ['gpu'], takesOwnRings: false });
  // One slot for each: the running turn, a futile claim, and the next turn.
  const worker = await h.worker({ ...alone, concurrency: 3 });
  const { turn_id } = (await caller.submit('launch_principal', {
    profile_name: 'gpu',
    instruction: 'go',
  })) as { turn_id: TurnId };
  const running = await submit();
  await waitFor(() => worker.activeCount === 1, { message: 'the other turn runs' });
  for (const text of [`${turn_id} 1 `, `${running} 2 `, `${running} 9 `, `${running} 1 `])
    await h.rows('select pg_notify($1, $2)', [rungChannel(worker.id), text]);
  // Hints that kept their slots would leave no slot for the next turn.
  await submit();
  await waitFor(() => worker.activeCount === 2, { message: 'the next turn runs too' });
  expect(await h.rows('select status, holder_id from boxcar.turns where id = $1', [turn_id])).toEqual([
    { status: 'dispatched', holder_id: null },
  ]);
  expect(gpu.activeCount).toBe(0);
  release();
  await bell.letGo();
  await allEnd('all have ended');
});

test('a turn whose claim fails after a hint is rung again', async () => {
  await h.worker({ sweepMs: 100 });
  await h.database.pool.query(`create sequence once;
    create function fail_once() returns trigger language plpgsql as $$ begin
      if nextval('once') = 1 then raise exception 'not now'; end if; return new; end $$;
    create trigger fail_once before update on boxcar.turns for each row
      when (new.status = 'running' and old.status = 'dispatched') execute function fail_once()`);
  await submit();
  await waitFor(() => h.log.some(({ event }) => event === 'turn.failed_to_run'), { message: 'it fails' });
  await waitFor(
    async () => {
      await bell.letGo();
      return (await statuses())[0] === 'success';
    },
    { message: 'it has ended' },
  );
  await checkInvariants(h.database.pool);
});
