/** Converts errors to problem details (RFC 9457). No other module does this. */
import { KernelError } from '@boxcar/kernel/base';

export const PROBLEM_HEADERS = { 'content-type': 'application/problem+json', 'cache-control': 'no-store' };
/** The longest part of a path that is repeated to its caller. */
const MAX_INSTANCE = 500;

/** The body of every error answer. */
export interface Problem {
  readonly type: string;
  /** The meaning of the code. */
  readonly title: string;
  readonly status: number;
  /** The description of this error. */
  readonly detail: string;
  /** The path of the request. */
  readonly instance: string;
  readonly code: string;
  readonly request_id: string;
  /** The advice to the caller. */
  readonly next: string;
  readonly details?: unknown;
}

/** The texts of these errors may reveal internals, such as the address of the database, so they are only logged. */
const INSIDE: ReadonlySet<string> = new Set(['internal_error', 'database_unavailable']);

/** An error without a known code is an internal error. */
function known(error: unknown): KernelError {
  if (!(error instanceof KernelError)) return new KernelError('internal_error');
  return INSIDE.has(error.code) ? new KernelError(error.code) : error;
}

export function toProblem(
  error: unknown,
  { requestId, path }: { readonly requestId: string; readonly path: string },
): Problem {
  const { code, entry, problem, next, details } = known(error);
  return {
    type: `urn:boxcar:error:${code}`,
    title: entry.message,
    status: entry.httpStatus,
    detail: problem,
    instance: path.slice(0, MAX_INSTANCE),
    code,
    request_id: requestId,
    next,
    ...(Object.keys(details).length === 0 ? {} : { details }),
  };
}

export const problemResponse = (problem: Problem, headers: Readonly<Record<string, string>> = {}): Response =>
  new Response(JSON.stringify(problem), {
    status: problem.status,
    headers: { ...PROBLEM_HEADERS, ...headers },
  });
