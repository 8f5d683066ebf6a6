/**
 * Reports the end of a handoff to the agent that asked for it with `notify`. The process that saw the end or the sweep
 * does it. Everything may run twice.
 */
import {
  HANDOFF_RESULT_INSTRUCTION,
  type HandoffId,
  handoffResultText,
  handoffStatusOf,
  jsonText,
  KernelError,
} from '@boxcar/kernel';
import {
  closeHandoffNotice,
  type HandoffNotice,
  type LockLimit,
  type LoggedEvent,
  loadHandoffNotice,
  type NewTapeEntry,
  tellHandoffEnd,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { toNewEntry } from '../tape/index.js';
import { REFUSALS } from './wake-refusals.js';

/** A reset between the read and the lock needs another round. */
const MAX_ROUNDS = 10;

export type HandoffTeller = Pick<RuntimeCore, 'log' | 'tellSourceSoon' | 'webhooks'>;

/**
 * After a commit that changed handoffs: informs the log of the process, the receiver of a callback and the agent that
 * asked.
 */
export function announceHandoffs(runtime: HandoffTeller, events: readonly LoggedEvent[]): void {
  for (const { type, handoff_id, data } of events) runtime.log('info', type, { handoff_id, ...data });
  announceEnds(
    runtime,
    events.map(({ handoff_id: handoffId, calls_back: callsBack, notifies }) => ({
      handoffId,
      callsBack,
      notifies,
    })),
  );
}

/** Starts the callbacks and notices of these ended handoffs soon. */
export function announceEnds(
  { tellSourceSoon, webhooks }: Pick<RuntimeCore, 'tellSourceSoon' | 'webhooks'>,
  ends: readonly { readonly handoffId: HandoffId; readonly callsBack: boolean; readonly notifies: boolean }[],
): void {
  if (ends.some(({ callsBack }) => callsBack)) webhooks.wake();
  const told = ends.flatMap(({ handoffId, notifies }) => (notifies ? [handoffId] : []));
  for (const handoffId of new Set(told)) tellSourceSoon(handoffId);
}

/** The message, written in the name of the handoff's maker. */
function messageOf(notice: HandoffNotice): NewTapeEntry {
  const { handoffId, projectId, targetAgent, phase, result, error, makerId } = notice;
  const status = handoffStatusOf(phase);
  const content = handoffResultText({
    handoffId,
    targetAgent,
    status,
    outcome:
      status === 'completed'
        ? { result: typeof result === 'string' ? result : jsonText(result) }
        : { error: error === null ? phase : `${error.code}: ${error.message}` },
  });
  const meta = { handoff_result: { handoff_id: handoffId } };
  return toNewEntry({ kind: 'message', content, meta }, { projectId, actorId: makerId });
}

/** The event on the tape for a turn that is not started. */
const notStarted = (notice: HandoffNotice, { code, message }: KernelError): NewTapeEntry =>
  toNewEntry(
    { kind: 'event', name: 'turn.not_started', data: { handoff_id: notice.handoffId, code, message } },
    { projectId: notice.projectId, actorId: notice.agentId },
  );

/** Gives the agent one turn that reads the new entries. @returns The refusal, if the turn may not start. */
async function wake(
  runtime: Pick<RuntimeCore, 'accept'>,
  { handoffId, projectId, agentId, makerId, causeId }: HandoffNotice,
): Promise<KernelError | undefined> {
  const args = {
    target_strategy: 'reuse',
    target_ref: agentId,
    instruction: HANDOFF_RESULT_INSTRUCTION,
  };
  try {
    await runtime.accept('delegate_async', args, {
      projectId,
      idempotencyKey: `handoff-result:${handoffId}`,
      isKernelKey: true,
      ...(causeId === null ? { sourceAgentId: makerId } : { wokenBy: causeId }),
    });
    return undefined;
  } catch (error) {
    if (!(error instanceof KernelError) || !REFUSALS.includes(error.code)) throw error;
    return error;
  }
}

/** Does the due steps after the end of a handoff, if any. */
export async function tellSource(
  runtime: Pick<RuntimeCore, 'pool' | 'accept' | 'log'>,
  handoffId: HandoffId,
  limit: LockLimit = {},
): Promise<void> {
  const { pool, log } = runtime;
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    const notice = await loadHandoffNotice(pool, handoffId);
    if (notice === undefined) return;
    const told = await tellHandoffEnd(
      pool,
      notice,
      { entry: messageOf(notice), why: (refusal) => notStarted(notice, refusal) },
      limit,
    );
    if (told === 'told') return;
    if (told === 'forbidden') {
      log('warn', 'handoff.not_told', { handoff_id: handoffId, agent_id: notice.agentId });
      return;
    }
    if (told === 'moved') continue;
    const refused = await wake(runtime, notice);
    if (refused !== undefined)
      log('warn', 'turn.not_started', {
        handoff_id: handoffId,
        code: refused.code,
        error: refused.message,
      });
    await closeHandoffNotice(pool, notice, refused && notStarted(notice, refused), limit);
    return;
  }
  throw new KernelError('internal_error', {
    message: `The end of handoff ${handoffId} could not be reported: the tape of its source agent is reset again and again.`,
    details: { handoff_id: handoffId },
  });
}
