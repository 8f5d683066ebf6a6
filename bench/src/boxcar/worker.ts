/** One Boxcar worker process with its default settings. */
import { createModelRouter } from '@boxcar/llm';
import { createLog, createWorker, openRuntime } from '@boxcar/runtime';
import { serveWorker } from '../worker-process.js';

serveWorker(async ({ databaseUrl, redisUrl, concurrency }) => {
  const open = openRuntime({ databaseUrl, redisUrl, model: createModelRouter(), log: createLog('warn') });
  const worker = await createWorker(open.runtime, { concurrency });
  return {
    close: async () => {
      await worker.close();
      await open.close();
    },
  };
});
