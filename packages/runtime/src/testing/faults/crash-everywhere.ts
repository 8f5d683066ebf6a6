/**
 * Cuts a scenario at its statements, and compares the outcome with the outcome of a run without faults.
 *
 * C1  Every statement of the run counts, from the start of the worker to its end, whether the submitter, the worker or its sweep sends it.
 *     Each is cut before it reaches the server, and after it took effect but before any process knows.
 * C2  `connection`: only this connection breaks, and the process continues. `process`: nothing of the process reaches the server anymore.
 *     Its code continues to run, which is harder to survive than its death.
 * C3  No case waits for a clock: another worker sweeps as if it were later.
 * C4  Invariants that hold at every moment are checked immediately after a process has died. All invariants are checked after everything
 *     has ended.
 * C5  A process that survives its case is used for the next case, so its statements are those of a process that has run for a while.
 *     Statements that only a fresh process sends are cut in a fresh process.
 */
import { errorText } from '@boxcar/kernel';
import { findFault } from './conclude.js';
import { everyFault, type Fault, isSent, type Sent } from './crash-points.js';
import type { Scenario } from './scenario.js';
import type { Track } from './track.js';

export interface CrashOptions {
  /** Chooses the cuts from all statements of a run without faults. Default: everywhere. */
  readonly choose?: (sent: Sent) => Fault[];
  /** Another process has died at this point before. The cuts are made in the process that continues its work. */
  readonly afterDeathAt?: (sent: Sent) => Fault;
  /** The process whose statements are cut. With `warm`, statements that only a fresh process sends are not chosen. Default: fresh. */
  readonly process?: 'fresh' | 'warm';
}

export interface CrashReport {
  /** The statements of a run without faults. */
  readonly statements: readonly string[];
  readonly cases: number;
  /** Cases whose fault struck. */
  readonly struck: number;
  /** Cases whose run ended before the statement was sent: such statements depend on the timing. */
  readonly absent: number;
  /** Cases that another worker had to finish. */
  readonly rescued: number;
  /** Each failure names scenario, statement and moment. */
  readonly failures: readonly string[];
}

/** @param tracks - Cases run on all tracks at once. */
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
  // Commits are distinguished by the statements that they commit.
  const after = behind === undefined || behind === '' ? '' : ` after (${short(behind)})`;
  return `${scenario.name}: the ${fault.scope} is cut ${fault.when} time ${nth} of (${short(text)})${after}:\n${errorText(error)}`;
}
