/**
 * Tracks everything that a test file has opened, so that the end of the file closes it in any case. The setup file drives this module; the
 * helpers register with it. Test files share a process, one after the other.
 */
type Close = () => Promise<void>;

/** The comment on a database that the teardown of the run must keep. */
export const KEPT = 'kept: a test failed';

/** The `setTimeout` that existed before the first file of this process ran. */
export const ownSetTimeout = globalThis.setTimeout;

/** pg warns once per process about overlapping statements on a client, because its next major version no longer queues them. */
const removals: Error[] = [];
process.on('warning', (warning) => {
  if (/removed in pg@/.test(warning.message)) removals.push(warning);
});

const open = new Set<Close>();
let failed = false;

/** Whether a test of this file has failed so far. */
export function hasFailed(): boolean {
  return failed;
}

export function markFailed(): void {
  failed = true;
}

/**
 * Registers a resource that the end of the file must close.
 *
 * @returns The function to close it earlier; only the first call has an effect.
 */
export function closeAtEnd(close: Close): Close {
  let closing: Promise<void> | undefined;
  const once = (): Promise<void> => {
    open.delete(once);
    closing ??= close();
    return closing;
  };
  open.add(once);
  return once;
}

/** Closes all resources that are still open, the newest first, because later resources may depend on earlier ones. Ends the file. */
export async function closeAll(): Promise<void> {
  const errors: unknown[] = removals.splice(0);
  for (const close of [...open].reverse()) {
    try {
      await close();
    } catch (error) {
      errors.push(error);
    }
  }
  failed = false;
  if (errors.length > 0) throw new AggregateError(errors, 'could not close what the tests had opened');
}
