import type { JsonValue, TurnId } from '@boxcar/kernel';
import { listDeadLetters, noteSweepFailure, retryDeadLetters } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
  const task = { target_strategy: 'new', target_ref: 'absent', instruction: 'go' };
  const rest = { tools: ['delegate_async', 'fork_join'], delegation_policy: { target_profiles: null } };
  const caller = (name: string, tool: string, args: JsonValue) =>
    h.profile(name, [{ calls: [{ tool, arguments: args }] }, { say: 'went on' }], rest);
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  await h.profile('held', [{ say: 'never', delayMs: 600_000 }]);
  await caller('asker', 'delegate_async', { ...task, wait: true });
  await caller('forker', 'fork_join', { tasks: Array.from({ length: 5 }, () => task) });
  await h.worker({ sweepMs: 3_600_000 });
});
afterEach(async () => {
  await h.rows('drop trigger if exists refuse on boxcar.turns');
  await h.rows('delete from boxcar.sweep_failures');
});
afterAll(() => h[Symbol.asyncDispose]());

const launch = async (profile: string, parentTurnId?: TurnId): Promise<TurnId> =>
  (
    (await h.runtime.submit(
      'launch_principal',
      { profile_name: profile, instruction: 'go' },
      parentTurnId === undefined ? {} : { parentTurnId },
    )) as { turn_id: TurnId }
  ).turn_id;
const rowOf = async (turnId: TurnId) => {
  const [row] = await h.rows<{
    id: TurnId;
    run_id: string;
    status: string;
    step_count: number;
    error: unknown;
  }>('select id, run_id, status, step_count, error from boxcar.turns where id = $1', [turnId]);
  if (row === undefined) throw new Error(`no turn ${turnId}`);
  return row;
};
const childrenOf = (turnId: TurnId, count: number): Promise<readonly [TurnId, ...TurnId[]]> =>
  waitFor(
    async () => {
      const rows = await h.rows<{ id: TurnId }>(
        "select c.id from boxcar.turns c join boxcar.turns p on p.id = c.parent_turn_id where p.id = $1 and p.status = 'suspended' order by c.id",
        [turnId],
      );
      const [first, ...others] = rows.map(({ id }) => id);
      return first !== undefined && rows.length === count ? ([first, ...others] as const) : undefined;
    },
    { message: 'the turn waits' },
  );
/** Makes every end of this turn fail. */
const poison = (turnId: TurnId) =>
  h.rows(
    `create or replace function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'this row is poison'; end $$;
     create trigger refuse before update on boxcar.turns for each row when (old.id = '${turnId}' and new.ended_at is not null) execute function public.refuse()`,
  );
const cancel = async (args: { run_id: string } | { turn_id: string }) =>
  (await h.runtime.submit('cancel', args)) as {
    status: string;
    turn_ids: readonly string[];
    not_ended?: readonly { turn_id: string; error: { code: string; message: string }; next: string }[];
  };
const sweeper = () =>
  new Sweeper(h.runtime, {
    lostRingMs: 3_600_000,
    claimFromRows: async () => undefined,
    wakeProvider: async () => undefined,
  });
const openOf = (runId: string) =>
  h.rows<{ id: TurnId }>('select id from boxcar.turns where run_id = $1 and ended_at is null', [runId]);
/** Removes the cause, and lets the sweep try again. */
const cure = async () => {
  await h.rows('drop trigger refuse on boxcar.turns');
  await sweeper().sweep({ now: new Date(Date.now() + 60_000) });
};

