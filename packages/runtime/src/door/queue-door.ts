/**
 * The queue door: any BullMQ client can submit primitives as jobs of `boxcar-primitives`.
 *
 * Q1  A job is accepted when its operation row commits; its default key is made of queue, job id, timestamp and data.
 * Q2  Bad input and refusals fail the job at once, with `code: message` as the reason; an error on our side never does.
 * Q3  A job that waits for a turn holds no slot: it is delayed, and promoted when the turn ends. If the kernel has given up the
 *     turn because its end cannot be written, the job fails with the cause.
 * Q4  A job whose primitive is unknown to this process is handed back while a living worker or door knows the primitive, at least
 *     20 times and for at least 15 minutes: a plugin may be in only some processes of a pool. A job whose arguments this process
 *     refuses is handed back while a process that accepts other arguments is alive: that process may have another version of the
 *     plugin.
 * Q5  A delayed job returns after all waiting jobs. A `cancel` that meets an error on our side keeps its slot for a while
 *     instead, so that a `cancel` at the head of the queue stays first.
 * Q6  A job is delivered again with back-off, and fails after the fifth time, when its handler has blocked the event loop of its
 *     worker (`watchdog.ts`), has called `process.exit` or has left an error that ends the process.
 */

import { setTimeout as delay } from 'node:timers/promises';
import {
  type BatchId,
  canonicalJson,
  errorText,
  isFinal,
  isJsonObject,
  type JsonValue,
  jsonObjectSchema,
  KernelError,
  parseJsonValue,
  safeParse,
  sessionAddressSchema,
  sha256,
  type TurnId,
  toBadRequest,
} from '@boxcar/kernel';
import { loadBatches, loadTurnStates, recordWaitingJob, removeWaitingJob } from '@boxcar/store';
import { DelayedError, type Job } from 'bullmq';
import { z } from 'zod';
import type { Accepted, RuntimeCore } from '../core/index.js';
import type { Queues } from '../queue/index.js';
import { notEnded, PRIMITIVES_QUEUE, toTurnResult } from '../queue/index.js';
import { warnAgain } from '../submit/index.js';
import { parseGiven } from '../tool/index.js';
import { announce } from './announced-door.js';
import { checkBlocked, noteIdOf } from './blocked-jobs.js';
import type { QueueDoor } from './door-job.js';
import {
  closable,
  handBackOrRefuse,
  isOurTrouble,
  logTrouble,
  postpone,
  RETRY_MS,
  refuse,
} from './door-job.js';

const jobSchema = z.strictObject({
  project_id: z.string().trim().min(1),
  arguments: jsonObjectSchema,
  source_agent_id: z.union([z.string().trim().min(1), sessionAddressSchema]).optional(),
  parent_turn_id: z.string().trim().min(1).optional(),
  channel_id: z.string().trim().min(1).optional(),
  idempotency_key: z.string().min(1).max(500).optional(),
  traceparent: z.string().max(200).optional(),
});

export interface QueueDoorOptions {
  /** Maximum submissions at the same time. Default 20. */
  readonly concurrency?: number;
}

/** How long a waiting job sleeps before it checks again by itself; the end of its turn promotes it earlier. */
const LOOK_AGAIN_MS = 60_000;

/** How long a cancel keeps its slot during errors on our side (Q5). */
const HOLD_MS = 60_000;

/** The turn or batch whose end is the answer. */
type Awaited =
  | { readonly kind: 'turn'; readonly id: TurnId }
  | { readonly kind: 'batch'; readonly id: BatchId };

type Reply =
  | { readonly kind: 'answer'; readonly answer: JsonValue }
  | { readonly kind: 'wait'; readonly awaited: Awaited };

const defaultKey = (job: Job, data: JsonValue): string =>
  `job:${sha256(canonicalJson([PRIMITIVES_QUEUE, job.id ?? '', job.timestamp, data]))}`;

/**
 * The result of the awaited turn or batch, or the reason why there will be no result; undefined while it is in progress.
 */
async function findAnswer(
  runtime: RuntimeCore,
  awaited: Awaited,
): Promise<JsonValue | KernelError | undefined> {
  if (awaited.kind === 'batch') {
    const [batch] = await loadBatches(runtime.pool, [awaited.id]);
    if (batch === undefined) return undefined;
    return batch.status === 'running' ? lossOf(awaited, batch) : batch.answer;
  }
  const [state] = await loadTurnStates(runtime.pool, [awaited.id]);
  if (state === undefined) return undefined;
  return isFinal(state.status)
    ? ({ ...toTurnResult(state) } as unknown as JsonValue)
    : lossOf(awaited, state);
}

const lossOf = ({ kind, id }: Awaited, { lost_cause: note }: { lost_cause: string | null }) =>
  note === null ? undefined : notEnded(kind, id, note);

