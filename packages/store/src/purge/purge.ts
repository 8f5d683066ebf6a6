/**
 * Removes finished runs whole: turns, steps, calls, operations, agents with their tapes, context boxes, cards, grants.
 *
 * P1  What goes is decided on rows (`purge-plan.ts`), with the boxes marked first (`purge-marks.ts`): from then on nothing new can
 *     refer to them, so what the second look finds stays true. Cards and agents are not marked: each batch (`purge-batch.ts`) locks its
 *     cards and agents and looks again whether a box or tape that stays lists the cards, and what the agents have made or been given.
 *     Writers that list an existing card lock it too, and so do agents that make something with their own row.
 * P2  A batch is one transaction: groups of runs that refer to each other go together. A purge that is stopped in between has
 *     removed the batches before it, and no more.
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
  /** Runs that ended before it, and whose tapes have not changed since; tapes that were left before it. */
  readonly before: Date;
  readonly projectId?: ProjectId | undefined;
  readonly isDryRun?: boolean | undefined;
  /** Runs that are looked at together. Default 10,000; ten times as many when they are of the same agents. */
  readonly pageSize?: number;
  /** Runs of one transaction, unless more belong together. Default 200. */
  readonly batchSize?: number;
  /** How long a mark lasts unless it is renewed, which needs a second connection of the pool. Default 2 minutes. */
  readonly markMs?: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: PurgeCounts) => void;
}

export interface PurgeReport {
  /** What is gone; of a dry run, what would go: runs, agents and boxes. */
  readonly removed: PurgeCounts;
  readonly kept: readonly KeptByPurge[];
  /** True when it was stopped before its end. */
  readonly isStopped: boolean;
}

const PAGE_SIZE = 10_000;
const BATCH_SIZE = 200;
const KEPT_LISTED = 1000;

const CLOCK = statement('select /* purge.clock */ clock_timestamp() as now');

/** What time it is for Postgres, whose times the rows carry. */
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
      // Two looks, each by an index of its own.
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

/** The first moment that Postgres can hold, in the year 4714 BC. Its last one is after that of `Date`. */
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
 * Removes the finished runs of before `options.before`, handoffs from outside that ended before it without a turn, and API keys that were revoked or expired before it. Safe beside workers, and to be stopped at any moment.
 *
 * @throws KernelError `bad_request` for a moment that Postgres cannot hold.
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
  // What was never begun has no run. What refers to it keeps it, and the next purge looks again.
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
 * Removes tapes that are of no turn that exists and that were left before `options.before`: archived incarnations, discarded forks,
 * imported tapes that are of no agent, and those of sessions that are over. A turn may have noted something on them. Each goes with its
 * cards, or stays while something refers to it. As safe as `purgeRuns`.
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
  /** Runs of later pages that were decided with those of the same agents. */
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
      // One group of several has to stay: each by itself.
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

/** Groups put together until there are enough runs; a group is never divided. */
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
