/** Converts an optional argument from seconds to milliseconds. */
export const inMs = (seconds: number | undefined): number | undefined =>
  seconds === undefined ? undefined : seconds * 1000;
