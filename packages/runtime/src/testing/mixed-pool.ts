/**
 * A worker that also submits, in a separate process, of any build: it uses only the interface for programs that embed the runtime. Prints
 * `ready <worker id>`, and `ended <turn id> <status>` for each of its submissions. On the line `stop` it waits for the end of its
 * submissions and prints `stopped`.
 *
 * argv: the JSON of `{databaseUrl, redisUrl?}`.
 */
import { createInterface } from 'node:readline';
import { createModelRouter } from '@boxcar/llm';
import { createLog, createWorker, openRuntime } from '@boxcar/runtime';
import { z } from 'zod';

/** Submissions that are under way at the same time. */
const LANES = 4;

const { databaseUrl, redisUrl } = JSON.parse(process.argv[2] ?? '{}') as {
  databaseUrl: string;
  redisUrl?: string;
};
const opened = openRuntime({ databaseUrl, redisUrl, model: createModelRouter({}), log: createLog('warn') });
const { runtime } = opened;
runtime.registerTool({
  name: 'note',
  description: 'Takes a note.',
  input: z.strictObject({ text: z.string() }),
  retry: 'safe',
  run: ({ text }) => ({ noted: text }),
});
const member = { tool: 'note', arguments: { text: 'seen' } };
await runtime.applyProfile({
  name: 'member',
  instructions: 'Note it.',
  model: 'scripted',
  script: [{ calls: [member], delayMs: 20 }, { say: 'noted' }],
  tools: ['note'],
});
const task = (n: number) => ({ target_strategy: 'new', target_ref: 'member', instruction: `part ${n}` });
await runtime.applyProfile({
  name: 'lead',
  instructions: 'Delegate.',
  model: 'scripted',
  script: [{ calls: [{ tool: 'fork_join', arguments: { tasks: [task(1), task(2)] } }] }, { say: 'joined' }],
  tools: ['fork_join'],
  delegation_policy: { target_profiles: ['member'] },
});
const worker = await createWorker(runtime, { concurrency: 4 });
let isStopping = false;

async function submitUntilStopped(): Promise<void> {
  while (!isStopping) {
    const receipt = await runtime.submit('launch_principal', { profile_name: 'lead', instruction: 'go' });
    const { turn_id: turnId } = receipt as { turn_id: string };
    const { status } = await runtime.waitForTurn(turnId);
    console.log(`ended ${turnId} ${status}`);
  }
}

createInterface({ input: process.stdin }).on('line', () => {
  isStopping = true;
});
console.log(`ready ${worker.id}`);
await Promise.all(Array.from({ length: LANES }, submitUntilStopped));
await worker.close();
await opened.close();
console.log('stopped');
process.exit(0);
