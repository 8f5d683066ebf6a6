/** A runtime whose models call a provider on loopback, and an agent that uses tools there in a loop. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  type Behave,
  openProviderServer,
  type ProviderServer,
  SERVER_KEY,
  type ServerAnswer,
  type Wire,
} from '@boxcar/llm/testing';
import { z } from 'zod';
import { type Harness, harness } from './harness.js';

/** For each provider, a model that attaches data to its answers. */
export const THINKING_MODELS: Readonly<Record<Wire['provider'], string>> = {
  openai: 'openai:gpt-5',
  'openai-chat': 'openai-chat:gpt-5',
  anthropic: 'anthropic:claude-sonnet-4-5',
  google: 'google:gemini-3-pro',
  mistral: 'mistral:magistral-medium',
  deepseek: 'deepseek:deepseek-v4-pro',
  'openai-compatible': 'openai-compatible:qwen-3',
};

/** The thoughts of a model before each of its answers. The marks occur nowhere else. */
export const THOUGHTS = ['attached.one.q7', 'attached.two.q7', 'attached.three.q7'];

/** Two steps with three calls in total, the second under an id that was used before; then the answer. */
export const LOOP: readonly ServerAnswer[] = [
  {
    text: 'I look twice.',
    reasoning: THOUGHTS[0] ?? '',
    calls: [
      { id: 'aaaaaaaa1', name: 'look', arguments: '{"at":"src"}' },
      { id: 'aaaaaaaa2', name: 'look', arguments: '{"at":"docs"}' },
    ],
  },
  {
    reasoning: THOUGHTS[1] ?? '',
    calls: [{ id: 'aaaaaaaa3', name: 'look', arguments: '{"at":"bench"}' }],
  },
  { text: 'I have looked.', reasoning: THOUGHTS[2] ?? '' },
];

/** The next answer of the loop is derived from the calls in the prompt. */
export const loop: Behave = ({ prompt }) => {
  const made = (prompt?.messages ?? []).filter(
    (message) => message.role === 'assistant' && message.toolCalls !== undefined,
  );
  return { answer: LOOP[Math.min(made.length, 2)] ?? {} };
};

export interface ProviderStage extends AsyncDisposable {
  readonly h: Harness;
  readonly servers: ReadonlyMap<Wire['provider'], ProviderServer>;
  readonly server: ProviderServer;
  /** Applies a profile of that name with the tool `look`. */
  profile(name: string, model: string, rest?: Readonly<Record<string, unknown>>): Promise<void>;
  /** Runs a turn of a new agent to its end. */
  play(profile: string): Promise<TurnId>;
  /** The body of the request at this index, as text. */
  sent(index: number): string;
}

/** The router setting with which a provider is reached. */
export const SETTING = {
  openai: 'openai',
  'openai-chat': 'openai',
  anthropic: 'anthropic',
  google: 'google',
  mistral: 'mistral',
  deepseek: 'deepseek',
  'openai-compatible': 'openaiCompatible',
} as const;

export async function providerStage(
  wires: Wire | readonly Wire[],
  options: { readonly behave?: Behave } = {},
): Promise<ProviderStage> {
  const servers = new Map<Wire['provider'], ProviderServer>();
  const providers: Record<string, { apiKey: string; baseUrl: string }> = {};
  for (const wire of [wires].flat()) {
    const opened = await openProviderServer(wire, options.behave ?? loop);
    servers.set(wire.provider, opened);
    providers[SETTING[wire.provider]] = { apiKey: SERVER_KEY, baseUrl: opened.baseUrl };
  }
  const [server] = servers.values();
  if (server === undefined) throw new Error('no wire');
  const h = await harness({ model: createModelRouter({ providers }) });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.looseObject({ at: z.string() }),
    isReadOnly: true,
    run: ({ at }) => `seen ${at}`,
  });
  await h.worker();
  return {
    h,
    servers,
    server,
    profile: async (name, model, rest = {}) => {
      await h.runtime.applyProfile({ name, instructions: 'You look.', model, tools: ['look'], ...rest });
    },
    play: async (profile) => {
      const receipt = await h.runtime.submit('launch_principal', {
        profile_name: profile,
        instruction: 'Look around.',
      });
      const { turn_id } = z.object({ turn_id: z.string() }).parse(receipt);
      await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
      return turn_id as TurnId;
    },
    sent: (index) => JSON.stringify(server.requests[index]?.body ?? null),
    [Symbol.asyncDispose]: async () => {
      await h[Symbol.asyncDispose]();
      for (const opened of servers.values()) await opened[Symbol.asyncDispose]();
    },
  };
}
