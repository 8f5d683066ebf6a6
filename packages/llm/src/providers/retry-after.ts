const MAX_WAIT_MS = 24 * 3_600_000;

/** The wait that the provider asks for, in milliseconds; undefined for a date in the past. `now` is in milliseconds since 1970. */
export function readRetryAfter(headers: Headers, now: number): number | undefined {
  const milliseconds = readNumber(headers.get('retry-after-ms'));
  if (milliseconds !== undefined) return limit(milliseconds);
  const text = headers.get('retry-after');
  const seconds = readNumber(text);
  if (seconds !== undefined) return limit(seconds * 1000);
  // A date must contain the name of a month: `Date.parse` also accepts numbers that are not dates.
  const date = text !== null && /[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(date) ? undefined : limit(date - now);
}

const readNumber = (text: string | null): number | undefined =>
  text !== null && /^\s*\d+(\.\d+)?\s*$/.test(text) ? Number(text) : undefined;

const limit = (ms: number): number => Math.min(MAX_WAIT_MS, Math.max(0, Math.ceil(ms)));
