/**
 * Calls that tool workers outside the kernel answer. The rows are authoritative. A job carries a call to its tool worker; the end
 * of the job and the results queue bring the answer back.
 *
 * O1  A call is sent after its commit, best effort; the sweep sends it again from the row when its job is gone.
 * O2  A call that must not be sent twice is marked after the queue has answered and before it is sent. Only the process that
 *     marked the call sends it. It can stay unknown whether the sending succeeded; if the job is then gone, its answer is lost
 *     too. A check that finds the job also marks the call. If the answer to a mark was lost, this process remembers the mark, and
 *     sends the call after it knows that the mark is its own.
 * O3  The first answer that arrives is recorded, by either way; later answers are duplicates and change nothing.
 * O4  The queue is asked about many calls at once, and the rows of many calls are written at once. A row that cannot be written
 *     does not affect the others.
 */
import {
  type CallDecision,
  decideQueueCall,
  type ErrorBody,
  errorText,
  type JobState,
  sanitizeJson,
  type ToolCallId,
} from '@boxcar/kernel';
import {
  findDueCalls,
  findLateTargets,
  keepLateAnswer,
  type LateTarget,
  type LockLimit,
  loadArguments,
  loadQueueCalls,
  markSent,
  newMark,
  noteLooks,
  type PendingCall,
  type QueueCall,
  type SendMark,
  sqlStateOf,
} from '@boxcar/store';
import type { QueueToolCalls, RuntimeCore } from '../core/index.js';
import type { CallOutcome } from '../end/index.js';
import { createRecorder, type Recorder, toSettlement } from '../end/index.js';
import { Batcher, newId, toBody } from '../lib/index.js';
import { chunks } from '../queue/index.js';
import { JOBS_PER_CALL, type NewToolJob, type QueuedCall, type ToolQueue } from './tool-queue.js';

/** Maximum calls that one sweep checks; the rest waits for the next sweep. */
const LOOKS_PER_SWEEP = 500;

const isQueued = <C extends { readonly id: ToolCallId; readonly target: string | null }>(
  call: C,
): call is C & QueuedCall => call.target !== null;

const toJob = (call: QueuedCall & Pick<PendingCall, 'turn_id' | 'name' | 'arguments'>): NewToolJob => ({
  id: call.id,
  target: call.target,
  turnId: call.turn_id,
  name: call.name,
  arguments: call.arguments,
});

export class OutsideCalls implements QueueToolCalls {
  readonly #runtime: Pick<RuntimeCore, 'pool' | 'log' | 'limits' | 'ring'>;
  readonly #queue: ToolQueue;
  readonly #loads: Batcher<ToolCallId, QueueCall | null>;
  readonly #records: Recorder;
  /** O2: calls that are being marked and sent. */
  readonly #sending = new Set<ToolCallId>();
  /** O2: marks that may have been made, for calls that were not sent. */
  readonly #unsure = new Map<ToolCallId, SendMark>();

