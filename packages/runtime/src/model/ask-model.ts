import { type Model, ModelError, type ModelReply, type ModelRequest, startTimer } from '@boxcar/kernel';
import { parseReply } from './reply.js';

/**
 * Asks a model once. The call ends when the signal aborts, so an adapter that ignores its signal does not delay the turn.
 *
 * @throws ModelError `model_timeout` after `timeoutMs`; the signal's reason when it aborts; errors of the adapter.
 */
export async function askModel(
  model: Model,
  request: ModelRequest,
  {
    signal,
    timeoutMs,
    onText,
    onLate,
  }: {
    readonly signal: AbortSignal;
    readonly timeoutMs: number;
    /** Receives the text while it is written. */
    readonly onText?: ((text: string) => void) | undefined;
    /** Receives the answer of an adapter that has ignored the signal. */
    readonly onLate?: (reply: ModelReply) => void;
  },
): Promise<ModelReply> {
  signal.throwIfAborted();
  const controller = new AbortController();
  const onAbort = (): void => controller.abort(signal.reason);
  const onTimeout = (): void =>
    controller.abort(
      new ModelError('model_timeout', `The model did not answer within ${timeoutMs / 1000} s.`, {
        canRetry: true,
      }),
    );
  const aborted = new Promise<never>((_resolve, reject) => {
    controller.signal.addEventListener('abort', () => reject(controller.signal.reason), { once: true });
  });
  signal.addEventListener('abort', onAbort, { once: true });
  const timer = startTimer(timeoutMs, onTimeout);
  try {
    const asked = model.generate(request, { signal: controller.signal, onText });
    if (onLate !== undefined)
      asked
        .then(
          (reply) => {
            if (signal.aborted) onLate(parseReply(reply));
          },
          () => undefined,
        )
        .catch(() => undefined);
    return parseReply(await Promise.race([asked, aborted]));
  } finally {
    timer.clear();
    signal.removeEventListener('abort', onAbort);
  }
}
