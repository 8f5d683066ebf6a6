/**
 * Events that are sent to outside receivers, and when they are sent again. Rule: docs/reference/handoff.md,
 * "Callbacks".
 */

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const;
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

/** A delivery in the form that readers get. */
export interface WebhookDelivery {
  /** The id of the event, sent in the header `webhook-id` of every attempt. */
  readonly delivery_id: string;
  readonly handoff_id: string;
  /** For a push notification: the caller's name for its receiver. Null for the callback of the handoff. */
  readonly push_config: string | null;
  /** The type of the event, such as `handoff.completed`. */
  readonly event_type: string;
  /** The URL without its query, which may contain a secret of the receiver. */
  readonly url: string;
  readonly status: DeliveryStatus;
  readonly attempts: number;
  /** The time of the next attempt; null once the delivery has ended. */
  readonly next_at: Date | null;
  /** HTTP status of the last attempt; null when there was no answer. */
  readonly last_status: number | null;
  /** The problem of the last attempt. */
  readonly last_error: string | null;
  readonly created_at: Date;
  readonly ended_at: Date | null;
}

const MAX_PAUSE_MS = 3_600_000;
/** The largest relative deviation of a pause, so that many deliveries to the same receiver do not arrive at once. */
const JITTER = 0.25;

/**
 * The pause after the nth failure: each pause is twice the pause before, up to an hour.
 *
 * @param options.random - From 0 to 1.
 */
export function deliveryPauseMs(
  failures: number,
  { baseMs, random }: { readonly baseMs: number; readonly random: number },
): number {
  // Above this, doubling changes nothing.
  const doubled = baseMs * 2 ** Math.min(Math.max(failures - 1, 0), 40);
  return Math.min(doubled, MAX_PAUSE_MS) * (1 - JITTER + 2 * JITTER * random);
}

/** A URL in the form that lists and logs show. */
export function withoutQuery(url: string): string {
  const [shown = ''] = url.split('?', 1);
  return shown === url ? url : `${shown}?…`;
}
