/**
 * The queue door: primitives submitted as jobs of `boxcar-primitives` by any BullMQ client.
 *
 * Q1  A job is accepted when its operation row commits; its default key is made of queue, job id, timestamp and data.
 * Q2  Bad input and refusals fail the job at once, `code: message` as the reason; trouble of ours never does.
 * Q3  A job that waits for a turn holds no slot: it is delayed, and promoted when the turn ends.
 */
import {
  canonicalJson,
  isFinal,
  type JsonValue,
  KernelError,
  parseJsonValue,
  sha256,
  toBadRequest,
  toErrorBody,
} from '@boxcar/kernel';
import { closeDoor, isTransient, loadTurnStates } from '@boxcar/store';
import { DelayedError, type Job, UnrecoverableError } from 'bullmq';
import { z } from 'zod';
import { PRIMITIVES_QUEUE } from '../doorbell/bullmq.js';
import type { Queues } from '../queues.js';
import { type Runtime, toTurnResult } from '../runtime.js';

const jobSchema = z.strictObject({
  project_id: z.string().trim().min(1),
  arguments: z.record(z.string(), z.unknown()),
  source_agent_id: z.string().trim().min(1).optional(),
  parent_turn_id: z.string().trim().min(1).optional(),
  channel_id: z.string().trim().min(1).optional(),
  idempotency_key: z.string().min(1).max(500).optional(),
  traceparent: z.string().max(200).optional(),
});

export interface QueueDoorOptions {
  /** Submissions at once. Default 20. */
  readonly concurrency?: number;
}

export interface QueueDoor extends AsyncDisposable {
  close(): Promise<void>;
}

/** How long a waiting job sleeps before it looks again by itself; it is promoted earlier when its turn ends. */
const LOOK_AGAIN_MS = 60_000;
const RETRY_MS = 1_000;

async function answer(
  runtime: Runtime,
  job: Job<unknown, JsonValue>,
  token: string | undefined,
): Promise<JsonValue> {
  const data: unknown = parseJsonValue(job.data, 'data');
  const parsed = jobSchema.safeParse(data);
  if (!parsed.success) throw toBadRequest(parsed.error, 'data');
  const {
    project_id,
    arguments: args,
    source_agent_id,
    parent_turn_id,
    channel_id,
    idempotency_key,
    traceparent,
  } = parsed.data;
  const jobId = job.id ?? '';
  const key =
    idempotency_key ??
    `job:${sha256(canonicalJson([PRIMITIVES_QUEUE, jobId, job.timestamp, data as JsonValue]))}`;
  const accepted = await runtime.accept(job.name, args, {
    projectId: project_id,
    sourceAgentId: source_agent_id,
    parentTurnId: parent_turn_id,
    channelId: channel_id,
    idempotencyKey: key,
    traceparent,
    doorJobId: jobId,
  });
  const { awaitedTurnId } = accepted;
  if (awaitedTurnId === null) return accepted.answer;
  const look = async (): Promise<JsonValue | undefined> => {
    const [state] = await loadTurnStates(runtime.pool, [awaitedTurnId]);
    return state !== undefined && isFinal(state.status)
      ? ({ ...toTurnResult(state) } as unknown as JsonValue)
      : undefined;
  };
  const result = await look();
  if (result !== undefined) {
    await closeDoor(runtime.pool, { project_id: accepted.projectId, idempotency_key: key, job_id: jobId });
    return result;
  }
  await job.moveToDelayed(Date.now() + LOOK_AGAIN_MS, token);
  // The turn may have ended between the look and the move, when its knock found the job still active.
  if ((await look()) !== undefined) await job.promote().catch(() => undefined);
  throw new DelayedError();
}

/** Serves the queue door in this process. */
export function createQueueDoor(runtime: Runtime, queues: Queues, options: QueueDoorOptions = {}): QueueDoor {
  const worker = queues.worker<unknown, JsonValue>(
    PRIMITIVES_QUEUE,
    async (job, token) => {
      try {
        return await answer(runtime, job, token);
      } catch (error) {
        if (error instanceof DelayedError) throw error;
        const isOurs = isTransient(error) || (error instanceof KernelError && error.entry.canRetry);
        if (!isOurs) {
          const { code, message } = toErrorBody(error);
          throw new UnrecoverableError(`${code}: ${message}`);
        }
        runtime.log('warn', 'door.retry', {
          job_id: job.id,
          primitive: job.name,
          error: error instanceof Error ? error.message : String(error),
        });
        await job.moveToDelayed(Date.now() + RETRY_MS, token);
        throw new DelayedError();
      }
    },
    {
      concurrency: options.concurrency ?? 20,
      keepCompleted: true,
      onError: (error) =>
        runtime.log('warn', 'door.error', { error: error instanceof Error ? error.message : String(error) }),
    },
  );
  const close = (): Promise<void> => worker.close();
  return { close, [Symbol.asyncDispose]: close };
}
