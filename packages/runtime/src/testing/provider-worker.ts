/**
 * A worker in a separate process, whose models are those of a provider on loopback. It prints `ready <worker id>`.
 *
 * argv: the JSON of `ProviderWorkerOptions`.
 */
import { createModelRouter } from '@boxcar/llm';
import { createLog } from '../lib/log.js';
import { openRuntime } from '../open.js';
import { createWorker } from '../worker/worker.js';

export interface ProviderWorkerOptions {
  readonly databaseUrl: string;
  readonly redisUrl?: string;
  readonly baseUrl: string;
  readonly apiKey: string;
}

const { databaseUrl, redisUrl, baseUrl, apiKey } = JSON.parse(
  process.argv[2] ?? '{}',
) as ProviderWorkerOptions;
const opened = openRuntime({
  databaseUrl,
  redisUrl,
  model: createModelRouter({ providers: { openaiCompatible: { baseUrl, apiKey } } }),
  log: createLog('error'),
});
const worker = await createWorker(opened.runtime, { concurrency: 8, sweepMs: 200 });
console.log(`ready ${worker.id}`);
