// A tool worker: it knows BullMQ and the name of its queue, and nothing of Boxcar.
import { createPostgresBackend, createRedisBackend, withBackend } from 'bullmq';

const { REDIS_URL, DATABASE_URL, LOCK_MS = '30000' } = process.env;

const tools = {
  async check_link({ url }) {
    const response = await fetch(url, { signal: AbortSignal.timeout(30_000) });
    const title = /<title[^>]*>([^<]*)/i.exec(await response.text())?.[1]?.trim() ?? null;
    return { status: response.status, title };
  },
};

const { Worker } = withBackend(REDIS_URL ? createRedisBackend : createPostgresBackend);
const worker = new Worker(
  'boxcar-tools-web',
  async ({ data }) => {
    if (!Object.hasOwn(tools, data.name)) throw new Error(`this worker has no tool ${data.name}`);
    // What it returns is the result; what it throws, the error that the model reads.
    return tools[data.name](data.arguments, { idempotencyKey: data.tool_call_id });
  },
  {
    connection: REDIS_URL ? { url: REDIS_URL } : { connectionString: DATABASE_URL, max: 3 },
    concurrency: 10,
    // A job whose worker died is given to another one after this time, three times at most.
    lockDuration: Number(LOCK_MS),
    stalledInterval: Number(LOCK_MS),
    maxStalledCount: 3,
  },
);
worker.on('error', (error) => console.error(error.message));
process.once('SIGTERM', () => worker.close());
await worker.waitUntilReady();
console.log('ready');
