/** Agents whose model repeats its instruction, and sessions forked from their tapes. */

import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { z } from 'zod';
import type { Tape } from '../tape/tape.js';
import { type Harness, harness } from './harness.js';
import { checkInvariants } from './invariants.js';

export interface SceneParent {
  readonly agent: string;
  readonly agentId: string;
  readonly tape: Tape;
  /** The same tape in the name of the agent, which may give turns to the sessions that it forks. */
  readonly own: Tape;
}

export interface SessionScene extends AsyncDisposable {
  readonly h: Harness;
  fresh(): string;
  /** An agent of the profile `lead`. */
  parent(): Promise<SceneParent>;
  /**
   * Starts a turn of an agent. Special instructions: `work` waits for the gate, `mark` writes an anchor, `call <tool> <arguments>` calls a
   * tool.
   */
  run(agent: string, instruction?: string): Promise<{ readonly turn_id: string }>;
  /** Like `run`, but waits for the end of the turn. */
  runToEnd(agent: string, instruction?: string): ReturnType<Harness['runtime']['waitForTurn']>;
  /** The prompts of an agent, newest last. */
  promptsOf(agentId: string): Promise<readonly string[]>;
  /** Shuts the gate. The returned function opens it. */
  shut(): () => void;
}

export async function sessionScene(): Promise<SessionScene> {
  const asked: { readonly text: string; readonly turnId: string }[] = [];
  let gate: Promise<void> | undefined;
  let n = 0;
  const echo: ScriptedFunction = async ({ turn, messages }, { call }) => {
    const text = messages.map(({ content }) => (typeof content === 'string' ? content : '')).join('\n');
    asked.push({ text, turnId: turn.turnId });
    const instruction = String(turn.instruction);
    if (instruction === 'work') await gate;
    const [, tool, args] = /^call (\w+) (.+)$/.exec(instruction) ?? [];
    if (turn.step === 1 && tool !== undefined) return { toolCalls: [call(tool, JSON.parse(args ?? '{}'))] };
    if (turn.step === 1 && instruction === 'mark') return { toolCalls: [call('mark', {})] };
    return { text: `answer to ${JSON.stringify(turn.instruction)}` };
  };
  const h = await harness({ model: createModelRouter({ scripted: { functions: { echo } } }) });
  h.runtime.registerTool({
    name: 'mark',
    description: 'Writes an anchor.',
    input: z.strictObject({}),
    run: async (_input, { agentId: agent }) => {
      await (await h.runtime.tape({ agent })).handoff('marked', { state: { summary: 'in the middle' } });
    },
  });
  for (const name of ['lead', 'other'])
    await h.runtime.applyProfile({
      name,
      instructions: `You are ${name}.`,
      model: 'scripted:echo',
      tools: ['mark', 'delegate_async', 'fork_join'],
      delegation_policy: { target_profiles: null },
    });
  await h.worker({ sweepMs: 600_000 });

  const fresh = (): string => `session-${++n}`;
  const run: SessionScene['run'] = async (agent, instruction = 'go') =>
    (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: agent,
      instruction,
    })) as { readonly turn_id: string };
  return {
    h,
    fresh,
    run,
    parent: async () => {
      const agent = fresh();
      const args = { action: 'create', agent_id: agent, profile_name: 'lead', shared: true };
      const { agent_id: agentId } = (await h.runtime.submit('provision_agent', args)) as { agent_id: string };
      return {
        agent,
        agentId,
        tape: await h.runtime.tape({ agent }),
        own: await h.runtime.tape({ agent }, { as: agent }),
      };
    },
    runToEnd: async (agent, instruction) =>
      h.runtime.waitForTurn((await run(agent, instruction)).turn_id, { timeoutMs: 60_000 }),
    promptsOf: async (agentId) => {
      const turns = await h.rows<{ id: string }>('select id from boxcar.turns where agent_id = $1', [
        agentId,
      ]);
      return asked.filter(({ turnId }) => turns.some(({ id }) => id === turnId)).map(({ text }) => text);
    },
    shut: () => {
      let open = (): void => undefined;
      gate = new Promise((resolve) => {
        open = resolve;
      });
      return open;
    },
    [Symbol.asyncDispose]: async () => {
      // Some tests look only at a receipt, and a worker notifies about an end some time later.
      await waitFor(
        async () =>
          (
            await h.rows(
              'select from boxcar.turns where ended_at is null or notifies or unseen_position is not null',
            )
          ).length === 0,
        { message: 'all turns have ended and all ends are told' },
      );
      await checkInvariants(h.database.pool);
      await h[Symbol.asyncDispose]();
    },
  };
}
