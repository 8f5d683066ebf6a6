import { KernelError } from '@boxcar/kernel';

/** What a call is refused with. @throws Error when it is not refused, and what it has thrown when that is no refusal. */
export async function failureOf(work: Promise<unknown>): Promise<KernelError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('it was not refused');
}
