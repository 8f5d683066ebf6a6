/**
 * A loopback provider whose model plays the survey's agents: over real HTTP it follows the scripts of their profiles, and uses only the
 * request's body.
 */
import { ModelError, parseId, type ToolSchema } from '@boxcar/kernel';
import { createScriptedModel } from '@boxcar/llm';
import { type Behaviour, openProviderServer, type ProviderServer, type Wire } from '@boxcar/llm/testing';
import { z } from 'zod';
import { loadSurveyProfiles, SHARED_POOL, type SurveyPool } from '../profiles.js';

const profileSchema = z.looseObject({
  name: z.string(),
  instructions: z.string(),
  script: z.array(z.json()),
});

/** Not visible outside: the scripted model names it only in its own errors. */
const TURN_ID = parseId<'turn'>('00000000-0000-7000-8000-000000000000', 'turn');

export async function openSurveyModel(
  wire: Wire,
  options: { readonly key?: string | null; readonly port?: number } = {},
): Promise<ProviderServer> {
  const read = async (pool?: SurveyPool) =>
    z.array(profileSchema).parse(await loadSurveyProfiles(undefined, pool));
  const shared = await read();
  const model = createScriptedModel();

  return await openProviderServer(
    wire,
    async ({ prompt }, index): Promise<Behaviour> => {
      const messages = prompt?.messages ?? [];
      const system = messages[0]?.content.trim();
      // A survey with its own pool has profile names with a suffix, which is in the principal's instructions.
      const suffix = /folder-expert(-[0-9a-f]{12})/.exec(system ?? '')?.[1];
      const profiles =
        suffix === undefined ? shared : await read({ ...SHARED_POOL, nameOf: (name) => `${name}${suffix}` });
      const profile = profiles.find(({ instructions }) => instructions.trim() === system);
      if (profile === undefined) return { status: 400, error: { message: 'nobody has these instructions' } };
      const steps = messages.filter((message) => message.role === 'assistant').length;
      const own = messages.filter((message) => message.role === 'user').map((message) => message.content);
      try {
        const reply = await model.generate(
          {
            messages,
            tools: (prompt?.tools ?? []).map(
              ({ name }): ToolSchema => ({ name, description: '', parameters: {} }),
            ),
            model: 'scripted',
            settings: {},
            script: profile.script,
            turn: {
              turnId: TURN_ID,
              step: steps + 1,
              attempt: 1,
              epoch: 1,
              firstMessage: 1,
              instruction: own.join('\n'),
            },
          },
          { signal: new AbortController().signal },
        );
        return {
          answer: {
            ...(reply.text === '' ? {} : { text: reply.text }),
            // The ids of a real provider are unique across answers.
            calls: reply.toolCalls.map((call) => ({ ...call, id: `call_${index}_${call.id}` })),
            usage: { input: reply.usage.inputTokens, output: reply.usage.outputTokens },
          },
        };
      } catch (error) {
        if (!(error instanceof ModelError)) throw error;
        return { status: 400, error: { message: error.message } };
      }
    },
    options,
  );
}
