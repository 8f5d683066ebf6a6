/**
 * The requests on the wire, as reviewed files: a turn whose steps call tools, two at once, and get results. After an intended change,
 * `npx vitest run packages/llm -u` rewrites them; read the difference like code.
 */
import type { Message, ModelRequest } from '@boxcar/kernel';
import { expect, it } from 'vitest';
import { ask, userMessage } from '../fixtures/requests.js';
import { askFor, routerTo, TOOLS } from '../testing/ask-provider.js';
import { inOrder, openProviderServer, SERVER_KEY, type ServedRequest } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';

const MODELS = {
  openai: 'gpt-4.1',
  'openai-chat': 'gpt-5',
  anthropic: 'claude-sonnet-4-5',
  google: 'gemini-3-pro',
  mistral: 'mistral-large',
  deepseek: 'deepseek-chat',
  'openai-compatible': 'local',
};

const result = (toolCallId: string, name: string, content: string, isError = false): Message => ({
  role: 'tool',
  toolCallId,
  name,
  content,
  isError,
});

const first: readonly Message[] = [userMessage('Parent agent: none'), userMessage('Survey src')];
const second: readonly Message[] = [
  ...first,
  {
    role: 'assistant',
    content: 'I look at both.',
    toolCalls: [
      { id: 'call-1', name: 'list_files', arguments: { path: 'src', depth: 2 } },
      { id: 'call-2', name: 'list_files', arguments: { path: 'nowhere' } },
    ],
  },
  result('call-1', 'list_files', '{"files":["a.ts"]}'),
  result('call-2', 'list_files', '{"status":"failed","error":{"code":"tool_failed"}}', true),
];
const third: readonly Message[] = [
  ...second,
  {
    role: 'assistant',
    content: '',
    toolCalls: [{ id: 'call-3', name: 'tape.handoff', arguments: { name: 'report' } }],
  },
  result('call-3', 'tape.handoff', 'done'),
  userMessage('One step is left.'),
];

const LOGGED = [
  'authorization',
  'x-api-key',
  'x-goog-api-key',
  'anthropic-version',
  'anthropic-beta',
  'content-type',
  'accept',
];

function logOf({ method, path, headers, body }: ServedRequest): string {
  const lines = LOGGED.flatMap((name) => {
    const value = headers[name];
    return value === undefined ? [] : [`${name}: ${String(value).replaceAll(SERVER_KEY, '[key]')}`];
  });
  return [`${method} ${path}`, ...lines, '', JSON.stringify(body, null, 2), ''].join('\n');
}

it.each(WIRES.map((wire) => [wire.provider, wire] as const))(
  'the wire log of %s is as recorded',
  async (name, wire) => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = routerTo(wire, server.baseUrl);
    const model = MODELS[name];
    const steps: readonly ModelRequest[] = [
      askFor(wire, { model, messages: first, settings: { temperature: 0, max_output_tokens: 500 } }),
      askFor(wire, { model, messages: second, step: 2, tools: TOOLS.slice(0, 1) }),
      askFor(wire, { model, messages: third, step: 3, tools: [], settings: { stream: false } }),
    ];
    for (const step of steps) await ask(router, step);
    expect(server.refusals).toEqual([]);
    const log = server.requests.map(logOf).join('\n');
    expect(log).not.toContain(SERVER_KEY);
    await expect(log).toMatchFileSnapshot(`../fixtures/wire/${name}.http`);
  },
);

it('siblings of a fork share the marked beginning of their prompts at Anthropic', async () => {
  const wire = WIRES.find(({ provider }) => provider === 'anthropic');
  if (wire === undefined) throw new Error('no wire of anthropic');
  await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
  const router = routerTo(wire, server.baseUrl);
  // The system prompt, the inherited messages, then the messages of each sibling.
  const inherited = [userMessage('A long report.'), ...second.slice(2)];
  for (const task of ['Check the figures.', 'Check the words.'])
    await ask(
      router,
      askFor(wire, {
        messages: [...inherited, userMessage('Parent agent: boss'), userMessage(task)],
        sharedMessages: inherited.length + 1,
      }),
    );
  expect(server.refusals).toEqual([]);
  const [one, other] = server.requests.map(({ body }) => JSON.stringify(body));
  const sharedUpTo = (text = ''): string =>
    text.slice(0, text.lastIndexOf('"cache_control"', text.indexOf('Parent agent: boss')));
  expect(sharedUpTo(one)).toContain('A long report.');
  // The last of the inherited messages, a tool result, has the mark.
  expect(sharedUpTo(one)).toContain('tool_failed');
  expect(sharedUpTo(other)).toBe(sharedUpTo(one));
  for (const text of [one, other]) expect(text?.split('"cache_control"')).toHaveLength(4);
});
