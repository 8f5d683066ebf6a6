/** Failures in the words of the protocol, with the codes of the kernel's catalogue. */
import { A2AError, RequestMalformedError, UnsupportedOperationError } from '@a2a-js/sdk/errors';
import { KernelError } from '@boxcar/kernel';
import type { Log } from '@boxcar/runtime';

/** What is told of an error without a code: its text is for the log. */
const INTERNAL = 'Something went wrong in this installation; its log says what, under the id of the request.';

/** Their words name models, accounts and commands of the operator. */
const INSIDE: ReadonlySet<string> = new Set(['price_unknown', 'budget_exceeded']);

export const malformed = (message: string): A2AError => new RequestMalformedError({ message });

const textOf = ({ problem, next }: KernelError): string =>
  [problem, next].filter((text) => text !== '').join(' ');

/** An error as the protocol has it. What nobody knows by a code is logged, and told without its text. */
export function toA2AError(error: unknown, log: Log): Error {
  if (error instanceof A2AError) return error;
  if (!(error instanceof KernelError) || error.code === 'internal_error') {
    log('error', 'a2a.failed', { error });
    return new A2AError({ message: INTERNAL, metadata: { code: 'internal_error' } });
  }
  const metadata = { code: error.code };
  // Nothing is wrong with the message: it may be sent again later.
  if (INSIDE.has(error.code)) return new A2AError({ message: error.entry.message, metadata });
  const options = { message: textOf(error), metadata };
  if (error.code === 'feature_disabled') return new UnsupportedOperationError(options);
  if (error.entry.httpStatus < 500) return new RequestMalformedError(options);
  // Its own words may say what is inside, such as the address of the database.
  log('error', 'a2a.failed', { code: error.code, error });
  return new A2AError({ ...options, message: error.entry.message });
}
