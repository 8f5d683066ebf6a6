/**
 * Two workers with watchdogs in one process: the first serves the target `spins`, the second `rests`. It prints `ready`.
 *
 * argv: the URL of the database.
 */
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { z } from 'zod';
import { createLog } from '../lib/log.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { createWorker } from '../worker/worker.js';

const directUrl = process.argv[2] ?? '';
const runtime = new Runtime({
  pool: createPool({ connectionString: directUrl }),
  directUrl,
  doorbell: new InProcessDoorbell(),
  model: createModelRouter({}),
  log: createLog('info'),
});
const any = { description: 'For tests.', input: z.looseObject({}), retry: 'safe' as const };
runtime.registerTool({
  ...any,
  name: 'spin',
  run: () => {
    for (;;);
  },
});
runtime.registerTool({ ...any, name: 'rest', run: () => new Promise(() => undefined) });
const workers = { spins: 6_000, rests: 12_000 };
for (const [target, leaseMs] of Object.entries(workers))
  await createWorker(runtime, { leaseMs, targets: [target], sweepMs: 200, watchdog: true });
console.log('ready');
