/**
 * The claim of a turn: which worker runs it, from which position, with which values.
 *
 * C1  A claim wins only on `dispatched` at its epoch, and does not change the epoch. The row alone says which target the turn is for,
 *     whatever led a worker to it.
 */

import type {
  AgentId,
  Allotment,
  BoxId,
  ProfileId,
  ProjectId,
  Ring,
  RunId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import { HANDOFF_PRIMITIVES } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, retryTransient, run, skipping, statement } from '../db/index.js';
import { type Build, NOT_GIVEN_UP, THIS_BUILD } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { heldView, heldViewPosition } from '../visible/index.js';
import { hasStatus } from './turns.js';

export interface ClaimedTurn {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly agentId: AgentId;
  readonly profileId: ProfileId;
  readonly epoch: number;
  readonly parentTurnId: TurnId | null;
  readonly parentToolCallId: ToolCallId | null;
  readonly isAwaited: boolean;
  readonly primitive: string;
  readonly contextBoxId: BoxId;
  readonly outputBoxId: BoxId;
  readonly channelId: string;
  readonly workerTarget: string;
  readonly traceparent: string | null;
  readonly maxSteps: number;
  readonly deadlineAt: Date | null;
  /** Committed steps. */
  readonly stepCount: number;
  readonly emptyReplies: number;
  readonly pendingCalls: number;
  /** Claims since the last committed step, including this one. */
  readonly attempt: number;
  /** Failed model calls of this step that are tried again. */
  readonly retries: number;
  /** Workers that the turn has lost since the last committed step. */
  readonly losses: number;
  /** Its siblings wait for its first model call (`warm-cache.ts`). */
  readonly warmsCache: boolean;
  /** True when batches wait for the turn. */
  readonly isMember: boolean;
  /** True when the turn serves a handoff that may be answered from the cache. */
  readonly mayBeCached: boolean;
  /** Null when nothing limits the turn's spending. */
  readonly purse: Purse | null;
  /** The selector that makes the turn's prompts. The version is null until the first step. */
  readonly selector: { readonly name: string; readonly version: string | null } | null;
}

/** The allotment that a turn got from its accounts, and the amounts that the turn has spent. */
export interface Purse {
  /** Null when only the profile limits it. */
  readonly budgetId: string | null;
  readonly allotment: Allotment;
  readonly spentTokens: number;
  readonly spentCostMicros: number;
}

export type ClaimOutcome =
  | { readonly outcome: 'claimed'; readonly turn: ClaimedTurn }
  /** `isLocked`: stale only because the row of the turn or of its tape is locked. Only a claim that leaves out locked turns reports it. */
  | { readonly outcome: 'stale'; readonly isLocked?: true };

const claimedColumns = (of: string): string => `
  ${of}.id, ${of}.project_id, ${of}.run_id, ${of}.agent_id, ${of}.profile_id, ${of}.epoch, ${of}.parent_turn_id,
  ${of}.parent_tool_call_id, ${of}.is_awaited, ${of}.primitive, ${of}.context_box_id, ${of}.output_box_id,
  ${of}.channel_id, ${of}.worker_target, ${of}.traceparent, ${of}.max_steps, ${of}.deadline_at, ${of}.step_count,
  ${of}.empty_replies, ${of}.pending_calls, ${of}.attempt, ${of}.retries, ${of}.losses,
  ${of}.batch_ids is not null as is_member,
  coalesce(${of}.warm_turn_id = ${of}.id and ${of}.step_count = 0, false) as warms_cache,
  ${of}.budget_id, ${of}.allotted_tokens::float8, ${of}.allotted_cost::float8, ${of}.allotted_steps,
  ${of}.spent_tokens::float8, ${of}.spent_cost::float8, ${of}.selector, ${of}.selector_version,
  ${of}.primitive in (${[...HANDOFF_PRIMITIVES].map((name) => `'${name}'`).join(', ')})
  and exists (select from boxcar.handoffs h where h.turn_id = ${of}.id and h.cache_key is not null) as may_be_cached`;

const isOfTargets = (targets: string): string =>
  `(${targets}::text[] is null or t.worker_target = any (${targets}))`;

