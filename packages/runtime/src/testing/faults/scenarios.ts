import { type JsonValue, ModelError } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { z } from 'zod';
import type { Scenario } from './scenario.js';

/** A tool that runs once, a tool that may run again, and calls of both side by side. */
export const tools: Scenario = {
  name: 'tools',
  profiles: [
    {
      name: 'handy',
      tools: ['charge', 'look'],
      script: [
        { calls: [{ tool: 'look', arguments: { at: '{{instruction}}' } }] },
        {
          calls: [
            { tool: 'charge', arguments: { amount: 1 } },
            { tool: 'look', arguments: { at: 'both' } },
          ],
        },
        { say: 'done {{instruction}}' },
      ],
    },
  ],
  tools: [
    {
      name: 'charge',
      description: 'Charges an amount.',
      input: z.strictObject({ amount: z.number() }),
      retry: 'never',
      answer: () => ({ charged: true }),
    },
    {
      name: 'look',
      description: 'Looks at something.',
      input: z.strictObject({ at: z.string() }),
      retry: 'safe',
      answer: (input) => ({ seen: JSON.stringify(input) }),
    },
  ],
  drive: (client) => client.submit('launch_principal', { profile_name: 'handy', instruction: 'go' }),
};

/** A turn that asks an expert and waits, and at the same time starts another turn without waiting. */
export const delegations: Scenario = {
  name: 'delegations',
  profiles: [
    {
      name: 'lead',
      tools: ['ask_expert', 'delegate_async', 'submit_result'],
      delegation_policy: { target_profiles: ['expert', 'runner'] },
      script: [
        {
          calls: [
            { tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'why' } },
            {
              tool: 'delegate_async',
              arguments: { target_strategy: 'new', target_ref: 'runner', instruction: 'run' },
            },
          ],
        },
        { say: 'asked and sent' },
      ],
    },
    { name: 'expert', script: [{ say: 'answer to {{instruction}}' }] },
    { name: 'runner', script: [{ say: 'ran' }] },
  ],
  drive: (client) => client.submit('launch_principal', { profile_name: 'lead', instruction: 'go' }),
};

/** An agent that hands off on its tape, by tool and by comma line; after its turn, commands of people, one of them a reset. */
export const tapeCommands: Scenario = {
  name: 'tape commands',
  profiles: [
    {
      name: 'taper',
      tools: ['tape.handoff', 'tape.anchors'],
      comma_commands: true,
      script: [
        {
          calls: [
            { tool: 'tape.handoff', arguments: { name: 'a', summary: 'said {{instruction}}' } },
            { tool: 'tape.anchors', arguments: { limit: 0 } },
          ],
        },
        { say: 'Then:\n,handoff name=b' },
        { say: 'done {{instruction}}' },
      ],
    },
  ],
  drive: async (client, watcher) => {
    const target_ref = 'taper-1';
    const create = { action: 'create', profile_name: 'taper', agent_id: target_ref };
    await client.submit('provision_agent', create);
    const send = (instruction: string): Promise<JsonValue> =>
      client.submit('delegate_async', { target_strategy: 'reuse', target_ref, instruction });
    await send('go');
    await watcher.until(`
      select 1 as one
      from boxcar.turns t
      join boxcar.agents a on a.id = t.agent_id
      where a.name = '${target_ref}' and t.ended_at is not null`);
    await send(',handoff name=c');
    await send(',tape.reset archive=true');
    await send(',handoff name=d');
    return watcher.until(`
      select string_agg(b.incarnation || ' ' || e.anchor_name, ', ' order by b.incarnation, e.position) as anchors
      from boxcar.boxes b
      join boxcar.agents a on a.id = b.owner_agent_id
      join boxcar.tape_entries e on e.box_id = b.id
      where a.name = '${target_ref}' and e.kind = 'anchor'`);
  },
};

/** A turn whose tools are run by workers outside, one of them only once. */
export const queueTools: Scenario = {
  name: 'queue tools',
  profiles: [
    {
      name: 'remote',
      tools: ['fetch', 'book'].map((name) => ({
        name,
        description: `The tool ${name}.`,
        parameters: { type: 'object', properties: { key: { type: 'string' } }, required: ['key'] },
        target: name,
        retry: name === 'fetch' ? 'safe' : 'never',
      })),
      script: [
        { calls: ['fetch', 'book'].map((tool) => ({ tool, arguments: { key: 'a' } })) },
        { say: 'fetched {{instruction}}' },
      ],
    },
  ],
  outside: {
    fetch: (args) => ({ fetched: args }),
    book: (args) => ({ booked: args }),
  },
  drive: (client) => client.submit('launch_principal', { profile_name: 'remote', instruction: 'it' }),
};

const CHARACTERS = 9_000;

/** Reads twice, and refuses every prompt that shows both results in full. */
const narrow: ScriptedFunction = ({ messages, turn }, { call, results }) => {
  if (messages.reduce((sum, { content }) => sum + content.length, 0) > 2 * CHARACTERS)
    throw new ModelError('context_overflow', 'prompt is too long');
  if (results('leaf').length === 2) return { text: 'read all' };
  return { toolCalls: [call('leaf', { page: turn.step })] };
};

/** Two turns whose prompts grow too long: one learns it from its provider, the other from the estimate. */
export const overflows: Scenario = {
  name: 'overflows',
  models: { narrow },
  profiles: [
    { name: 'told', model: 'scripted:narrow', tools: ['leaf'] },
    {
      name: 'estimated',
      tools: ['leaf'],
      limits: { context_tokens: 4_000 },
      script: [
        { calls: [{ tool: 'leaf', arguments: { page: 1 } }] },
        { calls: [{ tool: 'leaf', arguments: { page: 2 } }] },
        { say: 'read all' },
      ],
    },
  ],
  tools: [
    {
      name: 'leaf',
      description: 'Turns to a page.',
      input: z.strictObject({ page: z.number() }),
      retry: 'safe',
      answer: (input) => `page ${JSON.stringify(input)} `.repeat(1 + CHARACTERS / 18),
    },
  ],
  drive: async (client) => {
    await client.submit('launch_principal', { profile_name: 'told', instruction: 'read' });
    return client.submit('launch_principal', { profile_name: 'estimated', instruction: 'read' });
  },
};
