/** Notifications about the end of a handoff to the agent that requested it. */
import type { AgentId, HandoffId, TurnId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, describe, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { tellSource } from '../end/index.js';
import { Sweeper } from '../sweep/sweeper.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;
let boss = '';

async function open(options: Parameters<typeof harness>[0] = {}): Promise<void> {
  h = await harness({ connections: 8, handoffs: { enabled: true }, ...options });
  tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('echo', (input) => input);
  tool.registerAgent('broken', () => {
    throw new Error('out of paper');
  });
}
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const HANDS_OFF = { tools: ['handoff'], delegation_policy: { target_profiles: null } };

/** An agent of the operator that reports what it reads. */
async function chief(
  script: Parameters<Harness['profile']>[1] = [{ say: 'first' }, { say: 'read it' }],
): Promise<AgentId> {
  await h.profile('chief', script, HANDS_OFF);
  const { agent_id, turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'chief',
    instruction: 'go',
  })) as { agent_id: AgentId; turn_id: TurnId };
  await h.runtime.waitForTurn(turn_id);
  boss = agent_id;
  return agent_id;
}

interface Message extends Record<string, unknown> {
  readonly text: string;
}
const messages = () =>
  h.rows<Message>(
    "select c.content->>'text' as text from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.dedup_key like 'handoff-result:%' order by e.created_at",
  );
const settled = () =>
  waitFor(
    async () =>
      (
        await h.rows(
          'select from boxcar.turns where ended_at is null or notifies or unseen_position is not null union all select from boxcar.handoffs where ended_at is null or notifies',
        )
      ).length === 0 || undefined,
    { message: 'nothing is left to do', deadlineMs: 30_000 },
  );
/** Turns of the agent after its first one: their runs and parents. */
const woken = (agentId: AgentId) =>
  h.rows<{ status: string; parent_turn_id: string | null; run_id: string }>(
    'select status, parent_turn_id, run_id from boxcar.turns where agent_id = $1 order by id offset 1',
    [agentId],
  );
const ask = (target_agent: string, rest: object = {}) => ({
  source_agent: boss,
  target_agent,
  task: 'do it',
  notify: true,
  ...rest,
});

describe('a notice for a handoff from outside', () => {
  test('gives the named agent one message with the result and one turn, in the run of the handoff', async () => {
    await open();
    await h.worker();
    const agentId = await chief();
    const { handoff_id } = await tool.handoff(ask('echo', { payload: { a: 1 } }));
    await settled();
    expect(await messages()).toEqual([
      { text: `[HANDOFF RESULT] echo: completed\nHandoff: ${handoff_id}\nResult: {"a":1}` },
    ]);
    const { turn_id } = (await tool.getHandoff(handoff_id)) ?? {};
    expect(await woken(agentId)).toMatchObject([{ status: 'success', parent_turn_id: turn_id }]);
    // A repeated notification by a late process has no effect.
    await tellSource(h.runtime, handoff_id as HandoffId);
    await h.rows('update boxcar.handoffs set notifies = true');
    await tellSource(h.runtime, handoff_id as HandoffId);
    await settled();
    expect(await messages()).toHaveLength(1);
    expect(await woken(agentId)).toHaveLength(1);
  });

  test('is also sent for failures, and for handoffs that no turn has served', async () => {
    await open({
      permissionEvaluator: new PermissionEvaluator({
        text: "rules:\n  - condition: { tool_name: handoff, context: { target_agent: 'guarded' } }\n    permission: REQUIRE_APPROVAL\n  - condition: { tool_name: handoff, context: { target_agent: '*' } }\n    permission: ALWAYS\n",
        environment: 'production',
      }),
    });
    await h.worker();
    const agentId = await chief();
    tool.registerAgent('guarded', () => 'never');
    await failureOf(tool.handoff(ask('broken')));
    await settled();
    await failureOf(tool.handoff(ask('nobody')));
    await settled();
    const { ticket_id } = await tool.handoff(ask('guarded', { wait: false }));
    await new ApprovalGate({ runtime: h.runtime }).deny(String(ticket_id), { reason: 'not today' });
    await settled();
    expect((await messages()).map(({ text }) => text.replace(/Handoff: .*/, ''))).toEqual([
      '[HANDOFF RESULT] broken: failed\n\nError: platform_failed: out of paper',
      expect.stringMatching(/^\[HANDOFF RESULT\] nobody: failed\n\nError: not_found: /),
      '[HANDOFF RESULT] guarded: rejected\n\nError: permission_denied: Handoff to guarded denied: not today',
    ]);
    const turns = await woken(agentId);
    expect(turns.map(({ status, parent_turn_id }) => [status, parent_turn_id === null])).toEqual([
      ['success', false],
      ['success', true],
      ['success', true],
    ]);
  });

  test('for a name that is not an agent of the project is refused, and leaves no row', async () => {
    await open();
    const error = await failureOf(tool.handoff({ ...ask('echo'), source_agent: 'a stranger' }));
    expect([error.code, error.details.field]).toEqual(['bad_request', 'arguments.source_agent']);
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
  });

  test('is sent by a sweep when the process that saw the end did not send it', async () => {
    await open();
    await h.worker();
    const agentId = await chief();
    await tool.handoff(ask('echo', { payload: 'x' }));
    await settled();
    // As if that process had died before the notification.
    const { handoff_id } = await quietHandoff();
    await expect(checkInvariants(h.database.pool)).rejects.toThrow('handoff-told');
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 3_600_000,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    });
    await sweeper.sweep();
    await settled();
    expect((await messages()).filter(({ text }) => text.includes(handoff_id))).toHaveLength(1);
    expect(await woken(agentId)).toHaveLength(2);
  });
});

