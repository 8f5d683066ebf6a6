/** Calls every provider with prompts that were made for another model. */
import { type ModelRequest, parseId, sha256 } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { inOrder, openProviderServer, SERVER_KEY, WIRES } from '@boxcar/llm/testing';
import type { KeptPrompt } from './kept-prompts.js';
import { SETTING, THINKING_MODELS } from './provider-stage.js';

const AT_ONCE = 4;
const TURN: ModelRequest['turn'] = {
  turnId: parseId<'turn'>('01890a5d-ac96-774b-bcce-b302099a8057', 'turn'),
  step: 1,
  attempt: 1,
  epoch: 1,
  firstMessage: 1,
  instruction: null,
};

/** Returns each of several equal prompts once. */
export const distinctPrompts = (prompts: readonly KeptPrompt[]): readonly KeptPrompt[] => [
  ...new Map(prompts.map((prompt) => [sha256(JSON.stringify(prompt)), prompt])).values(),
];

/** The refusals of each provider, with the prompt. */
export async function replayPrompts(prompts: readonly KeptPrompt[]): Promise<readonly string[]> {
  const refused: string[] = [];
  for (const wire of WIRES) {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = createModelRouter({
      providers: { [SETTING[wire.provider]]: { apiKey: SERVER_KEY, baseUrl: server.baseUrl } },
    });
    const queue = [...prompts];
    const work = async (): Promise<void> => {
      for (let prompt = queue.shift(); prompt !== undefined; prompt = queue.shift()) {
        const request = { ...prompt, model: THINKING_MODELS[wire.provider], settings: {}, turn: TURN };
        await router.generate(request, { signal: new AbortController().signal }).catch((error: unknown) => {
          refused.push(`${wire.provider}: ${String(error)}\n${JSON.stringify(request.messages)}`);
        });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (server.requests.length !== prompts.length)
      refused.push(`${wire.provider}: ${server.requests.length} of ${prompts.length} prompts came`);
  }
  return refused;
}
