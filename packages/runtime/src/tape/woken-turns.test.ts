/** Turns that the end of another turn starts belong to the run of that turn. */
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

/** Gives its session another turn whenever it is notified of an end. */
const lead: ScriptedFunction = ({ turn, messages }, { call }) => {
  const [, session = ''] = /session=(\S+)/.exec(JSON.stringify(messages)) ?? [];
  if (turn.step > 1) return { text: 'asked' };
  return {
    toolCalls: [
      call('delegate_async', {
        target_strategy: 'reuse',
        target_ref: session.replace(/[\\"].*/, ''),
        instruction: 'help',
      }),
    ],
  };
};

describe('a turn that is started by the end of another turn', () => {
  let h: Harness;
  let gate: Promise<void> | undefined;
  /** A running reader waits for this promise. */
  let reading: Promise<void> | undefined;
  let readers = 0;
  let n = 0;
  beforeAll(async () => {
    const echo: ScriptedFunction = async ({ turn }) => {
      await gate;
      return { text: `answer ${turn.turnId}` };
    };
    const reader: ScriptedFunction = async ({ turn }) => {
      readers += 1;
      await reading;
      return { text: `read by ${turn.turnId}` };
    };
    h = await harness({ model: createModelRouter({ scripted: { functions: { lead, echo, reader } } }) });
    for (const [name, model] of [
      ['lead', 'scripted:lead'],
      ['echo', 'scripted:echo'],
      ['reader', 'scripted:reader'],
    ] as const)
      await h.runtime.applyProfile({
        name,
        instructions: `You are ${name}.`,
        model,
        tools: ['delegate_async'],
        delegation_policy: { target_profiles: null },
      });
    await h.worker({ sweepMs: 600_000 });
  });
  afterAll(async () => {
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  });

  /** An agent and a session forked from its tape. The agent is notified of the ends of the session. */
  async function pair({ profile = 'lead' } = {}) {
    const agent = `${profile}-${++n}`;
    await h.runtime.submit('provision_agent', { action: 'create', agent_id: agent, profile_name: profile });
    // In the name of the agent, which gives turns to its own session.
    const tape = await h.runtime.tape({ agent }, { as: agent });
    const session = await tape.forkSession(`session-${n}`, {
      profile: 'echo',
      triggerOnComplete: 'notify_parent',
    });
    const start = (target: string, more: object = {}) =>
      h.runtime.submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: target,
        instruction: `session=${session.name} `,
        ...more,
      }) as Promise<{ turn_id: string; agent_id: string }>;
    const told = async () =>
      (await tape.query().kinds('message').all()).filter(({ payload }) =>
        String(payload.content).startsWith('[FORK RESULT]'),
      ).length;
    const reasons = async () =>
      (await tape.query().kinds('event').all()).flatMap(({ payload }) =>
        payload.name === 'turn.not_started' ? [payload.data] : [],
      );
    const another = async (name: string) =>
      (await tape.forkSession(name, { profile: 'echo', triggerOnComplete: 'notify_parent' })).name;
    return { agent, session: session.name, another, start, told, reasons };
  }
  const shut = (): (() => void) => {
    let open = (): void => undefined;
    gate = new Promise((settle) => {
      open = settle;
    });
    return open;
  };
  const turnsOf = (runId: string) =>
    h.rows<{
      id: string;
      parent_turn_id: string | null;
      depth: number;
      status: string;
      budget_id: string | null;
    }>(
      'select id, parent_turn_id, depth, status, budget_id from boxcar.turns where run_id = $1 order by id',
      [runId],
    );
  const runOf = async (turnId: string) =>
    (await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turnId]))[0]
      ?.run_id ?? '';
  const sweep = () =>
    new Sweeper(h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    }).sweep();

  test('is a child of that turn: in its run, a level deeper, in its account', async () => {
    const { session, start, told } = await pair({ profile: 'echo' });
    const { turn_id } = await start(session, { budget: { turns: 9 } });
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const runId = await runOf(turn_id);
    const turns = await waitFor(
      async () => {
        const all = await turnsOf(runId);
        return all.length === 2 && all.every(({ status }) => status === 'success') ? all : undefined;
      },
      { message: 'the parent has had its turn', deadlineMs: 60_000 },
    );
    expect(turns).toMatchObject([
      { id: turn_id, depth: 0 },
      { parent_turn_id: turn_id, depth: 1, budget_id: turns[0]?.budget_id },
    ]);
    expect(turns[0]?.budget_id).not.toBeNull();
    expect(await told()).toBe(1);
  });

  test('ends with the budget of its run: an agent that asks its session endlessly stops', async () => {
    const { agent, start, reasons, told } = await pair();
    const { turn_id } = await start(agent, { budget: { turns: 4, steps: 8 } });
    const runId = await runOf(turn_id);
    const [why] = await waitFor(
      async () => {
        const found = await reasons();
        return found.length > 0 ? found : undefined;
      },
      { message: 'it is said why nothing was started', deadlineMs: 60_000 },
    );
    const turns = await turnsOf(runId);
    expect(why).toMatchObject({ code: 'budget_exceeded' });
    expect(turns.map(({ id }) => id)).toContain((why as { turn_id: string }).turn_id);
    expect(turns).toHaveLength(4);
    const roots = await h.rows(
      'select id from boxcar.turns where agent_id in (select agent_id from boxcar.turns where run_id = $1) and run_id <> $1',
      [runId],
    );
    expect(roots).toEqual([]);
    // Earlier notifications stay, and are not repeated.
    const before = await told();
    await sweep();
    expect(await told()).toBe(before);
    expect(await turnsOf(runId)).toHaveLength(4);
    expect(await reasons()).toHaveLength(1);
  });

  test.each([
    [1, 2],
    [2, 1],
    [2, 0],
  ])(
    'can be started by any of several unread answers: %i from spent runs, then %i from others',
    async (spent, open) => {
      const { agent, session, another, start, told, reasons } = await pair({ profile: 'reader' });
      let release = (): void => undefined;
      reading = new Promise((settle) => {
        release = settle;
      });
      const before = readers;
      const { turn_id: busy } = await start(agent);
      await waitFor(() => Promise.resolve(readers > before || undefined), {
        message: 'the reader is at work',
        deadlineMs: 60_000,
      });
      const ask = async (target: string, more: object = {}) => {
        const n = await told();
        const { turn_id } = await start(target, more);
        await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
        await waitFor(async () => (await told()) > n || undefined, {
          message: 'it is told',
          deadlineMs: 60_000,
        });
        return turn_id;
      };
      const mays: string[] = [];
      for (let i = 0; i < open; i += 1) mays.push(await ask(session));
      const other = await another(`${session}-other`);
      for (let i = 0; i < spent; i += 1) await ask(other, { budget: { turns: 1 } });
      release();
      await h.runtime.waitForTurn(busy, { timeoutMs: 60_000 });
      await waitFor(
        async () =>
          (await h.rows('select from boxcar.turns where id = $1 and unseen_position is null', [busy]))
            .length > 0 || undefined,
        { message: 'what was not read is dealt with', deadlineMs: 60_000 },
      );
      const woken = await h.rows<{ parent_turn_id: string }>(
        'select t.parent_turn_id from boxcar.turns t join boxcar.agents a on a.id = t.agent_id where a.name = $1 and t.is_woken',
        [agent],
      );
      // The newest of the allowed turns.
      expect(woken).toEqual(mays.slice(-1).map((id) => ({ parent_turn_id: id })));
      expect(await reasons()).toHaveLength(open === 0 ? spent : 0);
    },
  );

  test('is not started by a caller’s entry that looks like an answer', async () => {
    const { agent, start, told, session } = await pair({ profile: 'reader' });
    let release = (): void => undefined;
    reading = new Promise((settle) => {
      release = settle;
    });
    const before = readers;
    const { turn_id: busy } = await start(agent);
    await waitFor(() => Promise.resolve(readers > before || undefined), {
      message: 'the reader is at work',
      deadlineMs: 60_000,
    });
    const tape = await h.runtime.tape({ agent });
    for (const turn_id of ['none', busy])
      await tape.append([{ kind: 'message', content: 'x', meta: { fork_result: { turn_id } } }]);
    const { turn_id } = await start(session, { budget: { turns: 1 } });
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    await waitFor(async () => (await told()) === 1 || undefined, {
      message: 'it is told',
      deadlineMs: 60_000,
    });
    for (const id of ['none', busy])
      await tape.append([{ kind: 'message', content: 'x', meta: { fork_result: { turn_id: id } } }]);
    release();
    await waitFor(
      async () =>
        (await tape.query().kinds('event').all()).some(
          ({ payload }) => payload.name === 'turn.not_started',
        ) || undefined,
      { message: 'it is said', deadlineMs: 60_000 },
    );
    expect(
      await h.rows('select id from boxcar.turns where parent_turn_id = $1 and is_woken', [busy]),
    ).toEqual([]);
  });

  test('is not started below the depth limit or in a canceled run, even when all turns of the run have ended', async () => {
    const deep = await pair({ profile: 'echo' });
    await h.database.pool.query(`update boxcar.projects set limits = limits || '{"max_depth": 0}'`);
    const first = await deep.start(deep.session);
    await waitFor(async () => (await deep.reasons()).length === 1, {
      message: 'it is said',
      deadlineMs: 60_000,
    });
    await h.database.pool.query(`update boxcar.projects set limits = limits - 'max_depth'`);
    expect(await deep.reasons()).toMatchObject([{ code: 'depth_exceeded', turn_id: first.turn_id }]);

    const open = shut();
    const { session, start, told, reasons } = await pair({ profile: 'echo' });
    const { turn_id } = await start(session);
    const runId = await runOf(turn_id);
    await h.runtime.submit('cancel', { run_id: runId });
    open();
    await waitFor(async () => (await reasons()).length === 1, { message: 'it is said', deadlineMs: 60_000 });
    expect(await reasons()).toMatchObject([{ code: 'canceled', turn_id }]);
    expect(await told()).toBe(1);
    expect(await turnsOf(runId)).toHaveLength(1);
  });

  test('is not started when its run is canceled between the end and the start', async () => {
    const { session, start, reasons } = await pair({ profile: 'echo' });
    const { turn_id } = await start(session);
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const runId = await runOf(turn_id);
    await waitFor(
      async () =>
        (await turnsOf(runId)).length === 2 &&
        (await turnsOf(runId)).every(({ status }) => status === 'success'),
      { message: 'it was told', deadlineMs: 60_000 },
    );
    // As if the end of the second turn had not been noticed yet.
    const second = await start(session);
    await h.runtime.waitForTurn(second.turn_id, { timeoutMs: 60_000 });
    const other = await runOf(second.turn_id);
    await waitFor(
      async () =>
        (await turnsOf(other)).length === 2 &&
        (await turnsOf(other)).every(({ status }) => status === 'success'),
      { message: 'it was told', deadlineMs: 60_000 },
    );
    await h.database.pool.query('update boxcar.turns set unseen_position = 1000000 where id = $1', [
      second.turn_id,
    ]);
    expect(await h.runtime.submit('cancel', { run_id: other })).toMatchObject({
      status: 'canceled',
      turn_count: 0,
    });
    await sweep();
    expect(await turnsOf(other)).toHaveLength(2);
    expect(await reasons()).toEqual([]);
  });

  test('has keys that callers cannot use', async () => {
    const { session } = await pair({ profile: 'echo' });
    for (const key of ['fork-result:x', 'unseen:x'])
      await expect(
        h.runtime.submit(
          'delegate_async',
          { target_strategy: 'reuse', target_ref: session, instruction: 'x' },
          { idempotencyKey: key },
        ),
      ).rejects.toMatchObject({ code: 'bad_request' });
  });
});
