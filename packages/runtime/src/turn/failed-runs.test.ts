import type { JsonValue, TurnId } from '@boxcar/kernel';
import { listDeadLetters, retryDeadLetters } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'written {{instruction}}' }]);
  const calls = (tool: string, args: JsonValue) => [
    { calls: [{ tool, arguments: args }] },
    { say: 'went on' },
  ];
  const rest = { tools: ['delegate_async', 'fork_join'], delegation_policy: { target_profiles: null } };
  const task = (target_ref: string, instruction: string) => ({
    target_strategy: 'new',
    target_ref,
    instruction,
  });
  await h.profile('later', [{ say: 'written {{instruction}}' }], { worker_target: 'later' });
  await h.profile('asker', calls('delegate_async', { ...task('later', 'poison'), wait: true }), rest);
  await h.profile(
    'forker',
    calls('fork_join', { tasks: [task('later', 'poison'), task('later', 'good')] }),
    rest,
  );
  return () => h[Symbol.asyncDispose]();
});

const launch = async (profile: string, instruction = 'go'): Promise<TurnId> =>
  (
    (await h.runtime.submit('launch_principal', { profile_name: profile, instruction })) as {
      turn_id: TurnId;
    }
  ).turn_id;

const rowOf = async (turnId: TurnId) => {
  const [row] = await h.rows<{
    status: string;
    losses: number;
    error: { code: string; message: string; details: Record<string, unknown> } | null;
  }>('select status, losses, error from boxcar.turns where id = $1', [turnId]);
  if (row === undefined) throw new Error(`no turn ${turnId}`);
  return row;
};

/** Makes all rows that wait for their next try due now. */
const hurry = () =>
  h.rows('update boxcar.sweep_failures set next_try_at = now() where not is_dead and next_try_at > now()');
const hurryUntil = <T>(isDone: () => Promise<T>, message: string) =>
  waitFor(
    async () => {
      await hurry();
      return isDone();
    },
    { message, deadlineMs: 60_000, intervalMs: 50 },
  );
const ended = (turnId: TurnId) =>
  hurryUntil(async () => {
    const row = await rowOf(turnId);
    return ['success', 'failed', 'partial', 'timeout', 'canceled'].includes(row.status) ? row : undefined;
  }, `turn ${turnId} has ended`);

const failures = (event: string) => h.log.filter((line) => line.event === event);

/** Raises an error for each row that meets the condition, and counts these errors. */
const refuse = (
  table: string,
  options: { readonly when: string; readonly on?: string; readonly state?: string },
) =>
  h.rows(
    `create sequence if not exists public.refusals;
     grant usage on sequence public.refusals to public;
     create function public.refuse_${table}() returns trigger language plpgsql security definer as $$ begin
       perform nextval('public.refusals'); raise exception 'this row is poison' using errcode = '${options.state ?? 'P0001'}'; end $$;
     create trigger refuse before ${options.on ?? 'insert or update'} on boxcar.${table} for each row when (${options.when}) execute function public.refuse_${table}()`,
  );
const refusals = async (): Promise<number> =>
  Number((await h.rows<{ last_value: string }>('select last_value from public.refusals'))[0]?.last_value);

