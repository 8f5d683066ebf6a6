/**
 * Cuts a scenario at the statements that it sends, and compares what comes of it with a run without faults.
 *
 * C1  Every statement of the run counts, from the start of the worker to its goodbye, whoever sends it: the submitter, the
 *     worker, its sweep. Each is cut before it reaches the server, and after it took effect but before anybody knows.
 * C2  `connection`: that one breaks and the process goes on. `process`: nothing of the process gets through any more; its
 *     code goes on, which is harder to survive than its death.
 * C3  Nothing is waited for that a clock decides: another worker sweeps as if it were later.
 * C4  What holds at every moment is asked at once when a process has died, and of all again when everything has ended.
 * C5  A process that survives its case is used for the next: what it sends then is what one sends that has run for a while.
 *     What only a fresh one sends is cut in a fresh one.
 */
import { errorText } from '@boxcar/kernel';
import { findFault } from './conclude.js';
import { everyFault, type Fault, isSent, type Sent } from './crash-points.js';
import type { Scenario } from './scenario.js';
import type { Track } from './track.js';

export interface CrashOptions {
  /** Where to cut, of all that a run without faults has sent. Default: everywhere. */
  readonly choose?: (sent: Sent) => Fault[];
  /** A process has died there before: what is cut is the one that goes on with its work. */
  readonly afterDeathAt?: (sent: Sent) => Fault;
  /** Whose statements are cut; what only a fresh one sends is not chosen when `warm`. Default: fresh. */
  readonly process?: 'fresh' | 'warm';
}

export interface CrashReport {
  /** What a run without faults sends. */
  readonly statements: readonly string[];
  readonly cases: number;
  /** Cases whose fault struck. */
  readonly struck: number;
  /** Cases whose runs ended before the statement: it was one of those that come and go with the timing. */
  readonly absent: number;
  /** Cases that another worker had to finish. */
  readonly rescued: number;
  /** Each names scenario, statement and moment. */
  readonly failures: readonly string[];
}

/** @param tracks - Cases run on all of them at once. */
export async function crashEverywhere(
  scenario: Scenario,
  tracks: readonly Track[],
  { choose = everyFault, afterDeathAt, process = 'fresh' }: CrashOptions = {},
): Promise<CrashReport> {
  const [first] = tracks;
  if (first === undefined) throw new Error('there is no track');
  const failures: string[] = [];
  const counts = { struck: 0, absent: 0, rescued: 0 };
  const whole = await first.calm(scenario, process);
  const wrong = findFault(scenario, whole.outcome, undefined);
  if (wrong !== undefined) throw new Error(`${scenario.name}, without faults: ${wrong}`);
  const death = afterDeathAt?.(whole);
  const calm = death === undefined ? whole : await first.runAfter(scenario, death);
  const queue = choose(calm);
  const cases = queue.length;
  const work = async (track: Track): Promise<void> => {
    for (let fault = queue.shift(); fault !== undefined; fault = queue.shift()) {
      try {
        const faulty = await track.strike({ scenario, fault, death });
        if (faulty.struck !== undefined) counts.struck += 1;
        else if (!isSent(faulty, fault)) counts.absent += 1;
        else throw new Error('the fault did not strike');
        if (faulty.isRescued) counts.rescued += 1;
        const isAlive = fault.scope === 'connection' && death === undefined;
        if (isAlive && faulty.isRescued) throw new Error('a process that lives did not finish by itself');
        const difference = findFault(scenario, faulty.outcome, whole.outcome, { isAlive });
        if (difference !== undefined) throw new Error(difference);
      } catch (error) {
        failures.push(describeCase(scenario, fault, error));
      }
    }
  };
  await Promise.all(tracks.map(work));
  return { statements: calm.statements, cases, ...counts, failures };
}

function describeCase(scenario: Scenario, fault: Fault, error: unknown): string {
  const short = (text: string): string => text.replace(/\s+/g, ' ').trim().slice(0, 200);
  const { text, nth, behind } = fault.at;
  // Commits are told from each other by what they commit.
  const after = behind === undefined || behind === '' ? '' : ` after (${short(behind)})`;
  return `${scenario.name}: the ${fault.scope} is cut ${fault.when} time ${nth} of (${short(text)})${after}:\n${errorText(error)}`;
}
