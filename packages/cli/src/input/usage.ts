/** Usage errors: exit code 2, reported without a database query. An error from the database gives exit code 1. */
import { KernelError } from '@boxcar/kernel/base';

const wrong = new WeakSet<object>();

/** Marks an error as a usage error. */
export function usage<E extends object>(error: E): E {
  wrong.add(error);
  return error;
}

export const isUsage = (error: unknown): boolean =>
  typeof error === 'object' && error !== null && wrong.has(error);

/** @param field - The wrong argument or flag. */
export const wrongUsage = (message: string, field: string): KernelError =>
  usage(new KernelError('bad_request', { message: `${message}.`, details: { field } }));

/** Reads a part of the command line by a rule of the kernel; a value that the rule rejects is a usage error. */
export function readFlag<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw error instanceof KernelError && error.code === 'bad_request' ? usage(error) : error;
  }
}
