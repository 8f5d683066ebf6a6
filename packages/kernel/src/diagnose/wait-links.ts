/** The links of a chain of waits that are neither turns nor workers: batches, timers, providers, budgets, limits of a project. */

import type { BatchId, JsonObject, ToolCallId, TurnId, WorkerId } from '../base/index.js';
import type { BatchKind, BatchStatus, Closing } from '../turn/index.js';

export type WaitLinkKind =
  | 'ended'
  | 'lease'
  | 'ring'
  | 'window'
  | 'format'
  | 'project_limit'
  | 'agent_busy'
  | 'warm_cache'
  | 'child'
  | 'batch'
  | 'tool'
  | 'retry'
  | 'provider'
  | 'breaker'
  | 'budget'
  | 'approval'
  | 'selector'
  | 'cycle'
  | 'given_up'
  | 'unread'
  | 'nothing';

export interface WaitLink {
  readonly kind: WaitLinkKind;
  /** How far below the turn in question. */
  readonly level: number;
  readonly turn_id: TurnId;
  /** Names of the turn's agent and of its profile, with the version; null for a turn that was not read. */
  readonly agent: string | null;
  readonly profile: string | null;
  readonly tool_call_id?: ToolCallId;
  /** Name of the tool that is called. */
  readonly tool?: string;
  readonly worker_id?: WorkerId;
  readonly batch_id?: BatchId;
  readonly budget_id?: string;
  readonly provider?: string;
  /** The turn this one waits for; the next links are its. */
  readonly on_turn_id?: TurnId;
  /** Of a batch, members that have not ended, a few that stand differently; the next links are theirs. */
  readonly on_turn_ids?: readonly TurnId[];
  /** Of a batch: how many have not ended, and how many of those it still needs. */
  readonly members?: { readonly total: number; readonly open: number; readonly needed: number };
  readonly what: string;
  /** ISO 8601 in UTC, as all times here. */
  readonly since: string | null;
  /** When it ends by itself at the latest. */
  readonly until: string | null;
  /** False: nothing that exists will move it, at best its deadline. */
  readonly is_live: boolean;
  readonly next: string | null;
}

export type WaitDraft = Omit<WaitLink, 'level' | 'turn_id' | 'agent' | 'profile'>;

/** What an open call waits for when it waits for many turns. */
export interface WaitFactsBatch {
  readonly batch_id: BatchId;
  readonly kind: BatchKind;
  readonly status: BatchStatus;
  readonly closing: Closing | null;
  readonly total: number;
  readonly remaining: number;
  readonly succeeded: number;
  readonly min_success: number | null;
  readonly is_due: boolean;
  readonly created_at: string;
  readonly deadline_at: string | null;
  /** A few of the members that have not ended, one of each way to stand first. */
  readonly open_turn_ids: readonly TurnId[];
}

/** What a suspended turn waits for that waits for no call. */
export interface WaitFactsWait {
  readonly kind: 'retry' | 'limit' | 'budget' | 'approval' | 'selector';
  readonly created_at: string;
  readonly due_at: string | null;
  readonly detail: JsonObject;
  /** Whose room it waits for. */
  readonly provider: {
    readonly name: string;
    /** No call before; null = it works. */
    readonly open_until: string | null;
    readonly failures: number;
    readonly max_concurrent: number | null;
    readonly requests_per_minute: number | null;
    readonly waiting: number;
  } | null;
  /** The selector it waits for, and the living workers of its pool that say that they have it. Absent: it waits for none. */
  readonly selector?: {
    readonly name: string;
    /** Null: any version will do. */
    readonly version: string | null;
    readonly workers: readonly {
      readonly worker_id: WorkerId;
      readonly hostname: string | null;
      readonly pid: number | null;
    }[];
  } | null;
}

/** What a project allows at once, and what there is. */
export interface WaitFactsProject {
  readonly name: string;
  readonly max_concurrent: number;
  readonly active: number;
}

interface Clock {
  readonly at: string;
  readonly live_workers: number;
}

export const startWorker = (target: string): string =>
  `Start a worker: boxcar worker${target === '' ? '' : ` --target ${target}`}`;

/** A call that waits for a batch, whose deadline is the one that counts. */
export function describeBatch(
  call: { readonly tool_call_id: ToolCallId; readonly name: string },
  batch: WaitFactsBatch,
  { at, live_workers }: Clock,
): WaitDraft {
  const { batch_id, total, remaining, deadline_at: until, open_turn_ids: open } = batch;
  const needed =
    batch.min_success === null ? remaining : Math.min(batch.min_success - batch.succeeded, remaining);
  const members = { total, open: remaining, needed: Math.max(needed, 0) };
  const base = {
    tool_call_id: call.tool_call_id,
    tool: call.name,
    batch_id,
    members,
    since: batch.created_at,
    until,
  };
  if (batch.status !== 'running')
    return {
      ...base,
      kind: 'nothing',
      what: `call ${call.name} waits for batch ${batch_id}, which has ended as ${batch.status}`,
      is_live: false,
      next: 'A defect: report it with the output of: boxcar doctor',
    };
  const enough = batch.min_success === null ? '' : `, ${batch.succeeded} of ${batch.min_success} successes`;
  const what = `call ${call.name} waits for batch ${batch_id}: ${total - remaining} of ${total} done${enough}`;
  const isOver = until !== null && until <= at;
  if (batch.is_due || batch.closing !== null || isOver) {
    const why =
      remaining === 0
        ? 'its answer is to be put together'
        : `it is being ended (${batch.closing ?? 'early'})`;
    return {
      ...base,
      kind: 'batch',
      what: `${what}; ${isOver && batch.closing === null ? 'its deadline is over' : why}`,
      is_live: live_workers > 0,
      next: live_workers > 0 ? 'A sweep does it within seconds.' : startWorker(''),
    };
  }
  const few = remaining > open.length ? `; ${open.length} of ${remaining} open ones are shown` : '';
  return { ...base, kind: 'batch', on_turn_ids: open, what: what + few, is_live: true, next: null };
}

