/** Stops one process at each statement of several plans, one at a time, and reports broken promises. */
import { errorText } from '@boxcar/kernel';
import type { QueueBackend } from '@boxcar/testkit';
import { testDatabase } from '@boxcar/testkit';
import { findFault } from '../faults/conclude.js';
import { isSent } from '../faults/crash-points.js';
import type { Facts } from '../faults/facts.js';
import { castOf, type Scenario } from '../faults/scenario.js';
import { Pace } from './pace.js';
import { BYSTANDERS, runStop, StopFailure, type StopRun } from './stop-case.js';
import { StopLane, type VictimHome } from './stop-lane.js';
import { nameOf, type StopPlan } from './stop-plan.js';
import { everyStop, type StopPoint } from './stop-points.js';

/** How many times a case is tried until its statement is sent: timers do not send each of their statements in each run. */
const TRIES = 3;

export interface StopOptions {
  readonly kind: QueueBackend;
  /** The home of the process that stops. A separate process has the profiles of a plan, but not its tools and models. */
  readonly home?: VictimHome;
  /** Number of cases at once: a case spends nearly all of its time waiting. */
  readonly lanes: number;
  /** Selects and orders the points. Default: all. */
  readonly choose?: (points: readonly PlannedPoint[]) => readonly PlannedPoint[];
  /** No case begins later than this after the first case. */
  readonly untilMs?: number;
  readonly progress?: (line: string) => void;
}

export interface PlannedPoint extends StopPoint {
  readonly plan: StopPlan;
}

export interface StopReport {
  /** Statements that were sent in the runs without a stop, over all plans. */
  readonly statements: number;
  /** Points at which a process can be stopped. */
  readonly points: number;
  readonly cases: number;
  readonly struck: number;
  /** Cases whose statement was not sent in any of their tries. */
  readonly absent: number;
  /** Cases in which others were delayed for too long. Each was tried again while no other case ran. */
  readonly again: number;
  /** The longest delay of others, by role, in milliseconds. */
  readonly longestMs: Readonly<Record<string, number>>;
  readonly failures: readonly string[];
}

/** Adds the profiles of bystanders, and hides their turns from the judge of the scenario. */
function withBystanders(scenario: Scenario): Scenario {
  const names = new Set(BYSTANDERS.map(({ name }) => name));
  const without = (facts: Facts): Facts => ({
    ...facts,
    turns: facts.turns.filter(({ profile }) => !names.has(profile)),
  });
  const { judge } = scenario;
  return {
    ...scenario,
    profiles: [...scenario.profiles, ...BYSTANDERS],
    ...(judge === undefined ? {} : { judge: (facts: Facts) => judge(without(facts)) }),
  };
}

