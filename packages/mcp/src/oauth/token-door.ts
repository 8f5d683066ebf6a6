/**
 * Tokens of an issuer, beside keys.
 *
 * O1  A token counts when the issuer has signed it with a key of a pair, for this server, for now. The client is not told what is wrong.
 * O2  It speaks for the operator of its project, or for the agent that it names, with the scopes that it has and no others. An agent never
 *     decides.
 * O3  Tokens of one subject count as one key.
 * O4  No log line and no error has a token.
 * Rule: docs/mcp.md, "OAuth".
 */
import { createHash } from 'node:crypto';
import type { CallPrincipal, TokenDoor } from '@boxcar/http';
import { KernelError, SCOPES, type Scope, safeParse, tryParseId } from '@boxcar/kernel';
import { type Actor, findActor, type Log, type Runtime } from '@boxcar/runtime';
import { decodeJwt, errors, type JWTPayload, jwtVerify } from 'jose';
import { z } from 'zod';
import { OPERATOR } from '../client-scope.js';
import { Issuer, type IssuerTimes } from './issuer.js';
import type { OAuthSettings } from './settings.js';

/** Clocks differ. */
const TOLERANCE_S = 5;

/** Signatures by the private key of a pair. With the others whoever checks a token could make one. */
const ALGORITHMS = [
  ...['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'],
  ...['ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'],
] as NonNullable<NonNullable<Parameters<typeof jwtVerify>[2]>['algorithms']>;

const name = z.string().min(1).max(200);

const claimsSchema = z.object({
  sub: z
    .string()
    .max(255)
    .regex(/^[^\p{C}]+$/u),
  exp: z.number(),
  scope: z.string().default(''),
  boxcar_project: name.optional(),
  boxcar_agent: name.optional(),
});
type Claims = z.infer<typeof claimsSchema>;

export interface TokenDoorOptions extends IssuerTimes {
  readonly runtime: Pick<Runtime, 'pool'>;
  readonly log: Log;
}

const refuse = (): never => {
  throw new KernelError('unauthorized', {
    message: 'The token is not valid here.',
    next: 'Ask the issuer for another one, for this server.',
    details: { has_key: true },
  });
};

const deny = (message: string): never => {
  throw new KernelError('permission_denied', {
    message,
    next: 'Have the issuer name a project of this server, and an agent of that project.',
  });
};

/** The part of a name that identifies a subject, as an id. */
function keyIdOf(issuer: string, subject: string): CallPrincipal['keyId'] {
  const digest = createHash('sha256')
    .update(JSON.stringify([issuer, subject]))
    .digest('hex');
  const id = tryParseId<'key'>(digest.slice(0, 32));
  if (id === undefined) throw new Error('a digest is an id');
  return id;
}

const scopesIn = ({ scope, boxcar_agent: agent }: Claims): readonly Scope[] => {
  const given = new Set(scope.split(' '));
  return SCOPES.filter((known) => given.has(known) && (agent === undefined || known !== 'approvals:write'));
};

class IssuedTokens implements TokenDoor {
  readonly metadataUrl: string;
  readonly #settings: OAuthSettings;
  readonly #options: TokenDoorOptions;
  readonly #issuer: Issuer;

  constructor(settings: OAuthSettings, options: TokenDoorOptions) {
    this.metadataUrl = settings.metadataUrl;
    this.#settings = settings;
    this.#options = options;
    this.#issuer = new Issuer(settings.issuer, options);
  }

  async authenticate(token: string): Promise<CallPrincipal> {
    const claims = await this.#verify(token);
    const { sub, exp, boxcar_agent: agent } = claims;
    const actor = await this.#findActor(claims);
    const isAgent = agent !== undefined;
    return {
      id: isAgent ? actor.agentId : `oauth:${sub}`,
      kind: isAgent ? 'agent' : 'person',
      scopes: scopesIn(claims),
      keyId: keyIdOf(this.#settings.issuer, sub),
      name: sub,
      projectId: actor.projectId,
      agent: isAgent ? { id: actor.agentId, name: actor.agentName } : null,
      isLocal: false,
      noteUse: undefined,
      expiresAt: (exp + TOLERANCE_S) * 1000,
    };
  }

  /** O1. */
  async #verify(token: string): Promise<Claims> {
    try {
      this.#look(decodeJwt(token));
      const { issuer, audience } = this.#settings;
      const { payload } = await jwtVerify(token, this.#issuer.keyOf, {
        issuer,
        audience,
        algorithms: ALGORITHMS,
        clockTolerance: TOLERANCE_S,
        requiredClaims: ['exp', 'sub'],
      });
      const claims = safeParse(claimsSchema, payload);
      return claims.success ? (claims.data as Claims) : refuse();
    } catch (error) {
      if (!(error instanceof errors.JOSEError)) throw error;
      this.#options.log('debug', 'oauth.token_refused', { reason: error.code });
      return refuse();
    }
  }

  /** Tokens of others, and those that have ended, are refused without asking the issuer: it may be away. */
  #look({ iss, exp }: JWTPayload): void {
    if (iss !== this.#settings.issuer) refuse();
    if (typeof exp !== 'number' || (exp + TOLERANCE_S) * 1000 <= Date.now()) refuse();
  }

  /** O2. One statement. */
  async #findActor({ boxcar_project: project, boxcar_agent: agent }: Claims): Promise<Actor> {
    const found = await this.#askActor(project ?? this.#settings.project, agent ?? OPERATOR);
    if (found.isArchived) deny('The project of the token is archived.');
    if (agent !== undefined && found.agentId === found.operatorId)
      deny('The token names no agent of its project.');
    return found;
  }

  async #askActor(project: string, agent: string): Promise<Actor> {
    try {
      return await findActor(this.#options.runtime.pool, project, agent);
    } catch (error) {
      const isUnknown = error instanceof KernelError && ['not_found', 'bad_request'].includes(error.code);
      return isUnknown
        ? deny('The token names no project, or no agent of its project.')
        : Promise.reject(error);
    }
  }
}

/** Accepts the tokens of an issuer. It asks the issuer when the first token arrives. */
export const openTokenDoor = (settings: OAuthSettings, options: TokenDoorOptions): TokenDoor =>
  new IssuedTokens(settings, options);