const wordOf = (value: unknown): string => (typeof value === 'string' ? value : '');
const FLAGS: Readonly<Record<string, string>> = {
  tokens: '--tokens',
  cost_usd: '--cost-usd',
  turns: '--turns',
  steps: '--steps',
  depth: '--depth',
  fan_out: '--fan-out',
};

const ROOM: Readonly<Record<string, string>> = {
  rate: 'its calls per minute are used up',
  concurrency: 'all its places are taken',
  order: 'others wait for it since longer',
  failing: 'it has failed too often',
};

/** A turn that waits for a moment, a provider, a budget or a decision; who wakes it is any living worker, or somebody outside. */
export function describeTimer(
  wait: WaitFactsWait,
  turn: { readonly deadline_at: string | null },
  { at, live_workers }: Clock,
): WaitDraft {
  const { kind, created_at: since, due_at, detail, provider } = wait;
  const base = { since, until: due_at ?? turn.deadline_at };
  const isLive = live_workers > 0;
  const start = isLive ? null : startWorker('');
  switch (kind) {
    case 'retry': {
      const isLate = due_at !== null && due_at <= at;
      return {
        ...base,
        kind: 'retry',
        what: `waits to ask its model again (retry ${String(detail.retry ?? '?')}): ${[wordOf(detail.code), wordOf(detail.message)].filter(Boolean).join(': ')}`,
        is_live: isLive,
        next: start ?? (isLate ? 'A sweep wakes it within seconds.' : null),
      };
    }
    case 'limit': {
      if (provider === null)
        return {
          ...base,
          kind: 'provider',
          what: 'waits for room at a provider',
          is_live: isLive,
          next: start,
        };
      const { name, open_until: openUntil, failures, waiting } = provider;
      if (openUntil !== null)
        return {
          ...base,
          kind: 'breaker',
          provider: name,
          until: openUntil,
          what: `waits for provider ${name}, which failed ${failures} times in a row; ${waiting} turns wait for it`,
          is_live: isLive,
          next:
            start ??
            `It is tried again by itself. What went wrong: boxcar show <turn>; its state: boxcar providers ls`,
        };
      const limits = [
        ...(provider.max_concurrent === null ? [] : [`${provider.max_concurrent} at once`]),
        ...(provider.requests_per_minute === null ? [] : [`${provider.requests_per_minute} a minute`]),
      ].join(', ');
      return {
        ...base,
        kind: 'provider',
        provider: name,
        what: `waits for room at provider ${name}${limits === '' ? '' : ` (${limits})`}: ${ROOM[wordOf(detail.reason)] ?? 'there is none'}; ${waiting} turns wait for it`,
        is_live: isLive,
        next: start ?? `More room: boxcar providers set ${name} …`,
      };
    }
    case 'budget': {
      const id = wordOf(detail.budget_id);
      const limit = wordOf(detail.limit);
      return {
        ...base,
        kind: 'budget',
        budget_id: id,
        what: `is paused: budget ${id} allows ${String(detail.limit_value ?? '?')} ${limit}, and ${String(detail.needed ?? '?')} more are needed`,
        is_live: false,
        next: `boxcar budget raise ${id} ${FLAGS[limit] ?? '--tokens'} <n>`,
      };
    }
    case 'approval':
      return { ...base, kind: 'approval', what: 'waits for a decision', is_live: false, next: null };
    case 'selector': {
      const { name = wordOf(detail.selector), version = null, workers = [] } = wait.selector ?? {};
      const which = `selector '${name}'${version === null ? '' : ` version '${version}'`}`;
      const has = workers.map(
        ({ worker_id: id, hostname, pid }) =>
          `${id}${hostname === null ? '' : ` (${hostname}, process ${pid ?? '?'})`}`,
      );
      return {
        ...base,
        kind: 'selector',
        what: `waits for a worker with ${which}; ${has.length === 0 ? 'no living worker of its pool has it' : `of the living workers of its pool ${has.join(', ')} ${has.length === 1 ? 'has' : 'have'} it`}`,
        is_live: isLive,
        next:
          has.length > 0
            ? 'Such a worker takes it as soon as it has a free slot.'
            : `Start a worker that registers it (runtime.registerSelector): boxcar worker --plugin <file>. Without one the turn ends as failed (selector_unknown)${due_at === null ? '' : ` at ${due_at}`}.`,
      };
    }
    default:
      return kind satisfies never;
  }
}

/** A queued turn whose project has as many under way as it may. */
export const describeProjectLimit = (
  { name, max_concurrent, active }: WaitFactsProject,
  turn: { readonly created_at: string; readonly deadline_at: string | null },
  { live_workers }: Clock,
): WaitDraft => ({
  kind: 'project_limit',
  what: `is queued: project ${name} has ${active} turns under way of ${max_concurrent} that it may have`,
  since: turn.created_at,
  until: turn.deadline_at,
  is_live: live_workers > 0,
  next: live_workers > 0 ? `More at once: boxcar projects set ${name} --max-concurrent <n>` : startWorker(''),
});
