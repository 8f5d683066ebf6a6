/** Events for receivers outside, listed for programs and people. Rule: docs/reference/handoff.md, "Callbacks". */
import {
  DELIVERY_STATUSES,
  type DeliveryId,
  type DeliveryStatus,
  KernelError,
  type ProjectId,
  safeParse,
  toBadRequest,
  tryParseId,
  type WebhookDelivery,
} from '@boxcar/kernel';
import { findDelivery, listDeliveries, sendAgain } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import { type PagePlace, readCursor } from '../lib/index.js';

export interface ListWebhooksOptions {
  readonly status?: DeliveryStatus | undefined;
  readonly handoff_id?: string | undefined;
  /** 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the previous page. */
  readonly cursor?: string | undefined;
}

/** A page of deliveries, the newest first. */
export interface WebhookPage {
  readonly webhooks: readonly WebhookDelivery[];
  /** Null: this is the last page. */
  readonly next_cursor: string | null;
}

const placeIn = (cursor: string): PagePlace | undefined => readCursor('webhooks', cursor);

const listSchema = z.strictObject({
  status: z.enum(DELIVERY_STATUSES).optional(),
  handoff_id: z
    .string()
    .refine((text) => tryParseId(text) !== undefined, 'must be the id of a handoff')
    .optional(),
  limit: z.int().min(1).max(1_000).default(50),
  cursor: z
    .string()
    .refine((text) => placeIn(text) !== undefined, 'must be the next_cursor of a page of webhooks')
    .optional(),
});

/** The checked options of a list, with their defaults. Does not read the database. @throws KernelError `bad_request`. */
export function checkWebhookOptions(options: ListWebhooksOptions): z.output<typeof listSchema> {
  const parsed = safeParse(listSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, 'options');
  return parsed.data;
}

/** @throws KernelError `bad_request`. */
export async function listWebhookPage(
  runtime: Pick<RuntimeCore, 'pool'>,
  projectId: ProjectId,
  options: ListWebhooksOptions = {},
): Promise<WebhookPage> {
  const { status, handoff_id, limit, cursor } = checkWebhookOptions(options);
  const rows = await listDeliveries(runtime.pool, {
    projectId,
    status,
    handoffId: handoff_id === undefined ? undefined : tryParseId<'handoff'>(handoff_id),
    limit: limit + 1,
    after: cursor === undefined ? undefined : placeIn(cursor),
  });
  const shown = rows.slice(0, limit);
  const last = rows.length > limit ? shown.at(-1) : undefined;
  return {
    webhooks: shown.map(({ place_at: _place, ...delivery }) => delivery),
    next_cursor: last === undefined ? null : `webhooks:${last.place_at}:${last.delivery_id}`,
  };
}

/** Sends a delivery now. @throws KernelError `not_found`; `conflict`: it was already delivered. */
export async function retryWebhook(
  { pool, webhooks }: Pick<RuntimeCore, 'pool'> & Partial<Pick<RuntimeCore, 'webhooks'>>,
  deliveryId: DeliveryId,
  projectId: ProjectId,
): Promise<WebhookDelivery> {
  await sendAgain(pool, { deliveryId, projectId });
  webhooks?.wake();
  const delivery = await findDelivery(pool, { deliveryId, projectId });
  if (delivery !== undefined) return delivery;
  throw new KernelError('not_found', { message: `Delivery ${deliveryId} was purged meanwhile.` });
}
