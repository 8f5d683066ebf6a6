import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { now } from '../measure.js';

/** The model `scripted:<name>`, which answers with the time at which it was called. */
export const CLOCK = 'clock';

/** The model that ends its turn with `submit_result`, whose result is the time at which it was called. */
export const CLOCK_RESULT = 'clock_result';

/** The model that writes the time at once, and ends a little later. */
export const TALK = 'talk';

const clockResult: ScriptedFunction = (_request, { call }) => ({
  toolCalls: [call('submit_result', { result: String(now()) })],
});

const talk: ScriptedFunction = async (_request, { write, pause }) => {
  const text = String(now());
  write(text);
  await pause(20);
  return { text };
};

/** Callbacks go to a receiver on this machine. */
export const WEBHOOKS = { secret: 'bench', allowPrivate: ['127.0.0.1'] };

/** For callers and workers: a caller also checks the profiles that it applies. */
export const createBenchModel = () =>
  createModelRouter({
    scripted: {
      functions: { [CLOCK]: () => ({ text: String(now()) }), [CLOCK_RESULT]: clockResult, [TALK]: talk },
    },
  });