/** A handoff that has ended without a notification. */
async function quietHandoff(): Promise<{ readonly handoff_id: string }> {
  const { handoff_id } = await tool.handoff(ask('echo', { payload: 'y', notify: false }));
  await h.rows('update boxcar.handoffs set notifies = true, told_agent_id = $2 where id = $1', [
    handoff_id,
    boss,
  ]);
  return { handoff_id };
}

describe('a notice for a handoff from a turn', () => {
  const handing = (rest: object = {}) => ({
    tool: 'handoff',
    arguments: { target_agent: 'echo', task: 'do it', payload: 'said', notify: true, ...rest },
  });

  /** Hands off in its first turn, and hands off to the same target again after it reads the notification. */
  const asker: ScriptedFunction = (request, { call }) => {
    const told = JSON.stringify(request.messages).split('[HANDOFF RESULT]').length - 1;
    // The instruction of the second turn names the message too.
    if (request.turn.step === 2) return { text: 'done' };
    const args = { target_agent: 'slow', task: 'do it', wait: false };
    return { toolCalls: [call('handoff', told === 0 ? { ...args, notify: true } : args, 'c1')] };
  };

  test('gives an agent that does not wait the message, and a turn in which it may hand off as before', async () => {
    await open({ model: createModelRouter({ scripted: { functions: { asker } } }) });
    const free: (() => void)[] = [];
    tool.registerAgent('slow', () => new Promise((settle) => void free.push(() => settle('late'))));
    await h.worker();
    await h.runtime.applyProfile({
      name: 'asker',
      instructions: 'Ask.',
      model: 'scripted:asker',
      ...HANDS_OFF,
    });
    const { agent_id, turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'asker',
      instruction: 'go',
    })) as { agent_id: AgentId; turn_id: TurnId };
    await h.runtime.waitForTurn(turn_id);
    for (const count of [1, 2]) {
      await waitFor(() => Promise.resolve(free.length === count || undefined), {
        message: `the function runs for the ${count}. time`,
      });
      free[count - 1]?.();
    }
    await settled();
    expect((await messages()).map(({ text }) => text.split('\n')[2])).toEqual(['Result: late']);
    expect(await woken(agent_id)).toMatchObject([{ status: 'success' }]);
    const { handoffs } = await tool.listHandoffs();
    expect(handoffs.map(({ status, depth }) => [status, depth])).toEqual([
      ['completed', 0],
      ['completed', 0],
    ]);
  });

  test('gives the agent another turn when the end happens in a turn that no longer reads it', async () => {
    const functions: Record<string, ScriptedFunction> = {
      late: async ({ turn }, { call }) => {
        if (turn.step === 1 && calls === 0) {
          calls += 1;
          return {
            toolCalls: [
              call('handoff', { target_agent: 'echo', task: 'x', wait: false, notify: true }, 'c1'),
            ],
          };
        }
        // Its prompt was made before the end, so the model has not read the notification.
        if (turn.step === 2) await gate;
        return { text: 'done' };
      },
    };
    let calls = 0;
    let release = (): void => undefined;
    const gate = new Promise<void>((settle) => {
      release = settle;
    });
    await open({ model: createModelRouter({ scripted: { functions } }) });
    await h.runtime.applyProfile({
      name: 'late',
      instructions: 'Ask.',
      model: 'scripted:late',
      ...HANDS_OFF,
    });
    const started: (() => void)[] = [];
    tool.registerAgent('echo', () => new Promise((settle) => void started.push(() => settle('said'))));
    await h.worker();
    const { agent_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'late',
      instruction: 'go',
    })) as { agent_id: AgentId };
    await waitFor(() => Promise.resolve(started.length === 1 || undefined), { message: 'the function runs' });
    await waitFor(
      async () => (await h.rows('select from boxcar.steps where step = 2')).length === 1 || undefined,
      { message: 'the second step has begun' },
    );
    started[0]?.();
    await waitFor(async () => (await messages()).length === 1 || undefined, { message: 'it is told' });
    release();
    await settled();
    const [turn, ...more] = await woken(agent_id);
    expect(more).toEqual([]);
    const [handoff] = (await tool.listHandoffs()).handoffs;
    expect(turn).toMatchObject({ status: 'success', parent_turn_id: handoff?.turn_id });
    const [context] = await h.rows<{ text: string }>(
      "select c.content->>'text' as text from boxcar.turns t join boxcar.boxes b on b.id = t.context_box_id join boxcar.cards c on c.id = any (b.card_ids) where t.agent_id = $1 order by t.id desc limit 1",
      [agent_id],
    );
    expect(context?.text).toContain('[HANDOFF RESULT] or [FORK RESULT]');
  });

  test('is not sent to a call that waits: the call has the result, and the agent gets no further turn', async () => {
    await open();
    await h.worker();
    const agentId = await chief([{ calls: [handing()] }, { say: 'done' }]);
    await settled();
    expect(await messages()).toHaveLength(1);
    expect(await woken(agentId)).toEqual([]);
  });
});

