/**
 * Who is notified of tasks that other platforms give, and what they are told.
 *
 * N1  What is to be sent is made by triggers (`webhook/deliveries.ts`, W1), also of what has happened before somebody asks for it.
 * N2  Whoever asks holds the row of the task, so that an end at the same moment comes before or after.
 * N3  A notification has the task as it is when it is sent, and goes to the address for which it was asked, or nowhere.
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
  /** Of the header `authorization`. */
  readonly scheme: string | null;
  readonly credentials: string | null;
  /** Of the protocol, such as `1.0`. */
  readonly version: string;
}

/** A task has no more receivers. */
export const MAX_PUSH_CONFIGS = 10;

const COLUMNS = 'p.id, p.url, p.token, p.scheme, p.credentials, p.version';

const LOCK = statement(
  'select /* push-configs.lock */ h.id from boxcar.handoffs h where h.id = $1 for no key update',
);

const SET = statement(`
  insert /* push-configs.set */ into boxcar.push_configs as p (handoff_id, id, url, token, scheme, credentials, version)
  select $1, $2, $3, $4, $5, $6, $7 where (select count(*) from boxcar.push_configs o where o.handoff_id = $1 and o.id <> $2) < ${MAX_PUSH_CONFIGS}
  on conflict (handoff_id, id) do update set url = excluded.url, token = excluded.token, scheme = excluded.scheme, credentials = excluded.credentials, version = excluded.version
  returning p.id`);

/** Notifies this receiver too, or changes how it is notified (N2). @returns False: the task has too many. */
export function setPushConfig(pool: pg.Pool, handoffId: HandoffId, config: PushConfig): Promise<boolean> {
  const { id, url, token, scheme, credentials, version } = config;
  return transaction(pool, async (tx) => {
    await run(tx, LOCK, [handoffId]);
    return (await run(tx, SET, [handoffId, id, url, token, scheme, credentials, version])).length > 0;
  });
}

const LIST = statement(
  `select /* push-configs.list */ ${COLUMNS} from boxcar.push_configs p where p.handoff_id = $1 order by p.created_at, p.id`,
);

/** Those of a task, the oldest first. */
export const listPushConfigs = (db: Queryable, handoffId: HandoffId): Promise<PushConfig[]> =>
  run<PushConfig & pg.QueryResultRow>(db, LIST, [handoffId]);

const DELETE = statement(
  'delete /* push-configs.delete */ from boxcar.push_configs where handoff_id = $1 and id = $2',
);

/** Notifies a receiver no more. What is not sent yet will fail. */
export async function deletePushConfig(db: Queryable, handoffId: HandoffId, id: string): Promise<void> {
  await run(db, DELETE, [handoffId, id]);
}

/** What a push notification says, and to whom. */
export interface Push {
  readonly config: PushConfig;
  readonly task: PublicTask;
}

const PUSHES = statement(`
  select /* push-configs.pushes */ w.id as delivery_id, p.id as push_id, p.url, p.token, p.scheme, p.credentials, p.version, ${TASK}
  from ${TASK_FROM} join boxcar.webhook_deliveries w on w.handoff_id = h.id join boxcar.push_configs p on p.handoff_id = h.id and p.id = w.push_config and p.url = w.url
  where w.id = any ($1::uuid[])`);

/** By delivery (N3). None of one whose receiver was taken back, or has another address now. */
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
