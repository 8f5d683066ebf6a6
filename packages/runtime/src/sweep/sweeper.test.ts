import type { Doorbell, JsonValue, TurnId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { limitByLease, listDeadLetters, retryDeadLetters, wakeProvider } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { deafDoorbell } from '../testing/deaf-doorbell.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { Sweeper } from './sweeper.js';

const createSweeper = (h: Harness): Sweeper =>
  new Sweeper(h.runtime, {
    lostRingMs: 600_000_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });

/** A failed attempt may still hold its locks for a moment. Then the row is skipped, and the next sweep finds it. */
const sweepUntilNoted = (h: Harness, sweeper: Sweeper, now?: Date): Promise<unknown> =>
  waitFor(
    async () => {
      await sweeper.sweep(now === undefined ? {} : { now });
      return (await listDeadLetters(h.database.pool, 10)).length > 0;
    },
    { message: 'the row is set aside' },
  );

const submit = async (h: Harness, primitive: string, args: Record<string, JsonValue>): Promise<TurnId> =>
  ((await h.runtime.submit(primitive, args)) as { turn_id: TurnId }).turn_id;

const statusOf = async (h: Harness, turnId: string): Promise<string> =>
  (await h.rows<{ status: string }>('select status from boxcar.turns where id = $1', [turnId]))[0]?.status ??
  '';

/** Every later change of this row fails in the database, whatever process makes it. */
const poison = (h: Harness, table: string, id: string): Promise<unknown> =>
  h.rows(
    `create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'row % is poison', old.id; end $$;
     create trigger poison before update on boxcar.${table} for each row when (old.id = '${id}') execute function public.refuse()`,
  );
const cure = (h: Harness, table: string): Promise<unknown> =>
  h.rows(`drop trigger poison on boxcar.${table}`);

/** Assigns a turn to a worker that is gone. */
const lose = (h: Harness, turnIds: readonly TurnId[]): Promise<unknown> =>
  h.rows(
    `with b as (update boxcar.boxes x set head_position = x.head_position + 1 from boxcar.turns t where t.id = any ($1) and x.id = t.output_box_id returning t.id, x.head_position, x.id as box_id),
      e as (insert into boxcar.tape_entries (box_id, position, kind, payload, turn_id, author_id)
        select b.box_id, b.head_position, 'event', json_build_object('name', 'turn.started', 'data', json_build_object('turn_id', t.id, 'context_box_id', t.context_box_id)), t.id, t.agent_id::text
        from b join boxcar.turns t on t.id = b.id)
     update boxcar.turns t set status = 'running', epoch = 1, holder_id = gen_random_uuid(), attempt = 1, dispatched_at = now(), start_position = b.head_position from b where t.id = b.id`,
    [turnIds],
  );

describe('a row that a sweep cannot handle', () => {
  test('does not stop the others, is tried again later each time, is set aside in the end, and can be put back', async () => {
    await using h = await harness();
    await h.profile('slow', [{ say: 'never' }]);
    const args = { target_strategy: 'new', target_ref: 'slow', instruction: 'go', deadline_seconds: 60 };
    const turnIds: TurnId[] = [];
    for (let i = 0; i < 3; i += 1) turnIds.push(await submit(h, 'delegate_async', args));
    // The turn that is due first precedes the others.
    const [bad, ...good] = turnIds as [TurnId, TurnId, TurnId];
    await poison(h, 'turns', bad);
    const sweeper = createSweeper(h);
    const start = Date.now() + 61_000;
    const sweepAt = (seconds: number): Promise<void> =>
      sweeper.sweep({ now: new Date(start + seconds * 1_000) });
    const tries = async (): Promise<readonly [number, boolean]> => {
      const [letter] = await listDeadLetters(h.database.pool, 10);
      return [letter?.attempts ?? 0, letter?.is_dead ?? false];
    };

    await sweepAt(0);
    for (const turnId of good) expect(await statusOf(h, turnId)).toBe('timeout');
    expect(await tries()).toEqual([1, false]);
    // Not retried before its time: 2, 4, 8, 16 seconds later.
    const seen: [number, number, boolean][] = [];
    for (const second of [1, 3, 5, 8, 12, 17, 25, 34, 60, 3_600]) {
      await sweepAt(second);
      seen.push([second, ...(await tries())]);
    }
    expect(seen).toEqual([
      [1, 1, false],
      [3, 2, false],
      [5, 2, false],
      [8, 3, false],
      [12, 3, false],
      [17, 4, false],
      [25, 4, false],
      [34, 5, true],
      [60, 5, true],
      [3_600, 5, true],
    ]);
    expect(h.log.filter(({ event }) => event === 'sweep.row_failed')).toHaveLength(4);
    expect(h.log.filter(({ event }) => event === 'sweep.row_given_up')).toMatchObject([
      { fields: { part: 'overdue_turns', row_id: bad, error: expect.stringContaining('is poison') } },
    ]);
    await expect(checkInvariants(h.database.pool)).rejects.toThrow(
      /live-cause: .* was given up by the sweep/,
    );

    await cure(h, 'turns');
    expect(await retryDeadLetters(h.database.pool)).toBe(1);
    await sweepAt(3_601);
    expect(await statusOf(h, bad)).toBe('timeout');
    // A note whose row has not failed again since its time is forgotten.
    await sweepAt(3_700);
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
    await checkInvariants(h.database.pool);
  });

  test('of a dead worker does not prevent the takeover of the worker’s other turns', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'done' }]);
    const turnIds: TurnId[] = [];
    for (let i = 0; i < 4; i += 1)
      turnIds.push(await submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' }));
    const [bad, ...good] = turnIds as [TurnId, ...TurnId[]];
    await lose(h, turnIds);
    await poison(h, 'turns', bad);
    await sweepUntilNoted(h, createSweeper(h));
    for (const turnId of good) expect(await statusOf(h, turnId)).toBe('dispatched');
    expect(await statusOf(h, bad)).toBe('running');
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([{ kind: 'dead_leases', row_id: bad }]);
    expect(await h.rows('select losses from boxcar.turns where id = any ($1)', [good])).toEqual(
      good.map(() => ({ losses: 1 })),
    );
  });

  test('of an overdue call does not prevent the answers of other calls', async () => {
    await using h = await harness();
    await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
    const ask = { tool: 'ask_expert', arguments: { expert_profile: 'absent', question: 'q' } };
    await h.profile('boss', [{ calls: [ask, ask] }, { say: 'done' }], {
      tools: ['ask_expert'],
      delegation_policy: { target_profiles: null },
    });
    await h.worker({ leaseMs: 600_000_000, sweepMs: 600_000 });
    const turnId = await submit(h, 'launch_principal', { profile_name: 'boss', instruction: 'go' });
    await waitFor(async () => (await statusOf(h, turnId)) === 'suspended', { message: 'the turn waits' });
    const calls = await h.rows<{ id: string; status: string }>(
      'select id, status from boxcar.tool_calls order by ordinal',
    );
    await poison(h, 'tool_calls', calls[0]?.id ?? '');
    await sweepUntilNoted(h, createSweeper(h), new Date(Date.now() + 3_700_000));
    expect(await h.rows('select status from boxcar.tool_calls order by ordinal')).toEqual([
      { status: 'pending' },
      // The answer of a wait succeeds; the outcome of the work is in its result.
      { status: 'success' },
    ]);
    expect(await listDeadLetters(h.database.pool, 10)).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ kind: 'overdue_calls', row_id: calls[0]?.id, attempts: 1 }),
      ]),
    );
  });

  test('of a turn whose wait is over does not prevent the wake of other turns', async () => {
    await using h = await harness();
    const limits = { retry_base_seconds: 3_000, retry_max_seconds: 3_000 };
    await h.profile('turned-away', [{ fail: { status: 503, times: 1 }, say: 'done' }], { limits });
    await h.worker({ leaseMs: 600_000_000, sweepMs: 600_000 });
    const turnIds: TurnId[] = [];
    for (let i = 0; i < 3; i += 1)
      turnIds.push(await submit(h, 'launch_principal', { profile_name: 'turned-away', instruction: 'go' }));
    for (const turnId of turnIds)
      await waitFor(async () => (await statusOf(h, turnId)) === 'suspended', { message: 'all wait' });
    const [bad, ...good] = turnIds as [TurnId, ...TurnId[]];
    await poison(h, 'turns', bad);
    const now = new Date(Date.now() + 3_001_000);
    await sweepUntilNoted(h, createSweeper(h), now);
    for (const turnId of good)
      expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await statusOf(h, bad)).toBe('suspended');
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([{ kind: 'due_waits', row_id: bad }]);
    await cure(h, 'turns');
    await createSweeper(h).sweep({ now: new Date(now.getTime() + 3_000) });
    expect(await h.runtime.waitForTurn(bad, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  });

  test('of a turn that waits for a provider does not keep room from other turns', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'done' }]);
    const turnIds: TurnId[] = [];
    for (let i = 0; i < 3; i += 1)
      turnIds.push(await submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' }));
    const [bad, ...good] = turnIds as [TurnId, ...TurnId[]];
    await h.rows("insert into boxcar.providers (name, max_concurrent) values ('slow', 5)");
    await h.rows(`with w as (
      insert into boxcar.waits (turn_id, project_id, kind, due_at, provider) select id, project_id, 'limit', now(), 'slow' from boxcar.turns)
      update boxcar.turns set status = 'suspended'`);
    await poison(h, 'turns', bad);
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: async (name, options) => void (await wakeProvider(h.database.pool, name, options)),
    });
    await sweepUntilNoted(h, sweeper, new Date(Date.now() + 1_000));
    for (const turnId of good) expect(await statusOf(h, turnId)).toBe('dispatched');
    expect(await statusOf(h, bad)).toBe('suspended');
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([{ kind: 'due_waits', row_id: bad }]);
    await cure(h, 'turns');
    await sweeper.sweep({ now: new Date(Date.now() + 5_000) });
    expect(await statusOf(h, bad)).toBe('dispatched');
  });

  test('of an account with room again does not prevent the wake of other turns, and ends no turn', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'done' }]);
    const launch = () => submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
    const [left, open, waiting] = [await launch(), await launch(), await launch()];
    // The account of a capped subtree has the id of the turn at its top.
    await h.rows(
      `update boxcar.turns set run_id = (select run_id from boxcar.turns where id = '${open}') where id = '${left}'`,
    );
    await h.runtime.submit('cancel', { turn_id: left });
    await h.rows(`insert into boxcar.budgets (id, run_id, project_id, top_depth, limits, paused_at)
      select id, run_id, project_id, 0, '{"steps": 5}', now() - interval '7 seconds' from boxcar.turns where id = '${open}'`);
    await h.rows("insert into boxcar.providers (name, max_concurrent) values ('slow', 5)");
    await h.rows(`with w as (
      insert into boxcar.waits (turn_id, project_id, kind, due_at, provider) select id, project_id, 'limit', now(), 'slow' from boxcar.turns where id = '${waiting}')
      update boxcar.turns set status = 'suspended' where id = '${waiting}'`);
    await poison(h, 'budgets', open);
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: async (name, options) => void (await wakeProvider(h.database.pool, name, options)),
    });
    for (let n = 0; n < 6; n++) await sweeper.sweep({ now: new Date(Date.now() + 1_000 + n * 20_000) });
    expect(await statusOf(h, waiting)).toBe('dispatched');
    expect(await listDeadLetters(h.database.pool, 10)).toMatchObject([
      { kind: 'left_budgets', row_id: open, attempts: 5, is_dead: true },
    ]);
    expect(await statusOf(h, open)).toBe('queued');
    expect(h.log.filter(({ event }) => event === 'sweep.part_failed')).toEqual([]);
    await cure(h, 'budgets');
    await retryDeadLetters(h.database.pool);
    await sweeper.sweep({ now: new Date(Date.now() + 1_000) });
    expect(await h.rows('select from boxcar.budgets where paused_at is not null')).toEqual([]);
  });

  test('of a batch that is due does not prevent the end of other batches, and is set aside like any row', async () => {
    await using h = await harness();
    await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
    const batchIds: string[] = [];
    for (let i = 0; i < 2; i += 1) {
      const task = { target_strategy: 'new', target_ref: 'absent', instruction: 'go' };
      const receipt = await h.runtime.submit('fork_join', {
        tasks: [task],
        wait: false,
        deadline_seconds: 60,
      });
      batchIds.push((receipt as { batch_id: string }).batch_id);
    }
    const [bad = '', good = ''] = batchIds;
    const statusOfBatch = async (id: string) =>
      (await h.rows<{ status: string }>('select status from boxcar.batches where id = $1', [id]))[0]?.status;
    await poison(h, 'batches', bad);
    const sweeper = createSweeper(h);
    const start = Date.now() + 61_000;
    for (const second of [0, 3, 8, 17, 34]) await sweeper.sweep({ now: new Date(start + second * 1_000) });
    expect([await statusOfBatch(bad), await statusOfBatch(good)]).toEqual(['running', 'timeout']);
    const letters = await listDeadLetters(h.database.pool, 10);
    expect(letters.find(({ row_id }) => row_id === bad)).toMatchObject({
      kind: 'due_batches',
      is_dead: true,
    });
    await expect(checkInvariants(h.database.pool, { isSettled: false })).rejects.toThrow(
      /live-cause: .* was given up by the sweep \(due_batches\)/,
    );
    await cure(h, 'batches');
    await retryDeadLetters(h.database.pool);
    await sweeper.sweep({ now: new Date(start + 40_000) });
    expect(await statusOfBatch(bad)).toBe('timeout');
    await checkInvariants(h.database.pool);
  });
});

