/** One attempt to send an event, and its outcome. */
import type { Notification } from '@boxcar/adapters/a2a';
import { errorText, handoffStatusOf, KernelError, maskSecrets } from '@boxcar/kernel';
import type { ClaimedDelivery, DeliveryOutcome, Push } from '@boxcar/store';

/** At most this much of an answer is read; it is discarded. */
const MAX_ANSWER_BYTES = 65_536;
const MAX_ERROR = 300;
const GONE = 410;

/** Signs texts with one key. */
export interface Signer {
  sign(id: string, at: Date, body: string): string;
}

export interface Sending {
  /** Translates a push into the protocol of its receiver. */
  readonly notificationOf: (push: Push) => Promise<Notification>;
  readonly fetch: typeof globalThis.fetch;
  /** At least one signer. */
  readonly signers: readonly Signer[];
  readonly attemptMs: number;
  /** Fires when the process stops sending. */
  readonly stop: AbortSignal;
}

export type Attempt = Pick<DeliveryOutcome, 'outcome' | 'lastStatus' | 'lastError'>;

/** The final event as in the log of the handoff, with the result or the error. */
function bodyOf(delivery: ClaimedDelivery): string {
  const { event_type, handoff_id, event_data, event_seq, event_at, phase, result, error } = delivery;
  return JSON.stringify({
    event_type,
    handoff_id,
    ...event_data,
    seq: event_seq,
    created_at: event_at.toISOString(),
    ...(handoffStatusOf(phase) === 'completed' ? { result } : { error }),
  });
}

/** Undefined when this receiver must not be notified any more. */
async function messageOf(
  delivery: ClaimedDelivery,
  push: Push | undefined,
  { notificationOf }: Sending,
): Promise<Notification | undefined> {
  if (delivery.push_config === null)
    return { body: bodyOf(delivery), headers: { 'content-type': 'application/json' } };
  return push && notificationOf(push);
}

function headersOf(
  { id }: ClaimedDelivery,
  { body, headers }: Notification,
  signers: readonly Signer[],
): Record<string, string> {
  const at = new Date();
  return {
    ...headers,
    'user-agent': 'boxcar',
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
    'webhook-signature': signers.map((signer) => signer.sign(id, at, body)).join(' '),
  };
}

/** Lets the receiver finish its answer, whose content is ignored. */
async function discard({ body }: Response): Promise<void> {
  const reader = body?.getReader();
  if (reader === undefined) return;
  try {
    for (let bytes = 0; bytes < MAX_ANSWER_BYTES; ) {
      const { done, value } = await reader.read();
      if (done) return;
      bytes += value.byteLength;
    }
  } catch {
    // The status has already been read, so a broken body is ignored.
  }
  await reader.cancel().catch(() => undefined);
}

function judgeStatus(status: number): Attempt {
  if (status >= 200 && status < 300) return { outcome: 'delivered', lastStatus: status, lastError: null };
  const why = status >= 300 && status < 400 ? 'answered with a redirect, which is not followed' : 'answered';
  return {
    outcome: status === GONE ? 'failed' : 'retry',
    lastStatus: status,
    lastError: `The receiver ${why}: HTTP ${status}.`,
  };
}

function judgeFailure(error: unknown, { stop, attemptMs }: Sending): Attempt {
  if (stop.aborted) return { outcome: 'left', lastStatus: null, lastError: null };
  const failed = (outcome: 'failed' | 'retry', text: string): Attempt => ({
    outcome,
    lastStatus: null,
    lastError: maskSecrets(text).slice(0, MAX_ERROR).toWellFormed(),
  });
  // The address itself is refused, so another try would fail too.
  if (error instanceof KernelError) return failed('failed', error.problem);
  const { name, code } = Object(error) as { name?: unknown; code?: unknown };
  if (name === 'TimeoutError') return failed('retry', `No answer within ${attemptMs / 1000} seconds.`);
  if (code === 'ADDRESS_REFUSED')
    return failed('retry', 'The name of the receiver leads to an address that is not public.');
  return failed(
    'retry',
    `The receiver was not reached: ${typeof code === 'string' ? code : errorText(error)}.`,
  );
}

const TAKEN_BACK: Attempt = {
  outcome: 'failed',
  lastStatus: null,
  lastError: 'The receiver was taken back, or has another address now.',
};

/** Sends an event once. Never throws. */
export async function deliver(
  delivery: ClaimedDelivery,
  push: Push | undefined,
  sending: Sending,
): Promise<Attempt> {
  const { fetch, signers, stop, attemptMs } = sending;
  try {
    const message = await messageOf(delivery, push, sending);
    if (message === undefined) return TAKEN_BACK;
    const answer = await fetch(delivery.url, {
      method: 'POST',
      headers: headersOf(delivery, message, signers),
      body: message.body,
      redirect: 'manual',
      signal: AbortSignal.any([stop, AbortSignal.timeout(attemptMs)]),
    });
    await discard(answer);
    return judgeStatus(answer.status);
  } catch (error) {
    return judgeFailure(error, sending);
  }
}