  constructor(runtime: Pick<RuntimeCore, 'pool' | 'log' | 'limits' | 'ring'>, queue: ToolQueue) {
    this.#runtime = runtime;
    this.#queue = queue;
    this.#loads = new Batcher(
      async (ids) => {
        const calls = await loadQueueCalls(runtime.pool, ids);
        const byId = new Map(calls.map((call) => [call.id, call]));
        return ids.map((id) => byId.get(id) ?? null);
      },
      { maxItems: 100, maxInFlight: 2 },
    );
    this.#records = createRecorder(runtime);
  }

  /** Adds the jobs of committed calls. With a limit, locked calls are left to a later sweep. */
  async send(
    calls: readonly Pick<PendingCall, 'id' | 'turn_id' | 'name' | 'target' | 'retry' | 'arguments'>[],
    limit: LockLimit = {},
  ): Promise<void> {
    const queued = calls.filter(isQueued);
    await this.#queue.add(queued.filter((call) => call.retry === 'safe').map(toJob));
    const once = queued.filter((call) => call.retry === 'never' && !this.#sending.has(call.id));
    for (const { id } of once) this.#sending.add(id);
    try {
      for (const part of chunks(once, JOBS_PER_CALL)) {
        const taken = await this.#takeOnce(part, limit);
        if (taken === undefined) return;
        const jobs = part.filter((call) => taken.has(call.id)).map(toJob);
        if ((await this.#queue.add(jobs)).length < jobs.length) return;
      }
    } finally {
      for (const { id } of once) this.#sending.delete(id);
    }
  }

  /**
   * O2. If the queue does not answer, nothing is sent: the sweep sends the calls later.
   *
   * @returns The calls to send now; undefined when the queue does not answer.
   */
  async #takeOnce(
    calls: readonly QueuedCall[],
    limit: LockLimit,
  ): Promise<ReadonlySet<ToolCallId> | undefined> {
    const isReached = (await this.#queue.getJobStates(calls.slice(0, 1))) !== undefined;
    if (!isReached) return undefined;
    const marks = calls.map(({ id }) => this.#unsure.get(id) ?? newMark(id));
    try {
      const taken = await markSent(this.#runtime.pool, marks, limit);
      for (const { id } of marks) this.#unsure.delete(id);
      return taken;
    } catch (error) {
      for (const mark of marks) this.#unsure.set(mark.id, { ...mark, mayExist: true });
      if (limit.lockMs !== undefined && sqlStateOf(error) === '55P03') return new Set();
      throw error;
    }
  }

  /** A call by id, of any route and status; null when it does not exist. */
  load(id: ToolCallId): Promise<QueueCall | null> {
    return this.#loads.add(id);
  }

  /** Records the answer of a tool worker, whatever its shape. */
  async record(
    call: QueueCall,
    answer: { readonly status: CallOutcome['status']; readonly result?: unknown; readonly error?: ErrorBody },
    options: { readonly lockedMs?: () => number } = {},
  ): Promise<{ readonly outcome: 'recorded' | 'duplicate'; readonly status: CallOutcome['status'] }> {
    const clean = sanitizeJson({
      ...('result' in answer ? { result: answer.result ?? null } : {}),
      error: answer.error,
    });
    const { result, error } = clean.value as Pick<CallOutcome, 'result' | 'error'>;
    const settlement = toSettlement(
      { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
      {
        status: answer.status,
        ...(result === undefined ? {} : { result }),
        ...(error === undefined ? {} : { error }),
      },
      {
        authorId: `tool:${call.name}`,
        isSanitized: clean.isChanged,
        maxBytes: this.#runtime.limits.maxCardBytes,
      },
    );
    const outcome = await this.#records.add(settlement, options);
    if (outcome === 'duplicate') await this.keepLate(call, answer);
    return { outcome, status: settlement.status };
  }

  /** Keeps an answer as evidence when its call was canceled or timed out before. Never fails. */
  async keepLate(
    call: Pick<QueueCall, 'id'>,
    answer: { readonly status: CallOutcome['status']; readonly result?: unknown; readonly error?: ErrorBody },
  ): Promise<void> {
    try {
      await keepLateAnswer(this.#runtime.pool, {
        toolCallId: call.id,
        id: newId(),
        body: toBody(sanitizeJson(answer).value),
      });
    } catch (error) {
      this.#runtime.log('warn', 'tools.evidence_lost', {
        tool_call_id: call.id,
        error: errorText(error),
      });
    }
  }

  async #keepReturned(call: QueuedCall & { readonly id: ToolCallId }, look: JobState): Promise<void> {
    if (look.state === 'completed') await this.keepLate(call, { status: 'success', result: look.result });
  }

  /** Records the end of a call's job. All other states are left to the sweep. */
  async collect(call: QueueCall): Promise<void> {
    if (!isQueued(call)) return;
    if (call.status === 'pending') {
      const [look] = (await this.#queue.getJobStates([call])) ?? [];
      const decision = look === undefined ? undefined : decideQueueCall(call, look);
      if (decision?.kind !== 'settle') return;
      await this.#settle(call, decision);
    } else if (call.status === 'canceled' || call.status === 'timeout') {
      const [look] = (await this.#queue.getJobStates([call])) ?? [];
      if (look !== undefined) await this.#keepReturned(call, look);
    }
    await this.#queue.remove([call]);
  }

  #settle(
    call: QueueCall,
    decision: Extract<CallDecision, { kind: 'settle' }>,
    options: { readonly lockedMs?: () => number } = {},
  ): Promise<unknown> {
    return this.record(
      call,
      decision.status === 'success' ? decision : { status: decision.status, error: decision.error.toJSON() },
      options,
    );
  }

  /**
   * Queues that seem to have no worker: their calls have waited for longer than `lateMs`, and no worker has taken the oldest of
   * them. Tool workers can be programs of any kind, so the queue cannot say more. Undefined when the queues cannot be asked.
   */
  async findUnserved(lateMs: number): Promise<readonly LateTarget[] | undefined> {
    const late = await findLateTargets(this.#runtime.pool, lateMs);
    const untouched = await Promise.all(
      late.map(({ ids, target }) => this.#queue.isUntouched(ids.map((id) => ({ id, target })))),
    );
    if (untouched.includes(undefined)) return undefined;
    return late.filter((_target, index) => untouched[index] === true);
  }

  /**
   * Removes the jobs of calls that were settled without them, best effort.
   *
   * @returns False when the queue does not answer.
   */
  async forget(
    calls: readonly { readonly id: ToolCallId; readonly target: string | null }[],
  ): Promise<boolean> {
    const queued = calls.filter(isQueued);
    for (const { id } of queued) this.#unsure.delete(id);
    return queued.length === 0 || this.#queue.remove(queued);
  }

  /**
   * Checks the calls that are due: records the results of their jobs, and sends calls again whose job is gone. With a limit, a
   * locked call is left to the next sweep.
   *
   * @returns False when the queue does not answer.
   */
  async sweep({ lockMs, ...clock }: { readonly now?: Date } & LockLimit = {}): Promise<boolean> {
    const calls = (await findDueCalls(this.#runtime.pool, { ...clock, limit: LOOKS_PER_SWEEP })).filter(
      isQueued,
    );
    if (calls.length === 0) return true;
    const looks = await this.#queue.getJobStates(calls);
    if (looks === undefined) return false;
    const patience = lockMs === undefined ? {} : { lockedMs: () => 0 };
    const settled: QueuedCall[] = [];
    const gone: QueueCall[] = [];
    const restIds: ToolCallId[] = [];
    const foundIds: ToolCallId[] = [];
    await Promise.all(
      calls.map(async (call, index) => {
        const look = looks[index];
        if (look === undefined || this.#sending.has(call.id)) return;
        const isSent = call.is_sent && !this.#unsure.has(call.id);
        const decision = decideQueueCall({ ...call, is_sent: isSent }, look);
        if (call.retry === 'never' && look.state !== 'gone') foundIds.push(call.id);
        if (decision.kind === 'send') gone.push(call);
        if (decision.kind === 'rest') restIds.push(call.id);
        if (decision.kind !== 'settle') return;
        try {
          // Settling the call removes its job and the result in it.
          if (call.is_over) await this.#keepReturned(call, look);
          await this.#settle(call, decision, patience);
          settled.push(call);
        } catch (error) {
          this.#runtime.log(sqlStateOf(error) === '55P03' ? 'warn' : 'error', 'tools.record_failed', {
            tool_call_id: call.id,
            error: errorText(error),
          });
        }
      }),
    );
    // The calls that could not be recorded are noted as well: a poison row must not stay ahead of the others forever.
    const settledIds = new Set(settled.map((call) => call.id));
    const callIds = calls.map((call) => call.id).filter((id) => !settledIds.has(id));
    const noted = await noteLooks(this.#runtime.pool, { callIds, restIds, sentIds: foundIds });
    await this.#resend(
      gone.filter(({ id }) => noted.has(id)),
      { lockMs },
    );
    return this.forget(settled);
  }

  async #resend(calls: readonly QueueCall[], limit: LockLimit): Promise<void> {
    if (calls.length === 0) return;
    const args = await loadArguments(
      this.#runtime.pool,
      calls.map((call) => call.id),
    );
    await this.send(
      calls.flatMap((call) => {
        const given = args.get(call.id);
        return given === undefined ? [] : [{ ...call, arguments: given }];
      }),
      limit,
    );
    this.#runtime.log('info', 'tools.sent_again', { tool_call_ids: calls.map((call) => call.id) });
  }
}
