/**
 * Why a turn does not go on: from the turn down to what will move it, or to nothing. Pure; the rows are read by the store.
 *
 * A cause is live when something that exists will move it by itself: a worker that holds it, a ring that a living worker
 * serves, a call that somebody may answer, a timer. What has a deadline ends by it, so a deadline is a cause of the last resort
 * while any worker lives to look.
 */
import type { AgentId, RunId, ToolCallId, TurnId, WorkerId } from '../base/index.js';
import { isFinal, type TurnStatus } from '../turn/index.js';
import {
  type WaitDraft as Draft,
  describeBatch,
  describeProjectLimit,
  describeTimer,
  startWorker as start,
  type WaitFactsBatch,
  type WaitFactsProject,
  type WaitFactsWait,
  type WaitLink,
} from './wait-links.js';

export interface WaitFactsCall {
  readonly tool_call_id: ToolCallId;
  readonly name: string;
  /** How it is answered: function, primitive, queue or none. */
  readonly route: string;
  /** Whose queue its job is in. */
  readonly target: string | null;
  readonly created_at: string;
  readonly deadline_at: string;
  /** The turn whose end is its result. */
  readonly awaited_turn_id: TurnId | null;
  /** The batch whose end is its result, by the deadline of the batch. */
  readonly batch: WaitFactsBatch | null;
  readonly given_up: string | null;
}

export interface WaitFactsTurn {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly agent_id: AgentId;
  readonly agent: string;
  /** Name and version: `writer@2`. */
  readonly profile: string;
  readonly status: TurnStatus;
  readonly worker_target: string;
  readonly created_at: string;
  readonly dispatched_at: string | null;
  readonly deadline_at: string | null;
  readonly ended_at: string | null;
  /** When the step in hand was opened. */
  readonly step_opened_at: string | null;
  readonly holder: {
    readonly worker_id: WorkerId;
    readonly hostname: string | null;
    readonly pid: number | null;
    /** Null: its row is gone. */
    readonly lease_until: string | null;
    readonly is_alive: boolean;
  } | null;
  readonly calls: readonly WaitFactsCall[];
  /** While it is suspended without an open call. */
  readonly wait: WaitFactsWait | null;
  /** While it is queued and its project allows only so many at once. */
  readonly project: WaitFactsProject | null;
  /** While it is queued: the turn whose first model call fills the prompt cache for it, and the end of that wait. */
  readonly held: { readonly turn_id: TurnId; readonly until: string } | null;
  /** While it is queued: the turn of its agent that comes first. */
  readonly behind_turn_id: TurnId | null;
  /** While it is queued behind none of its agent: how many of its project and pool come before it. */
  readonly ahead: number | null;
  /** The pool it belongs to. */
  readonly live_workers: number;
  readonly window: number;
  readonly dispatched: number;
  /** The oldest build that can read it, and the newest that a living worker of its pool has, by migrations; null: none lives. */
  readonly format: number;
  readonly newest_build: number | null;
  /** What the sweep said when it gave the row up. */
  readonly given_up: string | null;
}

export interface WaitFacts {
  /** The server's clock. */
  readonly at: string;
  /** Living workers of any pool: whoever lives looks after deadlines. */
  readonly live_workers: number;
  /** The turn in question first. */
  readonly turns: readonly WaitFactsTurn[];
  /** There are more turns below than were read. */
  readonly has_more: boolean;
}

export interface WaitReport {
  readonly turn_id: TurnId;
  readonly status: TurnStatus;
  readonly at: string;
  /** Each followed by those of the turn it waits for. */
  readonly links: readonly WaitLink[];
  /** True when every chain ends in a live cause. */
  readonly is_live: boolean;
}

type TurnsById = ReadonlyMap<TurnId, WaitFactsTurn>;
type Blocker = (turn: WaitFactsTurn, facts: WaitFacts & { readonly byId: TurnsById }) => readonly Draft[];

/** A turn by its id, with the name of its agent where it was read. */
function nameTurn(turnId: TurnId, { byId }: { readonly byId: TurnsById }): string {
  const turn = byId.get(turnId);
  return turn === undefined ? turnId : `${turnId} (${turn.agent})`;
}

const poolOf = (target: string): string => (target === '' ? 'the default pool' : `pool '${target}'`);
const RETRY = 'See the error, mend its cause, then: boxcar doctor --retry-dead';

const isUnreadable = ({ format, newest_build }: WaitFactsTurn): boolean =>
  newest_build !== null && format > newest_build;

