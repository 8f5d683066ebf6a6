/** The announcements after the commit of a submission. */
import { canonicalJson, type JsonValue, type Ring } from '@boxcar/kernel';
import {
  afterTransaction,
  findRings,
  findSubmitted,
  outsideHandlers,
  ringsOf,
  type SubmittedTurn,
} from '@boxcar/store';
import type { Accepted, InnerSubmitOptions, RuntimeCore } from '../core/index.js';
import { announceEnds, announceHandoffEnds, announceTries } from '../end/index.js';
import type { DraftOutcome } from './draft.js';

/** The effects that one try of a submission writes, and announces after its commit. */
export interface Written extends Pick<DraftOutcome, 'turnIds' | 'rings' | 'ended' | 'dueBatchIds'> {
  readonly answer: JsonValue;
  readonly awaitedBatchId: Accepted['awaitedBatchId'];
}

/**
 * Whether the answer under a key is the answer of this try. New turns prove it, and so do new ids in the answer. An answer
 * without new ids may also come from another submission that did the same under the same key at the same moment.
 */
const isAnswerOf = (known: Accepted, { turnIds, answer, awaitedBatchId }: Written): boolean =>
  turnIds.length === 0 &&
  awaitedBatchId === known.awaitedBatchId &&
  canonicalJson(answer) === canonicalJson(known.answer);

/**
 * Returns the answer of a first try whose own answer was lost, and makes the announcements of that try. Under a key that the
 * caller chose, the answer may belong to another submission.
 */
export async function announceFirst(
  runtime: RuntimeCore,
  known: Accepted,
  first: {
    readonly key: string;
    readonly tries: readonly Written[];
    readonly ring: ((rings: readonly Ring[]) => void) | undefined;
  },
): Promise<Accepted> {
  const { key, tries } = first;
  const turns = await findSubmitted(
    runtime.pool,
    tries.flatMap(({ turnIds }) => turnIds),
  );
  const isOwn = key.startsWith('auto:') || turns.length > 0 || tries.some((one) => isAnswerOf(known, one));
  if (isOwn) {
    announce(runtime, turns, first.ring);
    recover(runtime, turns);
    const rung = tries.flatMap(({ rings }) => rings.map(({ turnId }) => turnId));
    runtime.ring(await findRings(runtime.pool, rung));
    await announceTries(
      runtime,
      tries.flatMap(({ ended }) => ended),
    );
    runtime.finishSoon(tries.flatMap(({ dueBatchIds }) => dueBatchIds));
  }
  return { ...known, isReplay: !isOwn };
}

/** Recovers turns that workers of this process have claimed in the commit whose answer was lost. */
function recover({ localWorkers }: RuntimeCore, turns: readonly SubmittedTurn[]): void {
  for (const { turn_id: turnId, epoch, status } of turns)
    if (status === 'running')
      for (const worker of localWorkers) outsideHandlers(() => worker.recover({ turnId, epoch }));
}

/** Announces the written effects: at once, or after the caller's transaction has committed. */
export function announceWritten(
  runtime: RuntimeCore,
  { call, within }: InnerSubmitOptions,
  written: Pick<DraftOutcome, 'turnIds' | 'rings' | 'ended' | 'dueBatchIds' | 'lines' | 'endedHandoffs'> & {
    readonly turns: readonly SubmittedTurn[];
  },
): void {
  const { turnIds, rings, ended, dueBatchIds, lines, endedHandoffs } = written;
  const tell = (turns: readonly SubmittedTurn[]): void => {
    announce(runtime, turns, call?.ring);
    runtime.ring(rings);
    for (const ends of ended) announceEnds(runtime, ends);
    runtime.finishSoon(dueBatchIds);
    for (const { event, fields } of lines) runtime.log('info', event, fields);
    announceHandoffEnds(runtime, endedHandoffs);
  };
  if (within === undefined) tell(written.turns);
  else
    afterTransaction(within.db, () =>
      // If the transaction was rolled back, its turns have no rows.
      runtime.afterwards(async () => {
        const found = new Set((await findSubmitted(runtime.pool, turnIds)).map(({ turn_id }) => turn_id));
        if (turnIds.length === 0 || found.size > 0)
          tell(written.turns.filter(({ turn_id }) => found.has(turn_id)));
      }),
    );
}

/** After the commit: rings for dispatched turns, and a check of the queue for the others. Never fails, never waits. */
function announce(
  runtime: RuntimeCore,
  turns: readonly SubmittedTurn[],
  ring: (rings: readonly Ring[]) => void = (rings) => runtime.ring(rings),
): void {
  ring(ringsOf(turns));
  for (const target of new Set(
    turns.filter((turn) => turn.status === 'queued').map((turn) => turn.worker_target),
  ))
    runtime.promoteSoon(target);
}
