/** Errors as problem details (RFC 9457), made in this one place. */
import { KernelError } from '@boxcar/kernel/base';

export const PROBLEM_HEADERS = { 'content-type': 'application/problem+json', 'cache-control': 'no-store' };
/** An address is repeated to its caller as far as this. */
const MAX_INSTANCE = 500;

/** The body of every error. */
export interface Problem {
  readonly type: string;
  /** What the code means. */
  readonly title: string;
  readonly status: number;
  /** What is wrong here. */
  readonly detail: string;
  /** The path of the request. */
  readonly instance: string;
  readonly code: string;
  readonly request_id: string;
  /** What to do. */
  readonly next: string;
  readonly details?: unknown;
}

/** Their texts say what is inside, such as the address of the database: they are for the log. */
const INSIDE: ReadonlySet<string> = new Set(['internal_error', 'database_unavailable']);

/** What is not known by a code is an error of ours. */
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
