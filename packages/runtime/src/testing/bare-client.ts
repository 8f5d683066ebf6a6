/**
 * A client of the queue door that uses only BullMQ and a URL, and no code of Boxcar. It reads lines of JSON `{ name, data, options? }` on
 * stdin and writes `{ id, answer }` or `{ id, reason }` for each job that has ended.
 *
 * argv: `redis` or `postgres`, and the URL.
 */
import { createInterface } from 'node:readline';
import { createPostgresBackend, type JobsOptions, Queue, QueueEvents, withBackend } from 'bullmq';

const [kind, url = ''] = process.argv.slice(2);
const QUEUE = 'boxcar-primitives';

interface Client {
  readonly queue: Pick<Queue, 'add' | 'getJob'>;
  /** The return value; throws the reason of a failure. */
  ended(id: string): Promise<unknown>;
}

function openRedis(): Client {
  const queue = new Queue(QUEUE, { connection: { url } });
  const events = new QueueEvents(QUEUE, { connection: { url } });
  events.setMaxListeners(0);
  return {
    queue,
    ended: async (id) => (await queue.getJob(id))?.waitUntilFinished(events, 30_000),
  };
}

/** On Postgres, BullMQ loses events under load, so this client polls. */
function openPostgres(): Client {
  const { Queue: PostgresQueue } = withBackend(createPostgresBackend);
  const queue = new PostgresQueue(QUEUE, { connection: { connectionString: url, max: 2 } });
  return {
    queue,
    ended: async (id) => {
      for (;;) {
        const job = await queue.getJob(id);
        if (job?.failedReason !== undefined) throw new Error(job.failedReason);
        if (job?.finishedOn !== undefined) return job.returnvalue;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    },
  };
}

const client = kind === 'redis' ? openRedis() : openPostgres();
const print = (line: object): void => console.log(JSON.stringify(line));

for await (const line of createInterface({ input: process.stdin })) {
  const { name, data, options } = JSON.parse(line) as { name: string; data: unknown; options?: JobsOptions };
  const job = await client.queue.add(name, data, options);
  const id = job.id ?? '';
  print({ accepted: id });
  client
    .ended(id)
    .then((answer) => print({ id, answer }))
    .catch((error: Error) => print({ id, reason: error.message }));
}
