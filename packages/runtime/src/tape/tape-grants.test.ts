import { type AgentId, KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { Tape } from './tape.js';

let h: Harness;

const note = z.strictObject({ tape: z.string(), text: z.string() });
const message = (content: string) => [{ kind: 'message', content }] as const;

beforeAll(async () => {
  h = await harness();
  h.runtime.registerTool({
    name: 'note',
    description: 'Writes to a tape.',
    input: note,
    retry: 'safe',
    run: async ({ tape, text }, context) =>
      (await context.tape(tape)).append(message(text), { dedupKey: context.toolCallId }),
  });
  h.runtime.registerHandler('pin', {
    description: 'Writes to a tape, and to another one.',
    input: note.extend({ second: z.string() }),
    handle: async ({ tape, second, text }, tools) => {
      const { first } = await (await tools.tape(tape)).append(message(text));
      await (await tools.tape(second)).append(message(text));
      return { first };
    },
  });
  await h.worker();
});

afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

const TOOLS = { tools: ['note', 'pin', 'tape.handoff'] };
const agent = async (name: string): Promise<AgentId> => {
  const made = await h.runtime.submit('provision_agent', {
    action: 'create',
    agent_id: name,
    profile_name: name,
  });
  return (made as { agent_id: AgentId }).agent_id;
};
const grant = (tape: Tape, grantee: string, rest: object = {}) =>
  h.runtime.submit('grant_box', { box_id: tape.boxId, grantee, mode: 'append', ...rest });
/** Lets an agent work, and returns how its calls ended. */
const work = async (agentId: string): Promise<readonly string[]> => {
  const { turn_id } = (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agentId,
    instruction: 'go',
    wait: true,
  })) as unknown as TurnResult;
  const calls = await h.rows<{ status: string; code: string | null }>(
    `select k.status, c.content->'error'->>'code' as code from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
     where k.turn_id = $1 order by k.step, k.ordinal`,
    [turn_id],
  );
  return calls.map(({ status, code }) => code ?? status);
};

test('four agents with a grant for a tape append by their tools in parallel, each in its own name, until the grant is taken back', async () => {
  const tape = await h.runtime.tape('minutes');
  const agents = await Promise.all(
    Array.from({ length: 4 }, async (_, n) => {
      const calls = Array.from({ length: 25 }, (_unused, i) => ({
        tool: 'note',
        arguments: { tape: 'minutes', text: `${n}.${i}` },
      }));
      await h.profile(`clerk-${n}`, [{ calls }, { say: 'done' }], TOOLS);
      const id = await agent(`clerk-${n}`);
      await grant(tape, id);
      return id;
    }),
  );
  const ends = await Promise.all(agents.map(work));
  expect(ends.flat()).toEqual(Array.from({ length: 100 }, () => 'success'));
  const rows = await h.rows<{ position: number; author_id: string; text: string }>(
    `select e.position, e.author_id, c.content->>'text' as text from boxcar.tape_entries e left join boxcar.cards c on c.id = e.card_id
     where e.box_id = $1 and e.position > 2 order by e.position`,
    [tape.boxId],
  );
  expect(rows.map(({ position }) => position)).toEqual(Array.from({ length: 100 }, (_, i) => i + 3));
  agents.forEach((id, n) => {
    const own = rows.filter(({ author_id }) => author_id === id).map(({ text }) => text);
    expect(own.toSorted()).toEqual(Array.from({ length: 25 }, (_, i) => `${n}.${i}`).toSorted());
  });

  await grant(tape, agents[0] ?? '', { until: '2020-01-01T00:00:00Z' });
  const again = await Promise.all(agents.slice(0, 2).map(work));
  expect(new Set(again[0])).toEqual(new Set(['box_not_authorized']));
  expect(new Set(again[1])).toEqual(new Set(['success']));
  expect((await tape.info()).entries).toBe(127);
});

test('entries that a primitive appends to granted tapes are there together with its result, or not at all', async () => {
  const [first, second] = await Promise.all(['ledger', 'copy'].map((name) => h.runtime.tape(name)));
  if (first === undefined || second === undefined) throw new Error('no tapes');
  const call = { tool: 'pin', arguments: { tape: 'ledger', second: 'copy', text: 'paid' } };
  await h.profile('keeper', [{ calls: [call] }, { say: 'done' }], TOOLS);
  const keeper = await agent('keeper');
  await grant(first, keeper);
  expect(await work(keeper)).toEqual(['box_not_authorized']);
  expect((await first.info()).entries).toBe(2);
  await grant(second, keeper);
  expect(await work(keeper)).toEqual(['success']);
  expect([(await first.info()).entries, (await second.info()).entries]).toEqual([3, 3]);
  const read = (await h.runtime.tape('ledger', { as: keeper })).info();
  await expect(read).rejects.toThrow(KernelError);
});

test('a tape that does not exist is not made by an agent that may append', async () => {
  const call = { tool: 'note', arguments: { tape: 'nowhere', text: 'x' } };
  await h.profile('lost', [{ calls: [call] }, { say: 'done' }], TOOLS);
  expect(await work(await agent('lost'))).toEqual(['not_found']);
});
