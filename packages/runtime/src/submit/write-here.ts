/** The write of submissions. */
import {
  isTransient,
  type SubmissionItem,
  type SubmissionResult,
  submitAndClaim,
  type ViewedClaim,
  writeSubmissions,
} from '@boxcar/store';
import { claimOf, joinAlong, type Reservation, type RuntimeCore } from '../core/index.js';

type Process = Pick<RuntimeCore, 'pool' | 'localWorkers'>;

/**
 * Writes submissions in one statement. A turn that is submitted alone is taken in the same commit, where a worker of this process has a
 * slot for it. Where there is none, workers of other processes are told of a submission that comes alone; many find them awake.
 */
export async function writeHere(
  process: Process,
  items: readonly SubmissionItem[],
): Promise<readonly SubmissionResult[]> {
  const { pool } = process;
  const reservations = items.map((item) => reserveFor(process, item));
  const along = joinAlong(reservations.map((reservation) => reservation?.along));
  if (along === undefined) return writeSubmissions(pool, items, { hints: items.length === 1 });
  let claims: readonly ViewedClaim[] | undefined;
  try {
    const written = await submitAndClaim(pool, items, along);
    claims = written.claims;
    return written.results.map((result, index) => {
      const claim = claimOf(reservations[index]?.along, along, written.claims);
      return claim?.outcome === 'claimed' ? asRunning(result) : result;
    });
  } catch (error) {
    claims = along.rings.map(() => ({ outcome: 'stale' }));
    // If only the answer was lost, whoever finds out recovers the turns (announce.ts).
    if (isTransient(error)) throw error;
    // A turn that cannot be taken is submitted all the same, and rung.
    return await writeSubmissions(pool, items);
  } finally {
    for (const one of reservations) one?.settle(claimOf(one.along, along, claims));
  }
}

function reserveFor(
  { localWorkers }: Process,
  { submission: { turns } }: SubmissionItem,
): Reservation | undefined {
  const [turn, second] = turns;
  if (turn === undefined || second !== undefined) return undefined;
  for (const worker of localWorkers) {
    const reservation = worker.reserve({
      turnId: turn.id,
      epoch: FIRST_EPOCH,
      workerTarget: turn.workerTarget,
    });
    if (reservation !== undefined) return reservation;
  }
  return undefined;
}

/** Of a turn that is dispatched by its submission. */
const FIRST_EPOCH = 1;

/** Nobody rings for it. */
const asRunning = (result: SubmissionResult): SubmissionResult =>
  result.outcome === 'accepted'
    ? { ...result, turns: result.turns.map((turn) => ({ ...turn, status: 'running' })) }
    : result;