/** Two agents, each with a running turn. Both turns ask the other agent at the same time and wait. */
async function circle(): Promise<{ h: Harness; roots: readonly TurnId[] }> {
  let arrived = 0;
  let open = (): void => undefined;
  const both = new Promise<void>((resolve) => {
    open = resolve;
  });
  const ask: ScriptedFunction = async ({ turn, messages }, { call }) => {
    const instruction = JSON.stringify(messages.at(-1)).match(/ask (agent-[ab])/)?.[1];
    if (turn.step > 1 || instruction === undefined) return { text: JSON.stringify(messages.at(-1)) };
    arrived += 1;
    if (arrived === 2) open();
    await both;
    return {
      toolCalls: [
        call('delegate_async', {
          target_strategy: 'reuse',
          target_ref: instruction,
          instruction: 'hello',
          wait: true,
        }),
      ],
    };
  };
  const h = await harness({ model: createModelRouter({ scripted: { functions: { ask } } }) });
  await h.runtime.applyProfile({
    name: 'asker',
    instructions: 'Ask.',
    model: 'scripted:ask',
    tools: ['delegate_async'],
    delegation_policy: { target_profiles: null },
  });
  for (const name of ['agent-a', 'agent-b'])
    await h.runtime.submit('provision_agent', {
      action: 'create',
      agent_id: name,
      profile_name: 'asker',
      shared: true,
    });
  await h.worker({ leaseMs: 600_000_000, sweepMs: 600_000 });
  const roots: TurnId[] = [];
  for (const [name, other] of [
    ['agent-a', 'agent-b'],
    ['agent-b', 'agent-a'],
  ])
    roots.push(
      await submit(h, 'delegate_async', {
        target_strategy: 'reuse',
        target_ref: name ?? '',
        instruction: `ask ${other}`,
      }),
    );
  for (const root of roots)
    await waitFor(async () => (await statusOf(h, root)) === 'suspended', { message: 'both turns wait' });
  return { h, roots };
}