export async function stopEverywhere(
  given: readonly StopPlan[],
  {
    kind,
    home = 'this process',
    lanes: laneCount,
    choose = (points) => points,
    untilMs,
    progress,
  }: StopOptions,
): Promise<StopReport> {
  const cast = castOf(given.map(({ scenario }) => scenario));
  const scenarios = new Map<Scenario, Scenario>();
  const plans = given.map((plan): StopPlan => {
    const scenario = scenarios.get(plan.scenario) ?? withBystanders(plan.scenario);
    scenarios.set(plan.scenario, scenario);
    return { ...plan, scenario };
  });
  const failures: string[] = [];
  const counts = { cases: 0, struck: 0, absent: 0 };
  const longestMs: Record<string, number> = {};
  const calm = new Map<StopPlan, StopRun>();
  await using metronome = await testDatabase({ max: 1 });
  await using pace = new Pace(metronome.pool);
  const lanes: StopLane[] = [];
  try {
    for (let count = 0; count < laneCount; count += 1) lanes.push(await StopLane.open(kind, cast));
    /** Does the work for all items, on all lanes at once. */
    const spread = async <T>(
      items: readonly T[],
      work: (lane: StopLane, item: T) => Promise<void>,
    ): Promise<void> => {
      const queue = [...items];
      await Promise.all(
        lanes.map(async (lane) => {
          for (let item = queue.shift(); item !== undefined; item = queue.shift()) await work(lane, item);
        }),
      );
    };
    // The first run on each lane plans every statement, so its times are too long to compare with.
    const [first] = plans;
    if (first !== undefined && home === 'this process')
      await Promise.all(lanes.map((lane) => runStop({ lane, plan: first, home }, undefined, undefined)));
    await spread(plans, async (lane, plan) => {
      const run = await runStop({ lane, plan, home }, undefined, undefined);
      const wrong = findFault(plan.scenario, run.outcome, undefined);
      if (wrong !== undefined) throw new Error(`${nameOf(plan)}, without faults: ${wrong}`);
      calm.set(plan, run);
      progress?.(`${nameOf(plan)}: ${run.statements.length} statements, ${Math.round(run.tookMs)} ms`);
    });
    const points = plans.flatMap((plan) => {
      const sent = calm.get(plan);
      return sent === undefined ? [] : everyStop(sent).map((point): PlannedPoint => ({ ...point, plan }));
    });
    const chosen = choose(points);
    const startedAt = performance.now();
    const late: PlannedPoint[] = [];
    /** @returns False when the statement was not sent this time. */
    const judge = async (lane: StopLane, point: PlannedPoint, onLate?: () => void): Promise<boolean> => {
      const { plan, fault } = point;
      const expected = calm.get(plan);
      if (expected === undefined) throw new Error(`${nameOf(plan)} was not run without a stop`);
      try {
        const run = await runStop({ lane, plan, home }, fault, { pace, calmMs: expected.tookMs });
        if (run.struck !== undefined) counts.struck += 1;
        else if (isSent(run, fault)) throw new Error('the fault did not strike');
        if (run.struck !== undefined)
          longestMs[plan.role] = Math.max(longestMs[plan.role] ?? 0, Math.round(run.heldUpMs));
        const difference = findFault(plan.scenario, run.outcome, expected.outcome);
        if (difference !== undefined) throw new Error(difference);
        return run.struck !== undefined;
      } catch (error) {
        if (error instanceof StopFailure && error.struck !== undefined) counts.struck += 1;
        const isLate = error instanceof StopFailure && error.isLate;
        if (isLate && onLate !== undefined) onLate();
        else failures.push(describeCase(plan, fault, error));
        progress?.(`${isLate ? 'late' : 'failed'}: ${describeCase(plan, fault, error)}`);
        await lane
          .renew()
          .catch((failure: unknown) => failures.push(`a lane did not close: ${String(failure)}`));
        return true;
      }
    };
    /** @returns False when the statement was not sent in any try. */
    const judgeOnceSent = async (...of: Parameters<typeof judge>): Promise<boolean> => {
      for (let tries = 1; tries <= TRIES; tries += 1) if (await judge(...of)) return true;
      return false;
    };
    await spread(chosen, async (lane, point) => {
      if (untilMs !== undefined && performance.now() - startedAt > untilMs) return;
      counts.cases += 1;
      if (!(await judgeOnceSent(lane, point, () => void late.push(point)))) counts.absent += 1;
      progress?.(`${counts.cases} of ${chosen.length} cases, ${failures.length} failures`);
    });
    // Other cases and other tests use the processors at changing moments. A stop that really delays others does so again
    // when nothing else runs.
    const [alone] = lanes;
    for (const point of late)
      if (alone !== undefined && !(await judgeOnceSent(alone, point)))
        failures.push(describeCase(point.plan, point.fault, 'late, and not met again'));
    const statements = [...calm.values()].reduce((sum, run) => sum + run.statements.length, 0);
    return { statements, points: points.length, ...counts, again: late.length, longestMs, failures };
  } finally {
    for (const lane of lanes) await lane[Symbol.asyncDispose]();
  }
}

function describeCase(
  plan: StopPlan,
  { at, scope, when, effect = 'cut' }: PlannedPoint['fault'],
  error: unknown,
): string {
  const text = at.text.replace(/\s+/g, ' ').trim().slice(0, 300);
  const what = effect === 'cut' ? 'is cut' : scope === 'process' ? 'is stopped' : 'falls silent';
  const message = errorText(error);
  const behind =
    at.behind === undefined ? '' : `, sent after (${at.behind.replace(/\s+/g, ' ').slice(0, 200)})`;
  return `${nameOf(plan)}: the ${scope} ${what} ${when} time ${at.nth} of (${text})${behind}:\n${message}`;
}
