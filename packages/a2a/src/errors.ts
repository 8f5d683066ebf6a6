/** Converts failures to errors of the protocol, with the codes of the kernel's catalogue. */
import { A2AError, RequestMalformedError, UnsupportedOperationError } from '@a2a-js/sdk/errors';
import { KernelError } from '@boxcar/kernel';
import type { Log } from '@boxcar/runtime';

/** The answer to an error without a code. The text of such an error is only logged. */
const INTERNAL = 'Something went wrong in this installation; its log says what, under the id of the request.';

/** The texts of these errors name models, accounts and commands of the operator. */
const INSIDE: ReadonlySet<string> = new Set(['price_unknown', 'budget_exceeded']);

export const malformed = (message: string): A2AError => new RequestMalformedError({ message });

const textOf = ({ problem, next }: KernelError): string =>
  [problem, next].filter((text) => text !== '').join(' ');

/** Converts an error to an error of the protocol. An error without a known code is logged and answered without its text. */
export function toA2AError(error: unknown, log: Log): Error {
  if (error instanceof A2AError) return error;
  if (!(error instanceof KernelError) || error.code === 'internal_error') {
    log('error', 'a2a.failed', { error });
    return new A2AError({ message: INTERNAL, metadata: { code: 'internal_error' } });
  }
  const metadata = { code: error.code };
  // The message itself is valid: the client may send it again later.
  if (INSIDE.has(error.code)) return new A2AError({ message: error.entry.message, metadata });
  const options = { message: textOf(error), metadata };
  if (error.code === 'feature_disabled') return new UnsupportedOperationError(options);
  if (error.entry.httpStatus < 500) return new RequestMalformedError(options);
  // The text of the error may reveal internals, such as the address of the database.
  log('error', 'a2a.failed', { code: error.code, error });
  return new A2AError({ ...options, message: error.entry.message });
}
