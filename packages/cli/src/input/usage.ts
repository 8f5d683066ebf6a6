/** A command line that cannot be done as it is written: exit code 2, before the database is asked. What that refuses is 1. */
import { KernelError } from '@boxcar/kernel/base';

const wrong = new WeakSet<object>();

/** Marks an error as one of the command line. */
export function usage<E extends object>(error: E): E {
  wrong.add(error);
  return error;
}

export const isUsage = (error: unknown): boolean =>
  typeof error === 'object' && error !== null && wrong.has(error);

/** @param field - The argument or flag that is wrong. */
export const wrongUsage = (message: string, field: string): KernelError =>
  usage(new KernelError('bad_request', { message: `${message}.`, details: { field } }));

/** Reads a part of the command line by a rule of the kernel; what the rule refuses is wrong usage. */
export function readFlag<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw error instanceof KernelError && error.code === 'bad_request' ? usage(error) : error;
  }
}
