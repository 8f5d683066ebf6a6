/**
 * What a handoff says, part by part, from the rows.
 *
 * S1  Numbers rise by one. A reader that asks for what came after the last part that it saw misses nothing, in any process, at any time.
 * S2  After the last `reset` the texts joined are the result, if it is a text: what was not written as a part follows from the result.
 * S3  The last part is `result` or `error`, as the row has it.
 * S4  After an erasure nobody can say any more which parts followed from the result: the last part follows the last one that the reader saw.
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
/** A reset, a text and the result may follow from the row. */
const MAX_END_PARTS = 3;
/** How often the rows are read without a notice. */
const LOOK_MS = 500;

export interface StreamOptions {
  /** The number of the last part that was seen. Default 0. */
  readonly afterSeq?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

interface FollowOptions extends StreamOptions {
  readonly projectId: ProjectId;
  /** Whether the stream is over although the handoff goes on. Asked after each look. */
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
    // Read before its parts: nothing is added after its end.
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

/** What follows from the row of a handoff that has ended: it never stood in a part (S2, S3). */
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
