/**
 * A worker of the pool as a process of its own, with tools and models that stop at known points. It prints `ready
 * <worker id>`, `model <turn> <step> <attempt>` and `tool <name> <call>` as these happen, and ends on SIGTERM with `closed`.
 *
 * env WORKER: the JSON of `WorkerProcessOptions`.
 */
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import pg from 'pg';
import { z } from 'zod';
import { createLog } from '../log.js';
import { openRuntime } from '../open.js';
import { createWorker, type WorkerOptions } from '../worker/worker.js';

export interface WorkerProcessOptions {
  readonly databaseUrl: string;
  readonly redisUrl?: string;
  /** For what the tools write: never behind a fault. */
  readonly effectsUrl: string;
  readonly worker?: WorkerOptions;
  readonly graceMs?: number;
  /** Serves the queue door with so many slots. */
  readonly doorConcurrency?: number;
}

const options = JSON.parse(process.env['WORKER'] ?? '{}') as WorkerProcessOptions;
const print = (line: string): void => console.log(line);

/** Notes twice, before and after a model call that does not return at its first attempt. */
const hangOnce: ScriptedFunction = async ({ turn }, { call, pause, results }) => {
  print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
  if (turn.step === 1) return { toolCalls: [call('note', { text: 'before' })] };
  if (turn.step === 2 && turn.attempt === 1) await pause(3_600_000);
  if (turn.step === 2) return { toolCalls: [call('note', { text: 'after' })] };
  return { text: JSON.stringify(results('note')) };
};

/** Stops its own process in the middle of a model call at the first attempt; goes on when it is woken. */
const stopOnce: ScriptedFunction = ({ turn }, { call, results }) => {
  print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
  if (turn.step === 1) return { toolCalls: [call('note', { text: 'before' })] };
  if (turn.attempt === 1) process.kill(process.pid, 'SIGSTOP');
  return { text: JSON.stringify(results('note')) };
};

/** Two calls side by side that do not return the first time; then what became of them. */
const holdTools: ScriptedFunction = ({ turn, messages }, { call }) => {
  print(`model ${turn.turnId} ${turn.step} ${turn.attempt}`);
  if (turn.step === 1) {
    return { toolCalls: [call('hold_safe', {}, 'safe'), call('hold_never', {}, 'never')] };
  }
  const answers = messages.flatMap((message) => (message.role === 'tool' ? [message.content] : []));
  return { text: answers.join('\n') };
};

const effects = new pg.Pool({ connectionString: options.effectsUrl, max: 2 });

/** Notes that a call was run; returns how often by now. */
async function effect(toolCallId: string, name: string): Promise<number> {
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
}

const opened = openRuntime({
  databaseUrl: options.databaseUrl,
  redisUrl: options.redisUrl,
  model: createModelRouter({ scripted: { functions: { hangOnce, stopOnce, holdTools } } }),
  log: createLog('debug'),
});
const { runtime } = opened;

runtime.registerTool({
  name: 'note',
  description: 'Notes a text.',
  input: z.strictObject({ text: z.string() }),
  retry: 'never',
  run: async ({ text }, { toolCallId }) => {
    await effect(toolCallId, 'note');
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
      if ((await effect(toolCallId, `hold_${retry}`)) > 1) return { done: retry };
      return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    },
  });
}

const worker = await createWorker(runtime, options.worker ?? {});
const door =
  options.doorConcurrency === undefined
    ? undefined
    : opened.serveQueueDoor({ concurrency: options.doorConcurrency });
// While the process waits on nothing but hanging models, its connections keep it alive.
process.once('SIGTERM', () => {
  void (async () => {
    await door?.close();
    await worker.close(options.graceMs === undefined ? {} : { graceMs: options.graceMs });
    await opened.close();
    await effects.end();
    print('closed');
  })();
});
print(`ready ${worker.id}`);
