/** `next_cursor` of pages that are ordered by the time and the id of their rows: `<kind>:<time to the microsecond>:<id>`. */
import { tryParseId } from '@boxcar/kernel';

/** Where a page ends. */
export interface PagePlace {
  readonly at: string;
  readonly id: string;
}

const FORM =
  /^(?<kind>[a-z]+):(?<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?<fraction>\.\d{6}Z):(?<id>[0-9a-f-]{36})$/;

/**
 * Undefined when the text is not a cursor of this kind. The pattern alone would accept a day that does not exist, such as 31
 * February.
 */
export function readCursor(kind: string, text: string): PagePlace | undefined {
  const { kind: given, at = '', fraction = '', id = '' } = FORM.exec(text)?.groups ?? {};
  const time = new Date(`${at}Z`);
  if (given !== kind || tryParseId(id) === undefined) return undefined;
  // Postgres has no year 0.
  if (Number.isNaN(time.valueOf()) || !time.toISOString().startsWith(at) || at.startsWith('0000'))
    return undefined;
  return { at: `${at}${fraction}`, id };
}
