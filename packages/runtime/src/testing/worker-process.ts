/**
 * A worker of the pool in a separate process. It prints `ready <worker id>` and the output of its models and tools, logs to stderr, and
 * ends on SIGTERM with `closed`.
 *
 * argv: the JSON of `WorkerProcessOptions`.
 */
import pg from 'pg';
import { createLog } from '../lib/log.js';
import { openRuntime } from '../open.js';
import { createWorker, type WorkerOptions } from '../worker/worker.js';
import { createFaultyModel, registerFaultyTools } from './faulty.js';

export interface WorkerProcessOptions {
  readonly databaseUrl: string;
  readonly redisUrl?: string;
  /** The database to which the tools write. */
  readonly effectsUrl: string;
  readonly worker?: WorkerOptions;
  readonly graceMs?: number;
  /** Serves the queue door with this number of slots. */
  readonly doorConcurrency?: number;
}

const options = JSON.parse(process.argv[2] ?? '{}') as WorkerProcessOptions;
const print = (line: string): void => console.log(line);
const effects = new pg.Pool({ connectionString: options.effectsUrl, max: 2, application_name: 'effects' });
// The server may become unavailable. In that case the tool that writes fails, but not the worker.
effects.on('error', () => undefined);

const opened = openRuntime({
  databaseUrl: options.databaseUrl,
  redisUrl: options.redisUrl,
  model: createFaultyModel(print),
  log: createLog('debug'),
});
registerFaultyTools(opened.runtime, { effects, print });
const worker = await createWorker(opened.runtime, options.worker ?? {});
const door =
  options.doorConcurrency === undefined
    ? undefined
    : opened.serveQueueDoor({ concurrency: options.doorConcurrency });
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
