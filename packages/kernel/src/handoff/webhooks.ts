/** Events that are sent to receivers outside, and when they are sent again. Rule: docs/reference/handoff.md, "Callbacks". */

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const;
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

/** A delivery as it is read. */
export interface WebhookDelivery {
  /** The id of the event: the header `webhook-id` of every attempt. */
  readonly delivery_id: string;
  readonly handoff_id: string;
  /** Of a push notification: the caller's name of its receiver. Null: the callback of the handoff. */
  readonly push_config: string | null;
  /** The type of the event, such as `handoff.completed`. */
  readonly event_type: string;
  /** Without its query, which may hold a secret of the receiver. */
  readonly url: string;
  readonly status: DeliveryStatus;
  readonly attempts: number;
  /** When it is sent next; null once it has ended. */
  readonly next_at: Date | null;
  /** HTTP status of the last attempt; null: there was no answer. */
  readonly last_status: number | null;
  /** What was wrong with the last attempt. */
  readonly last_error: string | null;
  readonly created_at: Date;
  readonly ended_at: Date | null;
}

const MAX_PAUSE_MS = 3_600_000;
/** A pause differs by so much at most, so that many deliveries to one receiver do not come at once. */
const JITTER = 0.25;

/**
 * The pause after the nth failure: each is twice the one before, up to an hour.
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

/** A URL as lists and logs show it. */
export function withoutQuery(url: string): string {
  const [shown = ''] = url.split('?', 1);
  return shown === url ? url : `${shown}?…`;
}
