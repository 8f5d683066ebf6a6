/**
 * Chooses the statements at which a process is stopped.
 *
 * P1  After each statement: within a transaction the server has executed it and holds its locks. For the server, a stop before the next
 *     statement is the same. After a commit, the process does not know the answer.
 * P2  Before each change that takes effect by itself, and before each commit: the change reaches the server when the process wakes, after
 *     others have continued.
 * P3  A process stops, or one of its connections falls silent while the process continues.
 * P4  A connection is cut after each change that has taken effect: the answer is lost, and all processes live.
 * P5  A statement that changes nothing and is in no transaction holds nothing: it is chosen once.
 */
import { type Fault, type Point, pointsOf, type Sent, shuffle } from '../faults/crash-points.js';

type Moment = Omit<Fault, 'at'>;

const STOPPED: Moment = { scope: 'process', when: 'after', effect: 'silence' };
const STOPPED_BEFORE: Moment = { scope: 'process', when: 'before', effect: 'silence' };
const SILENT: Moment = { scope: 'connection', when: 'after', effect: 'silence' };
const SILENT_BEFORE: Moment = { scope: 'connection', when: 'before', effect: 'silence' };
const CUT: Moment = { scope: 'connection', when: 'after' };

/** How many times a repeated statement is chosen in one run: timers send the same statements again and again. */
const MAX_TIMES = 3;

export interface StopPoint {
  /** Equal for the same kind of statement and moment in all scenarios. */
  readonly place: string;
  readonly fault: Fault;
}

function momentsAt(point: Point): readonly Moment[] {
  const { isWithin, changes, at } = point;
  if (isWithin) return [STOPPED, SILENT];
  if (changes) return [STOPPED, STOPPED_BEFORE, SILENT, SILENT_BEFORE, CUT];
  return at.nth === 1 ? [STOPPED, SILENT] : [];
}

export const everyStop = (sent: Sent): StopPoint[] =>
  pointsOf(sent).flatMap((point) =>
    point.at.nth > MAX_TIMES
      ? []
      : momentsAt(point).map((moment) => ({
          place: `${moment.effect ?? 'cut'} ${moment.scope} ${moment.when} ${point.place}`,
          fault: { at: point.at, ...moment },
        })),
  );

/**
 * Each kind of statement and moment once, in random order. A test run takes as many from the front as it has time for,
 * and chooses others each time.
 */
export function someStops<P extends StopPoint>(points: readonly P[], random: () => number): readonly P[] {
  const seen = new Set<string>();
  return shuffle(points, random).filter(({ place }) => {
    if (seen.has(place)) return false;
    seen.add(place);
    return true;
  });
}