function awaitedOf({ awaitedTurnId, awaitedBatchId }: Accepted): Awaited | undefined {
  if (awaitedBatchId !== null) return { kind: 'batch', id: awaitedBatchId };
  return awaitedTurnId === null ? undefined : { kind: 'turn', id: awaitedTurnId };
}

async function reply(runtime: RuntimeCore, job: Job): Promise<Reply> {
  const data = parseJsonValue(job.data, 'data');
  const parsed = isJsonObject(data) ? parseGiven(jobSchema, data).parsed : safeParse(jobSchema, data);
  if (!parsed.success) throw toBadRequest(parsed.error, 'data');
  const { project_id, source_agent_id, parent_turn_id, channel_id, traceparent } = parsed.data;
  const jobId = job.id ?? '';
  const ownKey = defaultKey(job, data);
  const key = parsed.data.idempotency_key ?? ownKey;
  const accepted = await runtime.accept(job.name, parsed.data.arguments, {
    projectId: project_id,
    sourceAgentId: source_agent_id,
    parentTurnId: parent_turn_id,
    channelId: channel_id,
    idempotencyKey: key,
    ...(key === ownKey ? { isJobKey: true } : {}),
    traceparent,
    doorJobId: jobId,
    doorNoteId: noteIdOf(job),
  });
  const awaited = awaitedOf(accepted);
  if (awaited === undefined) return { kind: 'answer', answer: accepted.answer };
  const door = { project_id: accepted.projectId, awaited_id: awaited.id, job_id: jobId };
  const answer = await findAnswer(runtime, awaited);
  if (answer !== undefined) {
    await removeWaitingJob(runtime.pool, door);
    if (answer instanceof KernelError) throw answer;
    return { kind: 'answer', answer: warnAgain(answer, accepted.answer) };
  }
  // The operation records the job that it was accepted from. Another job that waits for the same end is recorded in a separate
  // row.
  if (accepted.isReplay)
    await recordWaitingJob(runtime.pool, { ...door, idempotency_key: accepted.key, own_key: ownKey });
  return { kind: 'wait', awaited };
}

/**
 * Serves the queue door in this process.
 *
 * @throws KernelError `internal_error` when the runtime is closed.
 */
export function createQueueDoor(
  runtime: RuntimeCore,
  queues: Queues,
  options: QueueDoorOptions = {},
): QueueDoor {
  runtime.checkOpen();
  const { log } = runtime;
  const closing = new AbortController();
  /** Q5. */
  const replyInTime = async (job: Job): Promise<Reply> => {
    for (const startedAt = performance.now(); ; ) {
      try {
        return await reply(runtime, job);
      } catch (error) {
        const mayHold = job.name === 'cancel' && performance.now() - startedAt < HOLD_MS;
        if (!mayHold || closing.signal.aborted || runtime.isClosed || !(await isOurTrouble(runtime, error)))
          throw error;
        logTrouble(log, 'door.retry', job, error);
        await delay(RETRY_MS, undefined, { signal: closing.signal }).catch(() => undefined);
      }
    }
  };
  /**
   * Checks once after the job was delayed: the turn may have ended between the earlier check and the move, so that its knock
   * found the job still active.
   */
  const lookOnce = async (job: Job, awaited: Awaited): Promise<void> => {
    try {
      if ((await findAnswer(runtime, awaited)) !== undefined) await job.promote();
    } catch (error) {
      // That knock has promoted the job after all, or the database is away: the sweep knocks again.
      logTrouble(log, 'door.look_failed', job, error);
    }
  };
  const worker = queues.worker<unknown, JsonValue>(
    PRIMITIVES_QUEUE,
    async (job, token) => {
      let replied: Reply;
      let waitMs: number;
      try {
        waitMs = await checkBlocked(runtime, job);
      } catch (error) {
        return refuse(runtime, job, { error, token });
      }
      if (waitMs > 0) {
        await postpone(log, job, { token, ms: waitMs });
        throw new DelayedError();
      }
      try {
        replied = await replyInTime(job);
      } catch (error) {
        return handBackOrRefuse(runtime, job, { error, token });
      }
      if (replied.kind === 'answer') return replied.answer;
      await postpone(log, job, { token, ms: LOOK_AGAIN_MS });
      await lookOnce(job, replied.awaited);
      throw new DelayedError();
    },
    {
      concurrency: options.concurrency ?? 20,
      keepCompleted: true,
      onError: (error) => log('warn', 'door.error', { error: errorText(error) }),
    },
  );
  const announced = announce(runtime);
  return closable(runtime, {
    close: async () => {
      closing.abort();
      try {
        await worker.close();
      } finally {
        await announced.close();
      }
    },
  });
}
