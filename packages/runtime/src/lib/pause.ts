/** Lets long work stop for others. */

/** How long work keeps the event loop before it stops for others. */
const SLICE_MS = 8;

/**
 * @returns A function for work to await between its pieces. It lets other work go on when this one has kept the event loop for a few
 * milliseconds.
 */
export function pauses(): () => Promise<void> {
  let since = performance.now();
  return async () => {
    if (performance.now() - since < SLICE_MS) return;
    await new Promise((resolve) => setImmediate(resolve));
    since = performance.now();
  };
}
