import { KernelError, type SessionAddress, sessionTapeName } from '@boxcar/kernel';

/** The name of a session's agent and tape. `field` is the argument in errors. */
export const nameOfSession = (ref: SessionAddress, field: string): string => {
  try {
    return sessionTapeName(ref);
  } catch (error) {
    throw error instanceof KernelError ? error.atField(`${field}.${error.field}`) : error;
  }
};
