/**
 * Where to cut. All means every statement at every moment; few is what a run of the tests has time for:
 *
 * P1  A statement that changes nothing is cut once: before or after it is the same to everybody, and so is each time of it.
 * P2  One that changes something is cut after it the first time it is met, its process alive and dead, and its process dies at
 *     the last one of each scenario if it decides what is to be done next: in a transaction that is the `commit`, which is told
 *     from others by what it commits. When it takes its leave nothing is left to do.
 *     A connection that breaks before it is as one that breaks before what was read there.
 * P3  Within a transaction nothing has happened yet, wherever its process dies: it does so once, after the last change that is new.
 *     Of what it reads one is cut, if nothing else is new.
 * P4  What an earlier scenario has cut is not cut again, but for that last death.
 */
import type { StatementFault } from '@boxcar/testkit';

export interface Fault extends StatementFault {
  readonly at: Exclude<StatementFault['at'], number>;
}

type Moment = Omit<StatementFault, 'at'>;

const BEFORE: Moment = { scope: 'connection', when: 'before' };
const AFTER: Moment = { scope: 'connection', when: 'after' };
/** Only `after`: before the next one is the same moment. */
const DEATH: Moment = { scope: 'process', when: 'after' };

/** The statements of a run, each with what its connection had sent before it, and the transaction that it is part of. */
export interface Sent {
  readonly statements: readonly string[];
  readonly places: readonly string[];
  readonly transactions: readonly number[];
  /** How many come before the process takes its leave. */
  readonly leaveAt: number;
}

/** A statement of a run. */
export interface Point {
  /** Which one of its text it is: what runs side by side changes places from run to run, and its number with it. */
  readonly at: Fault['at'];
  /** What it is told from others by. */
  readonly place: string;
  /** 0: it takes effect by itself. */
  readonly transaction: number;
  /** It stands in a transaction, and another one commits that. */
  readonly isWithin: boolean;
  readonly changes: boolean;
  /** After it something else is left to do than before: a turn, a wait or what was submitted stands differently. */
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

/** Was it sent at all? */
export const isSent = (sent: Sent, { at }: Fault): boolean =>
  pointsOf(sent).some(
    (point) => point.at.text === at.text && point.at.behind === at.behind && point.at.nth === at.nth,
  );

const cut = ({ at }: Point, moments: readonly Moment[]): Fault[] =>
  moments.map((moment) => ({ at, ...moment }));

export const everyFault = (sent: Sent): Fault[] =>
  pointsOf(sent).flatMap((point) => cut(point, [BEFORE, AFTER, DEATH]));

/** @param covered - What earlier scenarios have cut; gets what this one does. */
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

/** An eighth of the deaths and of the other cuts, but no fewer than two of each kind, in random order. */
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

/** The moments after which the rows say something else and the process that made them do so is gone. */
export const deathsAtCommits = (sent: Sent): Fault[] =>
  pointsOf(sent).flatMap((point) => (point.isDecisive ? cut(point, [DEATH]) : []));
