/** The id of a request in answers and log lines. */
import { newId } from '@boxcar/runtime';

const SAFE = /^[A-Za-z0-9._:-]{1,128}$/;

/** The id that the caller gave, if it is safe to log; otherwise a new id. */
export const requestIdOf = (given: string | undefined): string =>
  given !== undefined && SAFE.test(given) ? given : newId();
