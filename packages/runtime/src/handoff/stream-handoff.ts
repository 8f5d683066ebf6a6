/**
 * Streams the text of a handoff, part by part, from the rows.
 *
 * S1  Numbers rise by one. A reader that asks for the parts after the last part that it saw misses nothing, in any process, at any time.
 * S2  After the last `reset`, the joined texts are the result, if the result is a text. Text that was not written as a part is derived from
 *     the result.
 * S3  The last part is `result` or `error`, as in the row.
 * S4  After an erasure the parts that were derived from the result are no longer known: the last part follows the last part that the reader
 *     saw.
 * Rule: docs/reference/handoff.md, "Streams".
 */
import {
  checkWholeNumber,
  type Handoff,
  type HandoffPart,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { loadSaid, loadTurnParts, type Said, type TurnPart } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { loadHandoff, waitForTurnOf } from './hand-off.js';

const PAGE = 200;
/** A reset, a text and the result may be derived from the row. */
const MAX_END_PARTS = 3;
/** How often the rows are read when no notification arrives. */
const LOOK_MS = 500;

/** Where a stream of a handoff begins, and the signal that ends it. */
export interface StreamOptions {
  /** The number of the last part that the reader saw. Default 0. */
  readonly afterSeq?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

interface FollowOptions extends StreamOptions {
  readonly projectId: ProjectId;
  /** Whether the stream ends although the handoff continues. Asked after each look. */
  readonly isOver?: (() => Promise<boolean>) | undefined;
}

const toPart = ({ seq, text }: TurnPart): HandoffPart =>
  text === null ? { seq, type: 'reset' } : { seq, type: 'text', text };

/** @throws KernelError `bad_request`, `not_found`; the signal's reason. */
export async function* streamHandoff(
  runtime: RuntimeCore,
  handoffId: Handoff['handoff_id'],
  { projectId, afterSeq = 0, signal, isOver }: FollowOptions,
): AsyncGenerator<HandoffPart, void> {
  checkWholeNumber(afterSeq, 'afterSeq', { min: 0, max: 2 ** 31 - 1 });
  const waiting = await waitForTurnOf(runtime, handoffId, { projectId, signal });
  if (waiting.turn_id === null) {
    yield* endOf(waiting, { seq: 0, text: '', is_erased: false }, afterSeq);
    return;
  }
  const turnId = waiting.turn_id as TurnId;
  using follower = runtime.watcher.follow(turnId);
  let after = afterSeq;
  for (;;) {
    await follower.news(LOOK_MS, signal);
    // The row is read before its parts: no part is added after the end.
    const handoff = await loadHandoff(runtime, handoffId, projectId);
    for (let page: TurnPart[] = []; ; ) {
      page = await loadTurnParts(runtime.pool, { turnId, afterSeq: after, limit: PAGE });
      for (const part of page) {
        after = part.seq;
        yield toPart(part);
      }
      if (page.length < PAGE) break;
    }
    if (handoff.ended_at === null) {
      if ((await isOver?.()) === true) return;
      continue;
    }
    yield* endOf(handoff, await loadSaid(runtime.pool, turnId), after);
    return;
  }
}

/** Parts that are derived from the row of an ended handoff and were never stored as parts (S2, S3). */
function endOf({ status, result, error }: Handoff, said: Said, after: number): readonly HandoffPart[] {
  const isDone = status === 'completed';
  if (isDone && said.is_erased)
    return after < said.seq + MAX_END_PARTS
      ? [{ seq: Math.max(said.seq, after) + 1, type: 'result', status, result }]
      : [];
  let { seq } = said;
  const parts: HandoffPart[] = [];
  const text = typeof result === 'string' ? result : '';
  if (isDone && !text.startsWith(said.text)) parts.push({ seq: ++seq, type: 'reset' });
  const rest = text.startsWith(said.text) ? text.slice(said.text.length) : text;
  if (isDone && rest !== '') parts.push({ seq: ++seq, type: 'text', text: rest });
  parts.push(
    isDone
      ? { seq: ++seq, type: 'result', status, result }
      : { seq: ++seq, type: 'error', status: status as 'failed' | 'rejected', error },
  );
  return parts.filter((part) => part.seq > after);
}
