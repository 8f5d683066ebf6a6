/** Finds the principal of a request, and checks its permission. */
import { KernelError, type Scope } from '@boxcar/kernel';
import { authenticateKey, type KeyPrincipal } from '@boxcar/runtime';
import type pg from 'pg';
import type { Binding } from './loopback.js';
import type { CallPrincipal, TokenDoor } from './route.js';

const BEARER = /^bearer +(\S+)$/i;

const keyTextIn = (headers: Headers): string | undefined =>
  BEARER.exec(headers.get('authorization') ?? '')?.[1];

/** The form of a signed token. Keys never contain a dot. */
const TOKEN = /^[\w-]+\.[\w-]+\.[\w-]*$/;

/**
 * Additional headers of the answer to a client without a valid key.
 *
 * @param metadataUrl - Where the client reads which issuer gives tokens, at routes that accept them.
 */
export function challengeFor(error: unknown, metadataUrl?: string): Readonly<Record<string, string>> {
  const why = reasonIn(error);
  if (why === undefined) return {};
  const where = metadataUrl === undefined ? '' : `, resource_metadata="${metadataUrl}"`;
  return { 'www-authenticate': `Bearer realm="boxcar"${why}${where}` };
}

function reasonIn(error: unknown): string | undefined {
  if (!(error instanceof KernelError)) return undefined;
  const { scope, has_key: hasKey } = error.details;
  if (error.code === 'unauthorized') return hasKey === true ? ', error="invalid_token"' : '';
  if (error.code === 'permission_denied' && typeof scope === 'string')
    return `, error="insufficient_scope", scope="${scope}"`;
  return undefined;
}

export interface Asked extends Pick<Binding, 'isLoopback'> {
  readonly scope: Scope;
  /** Undefined: only keys are accepted. */
  readonly tokens: TokenDoor | undefined;
}

/**
 * The principal of a request. The error does not say why a key was refused.
 *
 * @throws KernelError `unauthorized`, `permission_denied`; `issuer_unavailable`, `database_unavailable`.
 */
export async function authenticate(
  pool: pg.Pool,
  headers: Headers,
  { scope, isLoopback, tokens }: Asked,
): Promise<CallPrincipal> {
  const text = keyTextIn(headers);
  if (text === undefined)
    throw new KernelError('unauthorized', {
      message: headers.has('authorization')
        ? 'The header authorization has no bearer key.'
        : 'The request has no API key.',
    });
  const isToken = tokens !== undefined && TOKEN.test(text);
  const principal = isToken
    ? await tokens.authenticate(text)
    : await findPrincipal(pool, text, { isLoopback });
  if (principal.scopes.includes(scope)) return principal;
  throw new KernelError('permission_denied', {
    message: `The ${isToken ? 'token' : 'API key'} does not have the scope ${scope}.`,
    next: isToken
      ? 'Ask the issuer for a token with this scope.'
      : 'Use a key with this scope: boxcar keys create --scope.',
    details: { scope },
  });
}

async function findPrincipal(
  pool: pg.Pool,
  text: string,
  { isLoopback }: Pick<Binding, 'isLoopback'>,
): Promise<KeyPrincipal> {
  const principal = await authenticateKey(pool, text);
  if (principal !== undefined && (isLoopback || !principal.isLocal)) return principal;
  throw new KernelError('unauthorized', {
    message: 'The API key is not valid: it is unknown, revoked or expired, or its project is archived.',
    details: { has_key: true },
  });
}
