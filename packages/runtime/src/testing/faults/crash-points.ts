/**
 * Chooses the cuts. The full set has every statement at every moment; the small set fits the time of a test run:
 *
 * P1  A statement that changes nothing is cut once: a cut before it is the same as a cut after it, and all its occurrences are the same.
 * P2  A statement that changes something is cut after its first occurrence, with its process alive and dead. In addition, the process dies
 *     at its last occurrence in each scenario, if the statement decides which work is left. In a transaction that is the `commit`; commits
 *     are distinguished by the statements that they commit. When the process is ending, no work is left. A connection that breaks before a
 *     change is like a connection that breaks before an earlier read.
 * P3  Within a transaction nothing has taken effect yet, so all deaths of its process are the same: the process dies once, after the last
 *     change that is new. If only reads are new, one of them is cut.
 * P4  A statement that an earlier scenario has cut is not cut again, except for the last death of P2.
 */
import type { StatementFault } from '@boxcar/testkit';

export interface Fault extends StatementFault {
  readonly at: Exclude<StatementFault['at'], number>;
}

type Moment = Omit<StatementFault, 'at'>;

const BEFORE: Moment = { scope: 'connection', when: 'before' };
const AFTER: Moment = { scope: 'connection', when: 'after' };
/** Only `after`: a death before the next statement is the same moment. */
const DEATH: Moment = { scope: 'process', when: 'after' };

/** The statements of a run, each with the previous statements of its connection and with its transaction. */
export interface Sent {
  readonly statements: readonly string[];
  readonly places: readonly string[];
  readonly transactions: readonly number[];
  /** The number of statements before the process begins to end. */
  readonly leaveAt: number;
}

/** A statement of a run. */
export interface Point {
  /**
   * The statement's text and which occurrence of that text it is. Concurrent work changes the order from run to run, and so the overall
   * numbers of statements.
   */
  readonly at: Fault['at'];
  /** Distinguishes the point from others. */
  readonly place: string;
  /** 0: the statement takes effect by itself. */
  readonly transaction: number;
  /** The statement is in a transaction that another statement commits. */
  readonly isWithin: boolean;
  readonly changes: boolean;
  /** The statement changes which work is left: it changes a turn, a wait or a submission. */
  readonly isDecisive: boolean;
}

const CHANGES = /\b(insert into|(?<!for |for no key )update|delete from|pg_notify)\b/i;
const DECIDES =
  /\b(update boxcar\.turns|insert into boxcar\.(operations|turns|waits)|update boxcar\.batches)\b/;

export function pointsOf({ statements, places, transactions, leaveAt }: Sent): readonly Point[] {
  const changing = new Set(transactions.filter((_n, index) => CHANGES.test(statements[index] ?? '')));
  const times = new Map<string, number>();
  return statements.map((text, index) => {
    const behind = places[index] ?? '';
    const transaction = transactions[index] ?? 0;
    const isEnd = transaction !== 0 && text === 'commit';
    const isWithin = transaction !== 0 && !isEnd;
    const key = isEnd ? `commit ${behind}` : text;
    const nth = (times.get(key) ?? 0) + 1;
    times.set(key, nth);
    const changes = isEnd ? changing.has(transaction) : CHANGES.test(text);
    return {
      at: isEnd ? { text, nth, behind } : { text, nth },
      place: isWithin ? `within ${text}` : key,
      transaction,
      isWithin,
      changes,
      isDecisive: index < leaveAt && (isEnd ? changes : !isWithin && DECIDES.test(text)),
    };
  });
}

/** Whether the statement was sent at all. */
export const isSent = (sent: Sent, { at }: Fault): boolean =>
  pointsOf(sent).some(
    (point) => point.at.text === at.text && point.at.behind === at.behind && point.at.nth === at.nth,
  );

const cut = ({ at }: Point, moments: readonly Moment[]): Fault[] =>
  moments.map((moment) => ({ at, ...moment }));

export const everyFault = (sent: Sent): Fault[] =>
  pointsOf(sent).flatMap((point) => cut(point, [BEFORE, AFTER, DEATH]));

/** @param covered - The cuts of earlier scenarios. The cuts of this scenario are added. */
export function fewFaults(sent: Sent, covered: Set<string>): Fault[] {
  const points = pointsOf(sent);
  const fresh = points.filter(({ place }, index) => {
    if (covered.has(place)) return false;
    return points.findIndex((other) => other.place === place) === index;
  });
  for (const { place } of fresh) covered.add(place);
  const isFresh = new Set(fresh);
  const last = new Map(points.map((point) => [point.place, point]));
  const momentsAt = (point: Point): readonly Moment[] => {
    if (!isFresh.has(point)) return point.isDecisive && last.get(point.place) === point ? [DEATH] : [];
    if (!point.isWithin) return point.changes ? [AFTER, DEATH] : [BEFORE];
    const beside = fresh.filter((other) => other.isWithin && other.transaction === point.transaction);
    const changes = beside.filter((other) => other.changes);
    if (point.changes) return changes.at(-1) === point ? [AFTER, DEATH] : [AFTER];
    return changes.length === 0 && beside[0] === point ? [BEFORE] : [];
  };
  return points.flatMap((point) => cut(point, momentsAt(point)));
}

/** An eighth of the deaths and an eighth of the other cuts, but at least two of each kind, in random order. */
export function someFaults(faults: readonly Fault[], random: () => number): Fault[] {
  const isDeath = ({ scope }: Fault): boolean => scope === 'process';
  const some = (of: readonly Fault[]): readonly Fault[] =>
    shuffle(of, random).slice(0, Math.max(2, Math.ceil(of.length / 8)));
  return [...some(faults.filter(isDeath)), ...some(faults.filter((fault) => !isDeath(fault)))];
}

/** Returns the items in random order. */
export const shuffle = <T>(items: readonly T[], random: () => number): readonly T[] =>
  items
    .map((item) => ({ item, rank: random() }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ item }) => item);

/** The moments after a change has been committed and its process has died. */
export const deathsAtCommits = (sent: Sent): Fault[] =>
  pointsOf(sent).flatMap((point) => (point.isDecisive ? cut(point, [DEATH]) : []));
