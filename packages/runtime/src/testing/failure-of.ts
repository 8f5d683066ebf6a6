import { KernelError } from '@boxcar/kernel';

/** The error with which a call is refused. @throws Error when the call is not refused, and the original error when it is not a refusal. */
export async function failureOf(work: Promise<unknown>): Promise<KernelError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('it was not refused');
}