describe('the right to give turns', () => {
  /** An agent that may hand off, and an agent of another owner. */
  async function two(): Promise<{ readonly asking: string; readonly told: string }> {
    await h.worker();
    await h.profile('helper', [{ say: 'helped' }], HANDS_OFF);
    const made = async (agent_id: string, shared: boolean) =>
      (
        (await h.runtime.submit('provision_agent', {
          action: 'ensure',
          agent_id,
          profile_name: 'helper',
          shared,
        })) as { agent_id: string }
      ).agent_id;
    return { asking: await made('asking', false), told: await made('told', true) };
  }
  const askFor = (told: string, asking: string) =>
    h.runtime.submit(
      'handoff',
      { source_agent: told, target_agent: 'echo', task: 'x', payload: 'said', notify: true, wait: false },
      { sourceAgentId: asking },
    ) as Promise<{ handoff_id: string }>;
  const grant = async (told: string, asking: string) => {
    const [agent] = await h.rows<{ tape_box_id: string }>(
      'select tape_box_id from boxcar.agents where id = $1',
      [told],
    );
    await h.runtime.submit('grant_box', { box_id: agent?.tape_box_id, grantee: asking, mode: 'append' });
  };

  test('is checked at the request, and again at the end', async () => {
    await open();
    const { asking, told } = await two();
    const refused = await failureOf(askFor('told', asking));
    expect(refused.code).toBe('box_not_authorized');
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
    await grant(told, asking);
    const free: (() => void)[] = [];
    tool.registerAgent('echo', () => new Promise((settle) => void free.push(() => settle('said'))));
    const { handoff_id } = await askFor('told', asking);
    const ended = tool.waitForHandoff(handoff_id);
    await waitFor(() => Promise.resolve(free.length === 1 || undefined), { message: 'the function runs' });
    // The agent loses its right before the end.
    await h.rows("delete from boxcar.grants where agent_id = $1 and mode = 'append'", [asking]);
    free[0]?.();
    await ended;
    await settled();
    expect(await messages()).toEqual([]);
    expect(h.log.map(({ event }) => event)).toContain('handoff.not_told');
    expect(
      await h.rows("select from boxcar.tape_entries where payload->>'name' = 'turn.not_started'"),
    ).toHaveLength(1);
    expect(await h.rows('select from boxcar.turns where agent_id = $1', [told])).toEqual([]);
  });

  test('lets the requesting agent name another agent for the notice', async () => {
    await open();
    const { asking, told } = await two();
    await grant(told, asking);
    const { handoff_id } = await askFor(told, asking);
    await tool.waitForHandoff(handoff_id);
    await settled();
    expect(await messages()).toHaveLength(1);
    expect(await h.rows('select from boxcar.turns where agent_id = $1', [told])).toHaveLength(1);
  });
});
