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
 * Writes submissions in one statement. A turn that is submitted alone is claimed in the same commit when a worker of this process
 * has a free slot for it. Otherwise a single submission sends a hint to the workers of other processes; with many submissions
 * these workers are awake anyway.
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
    // If only the answer was lost, the process that finds the commit recovers the turns (announce.ts).
    if (isTransient(error)) throw error;
    // A turn that cannot be claimed is still submitted, and rung.
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

/** The epoch of a turn that its submission dispatches. */
const FIRST_EPOCH = 1;

/** A running turn needs no ring. */
const asRunning = (result: SubmissionResult): SubmissionResult =>
  result.outcome === 'accepted'
    ? { ...result, turns: result.turns.map((turn) => ({ ...turn, status: 'running' })) }
    : result;
