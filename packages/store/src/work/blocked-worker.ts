/**
 * The statements that the watchdog of a worker with a blocked event loop sends on its own connection. They are plain texts, because the
 * watchdog's thread shares no module with the process.
 */
import { MAX_TRIES, NOTE_TEXT } from '../rows/index.js';
import { hasStatus } from '../turn/index.js';

export interface BlockedWorkerTexts {
  /**
   * `$1`: the workers of the process. `$2`: the turn that is charged with a loss, or null; all turns are charged when no worker of `$1`
   * holds it. `$3`: all turns are charged. Returns the ids of the turns that are handed back.
   */
  readonly release: string;
  /** `$1` to `$7`: null, `turn_runs` or `blocked_jobs`, the turn or the note id of the job, null, the cause, the tries, false. */
  readonly note: string;
  /** The limit for a turn. */
  readonly maxTries: number;
  /** The limit for a job. The note of a job never becomes a dead letter: the queue door counts the job's tries. */
  readonly maxJobTries: number;
}

// The next holder does not run calls that must not run twice: only the blocked loop knows which of them were begun. The turns are locked by
// id. A locked turn is skipped: another process is at work on it. If it stays with this worker, the sweep takes it over later, because the
// row of the worker is gone.
export const BLOCKED_WORKER: BlockedWorkerTexts = {
  release: `
    with /* blocked-worker.release */
    lk as (
      select t.id
      from boxcar.turns t
      where t.holder_id = any ($1::uuid[]) and ${hasStatus('running')}
      order by t.id
      for update of t skip locked
    ),
    left_worker as (
      delete from boxcar.workers w
      where w.id = any ($1::uuid[])
    )
    update boxcar.turns t
    set
      status = 'dispatched',
      epoch = t.epoch + 1,
      holder_id = null,
      dispatched_at = now(),
      losses = t.losses
        + case
          when $3::boolean
            or t.id = $2::uuid
            or (
              $2::uuid is not null
              and not exists (select from boxcar.turns h where h.id = $2 and h.holder_id = any ($1::uuid[]))
            )
            then 1
          else 0
        end
    from lk
    where t.id = lk.id
    returning t.id`,
  note: NOTE_TEXT,
  maxTries: MAX_TRIES,
  maxJobTries: 1_000_000,
};
