/**
 * Accepts tokens of an issuer, in addition to API keys.
 *
 * O1  A token is accepted when the issuer signed it with an asymmetric key, its audience is this server and it is valid now. The client
 *     does not learn the reason of a refusal.
 * O2  It acts for the operator of its project, or for the agent that it names, with exactly the scopes in the token. An agent never
 *     decides.
 * O3  All tokens of one subject count as one key.
 * O4  No log line and no error contains a token.
 * Rule: docs/reference/mcp.md, "OAuth".
 */
import { createHash } from 'node:crypto';
import type { CallPrincipal, TokenDoor } from '@boxcar/http';
import { KernelError, SCOPES, type Scope, safeParse, tryParseId } from '@boxcar/kernel';
import { type Actor, findActor, type Log, type Runtime } from '@boxcar/runtime';
import {
  decodeJwt,
  decodeProtectedHeader,
  errors,
  type JWTPayload,
  jwtVerify,
  type ProtectedHeaderParameters,
} from 'jose';
import { z } from 'zod';
import { OPERATOR } from '../client-scope.js';
import { Issuer, type IssuerTimes } from './issuer.js';
import type { OAuthSettings } from './settings.js';

/** Tolerance for differing clocks. */
const TOLERANCE_S = 5;

/** Only asymmetric signatures. With a symmetric algorithm every verifier of tokens could also issue them. */
const ALGORITHMS = [
  ...['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'],
  ...['ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'],
] as NonNullable<NonNullable<Parameters<typeof jwtVerify>[2]>['algorithms']>;

/** Tokens for other purposes have other types (RFC 8725). */
const TYPES: ReadonlySet<string | undefined> = new Set([undefined, 'jwt', 'at+jwt', 'application/at+jwt']);

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

/** A hash of issuer and subject in the form of a key id. */
function keyIdOf(issuer: string, subject: string): CallPrincipal['keyId'] {
  const digest = createHash('sha256')
    .update(JSON.stringify([issuer, subject]))
    .digest('hex');
  const id = tryParseId<'key'>(digest.slice(0, 32));
  if (id === undefined) throw new Error('the digest is not a valid id');
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

  /** See O1. */
  async #verify(token: string): Promise<Claims> {
    try {
      this.#look(decodeProtectedHeader(token), decodeJwt(token));
      const { issuer, audiences } = this.#settings;
      const { payload } = await jwtVerify(token, this.#issuer.keyOf, {
        issuer,
        audience: [...audiences],
        algorithms: ALGORITHMS,
        clockTolerance: TOLERANCE_S,
        requiredClaims: ['exp', 'sub'],
      });
      const claims = safeParse(claimsSchema, payload);
      return claims.success ? (claims.data as Claims) : refuse();
    } catch (error) {
      if (error instanceof KernelError) throw error;
      // A key of the issuer is not usable: this is logged for the operator.
      if (error instanceof errors.JOSEError)
        this.#options.log('debug', 'oauth.token_refused', { reason: error.code });
      else this.#options.log('warn', 'oauth.key_unusable', { error });
      return refuse();
    }
  }

  /** Tokens of other issuers and expired tokens are refused without a request to the issuer, which may be unreachable. */
  #look({ kid, typ }: ProtectedHeaderParameters, { iss, exp }: JWTPayload): void {
    if (kid === undefined || !TYPES.has(typ?.toLowerCase())) refuse();
    if (iss !== this.#settings.issuer) refuse();
    if (typeof exp !== 'number' || (exp + TOLERANCE_S) * 1000 <= Date.now()) refuse();
  }

  /** See O2. One SQL statement. */
  async #findActor({ boxcar_project: project, boxcar_agent: agent }: Claims): Promise<Actor> {
    const found = await this.#askActor(project, agent);
    if (found.isArchived) deny('The project of the token is archived.');
    if (agent !== undefined && found.agentId === found.operatorId)
      deny('The token names no agent of its project.');
    return found;
  }

  async #askActor(project: string | undefined, agent: string | undefined): Promise<Actor> {
    try {
      return await findActor(
        this.#options.runtime.pool,
        project ?? this.#settings.project,
        agent ?? OPERATOR,
      );
    } catch (error) {
      if (!(error instanceof KernelError) || !['not_found', 'bad_request'].includes(error.code)) throw error;
      if (project !== undefined || agent !== undefined)
        return deny('The token names no project, or no agent of its project.');
      this.#options.log('error', 'oauth.no_project', { project: this.#settings.project });
      throw new KernelError('permission_denied', {
        message: 'The token names no project, and this server has none for such tokens.',
        next: 'Start the server with --project, or have the issuer name a project in boxcar_project.',
      });
    }
  }
}

/** Accepts the tokens of an issuer. The first request to the issuer is made when the first token arrives. */
export const openTokenDoor = (settings: OAuthSettings, options: TokenDoorOptions): TokenDoor =>
  new IssuedTokens(settings, options);