// The race is with other workers that got the same ring, and with ends and takeovers. Turns are locked by id, then their tapes by id. The
// second worker to lock a turn finds another status or epoch, so its claim leaves the turn out (C1). With `leavesLocked`, turns whose row
// or tape is locked are left out at once. Each part reads the part before it, so that Postgres never joins two lists of a batch by
// comparing all their pairs.
const claimText = (leavesLocked: boolean): string => `
  with /* claims.claim */
  want as (select * from json_to_recordset($1) as w(turn_id uuid, epoch int)),
  lk as (
    select t.*
    from boxcar.turns t
    join want w on w.turn_id = t.id and w.epoch = t.epoch
    where t.id = any ($3::uuid[])
      and ${hasStatus('dispatched')}
      and t.format <= $4
      and ${isOfTargets('$6')}
      and ${NOT_GIVEN_UP}
    order by t.id
    for update of t${skipping(leavesLocked)}
  ),
  heads as (
    select lk.id as turn_id, lk.output_box_id, lk.epoch, lk.context_box_id, lk.agent_id, lk.max_steps,
      lk.start_position is null as is_first, ${heldView('lk')}
    from lk
    join boxcar.boxes b on b.id = lk.output_box_id
    order by b.id
    for no key update of b${skipping(leavesLocked)}
  ),
  hd as (
    update boxcar.boxes b
    set head_position = b.head_position + case when heads.is_first then 1 else 0 end
    from heads
    where b.id = heads.output_box_id
    returning heads.*, b.head_position, ${heldViewPosition('heads', 'b')} as view_from
  ),
  started as (
    insert into boxcar.tape_entries (box_id, position, kind, payload, turn_id, author_id)
    select
      hd.output_box_id, hd.head_position, 'event',
      json_build_object(
        'name', 'turn.started',
        'data', json_strip_nulls(json_build_object(
          'turn_id', hd.turn_id, 'context_box_id', hd.context_box_id,
          'steps_left', case when hd.max_steps <= 2 then hd.max_steps end
        ))
      ),
      hd.turn_id, hd.agent_id::text
    from hd
    where hd.is_first
  ),
  cl as (
    update boxcar.turns t
    set status = 'running',
      holder_id = $2,
      attempt = t.attempt + 1,
      format = greatest(t.format, $5),
      start_position = case when hd.is_first then hd.head_position else t.start_position end
    from hd
    where t.id = hd.turn_id and t.epoch = hd.epoch
    returning t.*, hd.head_position, hd.view_from
  ),
  opened as (
    insert into boxcar.steps (turn_id, step, attempt, project_id, epoch, holder_id, from_position, to_position)
    select cl.id, cl.step_count + 1, cl.attempt, cl.project_id, cl.epoch, $2, cl.view_from, cl.head_position
    from cl
    where cl.pending_calls = 0
  )
  select ${claimedColumns('cl')}
  from cl`;
export const CLAIM = statement(claimText(false));
const CLAIM_UNLOCKED = statement(claimText(true));

// A turn that still has the status and epoch of its ring was left out because a row was locked.
const STILL_DISPATCHED = statement(`
  select /* claims.still_dispatched */ t.id, t.epoch
  from boxcar.turns t
  where t.id = any ($1::uuid[]) and t.status = 'dispatched' and ${isOfTargets('$2')}`);

// Two claims can give this holder turns at this epoch: the claim that was just made, and an earlier try whose answer was lost.
const CLAIMED = statement(`
  select /* claims.claimed */ ${claimedColumns('t')}
  from json_to_recordset($1) as w(turn_id uuid, epoch int)
  cross join lateral (select * from boxcar.turns t where t.id = w.turn_id offset 0) t
  where t.status = 'running' and t.epoch = w.epoch and t.holder_id = $2`);

type ClaimRow = Row<
  'turns',
  | ('id' | 'project_id' | 'run_id' | 'agent_id' | 'profile_id' | 'epoch' | 'attempt' | 'primitive')
  | ('parent_turn_id' | 'parent_tool_call_id' | 'is_awaited' | 'channel_id' | 'worker_target' | 'traceparent')
  | ('context_box_id' | 'output_box_id' | 'max_steps' | 'deadline_at' | 'step_count' | 'pending_calls')
  | (
      | 'empty_replies'
      | 'retries'
      | 'losses'
      | 'budget_id'
      | 'allotted_steps'
      | 'selector'
      | 'selector_version'
    )
> & {
  warms_cache: boolean;
  is_member: boolean;
  may_be_cached: boolean;
  allotted_tokens: number | null;
  allotted_cost: number | null;
  spent_tokens: number | null;
  spent_cost: number | null;
};

const toPurse = (row: ClaimRow): Purse | null =>
  row.spent_tokens === null
    ? null
    : {
        budgetId: row.budget_id,
        allotment: { tokens: row.allotted_tokens, costMicros: row.allotted_cost, steps: row.allotted_steps },
        spentTokens: row.spent_tokens,
        spentCostMicros: row.spent_cost ?? 0,
      };

