/**
 * Reports the end of a session's turn on the tape that the session was forked from. The process that saw the end or the
 * sweep does it. Everything may run twice.
 */
import {
  FORK_RESULT_INSTRUCTION,
  forkResultText,
  formatTapeRef,
  type JsonValue,
  jsonText,
  KernelError,
  type TurnId,
  UNREAD_RESULTS_INSTRUCTION,
} from '@boxcar/kernel';
import {
  closeNotice,
  closeOfTurn,
  type LockLimit,
  loadNotice,
  markTold,
  type NewTapeEntry,
  type Notice,
  passUnseen,
  tellEnd,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { deliverableOf } from '../lib/index.js';
import { toNewEntry } from '../tape/index.js';
import { announceHandoffs, type HandoffTeller } from './tell-source.js';
import { REFUSALS } from './wake-refusals.js';

/**
 * The report of an end and the unread entries are two notices of one turn. A reset between the read and the lock needs
 * another round.
 */
const MAX_ROUNDS = 10;

const textOf = (deliverable: JsonValue): string =>
  typeof deliverable === 'string' ? deliverable : jsonText(deliverable);

/** The message, written in the name of the session's agent. */
function messageOf(notice: Notice, session: NonNullable<Notice['session']>): NewTapeEntry {
  const content = forkResultText({
    session: session.name,
    status: notice.status,
    tapeRef: formatTapeRef({
      workspace: notice.projectId,
      // By the id of its box: after a reset, the name refers to another tape.
      tape: notice.outputBoxId,
      target: { kind: 'entry', position: notice.startPosition ?? notice.lastPosition },
      head: notice.lastPosition,
    }),
    summary: textOf(deliverableOf(notice.content)),
  });
  const author = { projectId: notice.projectId, actorId: notice.agentId };
  return toNewEntry({ kind: 'message', content, meta: { fork_result: { turn_id: notice.turnId } } }, author);
}

/** A turn that could not be started, and the reason. */
interface Refused {
  readonly causeId: TurnId;
  readonly error: KernelError;
}

/**
 * Gives the agent one turn that reads the new entries. The turn starts in the run of the newest end that may start one.
 *
 * @returns The refusals; empty when the agent has its turn.
 */
async function wake(runtime: Pick<RuntimeCore, 'accept'>, notice: Notice): Promise<readonly Refused[]> {
  const { session, turnId, projectId, channelId, unseenPosition, causeIds } = notice;
  const agentId = session === null ? notice.agentId : session.parentAgentId;
  const key = session === null ? `unseen:${turnId}:${unseenPosition}` : `fork-result:${turnId}`;
  const instruction = notice.hasHandoffs ? UNREAD_RESULTS_INSTRUCTION : FORK_RESULT_INSTRUCTION;
  const args = { target_strategy: 'reuse', target_ref: agentId, instruction };
  const refused: Refused[] = [];
  for (const causeId of causeIds) {
    try {
      await runtime.accept('delegate_async', args, {
        projectId,
        channelId,
        idempotencyKey: key,
        wokenBy: causeId,
      });
      return [];
    } catch (error) {
      if (!(error instanceof KernelError) || !REFUSALS.includes(error.code)) throw error;
      refused.push({ causeId, error });
    }
  }
  return refused;
}

/** The event on the tape for a turn that is not started. */
const notStarted = (notice: Notice, { causeId, error: { code, message } }: Refused): NewTapeEntry =>
  toNewEntry(
    { kind: 'event', name: 'turn.not_started', data: { turn_id: causeId, code, message } },
    { projectId: notice.projectId, actorId: notice.agentId },
  );

/** Records and announces the end of the handoffs that a turn has served. */
export async function closeHandoffs(
  runtime: HandoffTeller & Pick<RuntimeCore, 'pool'>,
  turnId: TurnId,
): Promise<void> {
  announceHandoffs(runtime, await closeOfTurn(runtime.pool, turnId));
}

/** Does the due steps after the end of a turn, if any. */
export async function tellParent(
  runtime: HandoffTeller & Pick<RuntimeCore, 'pool' | 'accept'>,
  turnId: TurnId,
  limit: LockLimit = {},
): Promise<void> {
  const { pool } = runtime;
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    const notice = await loadNotice(pool, turnId);
    if (notice === undefined) return;
    const { session, unseenPosition, isTold, isHandoff } = notice;
    if (isTold && isHandoff) {
      await closeHandoffs(runtime, turnId);
      if (session === null) {
        await markTold(pool, turnId);
        continue;
      }
    }
    const told =
      session !== null
        ? await tellEnd(
            pool,
            notice,
            {
              entry: messageOf(notice, session),
              why: (error) => notStarted(notice, { causeId: turnId, error }),
            },
            limit,
          )
        : unseenPosition !== null
          ? await passUnseen(pool, { ...notice, unseenPosition }, limit)
          : 'told';
    if (told === 'forbidden')
      runtime.log('warn', 'turn.not_told', { turn_id: turnId, box_id: session?.parentBoxId });
    if (told !== 'wake') continue;
    const refused = await wake(runtime, notice);
    for (const { causeId, error } of refused)
      runtime.log('warn', 'turn.not_started', {
        turn_id: turnId,
        cause_turn_id: causeId,
        code: error.code,
        error: error.message,
      });
    await closeNotice(
      pool,
      notice,
      refused.map((one) => notStarted(notice, one)),
      limit,
    );
  }
  throw new KernelError('internal_error', {
    message: `The end of turn ${turnId} could not be reported: its parent's tape is reset again and again.`,
    details: { turn_id: turnId },
  });
}
