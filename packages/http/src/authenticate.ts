/** Who sends a request, and whether it may. */
import { KernelError, type Scope } from '@boxcar/kernel';
import { authenticateKey, type KeyPrincipal } from '@boxcar/runtime';
import type pg from 'pg';
import type { Binding } from './loopback.js';

const BEARER = /^bearer +(\S+)$/i;

const keyTextIn = (headers: Headers): string | undefined =>
  BEARER.exec(headers.get('authorization') ?? '')?.[1];

/** What else the answer says to a client that has no valid key. */
export function challengeFor(error: unknown): Readonly<Record<string, string>> {
  if (!(error instanceof KernelError)) return {};
  if (error.code === 'unauthorized')
    return {
      'www-authenticate': `Bearer realm="boxcar"${error.details.has_key === true ? ', error="invalid_token"' : ''}`,
    };
  const { scope } = error.details;
  if (error.code === 'permission_denied' && typeof scope === 'string')
    return { 'www-authenticate': `Bearer realm="boxcar", error="insufficient_scope", scope="${scope}"` };
  return {};
}

/**
 * The principal of a request. It is not told what is wrong with a key.
 *
 * @throws KernelError `unauthorized`, `permission_denied`; `database_unavailable`.
 */
export async function authenticate(
  pool: pg.Pool,
  headers: Headers,
  { scope, isLoopback }: { readonly scope: Scope } & Pick<Binding, 'isLoopback'>,
): Promise<KeyPrincipal> {
  const text = keyTextIn(headers);
  if (text === undefined)
    throw new KernelError('unauthorized', {
      message: headers.has('authorization')
        ? 'The header authorization has no bearer key.'
        : 'The request has no API key.',
    });
  const principal = await authenticateKey(pool, text);
  if (principal === undefined || (principal.isLocal && !isLoopback))
    throw new KernelError('unauthorized', {
      message: 'The API key is not valid: it is unknown, revoked or expired, or its project is archived.',
      details: { has_key: true },
    });
  if (principal.scopes.includes(scope)) return principal;
  throw new KernelError('permission_denied', {
    message: `The API key does not have the scope ${scope}.`,
    next: 'Use a key with this scope: boxcar keys create --scope.',
    details: { scope },
  });
}
