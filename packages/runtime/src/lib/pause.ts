/** Lets long work pause for other work. */

/** How long work may keep the event loop before it pauses for other work. */
const SLICE_MS = 8;

/**
 * @returns A function for work to await between its pieces. When the work has kept the event loop for a few milliseconds, it lets
 * other work run.
 */
export function pauses(): () => Promise<void> {
  let since = performance.now();
  return async () => {
    if (performance.now() - since < SLICE_MS) return;
    await new Promise((resolve) => setImmediate(resolve));
    since = performance.now();
  };
}