describe('a turn that cannot be run', () => {
  test('because its profile has no row ends as failed with that cause, after five tries with back-off', async () => {
    const turnId = await launch('writer');
    const profileId = '01890000-0000-7000-8000-000000000001';
    await h.rows('update boxcar.turns set profile_id = $2 where id = $1', [turnId, profileId]);
    await h.worker({ sweepMs: 50, lostRingMs: 100 });
    await waitFor(async () => (await listDeadLetters(h.database.pool, 10)).length > 0, {
      message: 'the failure is noted',
    });
    // The turn waits for its next try in the rows, without a ring.
    expect(await rowOf(turnId)).toMatchObject({ status: 'dispatched', losses: 1 });
    const row = await ended(turnId);
    expect(row).toMatchObject({
      status: 'failed',
      error: {
        code: 'internal_error',
        message: expect.stringContaining(`Profile ${profileId} has no row.`),
        details: { profile_id: profileId, attempts: 5 },
      },
    });
    expect(failures('turn.interrupted')).toHaveLength(5);
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([
      { kind: 'turn_runs', row_id: turnId, is_dead: true, attempts: 5 },
    ]);
    expect(await retryDeadLetters(h.database.pool)).toBe(1);
    expect(await rowOf(turnId)).toMatchObject({ status: 'failed' });
  });

  test.each([
    ['without a kind', '{}', 'content.kind'],
    ['without a part of its kind', '{"kind":"fields_schema"}', 'content.fields'],
  ])('because a card has content %s ends at once and names that card', async (_what, content, path) => {
    const turnId = await launch('writer', 'spoil me');
    const [card] = await h.rows<{ id: string }>(
      "select id from boxcar.cards where type = 'task.instruction' and content::text like '%spoil me%'",
    );
    await h.rows(`do $$ begin
      alter table boxcar.cards disable trigger user;
      update boxcar.cards set content = '${content}' where id = '${card?.id}';
      alter table boxcar.cards enable trigger user; end $$`);
    await h.worker({ sweepMs: 50, lostRingMs: 100 });
    expect(await ended(turnId)).toMatchObject({
      status: 'failed',
      error: {
        code: 'card_damaged',
        message: expect.stringContaining(`Card ${card?.id} cannot be read: ${path}: `),
        details: { card_id: card?.id },
      },
    });
    expect(failures('turn.interrupted')).toHaveLength(1);
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([{ row_id: turnId, is_dead: true }]);
  });

  test('because its claim always fails ends as failed, without too many claims of its batch', async () => {
    const turnIds = [await launch('later'), await launch('later'), await launch('later')];
    const [, poison = ''] = turnIds as TurnId[];
    await refuse('turns', { on: 'update', when: `new.id = '${poison}' and new.status = 'running'` });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    expect(await ended(poison as TurnId)).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining('this row is poison'), details: { attempts: 5 } },
    });
    for (const turnId of turnIds.filter((id) => id !== poison))
      expect(await ended(turnId)).toMatchObject({ status: 'success', losses: 0 });
    // A failed batch is split until the row is alone, so there are more claims than tries.
    expect(failures('turn.failed_to_run')).toHaveLength(5);
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([
      { kind: 'turn_runs', row_id: poison, attempts: 5, is_dead: true },
    ]);
    await checkInvariants(h.database.pool);
  });

  test.each([
    ['can never be dispatched', 'P0001'],
    ['takes too long to be dispatched', '57014'],
  ])('because it %s ends as failed, and does not block other queued turns', async (_what, state) => {
    const turnIds = [await launch('later'), await launch('later'), await launch('later')] as const;
    const [poison, ...others] = turnIds;
    await refuse('turns', {
      on: 'update',
      when: `new.id = '${poison}' and new.status = 'dispatched'`,
      state,
    });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    for (const turnId of others) expect(await ended(turnId)).toMatchObject({ status: 'success' });
    expect(await ended(poison)).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining('this row is poison') },
    });
  });

  test('because its commit exceeds the limit of a statement asks the model five times, with back-off, and ends as failed', async () => {
    const turnId = await launch('writer');
    await refuse('turns', { on: 'update', when: 'new.step_count > old.step_count', state: '57014' });
    await h.worker({ sweepMs: 50, lostRingMs: 100 });
    await waitFor(async () => (await listDeadLetters(h.database.pool, 10)).length > 0, {
      message: 'the failure is noted',
    });
    expect(await rowOf(turnId)).toMatchObject({ status: 'dispatched', losses: 1 });
    expect(await ended(turnId)).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining('this row is poison'), details: { attempts: 5 } },
    });
    expect(failures('turn.interrupted')).toHaveLength(5);
  });

  test('because a server is away waits for its next try, without a counted loss', async () => {
    const turnId = await launch('later');
    const state = '57P01';
    await refuse('turns', {
      on: 'update',
      when: `new.id = '${turnId}' and new.status = 'running'`,
      state,
    });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    await hurryUntil(async () => failures('turn.failed_to_run').length >= 7, 'the claim fails often');
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([{ row_id: turnId, is_dead: false }]);
    await h.rows('drop trigger refuse on boxcar.turns');
    expect(await ended(turnId)).toMatchObject({ status: 'success', losses: 0 });
  });

  test('because the server fails only for this turn ends after ten tries', async () => {
    const [turnId, other] = [await launch('later'), await launch('later')];
    await refuse('turns', {
      on: 'update',
      when: `new.id = '${turnId}' and new.status = 'running'`,
      state: '53100',
    });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    expect(await ended(turnId)).toMatchObject({
      status: 'failed',
      error: { code: 'database_unavailable', details: { attempts: 10 } },
    });
    expect(await ended(other)).toMatchObject({ status: 'success', losses: 0 });
  });

  test('because another session has its row locked delays the others of its batch by only one lock limit', async () => {
    const turnIds: TurnId[] = [];
    for (let n = 0; n < 9; n += 1) turnIds.push(await launch('later'));
    const locked = turnIds[4] as TurnId;
    await h.rows("update boxcar.turns set status = 'dispatched', epoch = 1, dispatched_at = now()");
    const stranger = await h.database.pool.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.turns where id = $1 for update', [locked]);
    await h.worker({ targets: ['later'], concurrency: 20, leaseMs: 2_000, sweepMs: 60_000 });
    await h.runtime.doorbell.ring(turnIds.map((turnId) => ({ turnId, epoch: 1, workerTarget: 'later' })));
    for (const turnId of turnIds.filter((id) => id !== locked))
      await waitFor(async () => (await rowOf(turnId)).status === 'success', {
        message: 'its neighbours have ended',
        deadlineMs: 8_000,
      });
    expect(await rowOf(locked)).toMatchObject({ status: 'dispatched' });
    await stranger.query('rollback');
    stranger.release();
    await waitFor(async () => (await rowOf(locked)).status === 'success', { message: 'it is run as well' });
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  });
});

