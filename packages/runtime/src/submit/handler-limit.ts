import { KernelError, startTimer } from '@boxcar/kernel';

/** The deadline of a handler that no turn calls. It covers all tries. */
export interface HandlerLimit {
  readonly signal: AbortSignal;
  clear(): void;
}

export function startHandlerLimit(primitive: string, timeoutMs: number): HandlerLimit {
  const controller = new AbortController();
  const { clear } = startTimer(timeoutMs, () =>
    controller.abort(
      new KernelError('handler_timeout', {
        message: `The handler of ${primitive} did not answer within ${timeoutMs} ms.`,
        details: { primitive, timeout_ms: timeoutMs },
      }),
    ),
  );
  return { signal: controller.signal, clear };
}
