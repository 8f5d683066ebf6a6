/**
 * Removes finished runs completely: turns, steps, calls, operations, agents with their tapes, context boxes, cards, grants.
 *
 * P1  The decision is made on rows (`purge-plan.ts`), after the boxes were marked (`purge-marks.ts`). From then on nothing new can refer
 *     to the boxes, so the results of the second check stay true. Cards and agents are not marked. Each batch (`purge-batch.ts`) locks its
 *     cards and agents. It checks again whether a remaining box or tape lists the cards, and which objects and rights the agents have made
 *     or received. Writers that list an existing card lock it too, and agents that make an object lock their own row.
 * P2  A batch is one transaction: groups of runs that refer to each other are removed together. A stopped purge has removed exactly the
 *     batches before the stop.
 */

import { KernelError, type ProjectId, type RunId, type TurnStatus } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import { explainRight } from '../erase/erasure.js';
import { queryRetrying } from '../query/query.js';
import { removeBatch } from './purge-batch.js';
import { purgeKeys } from './purge-keys.js';
import { MARK_MS, PurgeMarks } from './purge-marks.js';
import {
  type KeptByPurge,
  type PurgeCounts,
  type PurgeKind,
  type PurgePlan,
  planPurge,
} from './purge-plan.js';

export interface PurgeOptions {
  /** The limit in time: runs must have ended before it, with tapes unchanged since; tapes must have been left before it. */
  readonly before: Date;
  readonly projectId?: ProjectId | undefined;
  readonly isDryRun?: boolean | undefined;
  /** The number of runs that are examined together. Default 10,000; ten times as many when the runs have the same agents. */
  readonly pageSize?: number;
  /** The number of runs in one transaction, unless more runs belong together. Default 200. */
  readonly batchSize?: number;
  /** How long a mark lasts unless it is renewed. The renewal needs a second connection of the pool. Default 2 minutes. */
  readonly markMs?: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: PurgeCounts) => void;
}

export interface PurgeReport {
  /** The removed runs, agents and boxes. A dry run reports those that would be removed. */
  readonly removed: PurgeCounts;
  readonly kept: readonly KeptByPurge[];
  /** True when the purge was stopped before its end. */
  readonly isStopped: boolean;
}

const PAGE_SIZE = 10_000;
const BATCH_SIZE = 200;
const KEPT_LISTED = 1000;

const CLOCK = statement('select /* purge.clock */ clock_timestamp() as now');

/** The present time by the clock of Postgres, which also sets the times in the rows. */
export async function readClock(pool: pg.Pool): Promise<Date> {
  const [row] = await runRetrying<{ now: Date }>(pool, CLOCK, []);
  return row?.now ?? new Date();
}

const boxesOf = (groups: PurgePlan['groups']): string[] => groups.flat().flatMap(({ box_ids }) => box_ids);

/** Runs that began before a moment and have not ended. */
const findUnfinished = (
  pool: pg.Pool,
  { before, projectId }: PurgeOptions,
): Promise<readonly { readonly run_id: RunId }[]> =>
  queryRetrying(
    pool,
    'purge.find_unfinished',
    ({ orm, tables: { runs, turns }, and, asc, eq, inArray, inline, lt }) => {
      const runsOf = (...statuses: readonly TurnStatus[]) =>
        orm
          .select({ run_id: turns.runId })
          .from(turns)
          .where(inline(inArray(turns.status, statuses)));
      // Two queries, each by a separate index.
      const open = runsOf('queued')
        .unionAll(runsOf('dispatched', 'running', 'suspended'))
        .as('open');
      return orm
        .selectDistinct({ run_id: open.run_id })
        .from(open)
        .innerJoin(runs, eq(runs.id, open.run_id))
        .where(and(lt(runs.createdAt, before), projectId && eq(runs.projectId, projectId)))
        .orderBy(asc(open.run_id))
        .limit(KEPT_LISTED);
    },
  );

/** The first moment that Postgres can store, in the year 4714 BC. Its last moment is after that of `Date`. */
const FIRST_MOMENT = -210_866_803_200_000;

function checkBefore({ before }: PurgeOptions): void {
  const at = new Date(before).getTime();
  if (at >= FIRST_MOMENT) return;
  throw new KernelError('bad_request', {
    message: `before: ${Number.isNaN(at) ? 'must be a date' : 'must be in or after the year 4713 BC'}.`,
    details: { field: 'before' },
  });
}

/**
 * Removes the runs that finished before `options.before`. Also removes external handoffs without a turn that ended before it, and API keys
 * that were revoked or expired before it. It is safe while workers run, and may be stopped at any moment.
 *
 * @throws KernelError `bad_request` for a moment that Postgres cannot store.
 */
export async function purgeRuns(pool: pg.Pool, options: PurgeOptions): Promise<PurgeReport> {
  checkBefore(options);
  const unfinished = await findUnfinished(pool, options);
  const report = await purge(
    pool,
    'runs',
    options,
    unfinished.map(({ run_id }) => ({ run_id, cause: 'unfinished', holder: null })),
  );
  if (report.isStopped) return report;
  if (options.isDryRun !== true) await purgeKeys(pool, options);
  // Handoffs that were never begun have no run. References keep them, and the next purge checks them again.
  const { removed, isStopped } = await purge(
    pool,
    'handoffs',
    { ...options, onProgress: () => undefined },
    [],
  );
  return { ...report, removed: sumOf(report.removed, removed), isStopped };
}

