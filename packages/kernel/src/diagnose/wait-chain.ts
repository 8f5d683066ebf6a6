/**
 * Explains why a turn does not continue: follows its waits from the turn down to the cause that will end them, or to no
 * cause. Pure; the store reads the rows.
 *
 * A cause is live when something existing will end it without help: a worker that holds the turn, a ring that a living
 * worker serves, a call that can still be answered, a timer. A wait with a deadline ends at that deadline. So a
 * deadline is a cause of last resort while any worker lives to check it.
 */
import type { TurnId } from '../base/index.js';
import { isFinal, type TurnStatus } from '../turn/index.js';
import type { NamedTurn } from './wait-cause.js';
import type { WaitFacts, WaitFactsCall, WaitFactsTurn } from './wait-facts.js';
import {
  type WaitDraft as Draft,
  describeBatch,
  describeProjectLimit,
  describeTimer,
  startWorker,
  sweepOrStart,
  type WaitLink,
} from './wait-links.js';

export interface WaitReport {
  readonly turn_id: TurnId;
  readonly status: TurnStatus;
  readonly at: string;
  /** Each link is followed by the links of the turn that it waits for. */
  readonly links: readonly WaitLink[];
  /** True when every chain ends in a live cause. */
  readonly is_live: boolean;
}

type TurnsById = ReadonlyMap<TurnId, WaitFactsTurn>;
type Blocker = (turn: WaitFactsTurn, facts: WaitFacts & { readonly byId: TurnsById }) => readonly Draft[];

/** A turn by its id, with the name of its agent if the turn was read. */
const nameTurn = (turnId: TurnId, { byId }: { readonly byId: TurnsById }): NamedTurn => ({
  turn_id: turnId,
  agent: byId.get(turnId)?.agent ?? null,
});

const isUnreadable = ({ format, newest_build }: WaitFactsTurn): boolean =>
  newest_build !== null && format > newest_build;