/** Why a turn may stand still, one function for each reason; what applies is listed in this order. */
const BLOCKERS: readonly Blocker[] = [
  ({ status, ended_at }) =>
    isFinal(status)
      ? [
          {
            kind: 'ended',
            what: `has ended as ${status}`,
            since: ended_at,
            until: null,
            is_live: true,
            next: null,
          },
        ]
      : [],

  ({ given_up }) =>
    given_up === null
      ? []
      : [
          {
            kind: 'given_up',
            what: `the sweep has given it up: ${given_up}`,
            since: null,
            until: null,
            is_live: false,
            next: RETRY,
          },
        ],

  ({ status, holder, step_opened_at, deadline_at }, facts) => {
    if (status !== 'running' || holder === null) return [];
    const { worker_id, is_alive, lease_until } = holder;
    const place = holder.hostname === null ? '' : ` (${holder.hostname}, process ${holder.pid ?? '?'})`;
    return [
      {
        kind: 'lease',
        worker_id,
        what: is_alive
          ? `is in the hands of worker ${worker_id}${place}`
          : `was in the hands of worker ${worker_id}${place}, whose lease is over`,
        since: step_opened_at,
        until: is_alive ? deadline_at : lease_until,
        is_live: is_alive || facts.live_workers > 0,
        next: is_alive ? null : facts.live_workers > 0 ? 'A sweep takes it over within seconds.' : start(''),
      },
    ];
  },

  (turn) =>
    isUnreadable(turn) &&
    (turn.status === 'dispatched' || (turn.status === 'queued' && turn.behind_turn_id === null))
      ? [
          {
            kind: 'format',
            what: `was written by a newer build: it takes one that knows migration ${turn.format}, and the living workers of ${poolOf(turn.worker_target)} know ${turn.newest_build} at most`,
            since: turn.dispatched_at ?? turn.created_at,
            until: turn.deadline_at,
            is_live: false,
            next: `Start a worker of the newer build: boxcar worker${turn.worker_target === '' ? '' : ` --target ${turn.worker_target}`}`,
          },
        ]
      : [],

  (turn) => {
    const { status, worker_target, live_workers, dispatched_at, deadline_at, dispatched, window } = turn;
    return status !== 'dispatched' || isUnreadable(turn)
      ? []
      : [
          {
            kind: 'ring',
            what:
              live_workers === 0
                ? `is dispatched, and no living worker serves ${poolOf(worker_target)}`
                : `is dispatched to ${poolOf(worker_target)}: ${live_workers} alive, ${dispatched} dispatched in a window of ${window}`,
            since: dispatched_at,
            until: deadline_at,
            is_live: live_workers > 0,
            next: live_workers === 0 ? start(worker_target) : null,
          },
        ];
  },

  ({ status, behind_turn_id, created_at, deadline_at }, facts) =>
    status !== 'queued' || behind_turn_id === null
      ? []
      : [
          {
            kind: 'agent_busy',
            on_turn_id: behind_turn_id,
            what: `waits in the queue of its agent, behind turn ${nameTurn(behind_turn_id, facts)}`,
            since: created_at,
            until: deadline_at,
            is_live: true,
            next: null,
          },
        ],

  // The timer ends it whatever becomes of the other turn, so that turn's own waits are not followed.
  ({ held, created_at, live_workers, worker_target }, facts) =>
    held === null
      ? []
      : [
          {
            kind: 'warm_cache',
            what: `waits until the first model call of its sibling ${nameTurn(held.turn_id, facts)} has filled the prompt cache (warm_cache), for 10 s at most`,
            since: created_at,
            until: held.until,
            is_live: live_workers > 0,
            next: live_workers > 0 ? null : start(worker_target),
          },
        ],

  (turn, facts) => {
    const { status, behind_turn_id, project, live_workers, held } = turn;
    if (
      status !== 'queued' ||
      held !== null ||
      behind_turn_id !== null ||
      live_workers === 0 ||
      isUnreadable(turn)
    )
      return [];
    return project !== null && project.active >= project.max_concurrent
      ? [describeProjectLimit(project, turn, facts)]
      : [];
  },

  (turn) => {
    const { status, behind_turn_id, created_at, deadline_at, worker_target } = turn;
    const { live_workers, window, dispatched, ahead, project } = turn;
    return status !== 'queued' ||
      turn.held !== null ||
      behind_turn_id !== null ||
      isUnreadable(turn) ||
      (live_workers > 0 && project !== null && project.active >= project.max_concurrent)
      ? []
      : [
          {
            kind: 'window',
            what:
              live_workers === 0
                ? `is queued, and no living worker serves ${poolOf(worker_target)}`
                : `is queued for ${poolOf(worker_target)}, ${ahead ?? 0} of its project before it; ${dispatched} dispatched in a window of ${window}`,
            since: created_at,
            until: deadline_at,
            is_live: live_workers > 0,
            next:
              live_workers === 0
                ? start(worker_target)
                : dispatched < window
                  ? 'There is room: a sweep takes it in within seconds.'
                  : `More workers take it in sooner: boxcar worker${worker_target === '' ? '' : ` --target ${worker_target}`}`,
          },
        ];
  },

  ({ status, calls }, facts) =>
    isFinal(status) ? [] : calls.map((call) => describeCall(call, status, facts)),

  (turn, facts) =>
    turn.status !== 'suspended' || turn.wait === null ? [] : [describeTimer(turn.wait, turn, facts)],

  ({ status, calls, wait, deadline_at }) =>
    status !== 'suspended' || calls.length > 0 || wait !== null
      ? []
      : [
          {
            kind: 'nothing',
            what: 'is suspended, no call of it is out, and nothing else it waits for',
            since: null,
            until: deadline_at,
            is_live: false,
            next: 'A defect, or rows changed by hand: report it with the output of: boxcar doctor',
          },
        ],
];

