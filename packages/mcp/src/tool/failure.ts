/**
 * Failures of calls that the client can react to. They are results of the tool: errors of the protocol are for faults of the protocol.
 */
import { type ErrorCode, type JsonObject, KernelError } from '@boxcar/kernel';
import { type Log, newId } from '@boxcar/runtime';

/** The texts that clients of the protocol use for codes of the kernel; other codes are shown unchanged, in capitals. */
const WORDS: Readonly<Partial<Record<ErrorCode, string>>> = {
  bad_request: 'VALIDATION_ERROR',
  payload_too_large: 'VALIDATION_ERROR',
};

interface Failure {
  /** A text that a model can act on. */
  readonly error: string;
  readonly error_code: string;
  readonly details?: JsonObject | undefined;
  /** Other members, such as `current_status`. */
  readonly rest?: JsonObject | undefined;
}

/** A failure that a tool detects itself. */
export class ToolFailure extends Error {
  readonly failure: Failure;

  constructor(failure: Failure) {
    super(failure.error);
    this.name = 'ToolFailure';
    this.failure = failure;
  }
}

/** Details that are not meant for a client are in the log, under the id of the call. */
export function toFailure(error: unknown, log: Log): Failure {
  if (error instanceof ToolFailure) return error.failure;
  if (!(error instanceof KernelError) || error.code === 'internal_error') {
    log('error', 'mcp.call_failed', { error, stack: error instanceof Error ? error.stack : undefined });
    return {
      error: 'The call failed for a reason inside of Boxcar. The log has it under this request_id.',
      error_code: 'INTERNAL_ERROR',
    };
  }
  const { code, problem, next, details } = error;
  return {
    error: problem,
    error_code: WORDS[code] ?? code.toUpperCase(),
    details: { ...details, code, ...(next === '' ? {} : { next }) },
  };
}

export const failureBody = (
  { error, error_code, details, rest = {} }: Failure,
  requestId: string,
): JsonObject => ({
  success: false,
  error,
  error_code,
  ...rest,
  ...(details === undefined ? {} : { details }),
  timestamp: new Date().toISOString(),
  request_id: requestId,
});

/** The id of a call in answers and log lines. */
export const newRequestId = (): string => newId();
