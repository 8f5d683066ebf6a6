/**
 * What the watchdog of a worker whose event loop is held sends on a connection of its own. Texts, because its thread shares no module
 * with the process.
 */
import { MAX_TRIES, NOTE_TEXT } from '../rows/index.js';
import { hasStatus } from '../turn/index.js';

export interface BlockedWorkerTexts {
  /**
   * `$1`: the workers of the process. `$2`: the turn that is charged with a loss, or null; all are charged when no worker of `$1`
   * holds it. `$3`: all are charged. Gives the ids of the turns that are handed back.
   */
  readonly release: string;
  /** `$1` to `$7`: null, `turn_runs` or `blocked_jobs`, the turn or the note id of the job, null, the cause, the tries, false. */
  readonly note: string;
  /** Of a turn. */
  readonly maxTries: number;
  /** Of a job, whose note never becomes a dead letter: the queue door counts its tries. */
  readonly maxJobTries: number;
}

// Calls that must not run twice are not run by the next holder: which of them were begun is known to the held loop alone.
export const BLOCKED_WORKER: BlockedWorkerTexts = {
  release: `
  with /* blocked-worker.release */ lk as (
    select t.id from boxcar.turns t where t.holder_id = any ($1::uuid[]) and ${hasStatus('running')} order by t.id for update of t skip locked
  ),
  left_worker as (delete from boxcar.workers w where w.id = any ($1::uuid[]))
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now(),
    losses = t.losses + case when $3::boolean or t.id = $2::uuid or ($2::uuid is not null and not exists (
      select from boxcar.turns h where h.id = $2 and h.holder_id = any ($1::uuid[]))) then 1 else 0 end
  from lk where t.id = lk.id
  returning t.id`,
  note: NOTE_TEXT,
  maxTries: MAX_TRIES,
  maxJobTries: 1_000_000,
};
