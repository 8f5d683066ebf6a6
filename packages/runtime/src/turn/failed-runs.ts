/**
 * Handles turns that could not be claimed, loaded or run, and turns whose end could not be written:
 *
 * A1  A failure is noted in the rows, with its cause and the step. The turn is handed back and not rung. The sweep rings it again
 *     after 2, 4, 8 and 16 seconds, and any worker may take it. After five failures at one step the turn is given up and ends as
 *     `failed` with the cause. The note stays as a dead letter.
 * A2  A failure that affects other turns too (a server that is away or full, a locked row, an outdated build) does not count
 *     as a loss. It is noted, so that the turn is not rung again at once. Only the tenth such failure at one step, about a quarter of
 *     an hour after the first, gives the turn up: the server wrote ten notes in this time but could not run the turn.
 * A3  A turn whose rows are damaged is given up at once, because the damage stays.
 * A4  The sweep retries an end that cannot be written, and then answers the calls and batches that wait for the turn.
 */
import {
  contentSchema,
  findingsOf,
  KernelError,
  type Ring,
  safeParse,
  type ToolCallId,
  type TurnId,
  toErrorBody,
  type WorkerId,
} from '@boxcar/kernel';
import {
  findEndable,
  type HeldAt,
  isServerTrouble,
  type LoadedView,
  MAX_TRIES,
  type NotedFailure,
  noteSweepFailure,
  releaseNoted,
  releaseTurns,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { endAndAnnounce, endWaiting, isShared, toCause } from '../end/index.js';
import type { TurnLoader, ViewedTurn } from '../view/index.js';

type FailedRunsHost = Pick<RuntimeCore, 'pool' | 'log' | 'ring' | 'announceEnds' | 'builds'>;

/** After how many failures of one kind at one step a turn is given up: A1, A2, A3. */
const TRIES = { own: MAX_TRIES, shared: 10, damage: 1 };

interface Failure {
  readonly kind: keyof typeof TRIES;
  readonly error: unknown;
}

const toFailure = (error: unknown): Failure => ({ kind: isShared(error) ? 'shared' : 'own', error });

/** An error for the first card of a view whose content is not valid. */
function findDamage(view: LoadedView): KernelError | undefined {
  const shown = [...view.contexts.values()].flat().map(({ card }) => card);
  const written = view.entries.flatMap(({ card }) => (card === null ? [] : [card]));
  for (const card of [...shown, ...written]) {
    const parsed = safeParse(contentSchema, card.content);
    const [issue] = parsed.success ? [] : findingsOf(parsed.error, 'content');
    if (issue === undefined) continue;
    const { path } = issue;
    return new KernelError('card_damaged', {
      message: `Card ${card.id} cannot be read: ${path}: ${issue.message}.`,
      details: { card_id: card.id, path },
    });
  }
  return undefined;
}

/** Replaces the error by one that names the damaged card, if a damaged card is the cause. */
async function explain(error: unknown, loader: TurnLoader, turn: ViewedTurn): Promise<unknown> {
  if (error instanceof KernelError && error.code !== 'unsupported_format') return error;
  try {
    return findDamage(await loader.view(turn)) ?? error;
  } catch {
    return error;
  }
}

/** A turn that a worker holds. */
export interface HeldRun {
  readonly turn: ViewedTurn & HeldAt;
  readonly holderId: WorkerId;
  /** Calls of the turn that were begun and must not be run twice. */
  readonly begunIds: readonly ToolCallId[];
}

/**
 * A1 for a turn that its worker holds. Never throws: when nothing can be written now, the heartbeat finds the turn later.
 *
 * @returns False when this worker may still hold the turn.
 */
export async function handBackFailed(
  runtime: FailedRunsHost,
  { turn, holderId, begunIds }: HeldRun,
  { error, loader }: { readonly error: unknown; readonly loader: TurnLoader },
): Promise<boolean> {
  const { turnId, epoch } = turn;
  try {
    const known = await judge(runtime, error, () => explain(error, loader, turn));
    if (known.kind === 'newer') {
      const { format } = known;
      runtime.ring(await releaseTurns(runtime.pool, holderId, [turn], { begunIds, format }));
      runtime.log('warn', 'turn.not_readable', { turn_id: turnId, error: toCause(error), format });
      return true;
    }
    try {
      const isLoss = known.kind !== 'shared';
      const noted = await releaseNoted(runtime.pool, holderId, toNote(turnId, known), {
        epoch,
        begunIds,
        isLoss,
        maxTries: TRIES[known.kind],
      });
      // Undefined: this worker no longer holds the turn.
      if (noted !== undefined) await conclude(runtime, turnId, known, noted);
      return true;
    } catch (failure) {
      if (isServerTrouble(failure)) throw failure;
      await note(runtime, turnId, known);
      return false;
    }
  } catch (failure) {
    runtime.log('warn', 'turn.not_given_back', { turn_id: turnId, error: toCause(failure) });
    return false;
  }
}

/** The meaning of a failure. `newer`: only builds of this format can read the turn. */
type Judgement = Failure | { readonly kind: 'newer'; readonly format: number };

async function judge(
  { builds }: FailedRunsHost,
  error: unknown,
  explained: () => Promise<unknown>,
): Promise<Judgement> {
  if (isShared(error)) return toFailure(error);
  if (error instanceof KernelError && error.code === 'unsupported_format' && (await builds.mayBeNewer()))
    return { kind: 'newer', format: builds.build.schemaVersion + 1 };
  const cause = await explained();
  const isDamage = cause instanceof KernelError && DAMAGE.has(cause.code);
  return isDamage ? { kind: 'damage', error: cause } : toFailure(cause);
}

/** A3. */
const DAMAGE: ReadonlySet<string> = new Set(['card_damaged', 'unsupported_format']);

/**
 * A1 for a turn whose claim threw. @returns True when the failure was noted. Then this worker must not ring the turn.
 */
export async function noteFailedClaim(
  runtime: FailedRunsHost,
  { turnId }: Pick<Ring, 'turnId'>,
  error: unknown,
): Promise<boolean> {
  try {
    await note(runtime, turnId, toFailure(error));
    return true;
  } catch (failure) {
    runtime.log('warn', 'turn.failure_not_noted', { turn_id: turnId, error: toCause(failure) });
    return false;
  }
}

/**
 * Hands turns back one by one, after the attempt for all of them together failed. A locked turn is left for the next attempt.
 *
 * @returns The turns that were given up.
 */
export async function releaseEach(
  runtime: FailedRunsHost,
  { holderId, begunIds }: Pick<HeldRun, 'holderId' | 'begunIds'>,
  turns: readonly HeldAt[],
): Promise<readonly TurnId[]> {
  const givenUp: TurnId[] = [];
  for (const turn of turns) {
    const { turnId } = turn;
    try {
      const options = { begunIds, skipsLocked: true };
      runtime.ring(await releaseTurns(runtime.pool, holderId, [turn], options));
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      if (isShared(error))
        runtime.log('warn', 'turn.not_given_back', { turn_id: turnId, error: toCause(error) });
      else if (await note(runtime, turnId, toFailure(error))) givenUp.push(turnId);
    }
  }
  return givenUp;
}

const toNote = (rowId: TurnId, { error }: Failure) =>
  ({ kind: 'turn_runs', rowId, projectId: null, error: toCause(error) }) as const;

/** @returns True when the turn was given up. */
async function note(runtime: FailedRunsHost, turnId: TurnId, failure: Failure): Promise<boolean> {
  const maxTries = TRIES[failure.kind];
  const noted = await noteSweepFailure(runtime.pool, toNote(turnId, failure), { maxTries });
  return conclude(runtime, turnId, failure, noted);
}

/** Logs the noted failure, and ends the turn after the last try. @returns True when the turn was given up. */
async function conclude(
  runtime: FailedRunsHost,
  turnId: TurnId,
  { error }: Failure,
  { attempts, isDead }: NotedFailure,
): Promise<boolean> {
  runtime.log('error', isDead ? 'turn.given_up' : 'turn.run_failed', {
    turn_id: turnId,
    attempts,
    error: toCause(error),
  });
  if (isDead) await endFailed(runtime, turnId, { error, attempts });
  return isDead;
}

/** Ends a turn that was given up; when that fails the sweep tries again (A4). */
async function endFailed(
  runtime: FailedRunsHost,
  turnId: TurnId,
  { error, attempts }: { readonly error: unknown; readonly attempts: number },
): Promise<void> {
  const { code, message, details } = toErrorBody(error);
  const ending = { code, message, details: { ...details, attempts } };
  try {
    const turn = await findEndable(runtime.pool, turnId);
    if (turn === undefined) return;
    await endAndAnnounce(runtime, {}, (tx) => endWaiting(tx, turn, { status: 'failed', error: ending }));
  } catch (failure) {
    runtime.log('error', 'turn.not_ended', { turn_id: turnId, error: toCause(failure) });
  }
}
