/**
 * What a test file has opened, so that its end closes it whatever the file does. The setup file drives this module; the
 * helpers register with it. Test files share a process, one after the other.
 */
type Close = () => Promise<void>;

/** The comment on a database that the teardown of the run leaves alone. */
export const KEPT = 'kept: a test failed';

/** As the first file of this process found it. */
export const ownSetTimeout = globalThis.setTimeout;

/** pg warns once per process of statements that overlap on a client, because its next major version no longer queues them. */
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
 * Registers something to be closed at the end of the file.
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

/** Closes all that is still open, the newest first: what was opened later may use what was opened before. Ends the file. */
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