/**
 * Claims dispatched turns for a worker, and opens the next step of the turns that wait for no call.
 *
 * @param build - The build of the worker. A turn that this build cannot read is `stale`. A claimed turn gets the format of this build.
 * @returns One outcome per ring, in order. A ring with an old epoch is `stale`: a value, not an error. A claim that has won reports
 *   `claimed`, also when its first answer was lost. So nothing else may claim or run a turn for this holder in the meantime.
 */
export function claim(
  pool: pg.Pool,
  rings: readonly Pick<Ring, 'turnId' | 'epoch'>[],
  holderId: WorkerId,
  build: Build = THIS_BUILD,
): Promise<readonly ClaimOutcome[]> {
  return retryTransient((attempt) => claimOnce(pool, rings, { holderId, build, isRepeated: attempt > 1 }));
}

/** The epochs of the turns that are still dispatched. */
async function findDispatched(
  db: Queryable,
  items: readonly { readonly turn_id: TurnId }[],
  targets: readonly string[] | undefined,
): Promise<Map<TurnId, number>> {
  const rows = await run<{ id: TurnId; epoch: number }>(db, STILL_DISPATCHED, [
    items.map((item) => item.turn_id),
    targets ?? null,
  ]);
  return new Map(rows.map((row) => [row.id, row.epoch]));
}

/** `claim` on one connection. The caller handles the loss of the connection. `isRepeated`: an earlier try of this claim may have won. */
export async function claimOnce(
  db: Queryable,
  rings: readonly Pick<Ring, 'turnId' | 'epoch'>[],
  options: {
    readonly holderId: WorkerId;
    readonly build?: Build | undefined;
    readonly isRepeated: boolean;
    /** Turns of other targets are `stale`. Default: all targets. */
    readonly targets?: readonly string[] | undefined;
    /** As in `BatchTry`. With `silently`, a turn that is left out is `stale` like any other, which saves one statement. */
    readonly leavesLocked?: boolean | 'silently' | undefined;
  },
): Promise<readonly ClaimOutcome[]> {
  const { holderId, build = THIS_BUILD, isRepeated, targets, leavesLocked = false } = options;
  const wanted = [
    // Keyed by turn and epoch, so that an old ring cannot replace the current ring of the same turn.
    ...new Map(
      rings.map(({ turnId, epoch }) => [`${turnId}-${epoch}`, { turn_id: turnId, epoch }] as const),
    ).values(),
  ];
  const claiming = run<ClaimRow>(db, leavesLocked === false ? CLAIM : CLAIM_UNLOCKED, [
    JSON.stringify(wanted),
    holderId,
    wanted.map((item) => item.turn_id),
    build.schemaVersion,
    build.turnFormat,
    targets ?? null,
  ]);
  const claimed = new Map((await claiming).map((row) => [row.id, row]));
  const missing = leavesLocked === true ? wanted.filter((item) => !claimed.has(item.turn_id)) : [];
  const locked =
    missing.length === 0 ? new Map<TurnId, number>() : await findDispatched(db, missing, targets);
  // This statement begins after an earlier try that was still running: the claim waited for that try, or found its turns still
  // dispatched.
  if (isRepeated)
    for (const row of await run<ClaimRow>(db, CLAIMED, [JSON.stringify(wanted), holderId]))
      claimed.set(row.id, row);
  return rings.map((ring) => {
    const row = claimed.get(ring.turnId);
    if (row === undefined || row.epoch !== ring.epoch)
      return { outcome: 'stale', ...(locked.get(ring.turnId) === ring.epoch ? { isLocked: true } : {}) };
    // A ring that is twice in one batch wins once.
    claimed.delete(ring.turnId);
    return {
      outcome: 'claimed',
      turn: {
        turnId: row.id,
        projectId: row.project_id,
        runId: row.run_id,
        agentId: row.agent_id,
        profileId: row.profile_id,
        epoch: row.epoch,
        parentTurnId: row.parent_turn_id,
        parentToolCallId: row.parent_tool_call_id,
        isAwaited: row.is_awaited,
        primitive: row.primitive,
        contextBoxId: row.context_box_id,
        outputBoxId: row.output_box_id,
        channelId: row.channel_id,
        workerTarget: row.worker_target,
        traceparent: row.traceparent,
        maxSteps: row.max_steps,
        deadlineAt: row.deadline_at,
        stepCount: row.step_count,
        emptyReplies: row.empty_replies,
        pendingCalls: row.pending_calls,
        attempt: row.attempt,
        retries: row.retries,
        losses: row.losses,
        warmsCache: row.warms_cache,
        isMember: row.is_member,
        mayBeCached: row.may_be_cached,
        purse: toPurse(row),
        selector: row.selector === null ? null : { name: row.selector, version: row.selector_version },
      },
    };
  });
}
