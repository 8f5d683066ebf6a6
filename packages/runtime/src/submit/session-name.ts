import { KernelError, type SessionAddress, sessionTapeName } from '@boxcar/kernel';

/** The name of a session's agent and tape; `field`: what errors call the argument. */
export const nameOfSession = (ref: SessionAddress, field: string): string => {
  try {
    return sessionTapeName(ref);
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    throw new KernelError(error.code, {
      message: `${field}.${error.message.replace(` ${error.entry.next}`, '')}`,
      details: { ...error.details, field: `${field}.${String(error.details.field)}` },
      cause: error,
    });
  }
};