describe('a circle of waits over two runs', () => {
  test('is ended by failing its youngest wait, with the chain, and both runs end', async () => {
    const { h, roots } = await circle();
    await using _harness = h;
    const [youngest] = await h.rows<{ id: string }>(
      'select id from boxcar.tool_calls order by created_at desc, id desc limit 1',
    );
    await createSweeper(h).sweep({ now: new Date(Date.now() + 6_000) });
    const ends = await Promise.all(roots.map((root) => h.runtime.waitForTurn(root, { timeoutMs: 60_000 })));
    expect(ends.map(({ status }) => status)).toEqual(['success', 'success']);
    const calls = await h.rows<{ id: string; status: string; content: string }>(
      'select k.id, k.status, c.content::text from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id',
    );
    const failed = calls.filter(({ status }) => status === 'failed');
    expect(failed).toMatchObject([{ id: youngest?.id }]);
    expect(failed[0]?.content).toContain('delegation_cycle');
    for (const root of roots) expect(failed[0]?.content).toContain(root);
    expect(h.log.filter(({ event }) => event === 'sweep.cycle_broken')).toHaveLength(1);
    await waitFor(
      async () => (await h.rows('select from boxcar.turns where ended_at is null')).length === 0,
      { message: 'the turns that nobody waits for any more end too' },
    );
    await checkInvariants(h.database.pool);
  });

  test('is left alone while it is young', async () => {
    const { h, roots } = await circle();
    await using _harness = h;
    await createSweeper(h).sweep({ now: new Date() });
    for (const root of roots) expect(await statusOf(h, root)).toBe('suspended');
    expect(h.log.filter(({ event }) => event === 'sweep.cycle_broken')).toEqual([]);
  });
});

