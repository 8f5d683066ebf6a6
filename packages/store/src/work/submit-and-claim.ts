import type pg from 'pg';
import { sendOnce, type Tx } from '../db/index.js';
import { type SubmissionItem, type SubmissionResult, writeSubmissions } from '../submit/index.js';
import { AlongClaim, type ClaimAlong, type ViewedClaim } from '../turn/index.js';

/**
 * Writes submissions and claims some of their turns, in one transaction and one round trip. Not repeated.
 *
 * @returns One result per submission, and one claim per ring of `along`.
 */
export async function submitAndClaim(
  pool: pg.Pool,
  items: readonly SubmissionItem[],
  along: ClaimAlong,
): Promise<{ readonly results: readonly SubmissionResult[]; readonly claims: readonly ViewedClaim[] }> {
  const claiming = new AlongClaim(along);
  const send = async (tx: Tx): Promise<readonly SubmissionResult[]> => {
    const [results] = await Promise.all([writeSubmissions(tx, items), claiming.claim(tx)]);
    return results;
  };
  const results = await sendOnce(pool, send, { after: (db) => claiming.read(db) });
  return { results, claims: await claiming.outcomes() };
}