/** A tape that stays, with the box, agent or turn that needs it. */
export interface KeptTape {
  readonly tape_id: string;
  readonly cause: KeptByPurge['cause'];
  readonly holder: string | null;
}

export interface TapePurgeReport {
  readonly removed: { readonly tapes: number; readonly cards: number };
  readonly kept: readonly KeptTape[];
  readonly isStopped: boolean;
}

/**
 * Removes tapes without an existing turn that were left before `options.before`. These are archived incarnations, discarded forks,
 * imported tapes without an agent, and tapes of sessions that are over. A turn may have written notes to such a tape. Each tape is
 * removed with its cards, or stays while other rows refer to it. As safe as `purgeRuns`.
 *
 * @throws KernelError as `purgeRuns`.
 */
export async function purgeTapes(pool: pg.Pool, options: PurgeOptions): Promise<TapePurgeReport> {
  checkBefore(options);
  const { removed, kept, isStopped } = await purge(pool, 'tapes', options, []);
  return {
    removed: { tapes: removed.boxes, cards: removed.cards },
    kept: kept.map(({ run_id, cause, holder }) => ({ tape_id: run_id, cause, holder })),
    isStopped,
  };
}

async function purge(
  pool: pg.Pool,
  kind: PurgeKind,
  options: PurgeOptions,
  kept: KeptByPurge[],
): Promise<PurgeReport> {
  const projectId = options.projectId ?? null;
  const { before, signal } = options;
  let removed: PurgeCounts = { runs: 0, turns: 0, agents: 0, boxes: 0, cards: 0 };
  const add = (counts: PurgeCounts): void => {
    removed = sumOf(removed, counts);
    options.onProgress?.(removed);
  };
  const limit = options.pageSize ?? PAGE_SIZE;
  /** Runs of later pages that were decided together with runs of the same agents. */
  const ahead: string[] = [];
  for (let after: string | undefined; ; ) {
    if (signal?.aborted === true) return { removed, kept, isStopped: true };
    const plan = await planPurge(pool, { kind, before, projectId, after, limit, without: ahead });
    ahead.push(...plan.ahead);
    kept.push(...plan.kept);
    if (options.isDryRun === true) add(countOf(kind, plan.groups));
    else if (plan.groups.length > 0) {
      const isStopped = await purgePage(pool, plan, { ...options, kind, kept, add }).catch(explainRight);
      if (isStopped) return { removed, kept, isStopped };
    }
    after = plan.last;
    if (plan.count < limit) return { removed, kept, isStopped: false };
  }
}

const sumOf = (a: PurgeCounts, b: PurgeCounts): PurgeCounts => ({
  runs: a.runs + b.runs,
  turns: a.turns + b.turns,
  agents: a.agents + b.agents,
  boxes: a.boxes + b.boxes,
  cards: a.cards + b.cards,
});

const countOf = (kind: PurgeKind, groups: PurgePlan['groups']): PurgeCounts => ({
  runs: kind === 'runs' ? groups.flat().length : 0,
  turns: 0,
  agents: groups.flat().reduce((sum, { agent_ids }) => sum + agent_ids.length, 0),
  boxes: boxesOf(groups).length,
  cards: 0,
});

async function purgePage(
  pool: pg.Pool,
  first: PurgePlan,
  of: PurgeOptions & {
    readonly kind: PurgeKind;
    readonly kept: KeptByPurge[];
    readonly add: (counts: PurgeCounts) => void;
  },
): Promise<boolean> {
  const marks = new PurgeMarks(pool, boxesOf(first.groups), of.markMs ?? MARK_MS);
  try {
    await marks.set(of.signal);
    const ids = first.groups.flat().map(({ run_id }) => run_id);
    const plan = await planPurge(pool, {
      kind: of.kind,
      before: of.before,
      projectId: of.projectId ?? null,
      ids,
      limit: ids.length,
    });
    of.kept.push(...plan.kept);
    const batches = batchesOf(plan.groups, of.batchSize ?? BATCH_SIZE).reverse();
    for (let batch = batches.pop(); batch !== undefined; batch = batches.pop()) {
      if (of.signal?.aborted === true) return true;
      const outcome = await removeBatch(pool, batch.flat(), { ...of, marks });
      if (!('kept' in outcome)) of.add(outcome.removed);
      // At least one of several groups must stay, so each group is tried alone.
      else if (batch.length > 1) batches.push(...batch.map((group) => [group]).reverse());
      else of.kept.push(...outcome.kept);
    }
    return false;
  } catch (error) {
    if (of.signal?.aborted === true) return true;
    throw error;
  } finally {
    await marks.clear();
  }
}

type Group = PurgePlan['groups'][number];

/** Combines groups until they have enough runs; a group is never divided. */
function batchesOf(groups: readonly Group[], size: number): Group[][] {
  const batches: Group[][] = [];
  let runs = 0;
  for (const group of groups) {
    const last = batches.at(-1);
    runs += group.length;
    if (last !== undefined && runs <= size) last.push(group);
    else {
      batches.push([group]);
      runs = group.length;
    }
  }
  return batches;
}
