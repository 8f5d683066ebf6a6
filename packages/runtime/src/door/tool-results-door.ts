/**
 * The door of tool workers. It receives answers as jobs of `boxcar-tool-results`, and the bells that ring there when the job of a
 * call has ended.
 *
 * R1  The first record of a call wins, by whichever way it arrived; a later record is answered `duplicate` and changes nothing.
 * R2  Bad input and refusals fail the job at once, with `code: message` as the reason; an error on our side never does.
 * R3  A tool's result is accepted as it is: a result that does not fit in a card becomes a readable failure, never a refusal.
 */
import {
  type ErrorBody,
  errorText,
  isCleanText,
  isJsonObject,
  type JsonValue,
  jsonObjectSchema,
  KernelError,
  safeParse,
  toBadRequest,
  tryParseId,
} from '@boxcar/kernel';
import { findActor, type QueueCall } from '@boxcar/store';
import type { Job } from 'bullmq';
import { z } from 'zod';
import type { QueueToolCalls, RuntimeCore } from '../core/index.js';
import type { Queues } from '../queue/index.js';
import { TOOL_RESULTS_QUEUE } from '../tool-queue/index.js';
import type { QueueDoor } from './door-job.js';
import { closable, refuse } from './door-job.js';
import type { QueueDoorOptions } from './queue-door.js';

const id = z
  .string()
  .trim()
  .min(1)
  .max(200)
  .refine(isCleanText, 'contains a NUL character or a lone surrogate');

const bellSchema = z.strictObject({ ended: id });

const errorSchema = z.union(
  [
    z.string(),
    z.strictObject({
      code: z.string().min(1).max(100).optional(),
      message: z.string(),
      details: jsonObjectSchema.optional(),
    }),
  ],
  'must be a text, or an object of message and optional code and details',
);

const answerSchema = z
  .strictObject({
    tool_call_id: id,
    /** Name or id; when given, the call must be of this project. */
    project_id: id.optional(),
    status: z.enum(['success', 'failed']).optional(),
    result: z.unknown().optional(),
    error: errorSchema.optional(),
  })
  .refine((answer) => answer.status !== 'success' || answer.error === undefined, {
    path: ['error'],
    message: 'a success has no error',
  });
type Answer = z.infer<typeof answerSchema>;

function toErrorOf(error: Answer['error'], name: string): ErrorBody {
  if (typeof error === 'string') return { code: 'tool_failed', message: error };
  if (error === undefined) return { code: 'tool_failed', message: `${name} failed without saying why.` };
  const { code = 'tool_failed', message, details } = error;
  return { code, message, ...(details === undefined ? {} : { details }) };
}

async function loadCall(outside: QueueToolCalls, toolCallId: string): Promise<QueueCall> {
  const callId = tryParseId<'tool_call'>(toolCallId);
  const call = callId === undefined ? null : await outside.load(callId);
  if (call === null)
    throw new KernelError('not_found', {
      message: `No tool call '${toolCallId}'.`,
      details: { tool_call_id: toolCallId },
    });
  return call;
}

/** Refuses a call of another project as if the call did not exist. */
async function checkProject(runtime: RuntimeCore, call: QueueCall, project: string): Promise<void> {
  const projectId = tryParseId<'project'>(project);
  const actor = await findActor(runtime.pool, { project, projectId, agent: 'operator', agentId: undefined });
  if (actor?.projectId !== call.project_id)
    throw new KernelError('not_found', {
      message: `No tool call '${call.id}' in project '${project}'.`,
      details: { tool_call_id: call.id, project_id: project },
    });
}

async function record(runtime: RuntimeCore, outside: QueueToolCalls, data: unknown): Promise<JsonValue> {
  const parsed = safeParse(answerSchema, data);
  if (!parsed.success) throw toBadRequest(parsed.error, 'data');
  const answer = parsed.data;
  const call = await loadCall(outside, answer.tool_call_id);
  if (answer.project_id !== undefined) await checkProject(runtime, call, answer.project_id);
  const details = { tool_call_id: call.id, turn_id: call.turn_id };
  if (call.route !== 'queue')
    throw new KernelError('tool_not_queued', { details: { ...details, name: call.name } });
  const status = answer.status ?? (answer.error === undefined ? 'success' : 'failed');
  const outcome = {
    status,
    ...(status === 'success' || answer.result !== undefined ? { result: answer.result } : {}),
    ...(status === 'success' ? {} : { error: toErrorOf(answer.error, call.name) }),
  };
  if (call.status !== 'pending' || call.is_over) await outside.keepLate(call, outcome);
  if (call.status !== 'pending')
    return { status: 'duplicate', tool_call_id: call.id, call_status: call.status };
  if (call.is_over)
    throw new KernelError('turn_ended', {
      message: `The turn of tool call ${call.id} has ended, so nothing waits for this result.`,
      next: 'Drop the call and do not send it again; its first late result is kept as evidence of the turn.',
      details,
    });
  const recorded = await outside.record(call, outcome);
  await outside.forget([call]);
  const callStatus =
    recorded.outcome === 'recorded' ? recorded.status : (await outside.load(call.id))?.status;
  return { status: recorded.outcome, tool_call_id: call.id, call_status: callStatus ?? null };
}

async function reply(runtime: RuntimeCore, outside: QueueToolCalls, job: Job): Promise<JsonValue> {
  const data: unknown = job.data;
  if (!isJsonObject(data) || !('ended' in data)) return record(runtime, outside, data);
  const parsed = safeParse(bellSchema, data);
  if (!parsed.success) throw toBadRequest(parsed.error, 'data');
  await outside.collect(await loadCall(outside, parsed.data.ended));
  return null;
}

/**
 * Serves the door of tool workers in this process.
 *
 * @throws KernelError `internal_error` when the runtime is closed, `bad_config` when it was opened without a tool queue.
 */
export function createToolResultsDoor(
  runtime: RuntimeCore,
  queues: Queues,
  options: QueueDoorOptions = {},
): QueueDoor {
  runtime.checkOpen();
  const { log, outside } = runtime;
  if (outside === undefined)
    throw new KernelError('bad_config', { message: 'The runtime was opened without a tool queue.' });
  const worker = queues.worker<unknown, JsonValue>(
    TOOL_RESULTS_QUEUE,
    async (job, token) => {
      try {
        await runtime.builds.check();
        return await reply(runtime, outside, job);
      } catch (error) {
        return refuse(runtime, job, { error, token });
      }
    },
    {
      concurrency: options.concurrency ?? 20,
      keepCompleted: true,
      onError: (error) => log('warn', 'door.error', { error: errorText(error) }),
    },
  );
  return closable(runtime, worker);
}
