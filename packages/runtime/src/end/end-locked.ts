/**
 * Ends many turns in the caller's transaction, which has locked them. All ends are written together. If that fails, the
 * list is split in halves until the turn whose end cannot be written is alone.
 *
 * L1  A turn that cannot be ended does not prevent the other ends. It is given up (`turn_runs`): no worker runs it
 *     again. The sweep tries to end it again (`turn_ends`).
 * L2  A turn ends before the turns whose ends answer its calls, so that such an answer never resumes it. A call of a
 *     turn that could not be ended is not answered: it is closed with its turn.
 * L3  A failure that is not caused by a turn, or that affects many turns, fails the whole operation.
 */
import { type ErrorBody, KernelError, type ToolCallId, type TurnId, toErrorBody } from '@boxcar/kernel';
import {
  type CallSettlement,
  type CommitResult,
  commitWithin,
  hastenLooksWithin,
  loadOpenCalls,
  noteWithin,
  notifyCanceled,
  type OpenCallRow,
  type StepCommit,
  settleCalls,
  type Tx,
  withdrawTickets,
} from '@boxcar/store';
import { isAboutTurn, toCause } from './causes.js';
import { buildResult } from './ending.js';

/** L3: above this number, single rows are not the cause. */
const MAX_UNENDED = 20;

/** A turn whose end could not be written, and the reason. */
export interface UnendedTurn {
  readonly turnId: TurnId;
  readonly error: ErrorBody;
}

/** What `announceEnds` reports after the commit, and the turns that could not be ended. */
export type EndedTurns = Pick<
  CommitResult,
  'endedTurnIds' | 'doorTurnIds' | 'backlogTargets' | 'dueBatchIds' | 'noticeTurnIds' | 'rings'
> & { readonly unended: readonly UnendedTurn[] };

export const NOTHING_ENDED: EndedTurns = {
  endedTurnIds: [],
  doorTurnIds: [],
  backlogTargets: [],
  dueBatchIds: [],
  noticeTurnIds: [],
  rings: [],
  unended: [],
};

type End = StepCommit & { readonly end: NonNullable<StepCommit['end']> };

/**
 * @param ends - Ends that are written by a process other than the turn's worker, except possibly `own`.
 * @param own - The turn that must end, by its holder or from outside. If it cannot be ended, nothing is done.
 * @throws the error that prevents the end of `own`.
 */
export async function endLocked(tx: Tx, ends: readonly End[], own?: TurnId): Promise<EndedTurns> {
  const ending = new EndByHalves(tx, own);
  await ending.end(waitingFirst(ends));
  for (const { end, error } of ending.unended) await giveUp(tx, end, error);
  await notifyCanceled(
    tx,
    ends.flatMap(({ turnId, holderId }) => (holderId === null || turnId === own ? [] : [turnId])),
  );
  const { results, unended } = ending;
  return {
    endedTurnIds: results.flatMap((result) => result.endedTurnIds),
    doorTurnIds: results.flatMap((result) => result.doorTurnIds),
    backlogTargets: [...new Set(results.flatMap((result) => result.backlogTargets))],
    dueBatchIds: [...new Set(results.flatMap((result) => result.dueBatchIds))],
    noticeTurnIds: results.flatMap((result) => result.noticeTurnIds),
    rings: results.flatMap((result) => result.rings),
    unended: unended.map(({ end, error }) => ({ turnId: end.turnId, error: toErrorBody(error) })),
  };
}

/** L2. */
function waitingFirst(ends: readonly End[]): readonly End[] {
  const waiters = new Map(ends.map(({ turnId, end }) => [turnId, end.settles?.turnId]));
  const depthOf = (turnId: TurnId): number => {
    const waiter = waiters.get(turnId);
    return waiter === undefined || !waiters.has(waiter) ? 0 : depthOf(waiter) + 1;
  };
  const depths = new Map(ends.map(({ turnId }) => [turnId, depthOf(turnId)]));
  return [...ends].sort((a, b) => (depths.get(a.turnId) ?? 0) - (depths.get(b.turnId) ?? 0));
}

class EndByHalves {
  readonly #tx: Tx;
  readonly #own: TurnId | undefined;
  readonly results: CommitResult[] = [];
  readonly unended: { readonly end: End; readonly error: unknown }[] = [];

  constructor(tx: Tx, own: TurnId | undefined) {
    this.#tx = tx;
    this.#own = own;
  }

  async end(ends: readonly End[]): Promise<void> {
    // Not awaited: if this statement fails, the next one, which is sent together with it, fails too and reports it.
    this.#tx.query({ text: 'savepoint ends' }).catch(() => undefined);
    try {
      const result = await commitWithin(ends.map((end) => this.#withoutLostWaiter(end)))(this.#tx);
      await closeCalls(this.#tx, result.endedTurnIds);
      this.results.push(result);
    } catch (error) {
      if (!isAboutTurn(error) || this.unended.length >= MAX_UNENDED) throw error;
      const [only] = ends;
      if (ends.length === 1 && only?.turnId === this.#own) throw error;
      // The last savepoint of this name is the one above.
      await this.#tx.query({ text: 'rollback to savepoint ends' });
      if (ends.length === 1 && only !== undefined) {
        this.unended.push({ end: only, error });
        return;
      }
      const middle = Math.ceil(ends.length / 2);
      await this.end(ends.slice(0, middle));
      await this.end(ends.slice(middle));
    }
  }

  #withoutLostWaiter(commit: End): End {
    const waiter = commit.end.settles?.turnId;
    const isLost = waiter !== undefined && this.unended.some(({ end }) => end.turnId === waiter);
    return isLost ? { ...commit, end: { ...commit.end, settles: null } } : commit;
  }
}

/** L1. */
async function giveUp(tx: Tx, { turnId, projectId, end }: End, error: unknown): Promise<void> {
  const row = { rowId: turnId, projectId };
  const { code, message } = end.error ?? toErrorBody(error);
  await noteWithin(tx, { ...row, kind: 'turn_runs', error: `${code}: ${message}` }, { maxTries: 1 });
  await noteWithin(tx, { ...row, kind: 'turn_ends', error: toCause(error) });
}

const turnEnded = (turnId: TurnId, toolCallId: ToolCallId): ErrorBody =>
  new KernelError('turn_ended', {
    message: 'The turn of this call has ended.',
    details: { turn_id: turnId, tool_call_id: toolCallId },
  }).toJSON();

/** Closes a call whose answer is no longer awaited. A later result from its worker is kept as evidence. */
export const closingOf = (call: OpenCallRow): CallSettlement =>
  buildResult(
    { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
    { status: 'canceled', error: turnEnded(call.turn_id, call.id) },
    { authorId: 'kernel' },
  );

async function closeCalls(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  const calls = await loadOpenCalls(tx, turnIds);
  await withdrawTickets(
    tx,
    calls.filter((call) => call.is_asked).map(({ id }) => id),
  );
  const settlements = calls.filter((call) => call.route !== 'queue').map(closingOf);
  if (settlements.length > 0) await settleCalls(tx, settlements);
  // A process that can reach the queue removes the jobs of calls to external workers.
  if (settlements.length < calls.length) await hastenLooksWithin(tx, turnIds);
}