/** The possible reasons of a wait, one function for each reason; the reasons that apply are listed in this order. */
const BLOCKERS: readonly Blocker[] = [
  ({ status, ended_at }) =>
    isFinal(status)
      ? [
          {
            kind: 'ended',
            what: { kind: 'ended', status },
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
            what: { kind: 'given_up', tool: null, error: given_up },
            since: null,
            until: null,
            is_live: false,
            next: { kind: 'retry_dead' },
          },
        ],

  ({ status, holder, step_opened_at, deadline_at }, facts) => {
    if (status !== 'running' || holder === null) return [];
    const { worker_id, hostname, pid, is_alive, lease_until } = holder;
    return [
      {
        kind: 'lease',
        worker_id,
        what: { kind: 'lease', worker_id, hostname, pid, is_alive },
        since: step_opened_at,
        until: is_alive ? deadline_at : lease_until,
        is_live: is_alive || facts.live_workers > 0,
        next: is_alive ? null : sweepOrStart('take_over', facts),
      },
    ];
  },

  (turn) =>
    isUnreadable(turn) &&
    (turn.status === 'dispatched' || (turn.status === 'queued' && turn.behind_turn_id === null))
      ? [
          {
            kind: 'format',
            what: {
              kind: 'format',
              worker_target: turn.worker_target,
              format: turn.format,
              newest_build: turn.newest_build,
            },
            since: turn.dispatched_at ?? turn.created_at,
            until: turn.deadline_at,
            is_live: false,
            next: { kind: 'start_newer_worker', worker_target: turn.worker_target },
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
            what: { kind: 'ring', worker_target, live_workers, dispatched, window },
            since: dispatched_at,
            until: deadline_at,
            is_live: live_workers > 0,
            next: live_workers === 0 ? startWorker(worker_target) : null,
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
            what: { kind: 'agent_busy', on: nameTurn(behind_turn_id, facts) },
            since: created_at,
            until: deadline_at,
            is_live: true,
            next: null,
          },
        ],

  // The timer ends this wait whatever happens to the other turn, so the other turn's waits are not followed.
  ({ held, created_at, live_workers, worker_target }, facts) =>
    held === null
      ? []
      : [
          {
            kind: 'warm_cache',
            what: { kind: 'warm_cache', on: nameTurn(held.turn_id, facts) },
            since: created_at,
            until: held.until,
            is_live: live_workers > 0,
            next: live_workers > 0 ? null : startWorker(worker_target),
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
            what: { kind: 'window', worker_target, live_workers, dispatched, window, ahead: ahead ?? 0 },
            since: created_at,
            until: deadline_at,
            is_live: live_workers > 0,
            next:
              live_workers === 0
                ? startWorker(worker_target)
                : dispatched < window
                  ? { kind: 'sweep', does: 'take_in' }
                  : { kind: 'more_workers', worker_target },
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
            what: { kind: 'nothing' },
            since: null,
            until: deadline_at,
            is_live: false,
            next: { kind: 'report_defect', is_perhaps_by_hand: true },
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
      what: { kind: 'given_up', tool: name, error: call.given_up },
      is_live: false,
      next: { kind: 'retry_dead' },
    };
  if (call.approval != null) {
    const { ticket_id, created_at, expires_at } = call.approval;
    return {
      ...base,
      since: created_at,
      until: expires_at,
      kind: 'approval',
      what: { kind: 'approval', tool: name, ticket_id, expires_at },
      // Before the expiry only a person can end this wait; after the expiry, the sweep of any worker ends it.
      is_live: facts.live_workers > 0,
      next: { kind: 'decide', ticket_id },
    };
  }
  if (call.batch !== null) return describeBatch(call, call.batch, facts);
  if (call.awaited_turn_id !== null)
    return {
      ...base,
      kind: 'child',
      on_turn_id: call.awaited_turn_id,
      what: { kind: 'child', tool: name, on: nameTurn(call.awaited_turn_id, facts) },
      is_live: true,
      next: null,
    };
  const isHere = status === 'running' || status === 'dispatched';
  return {
    ...base,
    kind: 'tool',
    what: { kind: 'tool', tool: name, target: call.target, is_held: isHere },
    is_live: facts.live_workers > 0 || !isLate,
    next:
      isLate && facts.live_workers === 0
        ? startWorker('')
        : call.target === null
          ? null
          : { kind: 'watch_queue', target: call.target },
  };
}

/**
 * `facts.turns` must begin with the turn in question.
 *
 * @throws never.
 */
export function explainWait(facts: WaitFacts): WaitReport | undefined {
  const [first] = facts.turns;
  if (first === undefined) return undefined;
  const byId = new Map(facts.turns.map((turn) => [turn.turn_id, turn]));
  const links: WaitLink[] = [];
  const path = new Set<TurnId>();
  const told = new Set<TurnId>();
  /**
   * An explicit stack instead of recursion, because a chain may be long. A `leave` item removes a turn from the current
   * path.
   */
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
    // Each turn is shown in full only once; an earlier link already describes it.
    if (told.has(turnId)) continue;
    told.add(turnId);
    path.add(turnId);
    const drafts = BLOCKERS.flatMap((blocker) => blocker(turn, { ...facts, byId }));
    open.push({ leave: turnId });
    for (const draft of drafts.toReversed()) {
      const awaited = draft.on_turn_ids ?? (draft.on_turn_id === undefined ? [] : [draft.on_turn_id]);
      // A batch that succeeds without the member that waits for it is not a circle.
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
  what: { kind: 'cycle', of: link.what },
  // The sweep gives up the youngest wait of a circle.
  is_live: facts.live_workers > 0,
  next: sweepOrStart('break_cycle', facts),
});

const unread = (turnId: TurnId, level: number, facts: WaitFacts): WaitLink => ({
  kind: 'unread',
  level,
  turn_id: turnId,
  agent: null,
  profile: null,
  what: { kind: 'unread', has_more: facts.has_more },
  since: null,
  until: null,
  is_live: facts.has_more,
  next: facts.has_more
    ? { kind: 'ask_again', turn_id: turnId }
    : { kind: 'report_defect', is_perhaps_by_hand: false },
});
