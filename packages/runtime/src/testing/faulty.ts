/** Models and tools that stop at known points, for tests in which a worker dies there. */
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import type pg from 'pg';
import { z } from 'zod';
import type { Runtime } from '../runtime.js';

/** Reports the progress: `model <turn> <step> <attempt>` and `tool <name> <call>`. */
export type Print = (line: string) => void;

/** Calls the tool `note` twice, before and after a model call that does not return at its first attempt. */
const hangOnce =
  (print: Print): ScriptedFunction =>
  async ({ turn }, { call, pause, results }) => {
    print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
    if (turn.step === 1) return { toolCalls: [call('note', { text: 'before' })] };
    if (turn.step === 2 && turn.attempt === 1) await pause(3_600_000);
    if (turn.step === 2) return { toolCalls: [call('note', { text: 'after' })] };
    return { text: JSON.stringify(results('note')) };
  };

/** Stops its own process in the middle of the first attempt of a model call, and answers after it is continued. */
const stopOnce =
  (print: Print): ScriptedFunction =>
  ({ turn }, { call, results }) => {
    print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
    if (turn.step === 1) return { toolCalls: [call('note', { text: 'before' })] };
    if (turn.attempt === 1) process.kill(process.pid, 'SIGSTOP');
    return { text: JSON.stringify(results('note')) };
  };

/** Makes two calls side by side that do not return the first time; then answers with their results. */
const holdTools =
  (print: Print): ScriptedFunction =>
  ({ turn, messages }, { call }) => {
    print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
    if (turn.step === 1) {
      return { toolCalls: [call('hold_safe', {}, 'safe'), call('hold_never', {}, 'never')] };
    }
    const answers = messages.flatMap((message) => (message.role === 'tool' ? [message.content] : []));
    return { text: answers.join('\n') };
  };

const functions = { hangOnce, stopOnce, holdTools };
/** The models, as `scripted:<name>`. */
export const FAULTY_MODELS = Object.keys(functions);
export const FAULTY_TOOLS = ['note', 'hold_safe', 'hold_never'];

/** The scripted model with the faulty functions, and any others. */
export const createFaultyModel = (print: Print, others: Readonly<Record<string, ScriptedFunction>> = {}) =>
  createModelRouter({
    scripted: {
      functions: {
        ...Object.fromEntries(Object.entries(functions).map(([name, make]) => [name, make(print)])),
        ...others,
      },
    },
  });

/** The table in which the tools record their runs. The connection to it has no faults. */
export const EFFECTS_TABLE = 'create table public.effects (tool_call_id uuid, name text, pid int)';

export function registerFaultyTools(
  runtime: Runtime,
  options: { readonly effects: pg.Pool; readonly print: Print },
): void {
  const { effects, print } = options;
  /** Records a run of a call. Returns the number of runs so far. */
  const note = async (toolCallId: string, name: string): Promise<number> => {
    await effects.query('insert into public.effects (tool_call_id, name, pid) values ($1, $2, $3)', [
      toolCallId,
      name,
      process.pid,
    ]);
    const { rows } = await effects.query<{ n: number }>(
      'select count(*)::int as n from public.effects where tool_call_id = $1',
      [toolCallId],
    );
    print(`tool ${name} ${toolCallId}`);
    return rows[0]?.n ?? 0;
  };
  runtime.registerTool({
    name: 'note',
    description: 'Notes a text.',
    input: z.strictObject({ text: z.string() }),
    retry: 'never',
    run: async ({ text }, { toolCallId }) => {
      await note(toolCallId, 'note');
      return { noted: text };
    },
  });
  for (const retry of ['safe', 'never'] as const) {
    runtime.registerTool({
      name: `hold_${retry}`,
      description: 'Does not return the first time it is run.',
      input: z.strictObject({}),
      retry,
      run: async (_input, { toolCallId, signal }) => {
        if ((await note(toolCallId, `hold_${retry}`)) > 1) return { done: retry };
        return new Promise((_resolve, reject) =>
          signal.addEventListener('abort', () => reject(signal.reason)),
        );
      },
    });
  }
}
