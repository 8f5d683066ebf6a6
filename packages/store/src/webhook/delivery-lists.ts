/** Lists deliveries for people, and sends a delivery again. Rule: docs/reference/handoff.md, "Callbacks". */
import {
  type DeliveryId,
  type DeliveryStatus,
  type HandoffId,
  KernelError,
  type ProjectId,
  type WebhookDelivery,
  withoutQuery,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

interface DeliveryRow extends pg.QueryResultRow {
  readonly delivery_id: DeliveryId;
  readonly handoff_id: HandoffId;
  readonly push_config: string | null;
  readonly event_type: string;
  readonly url: string;
  readonly status: DeliveryStatus;
  readonly attempts: number;
  readonly next_at: Date;
  readonly last_status: number | null;
  readonly last_error: string | null;
  readonly created_at: Date;
  readonly ended_at: Date | null;
  readonly place_at: string;
}

const COLUMNS = `
  d.id as delivery_id, d.handoff_id, d.push_config, e.type as event_type, d.url, d.status, d.attempts, d.next_at,
  d.last_status, d.last_error, d.created_at, d.ended_at,
  to_char(d.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at`;
const FROM = `
  boxcar.webhook_deliveries d
  join boxcar.handoff_events e on e.handoff_id = d.event_handoff_id and e.seq = d.event_seq`;

const toDelivery = (row: DeliveryRow): WebhookDelivery => ({
  delivery_id: row.delivery_id,
  handoff_id: row.handoff_id,
  push_config: row.push_config,
  event_type: row.event_type,
  url: withoutQuery(row.url),
  status: row.status,
  attempts: row.attempts,
  next_at: row.status === 'pending' ? row.next_at : null,
  last_status: row.last_status,
  last_error: row.last_error,
  created_at: row.created_at,
  ended_at: row.ended_at,
});

/** The filters of a list of deliveries. */
export interface DeliveryFilters {
  readonly projectId: ProjectId;
  readonly status?: DeliveryStatus | undefined;
  readonly handoffId?: HandoffId | undefined;
  readonly limit: number;
  /** The last delivery of the previous page. */
  readonly after?: { readonly at: string; readonly id: string } | undefined;
}

/** A delivery of a list, with its place in the list. */
export interface ListedDelivery extends WebhookDelivery {
  /** ISO 8601, to the microsecond. */
  readonly place_at: string;
}

const listOf = (which: string): string => `
  select /* delivery-lists.list */ ${COLUMNS}
  from ${FROM}
  where d.project_id = $1${which}
    and (d.status = $2 or $2 is null)
    and (d.handoff_id = $3 or $3 is null)
    and ($4::timestamptz is null or (d.created_at, d.id) < ($4, $5::uuid))
  order by d.created_at desc, d.id desc
  limit $6`;

const LIST = statement(listOf(''));
/** Failed and pending deliveries are few compared to the others, and have separate indexes. */
const LIST_FAILED = statement(listOf(" and d.status = 'failed'"));
const LIST_PENDING = statement(listOf(" and d.status = 'pending'"));
const LIST_OF_HANDOFF = statement(listOf(' and d.handoff_id = $3'));
const LISTS = { pending: LIST_PENDING, failed: LIST_FAILED, delivered: LIST } as const;

/** Deliveries of a project, the newest first. */
export async function listDeliveries(db: Queryable, filters: DeliveryFilters): Promise<ListedDelivery[]> {
  const { projectId, status, handoffId, after, limit } = filters;
  const wanted = handoffId !== undefined ? LIST_OF_HANDOFF : status === undefined ? LIST : LISTS[status];
  const rows = await run<DeliveryRow>(db, wanted, [
    projectId,
    status ?? null,
    handoffId ?? null,
    after?.at ?? null,
    after?.id ?? null,
    limit,
  ]);
  return rows.map((row) => ({ ...toDelivery(row), place_at: row.place_at }));
}

const FIND = statement(
  `select /* delivery-lists.find */ ${COLUMNS} from ${FROM} where d.id = $1 and d.project_id = $2`,
);

export async function findDelivery(
  db: Queryable,
  { deliveryId, projectId }: { readonly deliveryId: DeliveryId; readonly projectId: ProjectId },
): Promise<WebhookDelivery | undefined> {
  const [row] = await run<DeliveryRow>(db, FIND, [deliveryId, projectId]);
  return row && toDelivery(row);
}

// Skips a delivery that is being sent now.
const SEND_AGAIN = statement(`
  with /* delivery-lists.send_again */
  lk as (
    select d.id, d.status
    from boxcar.webhook_deliveries d
    where d.id = $1 and d.project_id = $2
    for update
  ),
  up as (
    update boxcar.webhook_deliveries d
    set status = 'pending',
      ended_at = null,
      failures = 0,
      next_at = now(),
      give_up_at = now() + interval '24 hours'
    from lk
    where d.id = lk.id and lk.status <> 'delivered' and d.holder_id is null
  )
  select lk.status
  from lk`);

/**
 * Makes a delivery due now. If it fails, it is repeated for a day.
 *
 * @throws KernelError `not_found`; `conflict` when it was already delivered.
 */
export async function sendAgain(
  db: Queryable,
  { deliveryId, projectId }: { readonly deliveryId: DeliveryId; readonly projectId: ProjectId },
): Promise<void> {
  const [row] = await run<{ status: DeliveryStatus }>(db, SEND_AGAIN, [deliveryId, projectId]);
  if (row === undefined)
    throw new KernelError('not_found', {
      message: `No delivery ${deliveryId} in this project.`,
      next: 'Look at them: boxcar webhooks ls.',
      details: { delivery_id: deliveryId },
    });
  if (row.status === 'delivered')
    throw new KernelError('conflict', {
      message: `Delivery ${deliveryId} was delivered already.`,
      next: 'Nothing needs to be sent again.',
      details: { delivery_id: deliveryId, status: row.status },
    });
}

const TROUBLE = statement(`
  select /* delivery-lists.trouble */
    array(
      select d.id
      from boxcar.webhook_deliveries d
      where d.status = 'failed'
      order by d.created_at desc, d.id
      limit $2
    ) as failed,
    array(
      select d.id
      from boxcar.webhook_deliveries d
      where d.status = 'pending' and d.next_at < now() - $1 * interval '1 millisecond'
      order by d.next_at, d.id
      limit $2
    ) as late`);

/** Deliveries that were given up, and deliveries that have been due for `lateMs` without being sent. At most `limit` of each. */
export async function findDeliveryTrouble(
  db: Queryable,
  { lateMs, limit }: { readonly lateMs: number; readonly limit: number },
): Promise<{ readonly failed: readonly DeliveryId[]; readonly late: readonly DeliveryId[] }> {
  const [row] = await run<{ failed: DeliveryId[]; late: DeliveryId[] }>(db, TROUBLE, [lateMs, limit]);
  return { failed: row?.failed ?? [], late: row?.late ?? [] };
}
