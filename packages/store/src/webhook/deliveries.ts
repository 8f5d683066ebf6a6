/**
 * Events that are sent to external receivers.
 *
 * W1  A trigger makes a delivery in the statement that ends its handoff, or that asks a question of a task. So every such event has a
 *     delivery, and at most one for the same receiver.
 * W2  A process claims a delivery before sending it, by compare-and-set, for a limited time. Of two concurrent claims, one succeeds.
 * W3  Only the claim of an attempt records its outcome. An attempt without a recorded outcome is repeated, under the same id.
 * W4  The body is read when it is sent, and is never stored: an erased result is not sent.
 * Rule: docs/reference/handoff.md, "Callbacks"; docs/reference/a2a.md, "Push notifications".
 */
import type {
  DeliveryId,
  DeliveryStatus,
  ErrorBody,
  HandoffId,
  HandoffPhase,
  JsonObject,
  JsonValue,
  ProjectId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

/** A delivery that this process must send, with its content. */
export interface ClaimedDelivery extends pg.QueryResultRow {
  readonly id: DeliveryId;
  readonly project_id: ProjectId;
  readonly handoff_id: HandoffId;
  readonly url: string;
  readonly host: string;
  /** The configuration of a push notification; null for a callback. */
  readonly push_config: string | null;
  /** Includes this attempt. */
  readonly attempts: number;
  readonly failures: number;
  readonly event_seq: number;
  readonly event_type: string;
  readonly event_data: JsonObject;
  readonly event_at: Date;
  readonly phase: HandoffPhase;
  /** Null after erasure. */
  readonly result: JsonValue;
  readonly error: ErrorBody | null;
}

// Selected by host, so that the due deliveries of one receiver are not read in the search for those of another. The hosts are read along
// their index. `due` is read without locks and may be claimed by another process at this moment: `held` skips locked rows, checks the
// others again under their locks, and only `up` makes a claim (W2).
const CLAIM = statement(`
  with recursive /* deliveries.claim */
  hosts as (
    (select d.host from boxcar.webhook_deliveries d where d.status = 'pending' order by d.host limit 1)
    union all
    select (
      select d.host
      from boxcar.webhook_deliveries d
      where d.status = 'pending' and d.host > hosts.host
      order by d.host
      limit 1
    )
    from hosts
    where hosts.host is not null
  ),
  due as (
    select x.id
    from hosts
    cross join lateral (
      select d.id, d.next_at
      from boxcar.webhook_deliveries d
      where d.status = 'pending' and d.host = hosts.host and d.next_at <= now()
      order by d.next_at
      limit greatest($3 - coalesce(($4::jsonb->>hosts.host)::int, 0), 0)
    ) x
    order by x.next_at
    limit $2
  ),
  held as materialized (
    select d.id
    from boxcar.webhook_deliveries d
    where d.id in (select id from due) and d.status = 'pending' and d.next_at <= now()
    for update of d skip locked
  ),
  up as (
    update boxcar.webhook_deliveries d
    set holder_id = $1, attempts = d.attempts + 1, next_at = now() + $5 * interval '1 millisecond'
    from held
    where d.id = held.id
    returning d.*
  )
  select
    up.id, up.project_id, up.handoff_id, up.url, up.host, up.push_config, up.attempts, up.failures, up.event_seq,
    e.type as event_type, e.data as event_data, e.created_at as event_at, h.phase,
    case c.content->>'kind' when 'text' then to_json(c.content->>'text') else c.content->'data' end as result,
    coalesce(h.error, t.error) as error
  from up
  join boxcar.handoff_events e on e.handoff_id = up.event_handoff_id and e.seq = up.event_seq
  join boxcar.handoffs h on h.id = up.handoff_id
  left join boxcar.handoffs j on j.id = h.joined_to
  left join boxcar.turns t on t.id = coalesce(h.turn_id, j.turn_id)
  left join boxcar.cards c on c.id = t.deliverable_card_id
  order by up.created_at, up.id`);

/**
 * Claims deliveries that are due (W2).
 *
 * @param of.perHost - The maximum number per host, including those that `busy` counts.
 * @param of.leaseMs - The time after which other processes may send a delivery without a recorded outcome.
 */
export function claimDeliveries(
  db: Queryable,
  of: {
    readonly holderId: string;
    readonly limit: number;
    readonly perHost: number;
    readonly busy: ReadonlyMap<string, number>;
    readonly leaseMs: number;
  },
): Promise<ClaimedDelivery[]> {
  const { holderId, limit, perHost, busy, leaseMs } = of;
  return run<ClaimedDelivery>(db, CLAIM, [
    holderId,
    limit,
    perHost,
    JSON.stringify(Object.fromEntries(busy)),
    leaseMs,
  ]);
}

/** The outcome of an attempt. */
export interface DeliveryOutcome {
  readonly id: DeliveryId;
  readonly holderId: string;
  /** The attempt number of the claim. */
  readonly attempts: number;
  /** `left`: the outcome is unknown, and the delivery is due again at once. */
  readonly outcome: 'delivered' | 'failed' | 'retry' | 'left';
  readonly lastStatus: number | null;
  readonly lastError: string | null;
  /** The pause before the next attempt. */
  readonly pauseMs: number;
}

/** A delivery after an attempt. */
export interface RecordedDelivery extends pg.QueryResultRow {
  readonly id: DeliveryId;
  readonly status: DeliveryStatus;
  readonly next_at: Date;
}

// A retry after the end of the delivery's time is recorded as failed. The UPDATE locks each delivery and compares holder and attempt: a
// delivery that another process has claimed in the meantime is left out (W3).
const RECORD = statement(`
  with /* deliveries.record */
  o as (
    select
      o.*,
      case
        when o.outcome in ('delivered', 'failed') then o.outcome
        when o.outcome = 'retry' and now() + o.pause_ms * interval '1 millisecond' > d.give_up_at then 'failed'
        else 'pending'
      end as status
    from json_to_recordset($1) as o(
      id uuid, holder_id uuid, attempts int, outcome text, last_status int, last_error text, pause_ms float8
    )
    join boxcar.webhook_deliveries d on d.id = o.id
  )
  update boxcar.webhook_deliveries d
  set status = o.status,
    holder_id = null,
    ended_at = case when o.status <> 'pending' then now() end,
    failures = d.failures + case when o.outcome = 'retry' then 1 else 0 end,
    next_at = now() + o.pause_ms * interval '1 millisecond',
    last_status = case o.outcome when 'left' then d.last_status else o.last_status end,
    last_error = case o.outcome when 'left' then d.last_error else o.last_error end
  from o
  where d.id = o.id
    and d.holder_id = o.holder_id
    and d.attempts = o.attempts
    and d.status = 'pending'
  returning d.id, d.status, d.next_at`);

/** Records the outcomes of attempts (W3). @returns The recorded deliveries, without those that another process has claimed since. */
export function recordDeliveries(
  db: Queryable,
  outcomes: readonly DeliveryOutcome[],
): Promise<RecordedDelivery[]> {
  return run<RecordedDelivery>(db, RECORD, [
    JSON.stringify(
      outcomes.map((one) => ({
        id: one.id,
        holder_id: one.holderId,
        attempts: one.attempts,
        outcome: one.outcome,
        last_status: one.lastStatus,
        last_error: one.lastError,
        pause_ms: one.pauseMs,
      })),
    ),
  ]);
}
