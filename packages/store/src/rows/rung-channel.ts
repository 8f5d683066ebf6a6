/**
 * Hints about turns that have just been dispatched: the submission's own commit sends a notice to one worker. Each turn also has a job
 * in the queue. So a hint that is lost, or for which its worker has no free slot, only costs time.
 */
import { type Ring, tryParseId, type WorkerId } from '@boxcar/kernel';

const PREFIX = 'boxcar_rung_';

/** The channel of one worker. */
export const rungChannel = (workerId: WorkerId): string => `${PREFIX}${workerId.replaceAll('-', '')}`;

/** The same as SQL, from the id of a row `w`. */
export const RUNG_CHANNEL = `'${PREFIX}' || replace(w.id::text, '-', '')`;

/** SQL of the payload about turn `d` at its first epoch. */
export const RUNG_PAYLOAD = "d.id || ' 1 ' || d.worker_target";

/** @returns Undefined if the payload is not a hint. Any role may send a notice, and only a turn at its first epoch has a hint. */
export function parseRung(payload: string): Ring | undefined {
  const [, id = '', workerTarget = ''] = /^(\S+) 1 (.*)$/.exec(payload) ?? [];
  const turnId = tryParseId<'turn'>(id);
  return turnId && { turnId, epoch: 1, workerTarget };
}