describe('a turn whose end cannot be written', () => {
  test('prevents no other end in its run, is named by the cancel, and is canceled as soon as possible', async () => {
    const root = await launch('absent');
    const children: TurnId[] = [];
    for (let n = 0; n < 6; n += 1) children.push(await launch('absent', root));
    const [, , bad] = children as [TurnId, TurnId, TurnId];
    await launch('absent', bad);
    await poison(bad);
    const { run_id } = await rowOf(root);
    const answer = await cancel({ run_id });
    expect(answer.status).toBe('partial');
    expect(answer.turn_ids).toHaveLength(7);
    expect(answer.not_ended).toEqual([
      {
        turn_id: bad,
        error: { code: 'internal_error', message: expect.stringContaining('this row is poison') },
        next: expect.stringContaining('boxcar doctor --retry-dead'),
      },
    ]);
    expect(await openOf(run_id)).toEqual([{ id: bad }]);
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([
      {
        kind: 'turn_runs',
        row_id: bad,
        is_dead: true,
        last_error: expect.stringContaining('canceled: The turn was canceled.'),
      },
      { kind: 'turn_ends', row_id: bad, is_dead: false, attempts: 1 },
    ]);
    // The second cancel, by the id of the turn, has the same result.
    expect(await cancel({ turn_id: bad })).toMatchObject({
      status: 'partial',
      not_ended: [{ turn_id: bad }],
    });
    await cure();
    expect(await rowOf(bad)).toMatchObject({ status: 'canceled', error: { code: 'canceled' } });
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('is not resumed by the end of the turn that it waits for', async () => {
    const asker = await launch('asker');
    const [child] = await childrenOf(asker, 1);
    await poison(asker);
    expect(await cancel({ turn_id: asker })).toMatchObject({ status: 'partial', turn_ids: [child] });
    expect(await rowOf(asker)).toMatchObject({ status: 'suspended', step_count: 1 });
    await cure();
    expect(await rowOf(asker)).toMatchObject({ status: 'canceled' });
    expect(
      await h.rows("select from boxcar.tool_calls where turn_id = $1 and status = 'pending'", [asker]),
    ).toEqual([]);
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('is aborted by its worker and not claimed again, even after its dead letters are tried again', async () => {
    const held = await launch('held');
    await waitFor(async () => (await rowOf(held)).status === 'running', { message: 'it runs' });
    await poison(held);
    expect(await cancel({ turn_id: held })).toMatchObject({
      status: 'partial',
      not_ended: [{ turn_id: held }],
    });
    await waitFor(
      () => h.log.some(({ event, fields }) => event === 'turn.interrupted' && fields.turn_id === held),
      { message: 'its worker has stopped' },
    );
    // Hands the turn back and rings it, as the heartbeat of its worker does with turns that the worker does not run.
    const [ring] = await h.rows<{ epoch: number }>(
      "update boxcar.turns set status = 'dispatched', epoch = epoch + 1, holder_id = null, dispatched_at = now() where id = $1 returning epoch",
      [held],
    );
    const reread = () => h.runtime.ring([{ turnId: held, epoch: ring?.epoch ?? 0, workerTarget: '' }]);
    await h.rows("update boxcar.sweep_failures set is_dead = true where kind = 'turn_ends'");
    expect(await retryDeadLetters(h.database.pool)).toBe(1);
    reread();
    const other = await launch('asker');
    await childrenOf(other, 1);
    expect(await rowOf(held)).toMatchObject({ status: 'dispatched' });
    await cure();
    expect(await rowOf(held)).toMatchObject({ status: 'canceled' });
  });

  test('is aborted by its worker, which missed the notice, at its next heartbeat', async () => {
    const missed = await launch('held');
    await waitFor(async () => (await rowOf(missed)).status === 'running', { message: 'it runs' });
    // Written as `giveUp` writes it, but without a notice.
    await noteSweepFailure(
      h.database.pool,
      { kind: 'turn_runs', rowId: missed, projectId: null, error: 'canceled' },
      { maxTries: 1 },
    );
    await waitFor(
      () => h.log.some(({ event, fields }) => event === 'turn.interrupted' && fields.turn_id === missed),
      { message: 'its worker has stopped it' },
    );
    await cancel({ turn_id: missed });
    expect(await rowOf(missed)).toMatchObject({ status: 'canceled' });
  });

  test('does not prevent the end of the other tasks of its fork_join, and the batch ends with it', async () => {
    const forker = await launch('forker');
    const [, bad] = (await childrenOf(forker, 5)) as [TurnId, TurnId];
    await poison(bad);
    await h.rows("update boxcar.turns set deadline_at = now() - interval '1 second' where id = $1", [forker]);
    const { run_id } = await rowOf(forker);
    const of = sweeper();
    await waitFor(
      async () => {
        await of.sweep();
        return (await openOf(run_id)).length === 1;
      },
      { message: 'the others have ended' },
    );
    expect(await openOf(run_id)).toEqual([{ id: bad }]);
    await cure();
    await waitFor(
      async () => {
        await of.sweep();
        return (
          (await h.rows("select from boxcar.batches where turn_id = $1 and status = 'canceled'", [forker]))
            .length === 1
        );
      },
      { message: 'the batch has ended' },
    );
    expect(await rowOf(bad)).toMatchObject({ status: 'canceled', error: { code: 'batch_closed' } });
    await checkInvariants(h.database.pool, { isSettled: false });
  });
});

test('a failure that affects all turns of a run is not charged to single turns: nothing is written', async () => {
  const root = await launch('absent');
  await Promise.all(Array.from({ length: 40 }, () => launch('absent', root)));
  await h.rows(
    `create or replace function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'all are refused'; end $$;
     create trigger refuse before update on boxcar.turns for each row when (new.ended_at is not null) execute function public.refuse()`,
  );
  await expect(cancel({ turn_id: root })).rejects.toThrow(/all are refused/);
  expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  await h.rows('drop trigger refuse on boxcar.turns');
  expect((await cancel({ turn_id: root })).status).toBe('canceled');
});
