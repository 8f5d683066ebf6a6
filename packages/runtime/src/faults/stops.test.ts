import { queueBackends } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { shuffle } from '../testing/faults/crash-points.js';
import { faultsSeed, isThorough } from '../testing/faults/survival.js';
import { createRandom } from '../testing/soak/random.js';
import { SIGNAL_PLANS, STOP_PLANS } from '../testing/stops/plans.js';
import { type PlannedPoint, type StopReport, stopEverywhere } from '../testing/stops/stop-everywhere.js';
import type { StopPlan } from '../testing/stops/stop-plan.js';
import { someStops } from '../testing/stops/stop-points.js';

/**
 * The share of one test run, for all kinds of queues in two minutes: as many random plans and points as time allows, and others in each
 * run. The full form runs everything.
 */
interface Share {
  readonly plans: number;
  /** Number of cases at once: they spend most of their time waiting for leases and limits. */
  readonly lanes: number;
  readonly untilMs: number;
  /** For a machine that is busy with other tests. An idle machine reaches several times as many. */
  readonly atLeast: number;
}

const CUT_OFF: Share = { plans: 4, lanes: 4, untilMs: 10_000, atLeast: 4 };
/** Processes take seconds to start. */
const SIGNALS: Share = { plans: 2, lanes: 3, untilMs: 5_000, atLeast: 1 };

/** The same seed chooses the same plans and points. */
const SEED = faultsSeed();

/** The tables of queues belong to BullMQ. So does its behaviour when a process stops at their statements. */
const isOurs = ({ fault }: PlannedPoint): boolean =>
  !/bullmq/i.test(`${fault.at.text} ${fault.at.behind ?? ''}`);

const isStop = ({ fault }: PlannedPoint): boolean => fault.scope === 'process' && fault.effect === 'silence';

describe('when a worker, a sweeper or a caller stops at a statement, the others continue and nothing is lost', {
  timeout: 36_000_000,
}, () => {
  const progress = isThorough() ? (line: string) => console.log(line) : () => undefined;
  const toNumber = ({ between }: ReturnType<typeof createRandom>) => between(0, 1_000_000);

  async function stop(
    plans: readonly StopPlan[],
    {
      share,
      kind,
      home,
    }: Pick<Parameters<typeof stopEverywhere>[1], 'kind' | 'home'> & { readonly share: Share },
  ): Promise<StopReport> {
    const random = createRandom(SEED);
    const number = (): number => toNumber(random);
    const isMeant = home === 'own process' ? (point: PlannedPoint) => isOurs(point) && isStop(point) : isOurs;
    const common = { kind, lanes: share.lanes, progress, ...(home === undefined ? {} : { home }) };
    const report = isThorough()
      ? await stopEverywhere(plans, { ...common, choose: (points) => points.filter(isMeant) })
      : await stopEverywhere(shuffle(plans, number).slice(0, share.plans), {
          ...common,
          choose: (points) => someStops(points.filter(isMeant), number),
          untilMs: share.untilMs,
        });
    const { failures, ...counts } = report;
    console.log(`seed ${SEED}: ${JSON.stringify(counts)}`);
    if (failures.length > 0)
      throw new Error(`${failures.length} failures:\n${failures.slice(0, 3).join('\n\n')}`);
    expect(counts.struck).toBeGreaterThanOrEqual(share.atLeast);
    expect(counts.absent).toBeLessThanOrEqual(counts.cases / 3);
    return report;
  }

  test.each(queueBackends())('if the connection is cut, with queues on %s', async (kind) => {
    await stop(STOP_PLANS, { share: CUT_OFF, kind });
  });

  test.each(queueBackends())('if the process gets SIGSTOP, with queues on %s', async (kind) => {
    await stop(SIGNAL_PLANS, { share: SIGNALS, kind, home: 'own process' });
  });
});