test('the tenth worker lost at a step ends a turn; no number of attempts does', async () => {
  await using h = await harness();
  await h.profile('writer', [{ say: 'done' }]);
  const launch = (): Promise<TurnId> =>
    submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
  const [nine, eight, failing, patient] = [await launch(), await launch(), await launch(), await launch()];
  const setLosses = (turnId: TurnId, losses: number): Promise<unknown> =>
    h.rows('update boxcar.turns set losses = $2, attempt = 50 where id = $1', [turnId, losses]);
  await lose(h, [nine, eight]);
  await setLosses(nine, 9);
  await setLosses(eight, 8);
  await setLosses(failing, 10);
  await setLosses(patient, 0);
  await createSweeper(h).sweep();
  expect(await statusOf(h, nine)).toBe('failed');
  expect(await statusOf(h, eight)).toBe('dispatched');
  await h.worker();
  const ends = await Promise.all(
    [nine, eight, failing, patient].map((turnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })),
  );
  expect(ends).toMatchObject([
    { status: 'failed', error: { code: 'attempts_exhausted' } },
    { status: 'success' },
    { status: 'failed', error: { code: 'attempts_exhausted' } },
    { status: 'success' },
  ]);
});

describe('a row that another session has locked', () => {
  test('does not delay the other rows of its sweep, and is handled when it is free', async () => {
    await using h = await harness();
    await h.profile('slow', [{ say: 'never' }]);
    const args = { target_strategy: 'new', target_ref: 'slow', instruction: 'go', deadline_seconds: 60 };
    const turnIds: TurnId[] = [];
    for (let i = 0; i < 3; i += 1) turnIds.push(await submit(h, 'delegate_async', args));
    const [locked, ...free] = turnIds as [TurnId, ...TurnId[]];
    // A session without the kernel's time limits.
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.turns where id = $1 for update', [locked]);
    const sweeper = createSweeper(h);
    const sweepLater = (): Promise<void> => sweeper.sweep({ now: new Date(Date.now() + 61_000) });
    const startedAt = performance.now();
    await sweepLater();
    for (const turnId of free) expect(await statusOf(h, turnId)).toBe('timeout');
    expect(await statusOf(h, locked)).toBe('queued');
    // Less than the lock limit of a connection.
    expect(performance.now() - startedAt).toBeLessThan(3_900);
    await sweepLater();
    await stranger.query('rollback');
    await stranger.end();
    await waitFor(
      async () => {
        await sweepLater();
        return (await statusOf(h, locked)) === 'timeout';
      },
      { message: 'it is ended' },
    );
    await sweeper.stop();
    // A lock is not a defect of the row.
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
    await checkInvariants(h.database.pool);
  });

  test('can be one of many: all of them together delay a sweep by about a second, and each is logged', async () => {
    await using h = await harness();
    await h.profile('slow', [{ say: 'never' }]);
    const args = { target_strategy: 'new', target_ref: 'slow', instruction: 'go', deadline_seconds: 60 };
    const turnIds = await Promise.all(Array.from({ length: 40 }, () => submit(h, 'delegate_async', args)));
    turnIds.sort();
    const free = turnIds.splice(20, 2);
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.turns where id = any ($1) for update', [turnIds]);
    const sweeper = createSweeper(h);
    const startedAt = performance.now();
    // By default, one locked row would be waited for 15 seconds.
    await sweeper.sweep({ now: new Date(Date.now() + 61_000) });
    expect(performance.now() - startedAt).toBeLessThan(6_000);
    // When the second is used up, a row that is locked only for a moment, for instance by autovacuum, is skipped at
    // once.
    await waitFor(
      async () => {
        const open = await Promise.all(free.map(async (turnId) => (await statusOf(h, turnId)) !== 'timeout'));
        if (open.includes(true)) await sweeper.sweep({ now: new Date(Date.now() + 61_000) });
        return !open.includes(true);
      },
      { message: 'the rows between the locked ones are ended' },
    );
    const named = () =>
      h.log.flatMap(({ event, fields }) =>
        event === 'sweep.row_locked' && !free.includes(fields.row_id as TurnId)
          ? [String(fields.row_id)]
          : [],
      );
    expect(named().sort()).toEqual(turnIds);
    // The rows are known by now, so they are not logged again.
    await sweeper.sweep({ now: new Date(Date.now() + 61_000) });
    expect(named()).toHaveLength(turnIds.length);
    await stranger.end();
    await waitFor(
      async () => {
        await sweeper.sweep({ now: new Date(Date.now() + 61_000) });
        return (await h.rows('select from boxcar.turns where ended_at is null')).length === 0;
      },
      { message: 'all are ended' },
    );
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  });

  test('can be a run whose budget has room again: the turns of other runs are woken', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'done' }]);
    const launch = () => submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
    const [first, second] = [await launch(), await launch()];
    for (const turnId of [first, second]) await h.runtime.submit('cancel', { turn_id: turnId });
    await h.rows(`insert into boxcar.budgets (id, run_id, project_id, top_depth, limits, paused_at)
      select run_id, run_id, project_id, 0, '{"steps": 5}', now() - case when id = '${first}' then interval '7 seconds' else interval '6 seconds' end from boxcar.turns
      on conflict (id) do update set paused_at = excluded.paused_at`);
    const runOf = async (turnId: TurnId): Promise<string> =>
      (await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turnId]))[0]
        ?.run_id ?? '';
    const [locked, free] = [await runOf(first), await runOf(second)];
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.runs where id = $1 for update', [locked]);
    const sweeper = createSweeper(h);
    const paused = async (): Promise<string[]> =>
      (await h.rows<{ id: string }>('select id from boxcar.budgets where paused_at is not null')).map(
        ({ id }) => id,
      );
    expect((await paused()).sort()).toEqual([locked, free].sort());
    const startedAt = performance.now();
    await sweeper.sweep();
    expect(performance.now() - startedAt).toBeLessThan(12_000);
    expect(await paused()).toEqual([locked]);
    expect(h.log.filter(({ event }) => event === 'sweep.row_locked')).toMatchObject([
      { fields: { part: 'left_budgets', row_id: locked } },
    ]);
    expect(h.log.filter(({ event }) => event === 'sweep.part_failed')).toEqual([]);
    await stranger.end();
    await waitFor(
      async () => {
        await sweeper.sweep();
        return (await paused()).length === 0;
      },
      { message: 'the turns of the locked run are woken' },
    );
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  });

  test('can be a provider: its turns wait for the next sweep, and the turns of other providers are woken', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'done' }]);
    const launch = () => submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
    const [waiting, woken] = [await launch(), await launch()];
    await h.rows("insert into boxcar.providers (name, max_concurrent) values ('locked', 5), ('other', 5)");
    await h.rows(
      `with w as (
        insert into boxcar.waits (turn_id, project_id, kind, due_at, provider)
        select id, project_id, 'limit', now(), case when id = $1 then 'locked' else 'other' end from boxcar.turns)
       update boxcar.turns set status = 'suspended'`,
      [waiting],
    );
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query("select from boxcar.providers where name = 'locked' for update");
    const limits: unknown[] = [];
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: async (name, options) => {
        limits.push(options.lockMs);
        await wakeProvider(h.database.pool, name, options);
      },
    });
    const sweepLater = (): Promise<void> => sweeper.sweep({ now: new Date(Date.now() + 1_000) });
    const startedAt = performance.now();
    await sweepLater();
    expect(performance.now() - startedAt).toBeLessThan(12_000);
    expect(await statusOf(h, woken)).toBe('dispatched');
    expect(await statusOf(h, waiting)).toBe('suspended');
    // The tries that meet the lock have a limit of their own, including tries for single turns.
    expect(limits).toEqual([expect.any(Number), expect.any(Number), expect.any(Number)]);
    await stranger.end();
    await waitFor(
      async () => {
        await sweepLater();
        return (await statusOf(h, waiting)) === 'dispatched';
      },
      { message: 'the turn of the locked provider is woken' },
    );
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  });

  test('is left for the next sweep, without a note, when it stays locked', async () => {
    await using h = await harness();
    await h.profile('slow', [{ say: 'never' }]);
    const turnId = await submit(h, 'delegate_async', {
      target_strategy: 'new',
      target_ref: 'slow',
      instruction: 'go',
      deadline_seconds: 60,
    });
    const stranger = new pg.Client({ connectionString: h.database.url });
    await stranger.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.turns where id = $1 for update', [turnId]);
    using _limits = limitByLease(h.database.pool, 1_000);
    const sweeper = createSweeper(h);
    await sweeper.sweep({ now: new Date(Date.now() + 61_000) });
    await waitFor(() => h.log.some(({ event }) => event === 'sweep.row_locked'), {
      message: 'the sweep gives up',
      deadlineMs: 60_000,
    });
    await stranger.end();
    await sweeper.stop();
    expect(await listDeadLetters(h.database.pool, 10)).toEqual([]);
  });
});

