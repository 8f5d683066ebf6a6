/** An issuer of tokens on this machine, for tests: it generates its keys and serves the documents that clients request. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';

/** Includes claims that no token may have. */
export type Claims = Readonly<Record<string, unknown>>;

export interface TestIssuer extends AsyncDisposable {
  readonly url: string;
  /** The requested paths, in order. */
  readonly asked: string[];
  /** The public key that it currently publishes. */
  readonly publicKey: CryptoKey;
  /** The published address of its keys, which may differ from the real one. */
  jwksUri: string;
  /** Replaces every answer. */
  broken: ((answer: ServerResponse) => void) | undefined;
  readonly jwk: JWK;
  /** Keys that it publishes in addition to its own. */
  readonly otherKeys: object[];
  /** An additional member of its metadata. */
  padding: string;
  /** The answer at unknown paths. */
  elsewhere: ((answer: ServerResponse) => void) | undefined;
  /** The path of its metadata. */
  metadataPath: string;
  /** The issuer that its metadata name. */
  calledIssuer: string;
  /** Publishes another key from now on. @param algorithm - Default: RS256. */
  rotate(algorithm?: string): Promise<void>;
  /** A token for `audience`, valid for ten minutes. Claims that are undefined are left out. */
  token(claims?: Claims, header?: { readonly kid?: string | null; readonly typ?: string }): Promise<string>;
}

const lifeS = 600;
export const nowS = (): number => Math.floor(Date.now() / 1000);

/** @param options.path - The path of the issuer, such as `/tenant`. */
export async function openIssuer({
  audience,
  path = '',
}: {
  readonly audience: string;
  readonly path?: string;
}): Promise<TestIssuer> {
  const asked: string[] = [];
  let current = await newKey(1);
  const server = createServer((request, answer) => {
    asked.push(request.url ?? '');
    if (issuer.broken !== undefined) return issuer.broken(answer);
    if (request.url === '/token') return void giveToken(request, answer);
    const documents: Record<string, unknown> = {
      [issuer.metadataPath]: {
        issuer: issuer.calledIssuer,
        padding: issuer.padding,
        jwks_uri: issuer.jwksUri,
        authorization_endpoint: `${origin}/authorize`,
        token_endpoint: `${origin}/token`,
        response_types_supported: ['code'],
        grant_types_supported: ['client_credentials'],
        token_endpoint_auth_methods_supported: ['client_secret_basic'],
      },
      '/keys': { keys: [current.jwk, ...issuer.otherKeys] },
    };
    const found = documents[request.url ?? ''];
    if (found === undefined && issuer.elsewhere !== undefined) return issuer.elsewhere(answer);
    answer.writeHead(found === undefined ? 404 : 200, { 'content-type': 'application/json' });
    answer.end(JSON.stringify(found ?? {}));
  });
  /** Gives any client the token that it requests. */
  async function giveToken(request: IncomingMessage, answer: ServerResponse): Promise<void> {
    const form = new URLSearchParams(await text(request));
    const scope = form.get('scope') ?? '';
    const token = await issuer.token({ scope, aud: form.get('resource') ?? '', sub: 'program' });
    answer.writeHead(200, { 'content-type': 'application/json' });
    answer.end(JSON.stringify({ access_token: token, token_type: 'Bearer', expires_in: lifeS, scope }));
  }
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const url = `${origin}${path}`;
  const issuer: TestIssuer = {
    url,
    asked,
    jwksUri: `${origin}/keys`,
    broken: undefined,
    elsewhere: undefined,
    metadataPath: `/.well-known/oauth-authorization-server${path}`,
    calledIssuer: url,
    otherKeys: [],
    padding: '',
    get jwk() {
      return current.jwk;
    },
    get publicKey() {
      return current.publicKey;
    },
    rotate: async (algorithm) => {
      current = await newKey(Number(current.jwk.kid) + 1, algorithm);
    },
    token: (claims = {}, { kid = current.jwk.kid ?? null, ...header } = {}) =>
      new SignJWT({ iss: url, aud: audience, sub: 'ada', exp: nowS() + lifeS, scope: 'mcp:call', ...claims })
        .setProtectedHeader({ alg: current.algorithm, ...header, ...(kid === null ? {} : { kid }) })
        .sign(current.privateKey),
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return issuer;
}

interface Pair {
  readonly publicKey: CryptoKey;
  readonly privateKey: CryptoKey;
  readonly jwk: JWK;
  readonly algorithm: string;
}

async function newKey(number: number, algorithm = 'RS256'): Promise<Pair> {
  const { publicKey, privateKey } = await generateKeyPair(algorithm, { extractable: true });
  const jwk = { ...(await exportJWK(publicKey)), kid: String(number), use: 'sig' };
  return { publicKey, privateKey, jwk, algorithm };
}