describe('a turn whose end cannot be written', () => {
  test('ends the wait of a caller with the cause and the next action', async () => {
    const turnId = await launch('later');
    const waiting = h.runtime.waitForTurn(turnId).then(
      () => 'ended',
      (error: unknown) => error,
    );
    await refuse('turns', { on: 'update', when: `new.id = '${turnId}'` });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    await hurryUntil(
      async () =>
        (await listDeadLetters(h.database.pool, 10)).some(
          (letter) => letter.kind === 'turn_ends' && letter.is_dead,
        ),
      'its end is given up',
    );
    expect(await waiting).toMatchObject({
      code: 'not_ended',
      message: expect.stringMatching(/this row is poison.*boxcar doctor --retry-dead/),
      details: { turn_id: turnId },
    });
  });

  test('does not block the next turns of its agent', async () => {
    const first = (await h.runtime.accept('launch_principal', { profile_name: 'later', instruction: 'go' }))
      .answer as {
      turn_id: TurnId;
      agent_id: string;
    };
    const args = { target_strategy: 'reuse', target_ref: first.agent_id, instruction: 'go on' };
    const next = (await h.runtime.submit('delegate_async', args)) as { turn_id: TurnId };
    await refuse('turns', { on: 'update', when: `new.id = '${first.turn_id}'` });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    expect(await ended(next.turn_id)).toMatchObject({ status: 'success' });
    expect(await rowOf(first.turn_id)).toMatchObject({ status: 'queued' });
  });
});

describe('a turn that another turn waits for', () => {
  const cases: [string, (turnId: TurnId) => Promise<unknown>, string][] = [
    [
      'whose claim always fails',
      (turnId) => refuse('turns', { on: 'update', when: `new.id = '${turnId}' and new.status = 'running'` }),
      'turn_runs',
    ],
    [
      'whose end cannot be written',
      (turnId) =>
        refuse('turns', { on: 'update', when: `new.id = '${turnId}' and new.ended_at is not null` }),
      'turn_ends',
    ],
    [
      'whose end exceeds the limit of a statement',
      (turnId) =>
        refuse('turns', {
          on: 'update',
          when: `new.id = '${turnId}' and new.ended_at is not null`,
          state: '57014',
        }),
      'turn_ends',
    ],
    [
      'whose row cannot be written at all',
      (turnId) => refuse('turns', { on: 'update', when: `new.id = '${turnId}'` }),
      'turn_ends',
    ],
  ];
  test.each(cases)('%s is answered as failed with the cause', async (_what, strike, kind) => {
    await h.worker({ sweepMs: 50, lostRingMs: 100 });
    const asker = await launch('asker');
    const [child] = await childrenOf(asker, 1);
    await strike(child as TurnId);
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100, heartbeatMs: 100 });
    expect(await ended(asker)).toMatchObject({ status: 'success' });
    expect(await answerTo(asker)).toContain('this row is poison');
    const letters = await listDeadLetters(h.database.pool, 10);
    expect(letters.find((letter) => letter.kind === kind)).toMatchObject({
      row_id: child,
      is_dead: true,
      last_error: expect.stringContaining('this row is poison'),
    });
    // Five tries to run it and five to end it, some with two statements. A try that exceeds a limit is repeated at once.
    expect(await refusals()).toBeLessThanOrEqual(kind === 'turn_ends' ? 100 : 20);
  });

  test('as a task of a fork_join does not withhold the answers of the other tasks', async () => {
    await h.worker({ sweepMs: 50, lostRingMs: 100 });
    const forker = await launch('forker');
    const [bad, good] = (await childrenOf(forker, 2)) as [TurnId, TurnId];
    await refuse('turns', { on: 'update', when: `new.id = '${bad}' and new.ended_at is not null` });
    await h.worker({ targets: ['later'], sweepMs: 50, lostRingMs: 100 });
    expect(await ended(forker)).toMatchObject({ status: 'success' });
    expect(await rowOf(good)).toMatchObject({ status: 'success' });
    const [batch] = await h.rows<{ status: string }>('select status from boxcar.batches');
    expect(batch?.status).toBe('partial');
    const text = await answerTo(forker);
    expect(text).toContain('this row is poison');
    expect(text).toContain('written good');
    // After the cause is removed, this turn ends too.
    await h.rows('drop trigger refuse on boxcar.turns');
    await retryDeadLetters(h.database.pool);
    await ended(bad);
    await checkInvariants(h.database.pool);
  });
});

/** The answer that the call of a turn received. */
const answerTo = async (turnId: TurnId): Promise<string> =>
  (
    await h.rows<{ content: string }>(
      'select c.content::text as content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1',
      [turnId],
    )
  )[0]?.content ?? '';

const childrenOf = (turnId: TurnId, count: number): Promise<TurnId[]> =>
  waitFor(
    async () => {
      const rows = await h.rows<{ id: TurnId }>(
        "select c.id from boxcar.turns c join boxcar.turns p on p.id = c.parent_turn_id where p.id = $1 and p.status = 'suspended' order by c.id",
        [turnId],
      );
      return rows.length === count ? rows.map(({ id }) => id) : undefined;
    },
    { message: 'the turn waits' },
  );