test('a sweep does not ask an unavailable queue for doors or rings, and closes all doors when the queue answers', async () => {
  let isAway = true;
  const asked: string[] = [];
  const doorbell: Doorbell = {
    ...deafDoorbell(),
    findLost: async (rings) => {
      asked.push(rings.length === 0 ? 'probe' : 'rings');
      return isAway ? undefined : [];
    },
    knock: async (jobIds) => {
      asked.push('doors');
      return isAway ? undefined : jobIds;
    },
  };
  await using h = await harness({ doorbell });
  await h.profile('writer', [{ say: 'done' }]);
  const turnId = await submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
  await h.runtime.submit('cancel', { turn_id: turnId });
  await h.rows(
    "update boxcar.operations set awaited_turn_id = $1::uuid, door_job_id = 'job' where response->>'turn_id' = $1::text",
    [turnId],
  );
  const openDoors = () =>
    h.rows("select from boxcar.operations where door_job_id = 'job' and awaited_turn_id is not null");
  expect(await openDoors()).toHaveLength(1);
  const sweeper = createSweeper(h);

  const sweepIn = (ms: number): Promise<void> => sweeper.sweep({ now: new Date(Date.now() + ms) });
  // The sweep checks doors 2 s after the end of their turn.
  await sweepIn(10_000);
  expect(asked.splice(0)).toEqual(['doors']);
  await submit(h, 'launch_principal', { profile_name: 'writer', instruction: 'go' });
  await sweepIn(700_000_000);
  expect(asked.splice(0)).toEqual(['probe']);
  isAway = false;
  await sweepIn(10_000);
  expect(asked).toEqual(['probe', 'doors']);
  expect(await openDoors()).toHaveLength(0);
});
