/** Classifies a failed call: maps an error of the SDK or of the system to a code of the catalogue. A pure function. */
import { KernelError } from '@boxcar/kernel';
import { isLostCall } from './lost-calls.js';

const MAX_WORDS = 4_000;

/** The request was not sent, or was refused before it was read. */
const NOT_SENT = new Set<unknown>([
  'NOT_CONNECTED',
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ADDRESS_REFUSED',
  'CLIENT_HTTP_AUTHENTICATION',
  'CLIENT_HTTP_FORBIDDEN',
]);

/** The server answered, but the answer cannot be used. */
const UNUSABLE = new Set<unknown>([
  'INVALID_RESULT',
  'UNSUPPORTED_RESULT_TYPE',
  'INPUT_REQUIRED_ROUNDS_EXCEEDED',
  'CAPABILITY_NOT_SUPPORTED',
]);

const read = (error: unknown, member: string): unknown =>
  typeof error === 'object' && error !== null ? Reflect.get(error, member) : undefined;

/** The HTTP status with which a server refused a request. */
function statusOf(error: unknown): number | undefined {
  const status = read(error, 'status');
  return typeof status === 'number' ? status : undefined;
}

const wordsOf = (error: unknown): string =>
  (error instanceof Error ? error.message : String(error)).slice(0, MAX_WORDS).toWellFormed();

/**
 * Whether an HTTP server does not know the session of a request, so that the request was not executed. Some servers report it with status
 * 400, which has many other meanings.
 */
export function isRefusedSession(error: unknown): boolean {
  const status = statusOf(error);
  return status === 404 || (status === 400 && /session/i.test(wordsOf(error)));
}

/** @param tool - The name under which the model calls it. */
export function explainCall(server: string, tool: string, error: unknown): KernelError {
  if (error instanceof KernelError) return error;
  const code = read(error, 'code');
  const details = { tool, mcp_server: server };
  if (NOT_SENT.has(code))
    return new KernelError('tool_server_unavailable', {
      message: `The MCP server '${server}' cannot be reached.`,
      details,
      cause: error,
    });
  const status = statusOf(error);
  const isAnswer = !isLostCall(error) && (typeof code === 'number' || UNUSABLE.has(code));
  if (isAnswer || (status !== undefined && status >= 400 && status < 500))
    return new KernelError('tool_failed', {
      message: isAnswer ? `${tool}: ${wordsOf(error)}` : `${tool}: its server answered HTTP ${status}.`,
      details,
      cause: error,
    });
  return new KernelError('outcome_unknown', {
    message: `The connection with the MCP server '${server}' was lost while ${tool} ran.`,
    details,
    cause: error,
  });
}
