interface Item<I, O> {
  readonly input: I;
  readonly resolve: (output: O) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Gathers calls into micro-batches with a window of 0 ms: a batch contains the calls of one turn of the event loop. Calls that arrive
 * while `inFlight` batches are in progress form the next batch.
 */
export function batched<I, O>(
  run: (inputs: readonly I[]) => Promise<(input: I) => O>,
  options: { readonly maxItems: number; readonly inFlight: number },
): (input: I) => Promise<O> {
  let waiting: Item<I, O>[] = [];
  let underWay = 0;
  let isScheduled = false;
  const start = async (): Promise<void> => {
    const items = waiting.slice(0, options.maxItems);
    waiting = waiting.slice(options.maxItems);
    underWay += 1;
    try {
      const outputOf = await run(items.map((item) => item.input));
      for (const item of items) item.resolve(outputOf(item.input));
    } catch (error) {
      for (const item of items) item.reject(error);
    } finally {
      underWay -= 1;
      schedule();
    }
  };
  const schedule = (): void => {
    if (isScheduled || waiting.length === 0 || underWay >= options.inFlight) return;
    isScheduled = true;
    setImmediate(() => {
      isScheduled = false;
      while (waiting.length > 0 && underWay < options.inFlight) void start();
    });
  };
  return (input) =>
    new Promise<O>((resolve, reject) => {
      waiting.push({ input, resolve, reject });
      schedule();
    });
}
