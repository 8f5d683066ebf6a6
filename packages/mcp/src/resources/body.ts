/** The content that reading a resource returns. */
import { KernelError } from '@boxcar/kernel';
import { ProtocolError, ProtocolErrorCode, ResourceNotFoundError } from '@modelcontextprotocol/server';

export interface Body {
  readonly mimeType: string;
  readonly text: string;
}

export const JSON_TYPE = 'application/json';

export const jsonBody = (value: unknown): Body => ({
  mimeType: JSON_TYPE,
  text: JSON.stringify(value, null, 2),
});

/** A resource that the client may not read is reported as missing. */
const HIDDEN: ReadonlySet<string> = new Set(['not_found', 'box_not_authorized']);

/** Converts a failure to an error of the protocol. */
export function toProtocolError(error: unknown, uri: string): unknown {
  if (!(error instanceof KernelError)) return error;
  if (HIDDEN.has(error.code)) return new ResourceNotFoundError(uri);
  const code =
    error.code === 'bad_request' ? ProtocolErrorCode.InvalidParams : ProtocolErrorCode.InternalError;
  return new ProtocolError(code, error.message, { uri, error_code: error.code });
}

export const cursorError = (): KernelError =>
  new KernelError('bad_request', {
    message: 'cursor: must be the next_cursor of a page of this resource.',
    details: { field: 'cursor' },
  });

const NUMBER = /^\d{1,10}$/;

/** A position in numbered entries; 0 is before the first. @throws KernelError `bad_request`. */
export function readPosition(cursor: string | undefined): number {
  if (cursor === undefined) return 0;
  const position = NUMBER.test(cursor) ? Number(cursor) : Number.NaN;
  if (position <= 2 ** 31 - 1) return position;
  throw cursorError();
}
