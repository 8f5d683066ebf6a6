/**
 * Where to cut. All means every statement at every moment; few is what a run of the tests has time for:
 *
 * P1  A statement that changes nothing is cut once: before or after it is the same to everybody, and so is each time of it.
 * P2  One that changes something is cut after it the first time it is met, its process alive and dead, and its process dies at
 *     the last one of each scenario if it decides what is to be done next: in a transaction that is the `commit`, which is told
 *     from others by what it commits.
 *     A connection that breaks before it is as one that breaks before what was read there.
 * P3  What an earlier scenario has cut is not cut again, but for that last death.
 */
import type { StatementFault } from '@boxcar/testkit';

export interface Fault extends StatementFault {
  readonly at: { readonly text: string; readonly nth: number };
}

type Moment = Omit<StatementFault, 'at'>;

const BEFORE: Moment = { scope: 'connection', when: 'before' };
const AFTER: Moment = { scope: 'connection', when: 'after' };
/** Only `after`: before the next one is the same moment. */
const DEATH: Moment = { scope: 'process', when: 'after' };

/** The statements of a run, each with what its connection had sent before it, and whether another one commits it. */
export interface Sent {
  readonly statements: readonly string[];
  readonly places: readonly string[];
  readonly isWithin: readonly boolean[];
}

/** Which one of its text it is: what runs side by side changes places from run to run, and its number with it. */
const occurrence = (statements: readonly string[], index: number): Fault['at'] => {
  const text = statements[index] ?? '';
  return { text, nth: statements.slice(0, index + 1).filter((other) => other === text).length };
};

export const everyFault = ({ statements }: Sent): Fault[] =>
  statements.flatMap((_text, index) =>
    [BEFORE, AFTER, DEATH].map((moment): Fault => ({ at: occurrence(statements, index), ...moment })),
  );

const CHANGES = /\b(insert into|update|delete from|commit|pg_notify)\b/i;

/** After it something else is left to do than before: a turn, a wait or what was submitted stands differently. */
function isDecisive({ statements, places, isWithin }: Sent, index: number): boolean {
  const text = statements[index] ?? '';
  if (text === 'commit') return CHANGES.test(places[index] ?? '');
  return (
    isWithin[index] !== true &&
    /\b(update boxcar\.turns|insert into boxcar\.(operations|turns|waits)|update boxcar\.batches)\b/.test(
      text,
    )
  );
}

/** @param covered - What earlier scenarios have cut; gets what this one does. */
export function fewFaults(sent: Sent, covered: Set<string>): Fault[] {
  const { statements, places } = sent;
  const placeOf = (text: string, index: number): string =>
    text === 'commit' ? `commit ${places[index]}` : text;
  const all = statements.map(placeOf);
  return statements.flatMap((text, index): Fault[] => {
    const place = all[index] ?? '';
    const at = occurrence(statements, index);
    const cut = (moments: readonly Moment[]): Fault[] => moments.map((moment) => ({ at, ...moment }));
    if (all.indexOf(place) === index && !covered.has(place)) {
      covered.add(place);
      return cut(CHANGES.test(text) ? [AFTER, DEATH] : [BEFORE]);
    }
    return all.lastIndexOf(place) === index && isDecisive(sent, index) ? cut([DEATH]) : [];
  });
}

/** The moments after which the rows say something else and the process that made them do so is gone. */
export const deathsAtCommits = (sent: Sent): Fault[] =>
  sent.statements.flatMap((_text, index) =>
    isDecisive(sent, index) ? [{ at: occurrence(sent.statements, index), ...DEATH }] : [],
  );
