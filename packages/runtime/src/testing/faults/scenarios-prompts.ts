/** Work with unusual prompts: inherited histories, foreign lines, empty texts, and names and arguments that no provider would make. */
import type { JsonValue } from '@boxcar/kernel';
import { z } from 'zod';
import type { Client, Scenario, Watcher } from './scenario.js';

const ANYONE = { target_profiles: null };
const odd = '9.page-turn';

const reuse = (client: Client, target_ref: string, instruction: JsonValue, rest: object = {}) =>
  client.submit('delegate_async', { target_strategy: 'reuse', target_ref, instruction, ...rest } as Readonly<
    Record<string, JsonValue>
  >);

/** The answer to a submission of a turn, after the turn has ended. */
async function ended(watcher: Watcher, receipt: Promise<JsonValue>): Promise<JsonValue> {
  const { turn_id } = z.object({ turn_id: z.string() }).parse(await receipt);
  await watcher.until(`select 1 as one from boxcar.turns where id = '${turn_id}' and ended_at is not null`);
  return turn_id;
}

const call = (id: string, name: string, args: string) => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});

/** A tape of another program: two calls under one id, a call without a result, a result without its call, an answer without text. */
const LINES = [
  { kind: 'anchor', payload: { name: 'session/start', state: { owner: 'human' } } },
  { kind: 'system', payload: { content: 'Be brief.' } },
  { kind: 'message', payload: { role: 'assistant', content: 'I begin.' } },
  { kind: 'message', payload: { role: 'user', content: '' } },
  {
    kind: 'tool_call',
    payload: { calls: [call('c1', 'fs.read', '{"path": "a"}'), call('c1', 'fs.read', '{}')] },
  },
  { kind: 'tool_result', payload: { results: ['first'] } },
  { kind: 'message', payload: { role: 'assistant', content: '' } },
  { kind: 'tool_call', payload: { calls: [call('c2', 'no name!', '{broken'), call('', 'list', '[]')] } },
  { kind: 'message', payload: { role: 'user', content: 'Meanwhile.' } },
  { kind: 'tool_result', payload: { results: [{ n: 1 }, null, 'too many'] } },
  { kind: 'message', payload: { role: 'user', content: 'Go on.' } },
  { kind: 'message', payload: { role: 'user', content: 'Please.' } },
].map((line, index) => JSON.stringify({ id: index + 1, ...line, meta: {} }));

const CARDS = [
  {
    type: 'task.input',
    content: { kind: 'file', uri: 'file:///a.png', checksum: 'x', preview: 'a picture' },
  },
  { type: 'task.context', content: { kind: 'json', data: { empty: '', list: [], none: null } } },
  { type: 'task.context', role: 'assistant', content: { kind: 'text', text: 'I have said this.' } },
  { type: 'task.context', role: 'system', content: { kind: 'text', text: 'Not first.' } },
  { type: 'task.context', role: 'tool', content: { kind: 'text', text: 'No result of a call.' } },
  { type: 'task.context', content: { kind: 'text', text: ' \n' } },
];

export const oddPrompts: Scenario = {
  name: 'odd prompts',
  profiles: [
    {
      name: 'odd',
      tools: [odd, 'fail', 'gone', 'tape.handoff', 'ask_expert', 'delegate_async', 'create_box'],
      delegation_policy: ANYONE,
      script: [
        { empty: true },
        { say: ' \n', calls: [{ id: 'same', tool: odd, arguments: { 'at/once': '{{instruction}}' } }] },
        {
          calls: [
            { id: 'same', tool: odd, arguments: { 'at/once': 'again' } },
            { id: '', tool: 'fail', arguments: {} },
            { id: 'x'.repeat(90), tool: odd, raw: '{broken' },
            { tool: 'nobody.has:it', arguments: [1] },
          ],
        },
        {
          say: 'I ask, and one like me does it too.',
          calls: [
            {
              tool: 'ask_expert',
              arguments: { expert_profile: 'expert', question: 'why', include_history: true },
            },
            {
              tool: 'delegate_async',
              arguments: {
                target_strategy: 'clone',
                target_ref: '{{instruction}}',
                instruction: 'the same',
                wait: true,
              },
            },
            { tool: odd, arguments: { 'at/once': 'beside' } },
          ],
        },
        {
          calls: [
            {
              tool: 'tape.handoff',
              arguments: { name: 'half', summary: 'half of it', next_steps: 'the rest' },
            },
          ],
        },
        { say: 'done' },
      ],
    },
    { name: 'expert', tools: ['tape.anchors'], script: [{ say: 'so it is' }] },
    {
      name: 'strict',
      tools: [odd, 'submit_result'],
      must_end_with: ['submit_result'],
      script: [
        { say: 'I would rather talk.' },
        { calls: [{ tool: 'submit_result', arguments: { result: 'no object' } }] },
        { calls: [{ tool: 'submit_result', arguments: { result: { answer: 42 } } }] },
      ],
    },
    { name: 'bare', script: [{ say: 'bare {{instruction}}' }] },
  ],
  tools: [
    {
      name: odd,
      description: 'Turns a page.',
      input: z.union([z.strictObject({ 'at/once': z.string() }), z.strictObject({ list: z.array(z.any()) })]),
      retry: 'safe',
      answer: () => '',
    },
    {
      name: 'fail',
      description: '',
      input: z.looseObject({}),
      retry: 'safe',
      answer: () => {
        throw new Error('it failed');
      },
    },
    { name: 'gone', description: 'Is there.', input: z.any(), retry: 'safe', answer: () => null },
  ],
  drive: async (client, watcher) => {
    for (const [agent_id, profile_name] of [
      ['odd-1', 'odd'],
      ['expert-1', 'expert'],
      ['bare-1', 'bare'],
    ] as const)
      await client.submit('provision_agent', { action: 'create', agent_id, profile_name });
    await ended(watcher, reuse(client, 'odd-1', 'odd-1'));
    // The same tape again, and clones of it. One of them has no tools although its history contains calls.
    await ended(watcher, reuse(client, 'odd-1', 'bare-1'));
    for (const history of ['view', 'full'])
      await ended(
        watcher,
        client.submit('delegate_async', {
          target_strategy: 'clone',
          target_ref: 'odd-1',
          instruction: 'expert-1',
          history,
        }),
      );
    await client.use((runtime) => runtime.importTape('foreign', { main: { lines: () => LINES } }));
    const foreign = await client.use(async (runtime) => (await runtime.tape('foreign')).boxId);
    const { box_id } = z
      .object({ box_id: z.string() })
      .parse(await client.submit('create_box', { cards: CARDS as unknown as JsonValue }));
    for (const profile_name of ['bare', 'strict'])
      for (const context_box_id of [[foreign], [box_id], [box_id, foreign]])
        await ended(
          watcher,
          client.submit('launch_principal', {
            profile_name,
            instruction: 'answer',
            context_box_id,
            ...(profile_name === 'strict' ? { result_fields: [{ name: 'answer', type: 'number' }] } : {}),
          }),
        );
    return null;
  },
};
