import { KernelError } from '@boxcar/kernel';

/** The reason of an abort. A timer's own reason becomes the code of a timeout. */
export const abortReason = ({ reason }: AbortSignal): unknown =>
  reason instanceof DOMException && reason.name === 'TimeoutError'
    ? new KernelError('handoff_timeout')
    : reason;

/**
 * The outcome of `work`, or the signal's reason as soon as the signal aborts. The work must watch the signal too; its outcome after the
 * abort is not reported.
 */
export function raceAbort<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const abort = (): void => reject(abortReason(signal));
    if (signal.aborted) return abort();
    signal.addEventListener('abort', abort, { once: true });
    work()
      .then(resolve, reject)
      .finally(() => signal.removeEventListener('abort', abort));
  });
}
