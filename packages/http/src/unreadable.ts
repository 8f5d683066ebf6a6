/**
 * Answers input that is not a valid HTTP request. Node refuses such input before the frame sees it, and without a body. This module
 * answers it like every other error.
 *
 * U1  The connection ends with the answer, because the beginning of the next request is unknown.
 * U2  No part of the input is repeated in the answer or in the log, because it may contain a key.
 * Rule: docs/reference/http.md.
 */
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { type ErrorCode, KernelError } from '@boxcar/kernel/base';
import type { Log } from '@boxcar/runtime';
import { RequestError } from '@hono/node-server';
import { PROBLEM_HEADERS, problemResponse, toProblem } from './problem.js';
import { requestIdOf } from './request-id.js';

type Status = 400 | 408 | 413 | 417 | 431;

const WORDS: Readonly<Record<Status, readonly [ErrorCode, string, string]>> = {
  400: [
    'bad_request',
    'This is not a valid HTTP request.',
    'Check the request of the client, and any proxy in front of the server.',
  ],
  408: ['bad_request', 'The request did not arrive in time.', 'Send it again, and faster.'],
  413: [
    'payload_too_large',
    'The chunks of the body have extensions that are too long.',
    'Send the body without them.',
  ],
  417: [
    'bad_request',
    'Of the header expect only 100-continue is understood.',
    'Send the request without it.',
  ],
  431: ['bad_request', 'The headers of the request are too long.', 'Send fewer or shorter headers.'],
};

function statusOf({ code }: NodeJS.ErrnoException): Status {
  switch (code) {
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return 408;
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return 413;
    case 'HPE_HEADER_OVERFLOW':
      return 431;
    default:
      return 400;
  }
}

export class Unreadable {
  readonly #log: Log;

  constructor(log: Log) {
    this.#log = log;
  }

  /** @param reason - The error code of Node. */
  #answer(
    status: Status,
    reason: string | undefined,
  ): { readonly headers: Record<string, string>; readonly body: string } {
    const requestId = requestIdOf(undefined);
    this.#log('info', 'http.unreadable', { request_id: requestId, status, reason });
    const [code, message, next] = WORDS[status];
    const problem = toProblem(new KernelError(code, { message, next }), { requestId, path: '' });
    const body = JSON.stringify({ ...problem, status });
    return {
      headers: {
        ...PROBLEM_HEADERS,
        'x-request-id': requestId,
        'x-content-type-options': 'nosniff',
        'content-length': String(Buffer.byteLength(body)),
        connection: 'close',
      },
      body,
    };
  }

  /** @param isAnswered - True when an answer on this connection has begun, so that no other answer can be sent on it. */
  refuseBytes(error: NodeJS.ErrnoException, socket: Duplex, isAnswered: boolean): void {
    if (error.code === 'ECONNRESET' || !socket.writable || isAnswered) {
      socket.destroy();
      return;
    }
    const status = statusOf(error);
    const { headers, body } = this.#answer(status, error.code);
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`, () =>
      socket.destroy(),
    );
  }

  /** Answers a request whose address or host is not valid. Any other failure before there is an answer is an internal error. */
  refuseRequest(error: unknown): Response {
    const requestId = requestIdOf(undefined);
    this.#log('info', 'http.unreadable', { request_id: requestId, error });
    const refused =
      error instanceof RequestError
        ? new KernelError('bad_request', { message: 'The address or the host of the request is not valid.' })
        : error;
    return problemResponse(toProblem(refused, { requestId, path: '' }), { 'x-request-id': requestId });
  }

  refuseExpectation(_incoming: IncomingMessage, outgoing: ServerResponse): void {
    const { headers, body } = this.#answer(417, undefined);
    outgoing.writeHead(417, headers).end(body);
  }
}
