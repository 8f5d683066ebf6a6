import type { JsonValue } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { createQueueDoor } from '../../door/queue-door.js';
import { createToolResultsDoor } from '../../door/tool-results-door.js';
import { type Log, silentLog } from '../../lib/log.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../../queue/doorbell-bullmq.js';
import type { Queues } from '../../queue/job-queue.js';
import { openQueues } from '../../queue/queues.js';
import type { Runtime } from '../../runtime.js';
import { ToolQueue } from '../../tool-queue/tool-queue.js';
import type { TestBackend } from '../queue-backend.js';
import { concludeScene, countUnfinished, watcherOf } from './conclude.js';
import type { Outcome } from './outcome.js';
import { serveOutside } from './outside.js';
import { type Client, Refused, type Scenario } from './scenario.js';
import type { Scenes } from './scenes.js';
import { openStage } from './stage.js';

const SOON = { deadlineMs: 20_000 };

export interface DoorRun {
  readonly backend: TestBackend;
  readonly scenes: Scenes;
  readonly scenario: Scenario;
  /** The URL with which the process reaches the database and queues in the database. Default: as the owner. */
  readonly databaseUrl?: string;
  /** Jobs with the same key for each submission. Default 1. */
  readonly times?: number;
  /** Wraps the queues of the doorbell and of the tools. */
  readonly wrap?: (queues: Queues) => Queues;
  readonly beforeAnswer?: Parameters<typeof serveOutside>[2];
  readonly log?: Log;
}

/**
 * Runs a scenario in one process that is reached only through queues: submissions use the queue door, and answers of tools use the door for
 * results.
 */
export async function runAtDoors(options: DoorRun): Promise<Outcome> {
  const { backend, scenes, scenario, databaseUrl = backend.database.url, log = silentLog } = options;
  const { pool } = backend.database;
  const { connection } = backend;
  const plain = openQueues(
    connection.kind === 'postgres' ? { kind: 'postgres', url: databaseUrl } : connection,
  );
  const queues = options.wrap?.(plain) ?? plain;
  const stage = openStage({
    cast: scenario,
    databaseUrl,
    effects: pool,
    leaseMs: 60_000,
    sweepMs: 100,
    takesOwnRings: false,
    doorbell: new BullMqDoorbell(queues, log),
    toolQueue: new ToolQueue(queues, log),
    log,
  });
  await scenes.set(scenario, stage.runtime);
  const doors = [createQueueDoor(stage.runtime, plain), createToolResultsDoor(stage.runtime, queues)];
  const outside = serveOutside(backend, scenario, options.beforeAnswer);
  await stage.work();
  const driven = await scenario.drive(
    doorClient(backend, options.times ?? 1, stage.runtime),
    watcherOf(pool),
  );
  await waitFor(async () => (await countUnfinished(pool)) === 0, {
    message: 'all turns have ended',
    ...SOON,
  });
  await Promise.all(outside.map((worker) => worker.close(true)));
  for (const door of doors) await door.close();
  await stage.close();
  return concludeScene(pool, scenario, driven ?? null);
}

/** Submits at the queue door, as this number of jobs under one key. */
function doorClient(backend: TestBackend, times: number, runtime: Runtime): Client {
  const queue = backend.queue(PRIMITIVES_QUEUE);
  let count = 0;
  return {
    submit: async (primitive, args) => {
      count += 1;
      const data = { project_id: 'default', arguments: args, idempotency_key: `submission-${count}` };
      const ids = await Promise.all(
        Array.from({ length: times }, async () => (await queue.add(primitive, data)).id ?? ''),
      );
      const [answer, ...others] = await Promise.all(ids.map((id) => answerOf(backend, PRIMITIVES_QUEUE, id)));
      if (others.some((other) => JSON.stringify(other) !== JSON.stringify(answer)))
        throw new Error(`two jobs of one key were answered ${JSON.stringify([answer, ...others])}`);
      return answer ?? null;
    },
    use: (work) => work(runtime),
  };
}

/** The answer of a job. @throws Refused */
export async function answerOf(backend: TestBackend, queueName: string, id: string): Promise<JsonValue> {
  const queue = backend.queue(queueName);
  const job = await waitFor(
    async () => {
      const now = await queue.getJob(id);
      return now?.finishedOn === undefined ? undefined : now;
    },
    { message: `job ${id} of ${queueName} has ended`, ...SOON },
  );
  if (job.failedReason !== undefined)
    throw new Refused(job.failedReason.split(':')[0] ?? '', `The job ${id} failed: ${job.failedReason}`);
  return job.returnvalue;
}
