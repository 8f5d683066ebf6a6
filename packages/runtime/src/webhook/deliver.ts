/** One attempt to send an event, and what it comes to. */
import { errorText, handoffStatusOf, KernelError, maskSecrets } from '@boxcar/kernel';
import type { ClaimedDelivery, DeliveryOutcome } from '@boxcar/store';

/** An answer is read so far, and thrown away. */
const MAX_ANSWER_BYTES = 65_536;
const MAX_ERROR = 300;
const GONE = 410;

/** Signs the texts of one key. */
export interface Signer {
  sign(id: string, at: Date, body: string): string;
}

export interface Sending {
  readonly fetch: typeof globalThis.fetch;
  /** At least one. */
  readonly signers: readonly Signer[];
  readonly attemptMs: number;
  /** Fires when the process stops sending. */
  readonly stop: AbortSignal;
}

export type Attempt = Pick<DeliveryOutcome, 'outcome' | 'lastStatus' | 'lastError'>;

/** The final event as the log of the handoff shows it, with the result or the error. */
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

function headersOf(
  { id }: ClaimedDelivery,
  body: string,
  signers: readonly Signer[],
): Record<string, string> {
  const at = new Date();
  return {
    'content-type': 'application/json',
    'user-agent': 'boxcar',
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
    'webhook-signature': signers.map((signer) => signer.sign(id, at, body)).join(' '),
  };
}

/** Lets the receiver finish its answer, whatever it is. */
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
    // Its status has been read.
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
  // The address itself is refused: it stays what it is.
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

/** Sends an event once. Never throws. */
export async function deliver(delivery: ClaimedDelivery, sending: Sending): Promise<Attempt> {
  const { fetch, signers, stop, attemptMs } = sending;
  try {
    const body = bodyOf(delivery);
    const answer = await fetch(delivery.url, {
      method: 'POST',
      headers: headersOf(delivery, body, signers),
      body,
      redirect: 'manual',
      signal: AbortSignal.any([stop, AbortSignal.timeout(attemptMs)]),
    });
    await discard(answer);
    return judgeStatus(answer.status);
  } catch (error) {
    return judgeFailure(error, sending);
  }
}
