/**
 * What the watchdog of a worker whose event loop is held sends on a connection of its own. Texts, because its thread shares no module
 * with the process.
 */
import { MAX_TRIES, NOTE_TEXT } from './dead-letters.js';
import { hasStatus } from './turns.js';

export interface BlockedWorkerTexts {
  /** `$1`: the worker. `$2`: the turn that is charged with a loss; null = all. Gives the ids of the turns that are handed back. */
  readonly release: string;
  /** `$1` to `$7`: null, `turn_runs`, the turn, null, the cause, `maxTries`, false. */
  readonly note: string;
  readonly maxTries: number;
}

// Calls that must not run twice are not run by the next holder: which of them were begun is known to the held loop alone.
export const BLOCKED_WORKER: BlockedWorkerTexts = {
  release: `
  with lk as (
    select t.id from boxcar.turns t where t.holder_id = $1 and ${hasStatus('running')} order by t.id for update of t skip locked
  ),
  left_worker as (delete from boxcar.workers w where w.id = $1)
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now(),
    losses = t.losses + case when $2::uuid is null or t.id = $2 then 1 else 0 end
  from lk where t.id = lk.id
  returning t.id`,
  note: NOTE_TEXT,
  maxTries: MAX_TRIES,
};
