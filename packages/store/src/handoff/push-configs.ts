/**
 * Receivers and contents of push notifications about tasks from other platforms.
 *
 * N1  Triggers create the deliveries (`webhook/deliveries.ts`, W1), including those for events before a receiver was configured.
 * N2  Configuring a receiver locks the row of the task, so that a concurrent end of the task is ordered before or after it.
 * N3  A notification contains the task as it is at the time of sending. It goes to the address for which it was created, or is not sent.
 * Rule: docs/reference/a2a.md, "Push notifications".
 */
import type { DeliveryId, HandoffId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, transaction } from '../db/index.js';
import { type PublicTask, TASK, TASK_FROM, type TaskRow, toTask } from './public-tasks.js';

/** A receiver of the notifications of one task. */
export interface PushConfig {
  readonly id: string;
  readonly url: string;
  readonly token: string | null;
  /** The scheme of the header `authorization`. */
  readonly scheme: string | null;
  readonly credentials: string | null;
  /** The version of the protocol, such as `1.0`. */
  readonly version: string;
}

/** The maximum number of receivers of a task. */
export const MAX_PUSH_CONFIGS = 10;

const COLUMNS = 'p.id, p.url, p.token, p.scheme, p.credentials, p.version';

const LOCK = statement(
  'select /* push-configs.lock */ h.id from boxcar.handoffs h where h.id = $1 for no key update',
);

const SET = statement(`
  insert /* push-configs.set */ into boxcar.push_configs as p (
    handoff_id, id, url, token, scheme, credentials, version
  )
  select $1, $2, $3, $4, $5, $6, $7
  where (select count(*) from boxcar.push_configs o where o.handoff_id = $1 and o.id <> $2) < ${MAX_PUSH_CONFIGS}
  on conflict (handoff_id, id) do update
    set url = excluded.url,
      token = excluded.token,
      scheme = excluded.scheme,
      credentials = excluded.credentials,
      version = excluded.version
  returning p.id`);

/** Adds a receiver, or changes its configuration (N2). @returns False when the task has too many receivers. */
export function setPushConfig(pool: pg.Pool, handoffId: HandoffId, config: PushConfig): Promise<boolean> {
  const { id, url, token, scheme, credentials, version } = config;
  return transaction(pool, async (tx) => {
    await run(tx, LOCK, [handoffId]);
    return (await run(tx, SET, [handoffId, id, url, token, scheme, credentials, version])).length > 0;
  });
}

const LIST = statement(`
  select /* push-configs.list */ ${COLUMNS}
  from boxcar.push_configs p
  where p.handoff_id = $1
  order by p.created_at, p.id`);

/** The receivers of a task, the oldest first. */
export const listPushConfigs = (db: Queryable, handoffId: HandoffId): Promise<PushConfig[]> =>
  run<PushConfig & pg.QueryResultRow>(db, LIST, [handoffId]);

const DELETE = statement(
  'delete /* push-configs.delete */ from boxcar.push_configs where handoff_id = $1 and id = $2',
);

/** Removes a receiver. Deliveries that were not sent yet will fail. */
export async function deletePushConfig(db: Queryable, handoffId: HandoffId, id: string): Promise<void> {
  await run(db, DELETE, [handoffId, id]);
}

/** The content of a push notification, and its receiver. */
export interface Push {
  readonly config: PushConfig;
  readonly task: PublicTask;
}

const PUSHES = statement(`
  select /* push-configs.pushes */ w.id as delivery_id, p.id as push_id, p.url, p.token, p.scheme, p.credentials,
    p.version, ${TASK}
  from ${TASK_FROM}
  join boxcar.webhook_deliveries w on w.handoff_id = h.id
  join boxcar.push_configs p on p.handoff_id = h.id and p.id = w.push_config and p.url = w.url
  where w.id = any ($1::uuid[])`);

/** Keyed by delivery (N3). Leaves out deliveries whose receiver was removed or has another address now. */
export async function loadPushes(
  db: Queryable,
  deliveryIds: readonly DeliveryId[],
): Promise<ReadonlyMap<DeliveryId, Push>> {
  const rows = await run<TaskRow & PushConfig & { delivery_id: DeliveryId; push_id: string }>(db, PUSHES, [
    deliveryIds,
  ]);
  return new Map(
    rows.map((row) => {
      const { push_id: id, url, token, scheme, credentials, version } = row;
      return [
        row.delivery_id,
        { config: { id, url, token, scheme, credentials, version }, task: toTask(row) },
      ];
    }),
  );
}
