/**
 * A `fetch` over Node's own HTTP client, for two reasons. The global `fetch` gives an answer up after five minutes without a byte,
 * whatever the timeout of a handoff, and it does not report the address that a connection leads to.
 *
 * W1  It waits until its signal aborts. An abort closes the connection.
 * W2  Redirects are not followed: a key would be sent along.
 * W3  With rules, a connection is made only to an address that the rules allow, whether the address is literal or looked up.
 */
import { lookup } from 'node:dns';
import { type IncomingMessage, request as requestHttp } from 'node:http';
import { request as requestHttps } from 'node:https';
import type { LookupFunction } from 'node:net';
import { Readable } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';
import type { AddressRules } from './private-address.js';

/** The error code for a name that leads to no allowed address. */
export const ADDRESS_REFUSED = 'ADDRESS_REFUSED';

class RefusedAddress extends Error {
  readonly code = ADDRESS_REFUSED;
}

/** Looks a name up and keeps the addresses that are allowed (W3). */
const lookupWith =
  (rules: AddressRules, lookUp: typeof lookup): LookupFunction =>
  (hostname, options, callback) => {
    lookUp(hostname, { ...options, all: true }, (error, found) => {
      if (error !== null) return callback(error, '');
      const allowed = found.filter(({ address }) => rules.allows(hostname, address));
      const [first] = allowed;
      if (first === undefined) return callback(new RefusedAddress('the address is not public'), '');
      return options.all === true ? callback(null, allowed) : callback(null, first.address, first.family);
    });
  };

const WITHOUT_BODY = new Set([204, 205, 304]);

function toResponse(answer: IncomingMessage): Response {
  const headers = new Headers();
  for (const [name, values] of Object.entries(answer.headersDistinct))
    for (const value of values ?? []) headers.append(name, value);
  const { statusCode: status = 0, statusMessage: statusText = '' } = answer;
  if (WITHOUT_BODY.has(status)) {
    answer.resume();
    return new Response(null, { status, headers });
  }
  // One class has two types: the library's and the module's.
  const body = Readable.toWeb(answer) as ReadableStream<Uint8Array>;
  return new Response(body as ConstructorParameters<typeof Response>[0], { status, statusText, headers });
}

/**
 * @param rules - The allowed addresses. Default: all, for addresses that an operator has configured.
 * @param options.what - The name of the address in refusals.
 * @param options.lookUp - Replaces Node's own lookup.
 * @returns A `fetch` that takes a URL and a body of text.
 */
export const createFetch =
  (
    rules?: AddressRules,
    { what = 'The address of the agent', lookUp = lookup }: { what?: string; lookUp?: typeof lookup } = {},
  ): typeof globalThis.fetch =>
  (input, init = {}) =>
    new Promise((resolve, reject) => {
      const given = input instanceof Request ? input.url : String(input);
      const url = rules === undefined ? new URL(given) : rules.check(given, what);
      const { method = 'GET', body, signal } = init;
      if (body !== undefined && body !== null && typeof body !== 'string')
        throw new TypeError('only a text can be sent');
      signal?.throwIfAborted();
      const headers = Object.fromEntries(new Headers(init.headers));
      const send = url.protocol === 'https:' ? requestHttps : requestHttp;
      const outgoing = send(url, {
        method,
        headers: { ...headers, 'accept-encoding': 'identity' },
        // Uses a new connection: a kept connection may be closed at the moment of reuse.
        agent: false,
        ...(signal ? { signal } : {}),
        ...(rules === undefined ? {} : { lookup: lookupWith(rules, lookUp) }),
      });
      outgoing.once('response', (answer) => {
        try {
          resolve(toResponse(answer));
        } catch (error) {
          // The answer has a status or a header that is not valid in HTTP.
          reject(error);
          answer.destroy();
        }
      });
      outgoing.on('error', (error) => reject(signal?.aborted === true ? signal.reason : error));
      // A protocol upgrade that was not requested closes the connection without an error.
      outgoing.once('close', () => reject(new Error('the connection closed without an answer')));
      outgoing.end(body ?? undefined);
    });