function describeCall(
  call: WaitFactsCall,
  status: TurnStatus,
  facts: WaitFacts & { readonly byId: TurnsById },
): Draft {
  const { tool_call_id, name, created_at: since, deadline_at: until } = call;
  const isLate = until <= facts.at;
  const base = { tool_call_id, tool: name, since, until };
  if (call.given_up !== null)
    return {
      ...base,
      kind: 'given_up',
      what: `call ${name}: the sweep has given it up: ${call.given_up}`,
      is_live: false,
      next: RETRY,
    };
  if (call.batch !== null) return describeBatch(call, call.batch, facts);
  if (call.awaited_turn_id !== null)
    return {
      ...base,
      kind: 'child',
      on_turn_id: call.awaited_turn_id,
      what: `call ${name} waits for turn ${nameTurn(call.awaited_turn_id, facts)}`,
      is_live: true,
      next: null,
    };
  const isHere = status === 'running' || status === 'dispatched';
  const who =
    call.target !== null
      ? `a worker of the queue boxcar-tools-${call.target}`
      : isHere
        ? 'the worker that has the turn'
        : 'somebody outside';
  return {
    ...base,
    kind: 'tool',
    what: `call ${name} is to be answered by ${who}`,
    is_live: facts.live_workers > 0 || !isLate,
    next:
      isLate && facts.live_workers === 0
        ? start('')
        : call.target === null
          ? null
          : `See that a worker takes jobs of boxcar-tools-${call.target}: boxcar doctor`,
  };
}

/** @throws never; `facts.turns` begins with the turn in question. */
export function explainWait(facts: WaitFacts): WaitReport | undefined {
  const [first] = facts.turns;
  if (first === undefined) return undefined;
  const byId = new Map(facts.turns.map((turn) => [turn.turn_id, turn]));
  const links: WaitLink[] = [];
  const path = new Set<TurnId>();
  const told = new Set<TurnId>();
  /** By hand, not by recursion: a chain may be long. `undefined` leaves a turn again. */
  const open: (
    | { readonly turnId: TurnId; readonly level: number }
    | { readonly leave: TurnId }
    | { readonly link: WaitLink }
  )[] = [{ turnId: first.turn_id, level: 0 }];
  for (let item = open.pop(); item !== undefined; item = open.pop()) {
    if ('leave' in item) {
      path.delete(item.leave);
      continue;
    }
    if ('link' in item) {
      links.push(item.link);
      continue;
    }
    const { turnId, level } = item;
    const turn = byId.get(turnId);
    if (turn === undefined) {
      links.push(unread(turnId, level, facts));
      continue;
    }
    // Shown once in full; what stands above it already says the rest.
    if (told.has(turnId)) continue;
    told.add(turnId);
    path.add(turnId);
    const drafts = BLOCKERS.flatMap((blocker) => blocker(turn, { ...facts, byId }));
    open.push({ leave: turnId });
    for (const draft of drafts.toReversed()) {
      const awaited = draft.on_turn_ids ?? (draft.on_turn_id === undefined ? [] : [draft.on_turn_id]);
      // A batch that can do without the member that waits for it is none.
      const canSpare = draft.members !== undefined && draft.members.open > draft.members.needed;
      const back = canSpare ? undefined : awaited.find((id) => path.has(id));
      for (const id of awaited.toReversed()) if (!path.has(id)) open.push({ turnId: id, level: level + 1 });
      const link = { ...draft, level, turn_id: turnId, agent: turn.agent, profile: turn.profile };
      open.push({ link: back === undefined ? link : asCycle({ ...link, on_turn_id: back }, facts) });
    }
  }
  return {
    turn_id: first.turn_id,
    status: first.status,
    at: facts.at,
    links,
    is_live: links.every((link) => link.is_live),
  };
}

const asCycle = (link: WaitLink, facts: WaitFacts): WaitLink => ({
  ...link,
  kind: 'cycle',
  what: `${link.what}, which waits for this one: a circle`,
  // The sweep gives up the youngest wait of a circle.
  is_live: facts.live_workers > 0,
  next:
    facts.live_workers > 0
      ? 'A sweep gives up the youngest wait of the circle within seconds (delegation_cycle).'
      : start(''),
});

const unread = (turnId: TurnId, level: number, facts: WaitFacts): WaitLink => ({
  kind: 'unread',
  level,
  turn_id: turnId,
  agent: null,
  profile: null,
  what: facts.has_more ? 'was not read: there are too many turns below' : 'is not there',
  since: null,
  until: null,
  is_live: facts.has_more,
  next: facts.has_more
    ? `boxcar why-stuck ${turnId}`
    : 'A defect: report it with the output of: boxcar doctor',
});
