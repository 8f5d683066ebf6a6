/** Decides whether a failure is caused by the turn, and writes and reads the causes noted in the rows. */
import { type ErrorBody, KernelError, toErrorBody } from '@boxcar/kernel';
import { causeIn, isServerTrouble, isTransient, sqlStateOf, toDatabaseError } from '@boxcar/store';

/** Errors of this process or build. Another process may not have them. */
const OURS: ReadonlySet<string> = new Set(['database_auth_failed', 'schema_too_new', 'schema_outdated']);
const LOCKED = '55P03';

/** False for a temporary failure and for an error of this process or build: the same work is then tried again. */
export function isAboutTurn(error: unknown): boolean {
  const known = toDatabaseError(error);
  return !isTransient(known) && !(known instanceof KernelError && OURS.has(known.code));
}

/** True for failures that other turns meet too: a server error, a locked row, an error of this process or build. */
export function isShared(error: unknown): boolean {
  const known = toDatabaseError(error);
  return (
    isServerTrouble(known) ||
    sqlStateOf(known) === LOCKED ||
    (known instanceof KernelError && OURS.has(known.code))
  );
}

/** The cause as rows and lists show it: `code: message`. */
export function toCause(error: unknown): string {
  const { code, message } = toErrorBody(error);
  return `${code}: ${message}`;
}

/** Codes whose message names the damaged card. */
const OF_CARD: ReadonlySet<string> = new Set(['card_damaged', 'unsupported_format']);
const CARD = /\bcard ([0-9a-f]{8}-[0-9a-f-]{27})\b/i;

/** The error of a turn that ends because of a noted cause. A note has no details, so the id of a damaged card is read from its message. */
export function fromCause(note: string, details: Readonly<Record<string, unknown>>): ErrorBody {
  const cause = causeIn(note);
  const [, code = 'internal_error', message = cause] = /^([a-z_]+): ([\s\S]*)$/.exec(cause) ?? [];
  const cardId = OF_CARD.has(code) ? CARD.exec(message)?.[1] : undefined;
  return { code, message, details: cardId === undefined ? details : { ...details, card_id: cardId } };
}
