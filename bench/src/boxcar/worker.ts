/** One Boxcar worker process with its default settings, the tool that `steps` calls, and the model that `handoff` asks for the time. */
import { createLog, createWorker, openRuntime } from '@boxcar/runtime';
import { z } from 'zod';
import { serveWorker } from '../worker-process.js';
import { createBenchModel, WEBHOOKS } from './model.js';

serveWorker(async ({ databaseUrl, redisUrl, concurrency }) => {
  const open = openRuntime({
    databaseUrl,
    redisUrl,
    model: createBenchModel(),
    log: createLog('warn'),
    handoffs: { webhooks: WEBHOOKS },
  });
  open.runtime.registerTool({
    name: 'count_wagons',
    description: 'Counts the wagons of a train.',
    input: z.strictObject({ train: z.string() }),
    isReadOnly: true,
    run: ({ train }) => ({ train, wagons: 42 }),
  });
  const worker = await createWorker(open.runtime, { concurrency });
  return {
    close: async () => {
      await worker.close();
      await open.close();
    },
  };
});
