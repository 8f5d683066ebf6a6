/** Writes the output of a command to stdout. */
import { errorText, KernelError } from '@boxcar/kernel/base';

/** @throws KernelError `output_failed` when stdout is a file that cannot be written; a pipe reports it by its event `error`. */
export function writeOutput(text: string): void {
  try {
    process.stdout.write(text);
  } catch (cause) {
    throw outputFailed(cause);
  }
}

export const outputFailed = (cause: unknown): KernelError =>
  new KernelError('output_failed', {
    message: `stdout cannot be written: ${errorText(cause)}.`,
    cause,
  });
