/** Milliseconds of an argument in seconds, where there is one. */
export const inMs = (seconds: number | undefined): number | undefined =>
  seconds === undefined ? undefined : seconds * 1000;
